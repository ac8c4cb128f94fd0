"""What the components of a fit are: their strongest features, the rows that show each best, and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from custom_inference.core.evaluate import component_order
from custom_inference.core.fit import Fit
from custom_inference.core.registry import presentation_of
from custom_inference.core.summary import describe_sites
from ppl_models.core.displays import choose_decimals, shorten, write_numbers
from ppl_models.data.held import to_numpy

Array = NDArray[Any]
#: Rows and features that are named of each component.
_ROWS, _FEATURES = 3, 3
#: Rows show a component where their posterior mean of it is at least so much of the largest of all.
_VISIBLE = 0.1
#: Features are named where their number is at least so much of the largest of the component.
_NAMED = 0.01


def name_best_rows(fit: Fit) -> dict[str, str]:
    """Return component -> the rows of the largest posterior mean of it, with these; of factors, which have both signs,
    also the rows at the other end. Components that no row shows are left out.

    Where more rows share the largest mean than are named, their number is said, as any of them would do.
    """
    mean, first = to_numpy(fit.transform()), len(fit.model.before_components)
    names = fit.component_names
    if mean.ndim != 2 or mean.shape[1] != first + len(names):
        return {}
    mean, rows = mean[:, first:], fit.coords[fit.model.row_axis]
    labels = [f"{fit.model.row_axis} {row}" if str(row).isdecimal() else str(shorten(row, 24)) for row in rows]
    visible = _VISIBLE * float(np.abs(mean).max(initial=0.0))
    signed = float(mean.min(initial=0.0)) < -1e-9
    found = {}
    for k in component_order(fit):
        parts = [_name_rows(mean[:, k], labels, visible)]
        if signed:
            low = _name_rows(-mean[:, k], labels, visible, sign=-1.0)
            parts.append(f"at the other end {low}" if low else "")
        text = "; ".join(part for part in parts if part)
        if text:
            found[names[k]] = text
    return found


def _name_rows(values: Array, labels: list[str], visible: float, sign: float = 1.0) -> str:
    order = np.argsort(-values, kind="stable")[:_ROWS]
    order = order[values[order] >= max(visible, 1e-12)]
    if not len(order):
        return ""
    tied = int((values >= values[order[0]] - 1e-3 * abs(values[order[0]])).sum())
    if tied > _ROWS:
        named = ", ".join(labels[n] for n in order)
        return f"{tied} at {write_numbers([float(sign * values[order[0]])], least=2)[0]}, among them {named}"
    numbers = write_numbers(sign * values[order], least=2)
    return ", ".join(f"{labels[n]} {number}" for n, number in zip(order, numbers, strict=True))


def name_strongest(fit: Fit, top: int) -> list[str]:
    """Return the features with the largest numbers of each component, with these, in the order of all tables; those
    that are as good as 0 beside the largest of the component are left out."""
    shown = presentation_of(fit.model)
    values = to_numpy(shown.matrix(fit.model, fit.globals))
    labels = shown.labels_of(fit.model, fit.column_names, fit.data)
    order = component_order(fit)
    found = [_find_strongest(values[k], top) for k in order]
    numbers = [float(values[k, j]) for k, chosen in zip(order, found, strict=True) for j in chosen]
    places = choose_decimals(numbers, least=2)
    return [
        ", ".join(f"{labels[j]} {values[k, j]:.{places}f}" for j in chosen)
        for k, chosen in zip(order, found, strict=True)
    ]


def _find_strongest(values: Array, top: int) -> Array:
    """Return the places of the largest numbers, at least one and none that is as good as 0 beside it."""
    order = np.argsort(-np.abs(values), kind="stable")[:top]
    sizes = np.abs(values[order])
    return order[: max(1, int((sizes > _NAMED * float(sizes.max(initial=0.0))).sum()))]


def list_intervals(fit: Fit) -> pd.DataFrame:
    """Return the 90 % intervals of the numbers that say most: of each component those that it has one of, and those of
    its strongest features; an empty table where only points are known."""
    model, order, names = fit.model, component_order(fit), fit.component_names
    described = {site: one for site, one in describe_sites(fit).items() if "component" in model.dims[site]}
    shown, lines = presentation_of(model), []
    known = {
        site: {name: np.moveaxis(each, model.dims[site].index("component"), 0) for name, each in one.items()}
        for site, one in described.items()
        if "q5" in one
    }
    for k in order:
        for site, one in known.items():
            if one["q5"].ndim == 1:
                lines.append((names[k], site.replace("_", " "), *(float(one[c][k]) for c in ("mean", "q5", "q95"))))
        one = known.get(model.component_site)
        if one is None or one["q5"].ndim < 2:
            continue
        labels = shown.labels_of(model, fit.column_names, fit.data)
        flat = {column: values[k].ravel() for column, values in one.items()}
        if len(labels) != len(flat["mean"]):
            continue
        for j in _find_strongest(flat["mean"], _FEATURES):
            lines.append((names[k], str(labels[j]), *(float(flat[c][j]) for c in ("mean", "q5", "q95"))))
    table = pd.DataFrame(lines, columns=["component", "quantity", "mean", "q5", "q95"])
    return table.set_index("component")
