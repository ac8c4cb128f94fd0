"""Displays of fits and their evaluations in notebooks: sentences, tables, small pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pandas as pd

from custom_inference.core.evaluate import component_report
from custom_inference.core.given_anew import describe_rows_given_anew
from custom_inference.core.objectives import objective_line
from custom_inference.core.result import Result
from custom_inference.faces import plots
from custom_inference.faces.drawing import Picture, apart_from_pyplot
from ppl_models import MethodError
from ppl_models.core import displays

#: Dots an inch of pictures in a page.
_DPI = 55
#: Components up to this many are shown as pictures.
_PICTURES = 24


@apart_from_pyplot()
def report(title: str, *texts: str, table: pd.DataFrame | None = None, plot: Callable[[], Any] | None = None) -> str:
    """Sentences, a table, and the small picture of a plot; without it where there is nothing to draw."""
    parts = [displays.sentence(text) for text in texts]
    if table is not None:
        parts.append(displays.table(table))
    if plot is not None:
        with contextlib.suppress(MethodError):
            parts.append(_picture(plot(), title))
    return displays.display(title, *parts)


@apart_from_pyplot()
def of_fit(fit: Result) -> str:
    """How the fit ended, its components, and what was fitted; where features are pixels the components as pictures."""
    name = type(fit.model).__name__
    title = f"Fit of {name} to {len(fit.data)} {fit.model.row_axis}s by {fit.method_name}"
    name, value = objective_line(fit, digits=4)
    anew = describe_rows_given_anew(fit)
    facts = {name: value, "seed": fit.seed} | ({"rows given anew": anew} if anew else {})
    parts = [displays.sentence(fit.status), displays.facts(facts)]
    if any("component" in fit.model.sites[site].dims for site in fit.model.global_sites):
        if plots.pixels_of(fit.column_names) is not None and len(fit.coords["component"]) <= _PICTURES:
            parts.append(_picture(plots.plot_components(fit), f"components of {name}"))
        parts.append(displays.table(component_report(fit)))
    else:
        parts.append(displays.table(_globals(fit)))
    if len(fit.elbo) > 1:
        parts.append(_picture(plots.plot_elbo(fit), "the objective by iteration"))
    return displays.display(title, *parts, displays.fold("model", fit.model._repr_html_()))


def _globals(fit: Result) -> pd.DataFrame:
    """A line for each global site: its shape, mean and ends."""
    rows = {
        site: {
            "shape": " x ".join(map(str, value.shape)),
            "mean": float(value.double().mean()),
            "smallest": float(value.min()),
            "largest": float(value.max()),
        }
        for site, value in fit.globals.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _picture(figure: Picture, text: str) -> str:
    figure.set_dpi(_DPI)
    return displays.picture(figure._repr_png_(), text)
