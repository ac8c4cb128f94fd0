"""HTML of models for notebooks, and the elements of which all HTML for notebooks is made.

Whatever comes from users is text in them, never markup.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from ppl_models.core.errors import is_real
from ppl_models.core.priors import describe_prior
from ppl_models.data.lazy import pandas as pd

#: Rows of a table, and labels of an axis, that are shown.
ROWS, LABELS = 20, 6
#: Characters of a cell, of which labels may be any number.
_WIDEST = 160
_STYLE = (
    "body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 } "
    "table { border-collapse: collapse; font-size: 13px } th, td { padding: .2rem .6rem; text-align: left } "
    "tr:nth-child(even) { background: #f4f4f4 } summary { cursor: pointer; margin: 1rem 0 .5rem }"
)


def display(title: str, *parts: str) -> str:
    """A title, and the parts, which are HTML, below each other."""
    return f"<div><strong>{escape(title)}</strong>{''.join(parts)}</div>"


def lines(title: str, values: Mapping[str, Any]) -> str:
    """A title, and names and values below it, as plain text; what is None is left out."""
    told = [f"  {name}: {shorten(_describe_value(value))}" for name, value in values.items() if value is not None]
    return "\n".join([title, *told])


def page(title: str, *parts: str) -> str:
    """A page by itself, which needs no other file and no network."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = f"<h1>{escape(title)}</h1>{''.join(parts)}"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def sentence(text: str) -> str:
    """A paragraph; the lines of the text are its lines."""
    return f"<p>{escape(shorten(text, 20 * _WIDEST)).replace(chr(10), '<br>')}</p>"


def facts(values: Mapping[str, Any]) -> str:
    """Two columns, names and values, of arrays the shapes; what is None is left out."""
    rows = [(name, shorten(_describe_value(value))) for name, value in values.items() if value is not None]
    return pd.DataFrame(rows).to_html(header=False, index=False, border=0) if rows else ""


def table(frame: pd.DataFrame, *, index: bool = True) -> str:
    """A frame, of which many rows or columns are left out in the middle."""
    named = frame.rename(index=shorten, columns=shorten)
    for place, kind in enumerate(named.dtypes):
        if kind.kind == "f":
            named.isetitem(place, pd.Series(write_numbers(named.iloc[:, place]), index=named.index, dtype=object))
    with pd.option_context("display.max_colwidth", _WIDEST):
        return named.to_html(border=0, index=index, max_rows=ROWS, max_cols=ROWS, na_rep="")


def write_numbers(values: Iterable[float], *, least: int = 0) -> list[str]:
    """Write numbers that stand together with as many decimals each as :func:`choose_decimals` says; "" for NaN."""
    numbers = [float(value) for value in values]
    places = choose_decimals(numbers, least=least)
    return ["" if math.isnan(value) else f"{value:.{places}f}" for value in numbers]


def choose_decimals(values: Iterable[float], *, least: int = 0) -> int:
    """Return how many decimals tell numbers apart that stand together: two digits of the smallest at least (of those
    that are no less than a hundredth of the largest), three of the largest from 1 on, and more where different ones
    would look the same.

    Differences of less than a thousandth of their range are none; more than eight decimals are never shown.
    """
    known = sorted({float(value) for value in values if math.isfinite(value)})
    largest = max(map(abs, known), default=0.0)
    if largest == 0 or all(value == round(value) for value in known):
        return least
    smallest = min(abs(value) for value in known if abs(value) >= largest / 100)
    needed = [least, 1 - math.floor(math.log10(smallest)), 2 - math.floor(math.log10(largest)) if largest >= 1 else 0]
    visible = max(known[-1] - known[0], largest / 10) / 1000
    gaps = [high - low for low, high in pairwise(known) if high - low > visible]
    if gaps:
        needed.append(math.ceil(-math.log10(min(gaps))))
    return min(8, max(needed))


def fold(summary: str, *parts: str) -> str:
    """Parts that show when their summary is clicked on."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


def picture(png: bytes, text: str) -> str:
    """An image within the page; text: what is read out instead."""
    encoded = base64.b64encode(png).decode()
    return f'<img src="data:image/png;base64,{encoded}" alt="{escape(text)}" style="max-width: 100%">'


def shorten(value: Any, length: int = _WIDEST) -> Any:
    """Text of a length at most; numbers as they are."""
    if is_real(value):
        return value
    text = str(value)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def list_labels(labels: Sequence[Any]) -> str:
    """The first of the labels."""
    text = ", ".join(str(shorten(label, 24)).replace("\n", " ") for label in labels[:LABELS])
    return text + ", …" * (len(labels) > LABELS)


def _describe_value(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    return value if shape is None else " x ".join(map(str, shape)) or f"{float(value):g}"


def of_model(model: Any) -> str:
    """The settings of a ``Model``, and a line for each site with its axes and its prior."""
    priors = {name: describe_prior(prior) for name, prior in model.priors.items()}
    sites = {
        name: {"role": site.role, "axes": ", ".join(site.axes), "prior": priors.get(name, "")}
        for name, site in model.sites.items()
    }
    frame = pd.DataFrame.from_dict(sites, orient="index")
    return display(type(model).__name__, sentence(model.summary), facts(model.settings()), table(frame))


def with_truth(title: str, truth: Mapping[str, Any], *parts: str) -> str:
    """Generated data or an example: its parts, and the shapes of what it was drawn from."""
    return display(title, *parts, fold("drawn from", facts(truth)))
