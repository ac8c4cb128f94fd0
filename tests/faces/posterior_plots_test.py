"""What the figures of posteriors show can be drawn by ArviZ too, from the same fit, with the same names and means."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from custom_inference import EM, NUTS, SVI, CollapsedGibbs, Fit, VariationalEM
from ppl_models import LDA, NOCA, SBM, MixtureOfPoissons
from tests.support import results
from tests.support.arviz_calls import OLD, drawn, group

pytestmark = [
    # ArviZ 0.23 with matplotlib 3.11: nothing of ours.
    pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping"),
    # A point estimate has no density.
    pytest.mark.filterwarnings("ignore:Your data appears to have a single value"),
    pytest.mark.filterwarnings("ignore:Attempting to set identical low and high"),
]

#: Of fits that have none of their own.
DRAWS = 50
QUIET: dict[str, Any] = {"progress": False, "seed": 0}


def _of(model: Any, method: Any) -> Fit:
    example = model.example()
    return method.fit(example.model, example.data, **QUIET)


#: Kinds of fits, and the plots of ours that suit each.
FITS: dict[str, tuple[Callable[[], Fit], tuple[str, ...]]] = {
    "EM of codes": (lambda: _of(NOCA, EM(search=None, max_iterations=5)), ("components", "loading", "source")),
    "mean field of codes": (
        lambda: _of(NOCA, VariationalEM(guide="mean_field", search=None, max_iterations=5)),
        ("components", "loading", "source"),
    ),
    "SVI of codes": (lambda: _of(NOCA, SVI(guide="mean_field", steps=5)), ("components", "loading", "source")),
    "NUTS of codes": (lambda: _of(NOCA, NUTS(warmup=5, num_samples=10, chains=1)), ("components", "loading", "source")),
    "Gibbs of classes": (
        lambda: _of(MixtureOfPoissons, CollapsedGibbs(chains=2, warmup=5, num_samples=20)),
        ("components", "loading", "source"),
    ),
    "variational Bayes of topics": (
        lambda: _of(LDA, VariationalEM(guide="vb", search=None, max_iterations=5)),
        ("components", "loading", "topics", "documents"),
    ),
    "variational Bayes of blocks": (
        lambda: _of(SBM, VariationalEM(guide="vb", search=None, max_iterations=5)),
        ("blocks", "memberships", "pies", "adjacency"),
    ),
    "Gibbs of blocks": (
        lambda: _of(SBM, CollapsedGibbs(chains=1, warmup=5, num_samples=20)),
        ("blocks", "memberships", "pies", "adjacency"),
    ),
}


@cache
def made(name: str) -> tuple[Fit, Any]:
    fit = FITS[name][0]()
    return fit, fit.to_arviz(num_draws=DRAWS)


def group_of(data: Any, site: str) -> Any:
    """The group that has the site, as a dataset, which all plots take."""
    return group(data, "posterior" if site in data.posterior else "point_estimates")


@pytest.mark.parametrize("name", FITS)
def test_what_the_figures_show_is_in_arviz(name):
    fit, data = made(name)
    for kind in FITS[name][1]:
        fit.plot(kind)
    component, local = fit.model.component_site, fit.model.local_site
    posterior, labels = data.posterior, fit.coords
    of_globals = group_of(data, component)
    assert of_globals[component].dims[2:] == fit.model.dims[component]
    for axis in of_globals[component].dims[2:]:
        assert of_globals[axis].values.tolist() == list(labels[axis])
    assert posterior[local].sizes[fit.model.row_axis] == len(fit.data)
    first = {axis: labels[axis][0] for axis in of_globals[component].dims[2:]}
    drawn("plot_forest", of_globals, var_names=[component], combined=True)
    drawn("plot_posterior", of_globals, var_names=[component], coords=first)
    row = {fit.model.row_axis: labels[fit.model.row_axis][0]}
    drawn("plot_forest", data, var_names=[local], coords=row, combined=True)
    drawn("plot_trace", of_globals, var_names=[component], coords=first)


@pytest.mark.parametrize("name", FITS)
def test_the_means_are_those_of_the_figures(name):
    fit, data = made(name)
    component, local = fit.model.component_site, fit.model.local_site
    globals_ = group_of(data, component)[component]
    spread = globals_.std(("chain", "draw")).values
    error = 6 * spread / np.sqrt(globals_.sizes["chain"] * globals_.sizes["draw"]) + 1e-9
    assert (np.abs(globals_.mean(("chain", "draw")).values - fit.params[component].numpy()) <= error).all()
    draws = data.posterior[local].mean(("chain", "draw")).values
    if fit.draws is None and draws.shape == tuple(fit.posterior.mean.shape):
        # Of independent draws in [0, 1] the mean has a standard error of at most half the root of their number.
        assert np.abs(draws - fit.posterior.mean.numpy()).max() <= 6 * 0.5 / np.sqrt(DRAWS)


def test_checks_are_plotted_by_arviz_too():
    check = results.check().to_arviz()
    drawn("plot_khat", results.left_out().arviz)
    if OLD:
        drawn("plot_ppc", check, kind="cumulative", num_pp_samples=5, random_seed=0)
        drawn("plot_bpv", check, kind="p_value")
    else:
        drawn("plot_posterior", check, group="posterior_predictive")
