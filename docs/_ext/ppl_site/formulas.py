"""Formulas of docstrings, which are plain text there, as LaTeX: they are stated once, read well in ``help(NOCA)``, and
are typeset on the pages.

A block of formulas is an indented block whose lines have columns, two or more spaces apart:

    label       x_nj | z_n ~ Normal(sum_k z_nk w_kj, sigma^2)      a remark         (eq. 27.9)

Names of Greek letters, ``sum``, ``prod``, ``~``, ``_``, ``^`` and ``'`` (a transpose) mean what they do in plain text;
words of several letters that are no names of functions or laws are words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_GREEK = re.findall(
    r"\w+",
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega "
    "Gamma Delta Theta Lambda Sigma Phi Psi Omega",
)
_FUNCTIONS = {"log": r"\log", "exp": r"\exp", "min": r"\min", "max": r"\max", "sum": r"\sum", "prod": r"\prod"}
_NAMED = ("sigmoid", "softmax", "mean", "grad", "var", "cov", "Cov", "E", "Var", "diag", "DCG", "NDCG", "ICL")
_SHORT_WORDS = frozenset(re.findall(r"\w+", "of is or in at to by no so as it an on if we and the for"))
_SIGNS = {
    "~": r"\sim ", "|": r"\mid ", "->": r"\to ", "<-": r"\leftarrow ", "<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ",
    "...": r"\ldots ", "..": r"\ldots ", "*": r"\cdot ", "{": r"\{", "}": r"\}", "%": r"\%", "&": r"\&", "#": r"\#",
    "$": r"\$", "\\": r"\backslash ", "<": r"\lt ", ">": r"\gt ",
}  # fmt: skip
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<code>``[^`]*``)|(?P<abs>\|(?=[^\s|][^|]*(?<=\S)\|)(?:[^|]*)\|)"
    r"|(?P<propto>prop(?:ortional|\.) to\b)|(?P<dot>(?<=\s)\.(?=\s))|(?P<times>(?<=[A-Z]\s)x(?=\s[A-Z]))"
    r"|(?P<number>\d*\.?\d+(?:,(?=\d{3}\b)\d{3})*)|(?P<word>[A-Za-z]+(?:-[a-z]{3,})*(?:'s\b)?)"
    r"|(?P<sign>\.\.\.|\.\.|->|<-(?=\S)|<=|>=|!=|.)"
)
_RELATION = re.compile(r"(?:^|(?<=\s))(?:~|=|<=|>=|prop(?:ortional|\.) to)(?=\s)")
_CITATION = re.compile(r"\(.*\)$")
_LABEL = re.compile(r"[a-z]+(?: [a-z]+)*$|[A-Z]\w{3,}$")
_OF_REALS = re.compile(r"(?:\w+ )?in R\^\w+$")
#: Lines of code, of lists, of files, of algorithms.
_OTHER = re.compile(r"\s*(?:\d+\.\s|[a-z]+:\s|import |>>> )|.*(?:\.bin\b|:$)")
_RANGE = re.compile(r"\w+ (?:= .*\.\.|<=? \w+,?$)")
_SHAPES = re.compile(r"\w+ \([A-Z\w]+,[^~=]*\)(?:$|,)|\w+: ")
#: A symbol inside a sentence: a letter with an index, or the name of a Greek letter.
SYMBOL = re.compile(
    r"(?<![\w.\"'/=\\-])(?:(?!(?:delta|Delta|Gamma)\b)(?:" + "|".join(_GREEK) + r")(?:_(?:\w{1,3}\b(?!\()|\{[^{}]*\}))?"
    r"|(?:sum|prod)_(?:[a-z]{1,3}\b|\{[^{}]*\})"
    r"|[A-Za-z]_(?:(?!hat|loo|uci)[A-Za-z0-9]{1,3}\b(?![(_])|\{[^{}]*\}))(?:'(?=[A-Za-z(]| [a-z]_))?(?![\w=\"-])"
)


def latex(text: str, drawn: bool = False) -> str:
    """LaTeX of a formula in plain text; ``drawn``: whether it states what something is drawn from."""
    return _Reader(text, drawn).read()


class _Reader:
    """One formula, read from left to right."""

    def __init__(self, text: str, drawn: bool):
        self.tokens = [(found.lastgroup or "", found.group()) for found in _TOKEN.finditer(text)]
        self.at, self.drawn = 0, drawn

    def read(self, closing: str = "") -> str:
        """The formula up to the sign ``closing``, which is passed over."""
        out: list[str] = []
        while self.at < len(self.tokens):
            kind, value = self.tokens[self.at]
            if value == closing:
                self.at += 1
                break
            out.append(self.element(kind, value))
        return "".join(out).strip()

    def element(self, kind: str, value: str) -> str:
        """One token with its indices and powers."""
        if kind == "word" and self.is_text(value):
            return self.text()
        self.at += 1
        if kind == "space":
            return " "
        if kind == "sign" and value in "_^'":
            return self.attached(value)
        if kind == "sign" and value in "([":
            closing = ")" if value == "(" else "]"
            return f"{value}{self.read(closing)}{closing}"
        return self.symbol(kind, value)

    def symbol(self, kind: str, value: str) -> str:
        self.drawn = self.drawn or value == "~"
        match kind:
            case "word":
                return self.name(value)
            case "code":
                return rf"\text{{{value.strip('`')}}}"
            case "abs":
                return f"|{latex(value[1:-1])}|"
            case "propto":
                return r"\propto "
            case "dot":
                return r"\cdot "
            case "times":
                return r"\times "
        return _SIGNS.get(value, value)

    def is_text(self, word: str) -> bool:
        """Whether a word is one of a sentence, and no symbol, function or law."""
        following = self.tokens[self.at + 1][1] if self.at + 1 < len(self.tokens) else ""
        if following in ("_", "(", "[", "^") and word not in _SHORT_WORDS and "'" not in word:
            return False
        if word in ("a", "A", "I"):
            before, after = self.neighbour(-1), self.neighbour(1)
            return any(is_sentence(other) for other in (before, after))
        if word == "in" and re.match(r"[\[{R]|\d", self.neighbour(1)):
            return False
        return is_sentence(word) or (word == "mean" and is_sentence(self.neighbour(1)))

    def neighbour(self, step: int) -> str:
        at = self.at + 2 * step  # words are a space apart
        alone = 0 <= at < len(self.tokens) and self.tokens[self.at + step][0] == "space"
        return self.tokens[at][1] if alone else ""

    def text(self) -> str:
        """Words that follow each other."""
        words: list[str] = []
        before = self.at
        while self.at < len(self.tokens):
            kind, value = self.tokens[self.at]
            ends = kind == "sign" and value in ".:;'" and bool(words)
            if kind != "space" and not ends and not (kind == "word" and self.is_text(value)):
                break
            words.append(" " if kind == "space" else value)
            self.at += 1
        start = " " if words and before > 0 and self.tokens[before - 1][0] == "space" else ""
        end = " " if self.at < len(self.tokens) and self.tokens[self.at][1] not in ",)" else ""
        return rf"\text{{{start}{''.join(words).strip()}{end}}}"

    def name(self, word: str) -> str:
        following = self.tokens[self.at][1] if self.at < len(self.tokens) else ""
        if word == "in":
            return r"\in "
        if word == "log" and following[:1] == "2":
            self.at += 1
            return r"\log_2 "
        if word == "qbar":
            return r"\bar{q}"
        if word == "Gamma" and self.drawn:
            return r"\operatorname{Gamma}"
        if word in _GREEK:
            return rf"\{word} "
        if word in _FUNCTIONS:
            return f"{_FUNCTIONS[word]} "
        if word == "R" and following == "^" and self.tokens[max(self.at - 3, 0)][1] == "in":
            return r"\mathbb{R}"
        if len(word) > 2 and following == "_" and len(self.tokens[self.at + 1][1]) > 2:
            self.at += 2
            return rf"\text{{{word}_{self.tokens[self.at - 1][1]}}}"
        if word in _NAMED or (len(word) > 1 and following and following in "(["):
            return rf"\operatorname{{{word}}}"
        return rf"\mathrm{{{word}}}" if len(word) > 2 else word

    def attached(self, sign: str) -> str:
        """An index, a power or a transpose."""
        if sign == "'":
            return r"^{\top}"
        opened = self.tokens[self.at][1] if self.at < len(self.tokens) else ""
        if opened in ("{", "("):
            self.at += 1
            body = self.read("}" if opened == "{" else ")")
            numbered = sign == "^" and opened == "(" and re.fullmatch("[a-z]", body)  # which of several, no power
            return f"{sign}{{({body})}}" if numbered else f"{sign}{{{body}}}"
        return f"{sign}{{{self.short(sign)}}}"

    def short(self, sign: str) -> str:
        """What follows ``_`` or ``^`` without a bracket: letters and figures, a number, a name with its own index."""
        out = ""
        while self.at < len(self.tokens):
            kind, value = self.tokens[self.at]
            first = not out
            if not (kind in ("word", "number") or (first and value in "-*+") or (sign == "^" and value == "/")):
                break
            self.at += 1
            if kind == "word" and sign == "^" and value in _GREEK:
                out += rf"\{value} "
            elif kind == "word":
                out += value if len(value) <= 3 or value in _GREEK else rf"\text{{{value}}}"
            else:
                out += value
            if sign == "^" and self.at < len(self.tokens) and self.tokens[self.at][1] == "_":
                self.at += 1
                return out + self.attached("_")
        return out


def is_sentence(word: str) -> bool:
    """Whether a word, standing alone, is one of a sentence."""
    if word in _SHORT_WORDS:
        return True
    letters = len(word) > 2 and word.replace("'", "").replace("-", "").isalpha()
    return letters and word not in (*_GREEK, *_FUNCTIONS, *_NAMED, "qbar")


# ----- blocks -----------------------------------------------------------------------------------------------------


@dataclass
class Line:
    """A formula of a block: what it is a formula of, its sides, and what is said beside it."""

    label: str = ""
    left: str = ""
    right: str = ""
    remark: str = ""


def lines_of(block: Sequence[str]) -> list[Line] | None:
    """The formulas of a block; None where its lines are something else: code, a list, an algorithm."""
    if any(_OTHER.match(text) for text in block):
        return None
    found = [line for text in block if text.strip() for line in _lines(text)]
    words = [word for line in found for word in re.findall(r"[A-Za-z]+", f"{line.left} {line.right}")]
    return found if sum(map(is_sentence, words)) * 3 <= len(words) else None


def _lines(text: str) -> list[Line]:
    found: list[Line] = []
    columns = _columns(text)
    for place, column in enumerate(columns):
        relation = _main_relation(column)
        if not place and len(columns) > 1 and relation is None and _LABEL.match(column):
            found.append(Line(label=column))
        elif found and (_is_remark(column, relation) or not (relation or _open(found[-1]))):
            found[-1].remark = f"{found[-1].remark}  {column}".strip()
        else:
            line = found.pop() if found and found[-1] == Line(label=found[-1].label) else Line()
            left, right = (column[: relation.start()], column[relation.start() :]) if relation else ("", column)
            found.append(Line(line.label, left.strip(), right.strip().rstrip(",.")))
    return found


def _open(line: Line) -> bool:
    """Whether a line has a label alone so far."""
    return not line.left and not line.right


def _is_remark(column: str, relation: re.Match[str] | None) -> bool:
    if (relation is None and _CITATION.match(column)) or any(k.match(column) for k in (_RANGE, _SHAPES, _OF_REALS)):
        return True
    first, *rest = re.split(r"[\s,]+", column if relation is None else column[: relation.start()].strip())
    return is_sentence(first) and bool(rest or relation is None)


def _columns(text: str) -> list[str]:
    """The columns of a line; a side of a formula that is set apart, for it to stand below another, is none."""
    columns: list[str] = []
    for part in re.split(r"\s{2,}", text.strip()):
        open_ended = columns and re.search(r"(?:^|\s)(?:~|=|<=|\+|-|proportional to)$", columns[-1])
        inside = columns and columns[-1].count("(") > columns[-1].count(")")
        if inside or (columns and (re.match(r"(?:~|=|<=|\+|-|prop\S* to)(?:\s|$)", part) or open_ended)):
            columns[-1] = f"{columns[-1]} {part}"
        else:
            columns.append(part)
    return columns


def _main_relation(column: str) -> re.Match[str] | None:
    """The first ``~`` outside of brackets, or else the first other relation there."""
    outside = [
        found
        for found in _RELATION.finditer(column)
        if all(column[: found.start()].count(a) == column[: found.start()].count(b) for a, b in ("()", "[]", "{}"))
    ]
    return next((found for found in outside if found.group() == "~"), outside[0] if outside else None)


def is_mathematics(remark: str) -> bool:
    """Whether what is said beside a formula is one, too."""
    return bool(_RANGE.match(remark) or _OF_REALS.match(remark))
