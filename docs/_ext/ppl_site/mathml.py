"""Formulas as MathML, written into the pages: browsers draw it themselves, with no script and no network."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.docutils import SphinxDirective

from ppl_site import formulas
from ppl_site.docstrings import inline

_OPENING = r'<mo stretchy="false">(?:&#x00028;|\[)'
_NAME = r"(?<!<msub>)(?<!<msup>)(?<!<munder>)<mi>[A-Za-z]{2,}</mi>"
#: What the converter writes, and what browsers need: names of functions are identifiers, with space about them where no
#: bracket gives it; "is drawn from" is a relation; a brace below is drawn as wide as what it is below.
_MENDED = (
    (re.compile(r"<mo>([A-Za-z]{2,})</mo>"), r"<mi>\1</mi>"),
    (re.compile(r"<mi>&#x0007E;</mi>"), "<mo>&#x0223C;</mo>"),
    (re.compile(rf"({_NAME})(?!{_OPENING}|</m(?!row)|$)"), r'\1<mspace width="0.17em"/>'),
    (
        re.compile(rf"(</m(?:i|n|text|sub|sup|subsup)>|&#x00029;</mo>|\]</mo>)(?={_NAME})"),
        r'\1<mspace width="0.17em"/>',
    ),
    (re.compile(r"^(<math[^>]*><mrow>)<mo>"), r'\1<mo form="infix">'),  # a side of a formula that stands apart
    (re.compile(r"<mo>&#x23DF;</mo>"), '<mo stretchy="true">&#x23DF;</mo>'),
)


def to_mathml(latex: str, display: str) -> str:
    """A formula as MathML that Chromium and Firefox draw as it is meant."""
    drawn = convert(latex, display=display)
    for written, needed in _MENDED:
        drawn = written.sub(needed, drawn)
    return drawn


def _inline(self: Any, node: Any) -> None:
    self.body.append(to_mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(self: Any, node: Any) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({node["number"]})</span>')
    self.body.append(to_mathml(node.astext().strip(), "block") + "</div>\n")
    raise nodes.SkipNode


class Formulas(SphinxDirective):
    """The formulas of a block of plain text, in columns."""

    has_content: ClassVar[bool] = True

    def run(self) -> list[nodes.Node]:
        lines = formulas.lines_of(list(self.content)) or []
        labelled = any(line.label for line in lines)
        group = nodes.tgroup(cols=3 + labelled)
        group += [nodes.colspec(colwidth=1) for _ in range(3 + labelled)]
        body = nodes.tbody()
        for line in lines:
            row = nodes.row()
            row += [self.cell([nodes.Text(line.label)])] if labelled else []
            row += [self.cell([_math(line.left)] if line.left else []), self.cell([_math(line.right)])]
            row += self.cell(self.remark(line.remark))
            body += row
        group += body
        return [nodes.table("", group, classes=["formulas"])]

    @staticmethod
    def cell(content: list[nodes.Node]) -> nodes.Node:
        entry = nodes.entry()
        if content:
            entry += nodes.paragraph("", "", *content)
        return entry

    def remark(self, text: str) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for part in text.split("  ") if text else []:
            found += [nodes.Text("  ")] if found else []
            if formulas.is_mathematics(part):
                found.append(_math(part))
            else:
                found += self.parse_inline(inline(part), lineno=self.lineno)[0]
        return found


def _math(text: str) -> nodes.Node:
    return nodes.math(text, formulas.latex(text))


def add(app: Any) -> None:
    app.add_directive("formulas", Formulas)
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
