"""The project's docstrings as reStructuredText: plain text in which nothing but ``code``, roles and *titles* is markup.

What is read as structure: a title underlined with hyphens; "name: meaning" lines, continued by indented ones; "- "
lists; indented blocks, which are formulas (:mod:`ppl_site.formulas`), or code, which stays as it is; paragraphs, in
which letters with an index and names of Greek letters are symbols. Every other character that reStructuredText would
read as markup (``*``, ``|``, ``_``, a lone backtick) is escaped.
"""

from __future__ import annotations

import re
import textwrap

from ppl_site.formulas import SYMBOL, latex, lines_of

#: What keeps its meaning inside a line: roles, ``code``, and *titles* of works (no space after the first asterisk).
_KEPT = re.compile(r":[a-z:]+:`[^`]+`|``.+?``|(?<![\w*])\*(?=[A-Za-zÀ-ÿ])[^*]*[^*\s]\*(?![\w*])")
_KEPT_OR_SYMBOL = re.compile(rf"(?P<kept>{_KEPT.pattern})|{SYMBOL.pattern}")
_MARKUP = re.compile(r"([\\*`|_])")
#: "name: meaning", "first, second: meaning" and '"value": meaning'; names of errors, which begin with a capital, too.
_NAME = r'(?:[a-z_]\w*|[A-Z]\w*(?:Error|Warning)|"[\w ]+")'
_ITEM = re.compile(rf"({_NAME}(?:, {_NAME})*): (?=\S)")
_RULE = re.compile(r"-{3,}$")
#: The beginning of a line that docutils would read as a list, a directive or a field.
_STRUCTURE = re.compile(r"(\(?(?:[A-Za-z]|\d+|[ivxlcIVXLC]+)[.)]|[-+*•]|\.\.|::?)(\s|$)")
_ERROR = re.compile(r"\w+(?:Error|Warning)$")


def inline(text: str) -> str:
    """One line of text with its markup escaped."""
    parts, end = [], 0
    for kept in _KEPT_OR_SYMBOL.finditer(text):
        parts += [_MARKUP.sub(r"\\\1", text[end : kept.start()]), _apart(text, kept)]
        end = kept.end()
    escaped = "".join([*parts, _MARKUP.sub(r"\\\1", text[end:])])
    escaped = re.sub(r"::$", r":\\:", escaped)
    return f"\\ {escaped}" if _STRUCTURE.match(escaped) else escaped


def _apart(text: str, kept: re.Match[str]) -> str:
    """Markup must not touch letters: an escaped space, which shows as nothing, keeps them apart."""
    before = r"\ " if kept.start() and re.match(r"[^\s(\[{/:\"-]", text[kept.start() - 1]) else ""
    after = r"\ " if re.match(r"[^\s.,;:!?)\]}/\"-]", text[kept.end() : kept.end() + 1]) else ""
    return f"{before}{kept['kept'] or f':math:`{latex(kept.group())}`'}{after}"


def to_rst(text: str) -> list[str]:
    """The lines of a docstring (without its indentation) as lines of reStructuredText."""
    lines, out, at = text.expandtabs().splitlines(), [], 0
    while at < len(lines):
        if not lines[at].strip():
            at += 1
            continue
        block, at = _block(lines, at)
        out += [*block, ""]
    return out


def _block(lines: list[str], at: int) -> tuple[list[str], int]:
    """The block that begins with the line ``at``, and where the next one begins."""
    if _RULE.match(lines[at + 1] if at + 1 < len(lines) else ""):
        return [f".. rubric:: {inline(lines[at].strip())}"], at + 2
    if lines[at].startswith(" "):
        return _verbatim(lines, at)
    if _ITEM.match(lines[at]):
        return _items(lines, at)
    if lines[at].startswith("- "):
        return _bullets(lines, at)
    return _paragraph(lines, at)


def _verbatim(lines: list[str], at: int) -> tuple[list[str], int]:
    end = at
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
    body = textwrap.dedent("\n".join(lines[at:end])).strip("\n").splitlines()
    if lines_of(body):
        return [".. formulas::", "", *(f"    {line}".rstrip() for line in body)], end
    python = any(re.match(r"(from \S+ )?import |>>> ", line) for line in body)
    return [f".. code-block:: {'python' if python else 'text'}", "", *(f"    {line}".rstrip() for line in body)], end


def _indented(lines: list[str], at: int) -> tuple[str, int]:
    """The line ``at`` with the indented ones that continue it, as one."""
    end = at + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    return " ".join(line.strip() for line in lines[at:end]), end


def _items(lines: list[str], at: int) -> tuple[list[str], int]:
    out: list[str] = []
    while at < len(lines) and (item := _ITEM.match(lines[at])):
        text, at = _indented(lines, at)
        while not text.endswith((".", ":", ";", ")")) and at < len(lines) and _continues(lines, at):
            text, at = f"{text} {lines[at].strip()}", at + 1  # a sentence goes on below, without indentation
        out += [_term(item[1]), f"    {inline(text[item.end() :])}"]
    return out, at


def _term(names: str) -> str:
    marked = (f":exc:`{name}`" if _ERROR.match(name) else f"``{name}``" for name in names.split(", "))
    return ", ".join(marked)


def _bullets(lines: list[str], at: int) -> tuple[list[str], int]:
    out: list[str] = []
    while at < len(lines) and lines[at].startswith("- "):
        text, at = _indented(lines, at)
        out.append(f"- {inline(text[2:])}")
    return out, at


def _paragraph(lines: list[str], at: int) -> tuple[list[str], int]:
    end = at + 1
    while end < len(lines) and lines[end].strip() and not _begins_block(lines, end):
        end += 1
    return [inline(" ".join(line.strip() for line in lines[at:end]))], end


def _continues(lines: list[str], at: int) -> bool:
    return bool(lines[at].strip()) and not lines[at].startswith("- ") and not _ITEM.match(lines[at])


def _begins_block(lines: list[str], at: int) -> bool:
    """Whether the line ``at``, which follows another without a blank one between them, ends that one's paragraph."""
    if _RULE.match(lines[at + 1] if at + 1 < len(lines) else ""):
        return True
    if lines[at].startswith(" "):
        return lines[at - 1].rstrip().endswith(":") and not lines[at - 1].startswith(" ")
    return bool(_ITEM.match(lines[at])) and lines[at - 1].rstrip().endswith((".", ":", ")"))
