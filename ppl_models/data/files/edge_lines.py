"""Lines of edge lists as text: without comments, and with the attributes that networkx writes behind the ends."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from ppl_models.core.errors import FileFormatError
from ppl_models.data.files.headers import end_columns

_COMMENTS = re.compile(r"^[#%].*$", re.MULTILINE)
#: A comment behind an edge: after a sign by itself; after two nodes and perhaps a number with any sign.
_ENDS = re.compile(r"[ \t]+#(?:[ \t].*)?$", re.MULTILINE)
_BEHIND = re.compile(r"^([ \t]*[^\s,#]+[ \t,]+[^\s,#]+(?:[ \t,]+[-+.\deE]+)?)[ \t]+#.*$", re.MULTILINE)
_ATTRIBUTES = re.compile(r"(.*?)[\s,;]*(\{.*\})\s*")
#: More letters than attributes of an edge have.
_LONG = 10_000


def without_comments(text: str) -> str:
    """A text without lines that begin with # or %, and without comments behind edges. Names may begin with #: of what
    stands behind two nodes and a weight such a sign makes a comment, elsewhere only one by itself."""
    text = _ENDS.sub("", _COMMENTS.sub("", text)).lstrip("\r\n")
    first = text.partition("\n")[0]
    return text if end_columns(first.split()) is not None else _BEHIND.sub(r"\1", text)


def are_edges_with_attributes(lines: list[str]) -> bool:
    """Whether all lines are two ends and attributes, as networkx writes an edge list."""
    parts = [_ATTRIBUTES.fullmatch(line) for line in lines]
    return bool(lines) and all(part is not None and len(part[1].replace(",", " ").split()) == 2 for part in parts)


def with_attributes(path: Path, text: str, weight: str | None) -> tuple[str, list[Any] | None]:
    """The lines of a text without the attributes behind each edge, ``0 1 {'weight': 4}``, and the weights, by default
    the attribute "weight", 1 where an edge has none; None where no edge has one, or there are no attributes.

    Raises FileFormatError for a line without attributes among others, and for attributes that no edge has.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines or not _ATTRIBUTES.fullmatch(lines[0]):
        return text, None
    ends, found = [], []
    for line in lines:
        parts = _ATTRIBUTES.fullmatch(line)
        attributes = None if parts is None or len(parts[2]) > _LONG else _read(parts[2])
        if parts is None or not isinstance(attributes, dict):
            raise FileFormatError(f"{path}: {line[:60]!r} ends without attributes; expected {{...}} behind every edge")
        ends.append(parts[1])
        found.append(attributes)
    name = weight or "weight"
    has_weight = any(name in one for one in found)
    if weight is not None and not has_weight:
        raise FileFormatError(f"{path}: no edge has the attribute {weight!r}")
    return "\n".join(ends), [one.get(name, 1) for one in found] if has_weight else None


@lru_cache(maxsize=1024)
def _read(literal: str) -> Any:
    """Evaluate a literal; no code is run."""
    return ast.literal_eval(literal)
