"""As much of C++ as tidy needs: text without comments and strings, and where functions begin and end."""
import re

_TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
      |(?P<raw>R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)")
      |(?P<string>"(?:\\.|[^"\\\n])*")
      |(?P<number>\b\d[\w.']*)
      |(?P<char>'(?:\\.|[^'\\\n])+')""", re.DOTALL | re.VERBOSE)
_CONTAINER = re.compile(r"^\s*(?:(?:inline|export)\s+)*(?:namespace|extern)\b|^\s*(?:template\s*<.*>\s*)?"
                        r"(?:typedef\s+)?(?:class|struct|union|enum)\b(?![^{]*\)\s*(?:const|noexcept|override|\s)*$)",
                        re.DOTALL)
_AFTER_PARAMETERS = {"const", "noexcept", "override", "final", "try", "mutable"}


def blank(text):
    """The same text with comments and strings as spaces, so that every line and column stays where it is."""
    def replace(match):
        return match.group() if match.lastgroup == "number" else re.sub(r"[^\n]", " ", match.group())
    return _TOKEN.sub(replace, text)


def _is_brace_initializer(statement):
    """Is a `{` after `statement` part of an expression, and not the start of a body?"""
    stripped = statement.rstrip()
    if not stripped or stripped[-1] in "=,([<?&|+":
        return True
    word = re.search(r"(\w+|>)\s*$", stripped)
    if word is None:
        return False
    if word.group(1) in _AFTER_PARAMETERS:
        return False
    # `Foo() : a_{1}` is an initializer, `auto f() -> Foo {` is not.
    return re.search(r"\)[^()]*[^:]:[^:]", stripped) is not None or "(" not in stripped


def functions(text):
    """(name, first line, last line) of each function body; lambdas and local classes belong to the one around them."""
    code = re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m.group()), blank(text),
                  flags=re.MULTILINE)
    found, containers, start, i = [], 0, 0, 0
    while i < len(code):
        c = code[i]
        if c == "{":
            statement = code[start:i]
            if _CONTAINER.match(statement):
                containers += 1
                start = i + 1
            else:
                end = closing(code, i)
                if not _is_brace_initializer(statement):
                    if "(" in statement:
                        found.append(_function(code, statement, start, end))
                    start = end + 1
                i = end
        elif c == ";":
            start = i + 1
        elif c == "}":
            containers -= 1
            start = i + 1
        i += 1
    return found


def closing(code, opening):
    """Where the brace that opens there is closed."""
    depth = 0
    for i in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return len(code) - 1


def _function(code, statement, start, end):
    label = re.match(r"(\s*(public|private|protected)\s*:)*\s*", statement)
    first = start + label.end()
    head = re.sub(r"\brequires\b.*", "", statement).split("(")[0]
    if re.search(r"\bTEST(_[FP])?\s*$", head):
        name = re.sub(r"\s+", "", statement[statement.index("("):statement.index(")") + 1])
    else:
        name = (re.search(r"([~\w:]+|operator\S*)\s*$", head) or re.search(r"(\S*)\s*$", head)).group(1)
    return name, code.count("\n", 0, first) + 1, code.count("\n", 0, end) + 1
