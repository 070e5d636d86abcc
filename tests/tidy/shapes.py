"""The shape of a core: how many functions and fields a type has, how much of it is explained, and whether files include
each other in a circle."""
import os
import re

import cpp

_TYPE = re.compile(r"\b(?:class|struct)\s+(\w+)\s*(?:final\s*)?(?::[^;{(]*)?\{")
_NO_MEMBER = re.compile(r"\s*(?:friend|using|typedef|static_assert)\b")
_LABEL = re.compile(r"^\s*(?:(?:public|private|protected)\s*:\s*)+")
_SAYS_NOTHING = re.compile(r"-{3,}|namespace\b|NOLINT")
_OWN_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)\.h"', re.MULTILINE)


def types(text):
    """(name, line, functions, fields) of each class and struct, nested ones by themselves."""
    code = cpp.blank(text)
    found = []
    for match in _TYPE.finditer(code):
        if re.search(r"\benum\s*$", code[:match.start()]):
            continue
        functions = fields = 0
        for member in _members(code[match.end():cpp.closing(code, match.end() - 1)]):
            kind, number = _kind(member)
            functions += number if kind == "function" else 0
            fields += number if kind == "field" else 0
        found.append((match.group(1), code.count("\n", 0, match.start()) + 1, functions, fields))
    return found


def explained(text):
    """(lines with a comment, lines of code). What only rules off, closes a namespace or has one word is no comment."""
    comments = code = 0
    for line, blank in zip(text.split("\n"), cpp.blank(text).split("\n")):
        code += bool(blank.strip())
        said = line[len(blank.rstrip()):].strip()
        if said.startswith("//") and len(re.findall(r"\w+", said)) > 1 and not _SAYS_NOTHING.match(said.lstrip("/ ")):
            comments += 1
    return comments, code


def circle(files, folder):
    """The files of `folder`, without their endings, that lie on a circle of includes; a header and its source are one."""
    arrows = {}
    for path, text in files.items():
        if os.path.dirname(path) == folder and path.endswith((".h", ".cc")):
            stem = os.path.splitext(path)[0]
            targets = {t for t in _OWN_INCLUDE.findall(text) if os.path.dirname(t) == folder and t != stem}
            arrows.setdefault(stem, set()).update(targets)
    while True:
        leaves = {stem for stem, targets in arrows.items() if not targets & set(arrows)}
        if not leaves:
            return sorted(os.path.basename(stem) for stem in _on_circle(arrows))
        for stem in leaves:
            del arrows[stem]


def _on_circle(arrows):
    """Without those that only lead to one."""
    left = dict(arrows)
    while True:
        roots = set(left) - {t for targets in left.values() for t in targets}
        if not roots:
            return left
        for stem in roots:
            del left[stem]


def _members(body):
    """Each member's declaration, with its braces as `{}`."""
    start = i = 0
    text = ""
    while i < len(body):
        if body[i] == "{":
            end = cpp.closing(body, i)
            text += body[start:i] + "{}"
            start = i = end + 1
            rest = body[start:].lstrip()
            if "(" in _no_templates(text) and not rest.startswith((";", ",", "{")) or re.match(r"\s*$", rest):
                yield text
                text = ""
            continue
        if body[i] == ";":
            yield text + body[start:i]
            text, start = "", i + 1
        i += 1


def _no_templates(text):
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return text


def _kind(member):
    member = _LABEL.sub("", member).strip()
    if not member or _NO_MEMBER.match(member):
        return "none", 0
    plain = _no_templates(re.sub(r"\s+", " ", member))
    nested = re.match(r"(?:class|struct|union|enum)\b[^{]*\{\}(.*)", plain)
    if nested:
        return "field", len([d for d in nested.group(1).split(",") if d.strip()])
    if re.match(r"(?:class|struct)\s+\w+$", plain) or re.match(r"(?:inline )?static constexpr\b", plain):
        return "none", 0
    head = re.split(r"=|\{", plain)[0]
    if "(" in head or "operator" in head:
        return "function", 1
    return "field", plain.count(",") + 1
