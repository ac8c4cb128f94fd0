"""The page that a report is written on: its elements, its look in the light and the dark, and the words that it uses.

Whatever comes from users is text in it, never markup.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Hashable, Iterable, Mapping
from html import escape, unescape

import pandas as pd

from custom_inference.faces.command_line.report.legend import explain_words
from ppl_models.core.displays import shorten, write_numbers

#: Rows of a table that are shown: of more those at the top.
_ROWS = 40
#: Characters of a cell, and from how many on it is text that may be broken.
_WIDEST, _TEXT = 400, 28
#: Bytes of a PNG before its width, which is four bytes; the share of it below which a figure is not made smaller.
_BEFORE_WIDTH, _SMALLEST = 16, 0.7
_STYLE = """
:root { color-scheme: light dark; --ink: #1d1f23; --paper: #ffffff; --muted: #5d636b; --line: #d9dce1;
  --band: #f4f5f7; --link: #0b57d0 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --paper: #16181c; --muted: #9aa1ab; --line: #363b43; --band: #1f2228; --link: #8ab4f8 } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 3rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; padding-top: .6rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem }
p { margin: .4rem 0; max-width: 48rem } a { color: var(--link) } p code { white-space: nowrap }
code, pre { font-size: .92em }
pre { background: var(--band); border-radius: 6px; padding: .4rem .7rem }
.short { background: var(--band); border-radius: 8px; padding: .6rem 1rem; margin: .8rem 0 }
.short p::before { content: "• "; color: var(--muted) }
.scroll { overflow-x: auto; margin: .5rem 0 }
table { border-collapse: collapse; font-size: 13px; overflow-wrap: normal }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
thead th { white-space: nowrap; color: var(--muted); font-weight: 600; border-bottom-width: 2px }
tbody th { white-space: nowrap; font-weight: 600 }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
thead th.number { text-align: right }
td.text { min-width: 14rem; max-width: 30rem }
figure { margin: .8rem 0 }
.card { background: #ffffff; border: 1px solid var(--line); border-radius: 8px; padding: 8px; margin: 0 }
.card img { display: block; height: auto; max-width: 100%; margin: 0 auto }
figcaption { color: var(--muted); font-size: 13px; margin-top: .3rem; max-width: 48rem }
summary { cursor: pointer; margin: .8rem 0 .4rem } dt { font-weight: 600; margin-top: .5rem }
dd { margin: 0 0 0 1rem; max-width: 48rem; color: var(--muted) }
"""


class Page:
    """A page that grows from top to bottom, and ends in a legend of the words on it."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]

    def head(self, text: str, level: int = 2) -> None:
        """Begin a section."""
        self._parts.append(f"<h{level}>{escape(text)}</h{level}>")

    def say(self, *sentences: str) -> None:
        """Add a paragraph for each; what stands between `backquotes` is set as code."""
        self._parts += map(_paragraph, sentences)

    def show_command(self, command: str) -> None:
        """Add a line for a shell, which is never broken."""
        self._parts.append(f'<pre class="scroll">{escape(command)}</pre>')

    def summarise(self, sentences: Iterable[str]) -> None:
        """Add sentences that stand out."""
        self._parts.append(f'<div class="short">{"".join(map(_paragraph, sentences))}</div>')

    def list_facts(self, facts: Mapping[str, str | None]) -> None:
        """Add names and values below each other; what is None is left out."""
        known = {name: value for name, value in facts.items() if value is not None}
        rows = [f"<tr><th scope=row>{escape(n)}</th><td>{_mark_code(v)}</td></tr>" for n, v in known.items()]
        self._parts.append(f'<div class="scroll"><table class="facts"><tbody>{"".join(rows)}</tbody></table></div>')

    def tabulate(self, frame: pd.DataFrame) -> None:
        """Add a table without its columns that say nothing, and with digits that tell the numbers of a column apart."""
        self._parts.append(write_table(leave_out_trivial(frame)))
        if len(frame) > _ROWS:
            self.say(f"The first {_ROWS} of {len(frame)} lines.")

    def picture(self, png: bytes, caption: str, text: str) -> None:
        """Add a figure. text: what is read out instead of it."""
        width = int.from_bytes(png[_BEFORE_WIDTH : _BEFORE_WIDTH + 4])
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        image = (
            f'<img src="{source}" alt="{escape(text)}" width="{width}" style="min-width: {_SMALLEST * width:.0f}px">'
        )
        self._parts.append(
            f'<figure><div class="card scroll">{image}</div><figcaption>{escape(caption)}</figcaption></figure>'
        )

    def link(self, files: Mapping[str, str]) -> None:
        """Add links to files beside the page. files: name -> what is in it."""
        rows = [f'<li><a href="{escape(name)}">{escape(name)}</a>: {escape(what)}</li>' for name, what in files.items()]
        self._parts.append(f"<ul>{''.join(rows)}</ul>")

    def fold(self, summary: str, html: str) -> None:
        """Add HTML that shows when its summary is clicked on."""
        self._parts.append(f'<details><summary>{escape(summary)}</summary><div class="scroll">{html}</div></details>')

    def write(self) -> str:
        """Return the HTML of the page, with its legend."""
        body = "".join(self._parts)
        words = explain_words(find_headings(body), unescape(re.sub(r"<[^>]*>", " ", body)))
        if words:
            listed = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in words.items())
            body += f"<h2>Words on this page</h2><dl>{listed}</dl>"
        view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
        head = f'<meta charset="utf-8">{view}<title>{escape(self.title)}</title><style>{_STYLE}</style>'
        return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def find_headings(html: str) -> list[str]:
    """Return the names of columns and of facts."""
    return list(
        dict.fromkeys(unescape(found) for found in re.findall(r"<th scope=(?:col|row)[^>]*>([^<]*)</th>", html))
    )


def leave_out_trivial(frame: pd.DataFrame) -> pd.DataFrame:
    """Leave out columns that are False, empty or NaN in every row, which say nothing."""
    kept = [name for name in frame if any(_says_something(value) for value in frame[name])]
    return frame.loc[:, kept]


def _says_something(value: Hashable) -> bool:
    return not (value is False or value is None or value == "" or value != value or str(value) == "False")


def _paragraph(text: str) -> str:
    return f"<p>{_mark_code(text)}</p>"


def _mark_code(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text)).replace("\n", "<br>")


def write_table(frame: pd.DataFrame) -> str:
    """Return the HTML of a table, in a box that it scrolls in."""
    shown = frame.head(_ROWS)
    cells = {name: _write_column(pd.Series(shown[name])) for name in shown}
    marks = {name: ' class="number"' if shown[name].dtype.kind in "fiu" else "" for name in shown}
    first = "" if frame.index.name is None else str(frame.index.name)
    top = f"<th scope=col>{escape(first)}</th>" if first or not _is_counted(frame) else ""
    top += "".join(f"<th scope=col{marks[name]}>{escape(str(name))}</th>" for name in shown)
    rows = []
    for place, label in enumerate(shown.index):
        line = f"<th>{escape(str(shorten(label)))}</th>" if first or not _is_counted(frame) else ""
        for name in shown:
            text = cells[name][place]
            mark = marks[name] or (' class="text"' if len(text) > _TEXT else "")
            line += f"<td{mark}>{escape(text)}</td>"
        rows.append(f"<tr>{line}</tr>")
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _is_counted(frame: pd.DataFrame) -> bool:
    """Whether the rows have no names but 0, 1, ..."""
    numbers: list[Hashable] = list(range(len(frame)))
    return list(frame.index) == numbers


def _write_column(values: pd.Series) -> list[str]:
    if values.dtype.kind == "f":
        return write_numbers(values)
    return ["" if value != value else str(shorten(value, _WIDEST)) for value in values]
