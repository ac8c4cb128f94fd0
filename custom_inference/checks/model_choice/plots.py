"""The figure of a comparison of models: every criterion with its error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from custom_inference.faces.drawing import INK, Panels, Sheet, shorten
from ppl_models import MethodError, Model

_LABELS = {"heldout": "nats a {unit}", "loo": "nats", "evidence": "log p(x), nats", "bic": "BIC, less is better"}
_BEST = "#c8510c"


class Compared(Protocol):
    """What the figure shows of a comparison of models."""

    @property
    def table(self) -> pd.DataFrame: ...

    @property
    def models(self) -> Mapping[str, Model]: ...

    @property
    def unit(self) -> str: ...

    @property
    def criteria(self) -> Sequence[str]: ...

    @property
    def best(self) -> Mapping[str, Sequence[str]]: ...


def plot_models(found: Compared, *, title: str | None = None, axes: Panels | None = None) -> Any:
    """A panel for every criterion that some model has: its values, two standard errors about them, the best in colour.

    Models of one class with different numbers of components stand at these; others side by side.

    Raises MethodError where no criterion has a number.
    """
    shown = [name for name in found.criteria if bool(found.table[name].notna().any())]
    if not shown:
        raise MethodError("no criterion has a number for any model: there is nothing to draw")
    places = _number_components(found)
    numbered = places is not None
    at = np.arange(len(found.table), dtype=float) if places is None else places
    sheet = Sheet.grid(axes, len(shown), len(shown), 3.1 * len(shown) + 0.4, 3.2)
    for panel, criterion in zip(sheet.panels, shown, strict=True):
        _draw(panel, found, criterion, at, joined=numbered)
        panel.set_title(criterion, fontsize=9)
        panel.set_ylabel(_LABELS[criterion].format(unit=found.unit), fontsize=8)
        if numbered:
            panel.set_xlabel("components", fontsize=8)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            names = [shorten(name, 18) for name in found.table.index]
            panel.set_xticks(at, names, rotation=30, ha="right", fontsize=7)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    return sheet.finish(title, f"{len(found.table)} models, \u00b1 2 standard errors", fontsize=10)


def _number_components(found: Compared) -> np.ndarray | None:
    """Return the numbers of components, if nothing else tells the models apart."""
    models = [found.models[str(name)] for name in found.table.index]
    if len({type(model) for model in models}) > 1 or not all(model.has_components for model in models):
        return None
    sizes = [model.sizes["component"] for model in models]
    return np.array(sizes, dtype=float) if len(set(sizes)) == len(sizes) else None


def _draw(axes: Axes, found: Compared, criterion: str, at: np.ndarray, *, joined: bool) -> None:
    value = found.table[criterion].to_numpy(dtype=float)
    error = np.zeros_like(value)
    if f"{criterion}_error" in found.table:
        error = 2 * np.nan_to_num(found.table[f"{criterion}_error"].to_numpy(dtype=float))
    there = np.isfinite(value)
    best = np.isin(found.table.index.astype(str), found.best[criterion][:1])
    for chosen, colour in ((there & ~best, INK), (there & best, _BEST)):
        axes.errorbar(at[chosen], value[chosen], yerr=error[chosen], fmt="o", color=colour, capsize=3, markersize=4)
    if joined:
        order = np.argsort(at[there])
        axes.plot(at[there][order], value[there][order], color=INK, linewidth=0.8, zorder=0)
    axes.margins(x=0.15)
