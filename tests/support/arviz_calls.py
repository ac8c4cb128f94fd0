"""ArviZ as tests call it, the same of 0.x and 1.x: names of plots and of groups differ, and what a plot returns."""

from __future__ import annotations

import warnings
from importlib import metadata
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz

OLD = metadata.version("arviz").startswith("0.")
#: What ``loo`` raises of data without a log likelihood.
NO_SCORES: tuple[type[Exception], ...] = (TypeError, ValueError, KeyError, AttributeError)
#: What 0.x has under another name, or not by the same settings, in 1.x.
_NEW_NAMES = {"plot_posterior": "plot_dist", "plot_ppc": "plot_ppc_dist"}


def group_names(data: Any) -> set[str]:
    """The groups of InferenceData, or of a DataTree."""
    return set(data.children) if isinstance(data, xr.DataTree) else set(data.groups())


def group(data: Any, name: str) -> xr.Dataset:
    """One of them, in memory."""
    found = data[name]
    return (found.to_dataset() if isinstance(found, xr.DataTree) else found).load()


def drawn(name: str, *arguments: Any, **settings: Any) -> None:
    """The plot of this name, as 0.x has it, draws something that can be laid out; its figures are closed."""
    before = plt.get_fignums()
    if OLD:
        axes = np.ravel(np.asarray(getattr(arviz, name)(*arguments, show=False, **settings), dtype=object))
        assert any(one.has_data() for one in axes)
        axes[0].figure.canvas.draw()
    else:
        renamed = {{"num_pp_samples": "num_samples"}.get(key, key): value for key, value in settings.items()}
        if renamed.get("group") == "prior":
            renamed["group"] = "prior_predictive"
        getattr(arviz, _NEW_NAMES.get(name, name))(*arguments, backend="matplotlib", **renamed)
        figure = plt.gcf()
        assert any(one.has_data() for one in figure.axes)
        figure.canvas.draw()
    for number in set(plt.get_fignums()) - set(before):
        plt.close(number)
