"""Messages of the suite in the words of the command line: columns and rows, and options in place of arguments."""

from __future__ import annotations

import re

#: Where a problem lies: the model's observed site, and an axis of it.
_PLACE = re.compile(r"site '(?P<site>\w+)'(?:, axis '(?P<axis>\w+)')?: ")
#: A value of an argument in Python, with the option that says the same.
_BOTH = re.compile(r"""\b\w+=(?P<value>'[^']*'|"[^"]*"|\[[^\]]*\]|\w+) \((?P<option>--[\w-]+)(?P<given> [^)]*)?\)""")
#: Arguments that have no option beside them, and what commands have in their place.
_INSTEAD = {
    r" \(kind='\w+' in Python\)": "",
    r"documents\(column\) reads a column of texts \(--text COLUMN\)": "--text COLUMN reads a column of texts",
    r"expected numeric or boolean columns": "expected numeric or boolean columns, or --drop to leave it out, --id for "
    "the rows' names, --text for texts; answers in words are read by mixture_of_categoricals",
    r"graph\(source, weight=False\)": "--threshold 0",
    r"; positions=\([^)]*\) takes numbers": "",
    r"new='prior' takes": "--new takes",
    r"(\d+ unknown (?:features|columns) \(.*)$": r"\1; --drop NAMES leaves columns out",
    r"(\d+ columns are missing .*)$": r"\1, a column without entries where they are missing",
    r"\bfeature\b": "column",
    r"\bfeatures\b": "columns",
}


def in_words_of_commands(message: str) -> str:
    """The message on one line; "site 'x'" is left out, as a file has no other, and "feature" is a column."""
    said = _BOTH.sub(
        lambda found: found["option"] + (found["given"] or f" {found['value']}"), " ".join(message.split())
    )
    said = _PLACE.sub(lambda found: "" if found["site"] == "x" else f"{found['site']}: ", said)
    for python, command in _INSTEAD.items():
        said = re.sub(python, command, said)
    return said
