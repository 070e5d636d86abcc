"""What a compiler does not check: arrows between folders, banned words, lengths, shapes, traces of a machine.

    python3 tests/tidy/tidy.py [--write-baseline]     prints one line per finding; exit code 1 if there is one

Functions may have 70 lines. Those that were longer when this rule came are in long_functions.txt with their length,
which may only shrink; --write-baseline writes down that they did. In the cores a class or struct may have 25 functions
and 20 fields; what was larger is in large_types.txt. Files of a core do not include each other in a circle. How many
lines of a core bear a comment for each line of code is in comments.txt: at most the goal, and it may only rise.
"""
import ast
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpp  # noqa: E402 (the path has to come first)
import shapes  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASELINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "long_functions.txt")
LARGE_TYPES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "large_types.txt")
COMMENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "comments.txt")
COMMENTS_GOAL = {"h": 0.35, "cc": 0.08}
MAX_FILE_LINES, MAX_FUNCTION_LINES = 800, 70
MAX_TYPE_FUNCTIONS, MAX_TYPE_FIELDS = 25, 20
_TOP = ["proto", "launcher", "agent", "worker", "common", "tests", "deploy", ".ci"]
_CPP = (".h", ".cc", ".cu", ".cuh")
_CODE = _CPP + (".py", ".sh", ".cmake", ".proto")
_OURSELVES = "tests/tidy/"  # Names what it forbids.

CORES = ("launcher/coordinator/core", "agent/core")
# Where code generated from proto/ may be known: the edges.
PROTO_USERS = ("launcher/coordinator/shell", "launcher/cli", "agent/shell", "agent/shim", "common/rpc", "worker/train",
               "worker/checkpoint")
# Who may include whom inside worker/: only folders of a lower level.
WORKER_LEVELS = {"tensor": 0, "layout": 1, "kernels": 1, "comm": 1, "plan": 2, "model": 2, "optim": 2, "data": 2,
                 "checkpoint": 2, "train": 3}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)
_WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_CORE_WORDS = re.compile(r"\b(random_device|sleep_for|sleep_until|usleep|nanosleep|system_clock|steady_clock|"
                         r"high_resolution_clock|gettimeofday|clock_gettime|mutex|thread|atomic|fstream|unordered_map|"
                         r"unordered_set|flat_hash_map|flat_hash_set|spdlog|grpc|sqlite3)\b")
_GETENV = re.compile(r"\b(secure_getenv|getenv|setenv|putenv|unsetenv)\s*\(")
_EXIT = re.compile(r"(?<![\w.>:])(?:std::|::)?(?:exit|quick_exit)\s*\(")
_MACHINE = re.compile(r"(?<![\w.$}~-])/(?:work|root|home/(?!user|u/)[a-z]\w*|Users/\w+)(?=/\w)")
# DESIGN §7: one pool of threads for all computation, and no rounding that a compiler may choose.
_MATH = tuple(f"worker/{folder}" for folder in ("tensor", "kernels", "layout", "model", "plan", "optim", "data"))
_SECOND_POOL = re.compile(r"std::(?:jthread|thread|async|execution)\b|\bGOMP_\w+|\bomp_\w+|#\s*pragma\s+omp\b|<thread>")
_OWN_THREADS = ("worker/kernels/parallel_for.", "worker/data/batch_reader.")  # The pool, and a thread that computes nothing.
_FAST_MATH = re.compile(r"^[^#\n]*(-ffast-math|-Ofast|-funsafe-math-optimizations|-fassociative-math)", re.MULTILINE)
_GRPC_OPERATION = re.compile(r"\b(StartRead|StartWrite|Finish)\s*\(")
_GUARD = re.compile(r"^#pragma once\b", re.MULTILINE)


def tree(root):
    """{path: text} of every text file of ours below `root`."""
    found = {}
    names = [name for name in os.listdir(root) if os.path.isfile(os.path.join(root, name))]
    paths = [name for name in names if name != ".git"]
    for top in _TOP:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = [f for f in folders if f != "__pycache__"]
            paths += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    for path in sorted(paths):
        try:
            with open(os.path.join(root, path), encoding="utf-8") as f:
                found[path] = f.read()
        except UnicodeDecodeError:
            continue  # A binary file: nothing here applies.
    return found


def _line(text, position):
    return text.count("\n", 0, position) + 1


def _inside(path, folders):
    return path.startswith(tuple(folder + "/" for folder in folders))


def _product(path):
    return path.endswith(_CPP) and not path.startswith("tests/")


def arrow(path, target):
    """Why the file `path` may not include `target`, or None."""
    here, there = path.split("/")[0], target.split("/")[0]
    if there not in _TOP:
        return None  # A library's header.
    if there == "tests" and here != "tests":
        return "the product does not include its tests"
    if here == "tests":
        return None
    if there == "proto" and not _inside(path, PROTO_USERS):
        return "generated code stays at the edges"
    if _inside(path, CORES) and not target.startswith(("common/base/", os.path.dirname(path) + "/")):
        return "a core includes common/base and its own folder only"
    if path.startswith("common/base/") and not target.startswith("common/base/"):
        return "common/base includes nothing of ours"
    if there in ("launcher", "agent", "worker") and there != here:
        return f"{here} does not know {there}: they meet in proto/"
    if here == there == "worker":
        return _worker_arrow(path.split("/")[1], target.split("/")[1])
    if path.startswith("launcher/coordinator/") and target.startswith("launcher/cli/"):
        return "the coordinator does not know the command line"
    return None


def _worker_arrow(mine, other):
    if mine == other or WORKER_LEVELS.get(other, 0) < WORKER_LEVELS.get(mine, 99):
        if mine == "model" and other == "comm":
            return "a model does not know its communicator"
        return None
    return f"worker/{mine} may not include worker/{other}"


def check_arrows(path, text):
    if not path.endswith(_CPP):
        return
    for match in _INCLUDE.finditer(text):
        kind, target = match.groups()
        if kind == '"' and (why := arrow(path, target)):
            yield _line(text, match.start()), f'includes "{target}": {why}'


def check_words(path, text):
    if path.startswith(_OURSELVES):
        return
    for match in _WORDS.finditer(text):
        yield _line(text, match.start()), f"{match.group()}: do it or file it"
    for match in _MACHINE.finditer(text):
        yield _line(text, match.start()), f"{match.group()}: a folder of somebody's machine"
    if not _product(path):
        return
    code = cpp.blank(text)
    if _inside(path, CORES):
        for match in _CORE_WORDS.finditer(code):
            yield _line(text, match.start()), f"{match.group()} in a core, which has time, order and chance given to it"
    if not path.startswith("common/config/"):
        for match in _GETENV.finditer(code):
            yield _line(text, match.start()), f"{match.group().strip('( ')}: only common/config reads the environment"
    if not path.endswith("main.cc"):
        for match in _EXIT.finditer(code):
            yield _line(text, match.start()), "exit() below main"


def check_math(path, text):
    if path.endswith(("CMakeLists.txt", ".cmake")):
        for match in _FAST_MATH.finditer(text):
            yield _line(text, match.start(1)), f"{match.group(1)}: NaN and the order of sums must stay"
    if path.endswith(_CPP) and _inside(path, _MATH) and not path.startswith(_OWN_THREADS):
        for match in _SECOND_POOL.finditer(cpp.blank(text)):
            yield _line(text, match.start()), f"{match.group()}: ParallelFor is the only pool of threads here"


def check_callbacks(path, text):
    """PROTOCOL §6: gRPC's callbacks only post; the loop alone reads, writes and finishes."""
    if not _inside(path, ("launcher/coordinator/shell",)) or not path.endswith(_CPP):
        return
    lines = cpp.blank(text).split("\n")
    for name, first, last in cpp.functions(text):
        if re.match(r"\s*void On\w+\(.*\boverride\b", lines[first - 1]):
            for call in _GRPC_OPERATION.findall("\n".join(lines[first - 1:last])):
                yield first, f"{name} calls {call}: a callback of gRPC only posts"


def check_layout(path, text):
    if not path.endswith(_CODE + ("CMakeLists.txt", ".md", ".json")) and path != "dev":
        return
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "trailing whitespace"
        if "\t" in line and path.endswith(_CPP + (".py",)):
            yield number, "a tab"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"
    if len(lines) - 1 > MAX_FILE_LINES and not path.endswith(".md"):
        yield MAX_FILE_LINES, f"{len(lines) - 1} lines, {MAX_FILE_LINES} are allowed"
    if path.endswith(".h") and not _GUARD.search(text):
        yield 1, "a header without #pragma once"


def function_lengths(path, text):
    """{name: (first line, number of lines)} of the functions of a file that are too long."""
    if path.endswith(_CPP):
        found = cpp.functions(text)
    elif path.endswith(".py"):
        found = [(node.name, node.lineno, node.end_lineno) for node in ast.walk(ast.parse(text))
                 if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    else:
        return {}
    return {name: (first, last - first + 1) for name, first, last in found if last - first + 1 > MAX_FUNCTION_LINES}


def read_baseline(path=BASELINE):
    """{(file, function): lines}"""
    with open(path, encoding="utf-8") as f:
        rows = [line.split() for line in f if line.strip() and not line.startswith("#")]
    return {(file, function): int(lines) for file, function, lines in rows}


def check_functions(files, baseline):
    """Findings as (path, line, text): a function too long that is not in the baseline, or not as long as it says."""
    left = dict(baseline)
    for path, text in files.items():
        for name, (first, lines) in function_lengths(path, text).items():
            allowed = left.pop((path, name), MAX_FUNCTION_LINES)
            if lines > allowed:
                yield path, first, f"{name} has {lines} lines, {allowed} are allowed"
            elif lines < allowed:
                yield path, first, f"{name} has shrunk to {lines} lines: run tests/tidy/tidy.py --write-baseline"
    for (path, name), _ in left.items():
        yield path, 1, f"{name} is no longer too long: run tests/tidy/tidy.py --write-baseline"


def large_types(files):
    """{(file, type): (line, functions, fields)} of the types of the cores that have too many of either."""
    found = {}
    for path, text in files.items():
        if not (_inside(path, CORES) and path.endswith(_CPP)):
            continue
        for name, line, functions, fields in shapes.types(text):
            if functions > MAX_TYPE_FUNCTIONS or fields > MAX_TYPE_FIELDS:
                found[(path, name)] = (line, functions, fields)
    return found


def read_large_types(path=LARGE_TYPES):
    """{(file, type): (functions, fields)}"""
    with open(path, encoding="utf-8") as f:
        rows = [line.split() for line in f if line.strip() and not line.startswith("#")]
    return {(file, name): (int(functions), int(fields)) for file, name, functions, fields in rows}


def check_shapes(files, allowed):
    """Findings as (path, line, text): a type too large, or not as large as the list says; a circle of files."""
    left = dict(allowed)
    for (path, name), (line, functions, fields) in large_types(files).items():
        bound = left.pop((path, name), (MAX_TYPE_FUNCTIONS, MAX_TYPE_FIELDS))
        what = f"{name} has {functions} functions and {fields} fields"
        if functions > max(bound[0], MAX_TYPE_FUNCTIONS) or fields > max(bound[1], MAX_TYPE_FIELDS):
            yield path, line, f"{what}, {bound[0]} and {bound[1]} are allowed"
        elif (functions, fields) != bound:
            yield path, line, f"{what}, fewer than the list says: run tests/tidy/tidy.py --write-baseline"
    for (path, name), _ in left.items():
        yield path, 1, f"{name} is no longer too large: run tests/tidy/tidy.py --write-baseline"
    for folder in CORES:
        if circle := shapes.circle(files, folder):
            yield folder, 1, f"{', '.join(circle)} include each other in a circle"


def comments(files):
    """{(core, ending of its files): comment lines per code line}"""
    found = {}
    for core in CORES:
        for ending in COMMENTS_GOAL:
            counts = [shapes.explained(text) for path, text in files.items()
                      if _inside(path, (core,)) and path.endswith("." + ending)]
            if code := sum(count[1] for count in counts):
                found[(core, ending)] = sum(count[0] for count in counts) / code
    return found


def read_comments(path=COMMENTS):
    """{(core, ending): the least}"""
    with open(path, encoding="utf-8") as f:
        rows = [line.split() for line in f if line.strip() and not line.startswith("#")]
    return {(core, ending): float(least) for core, ending, least in rows}


def check_comments(files, least):
    for (core, ending), share in comments(files).items():
        if share < (bound := least.get((core, ending), 0)):
            yield core, 1, f"its .{ending} files have {share:.3f} comment lines per code line, {bound} is the least"


def check(files, baseline, types=(), least_comments=()):
    findings = []
    for path, text in files.items():
        for rule in (check_arrows, check_words, check_math, check_callbacks, check_layout):
            findings += [(path, line, what) for line, what in rule(path, text)]
    findings += check_functions(files, baseline)
    findings += check_shapes(files, types)
    findings += check_comments(files, dict(least_comments))
    return [f"{path}:{line}: {what}" for path, line, what in sorted(findings)]


def write_baseline(files, baseline):
    """Writes down what has shrunk; what has grown or is new stays a finding."""
    kept = []
    for path, text in files.items():
        for name, (_, lines) in function_lengths(path, text).items():
            if (path, name) in baseline:
                kept.append(f"{path} {name} {min(lines, baseline[(path, name)])}\n")
    with open(BASELINE, "w", encoding="utf-8") as f:
        f.write("# Functions over 70 lines, and how long each may be. Lines may go and numbers may fall.\n")
        f.writelines(sorted(kept))


def write_large_types(files, allowed):
    kept = []
    for (path, name), (_, functions, fields) in large_types(files).items():
        if (path, name) in allowed:
            bound = allowed[(path, name)]
            kept.append(f"{path} {name} {min(functions, bound[0])} {min(fields, bound[1])}\n")
    with open(LARGE_TYPES, "w", encoding="utf-8") as f:
        f.write("# Types of the cores with more than 25 functions or 20 fields: how many of each. Numbers may fall.\n")
        f.writelines(sorted(kept))


def write_comments(files, least):
    kept = {key: max(least.get(key, 0), min(COMMENTS_GOAL[key[1]], int(share * 100) / 100))
            for key, share in comments(files).items()}
    with open(COMMENTS, "w", encoding="utf-8") as f:
        f.write("# Comment lines per code line of each core: the least. Numbers may rise, to 0.35 in headers, 0.08 in sources.\n")
        f.writelines(sorted(f"{core} {ending} {share}\n" for (core, ending), share in kept.items()))


def main():
    files = tree(ROOT)
    if "--write-baseline" in sys.argv:
        write_baseline(files, read_baseline())
        write_large_types(files, read_large_types())
        write_comments(files, read_comments())
    findings = check(files, read_baseline(), read_large_types(), read_comments())
    print("\n".join(findings) or "tidy: nothing to say")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
