"""The adapter to ArviZ: 0.23 as it is installed; of 1.x, whose Python is newer, stand-ins with its signatures."""

from __future__ import annotations

import sys
import warnings
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.special import logsumexp

import custom_inference as ci
from custom_inference.faces.arviz_library import arviz
from ppl_models import MixtureOfCategoricals

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as installed


# Recorded from arviz 1.3.0 (arviz_stats 1.3.3); those of 1.0.0 have the same parameters, but for log_lik_fn and the
# last two of ``loo``. What the bodies return has the names and meanings of the originals.
def _loo(data, pointwise=None, var_name=None, reff=None, log_lik_fn=None, log_weights=None, pareto_k=None,
         log_jacobian=None, mixture=False, moment_match=False, model=None):  # fmt: skip
    assert isinstance(data, xr.DataTree) and pointwise and reff is not None
    (values,) = data["log_likelihood"].data_vars.values()
    units = [axis for axis in values.dims if axis not in ("chain", "draw")]
    values = values.transpose(*units, "chain", "draw")
    flat = values.values.reshape(len(values), -1)
    if log_weights is None:
        weights, k = _psislw(flat, r_eff=reff)
    else:
        assert log_weights.dims == values.dims and pareto_k.dims == (units[0],)
        weights, k = log_weights.values.reshape(flat.shape), pareto_k.values
    elpd = logsumexp(weights + flat, axis=1)
    return SimpleNamespace(
        elpd=elpd.sum(), se=(len(elpd) * elpd.var(ddof=1)) ** 0.5, n_samples=flat.shape[1], n_data_points=len(elpd),
        p=float(logsumexp(flat, axis=1).sum() - len(elpd) * np.log(flat.shape[1]) - elpd.sum()), scale="log",
        warning=bool((k > 0.7).any()), good_k=min(1 - 1 / np.log10(flat.shape[1]), 0.7),
        elpd_i=xr.DataArray(elpd, dims=units), pareto_k=xr.DataArray(k, dims=units), kind="loo",
    )  # fmt: skip


def _psislw(ary, r_eff=1, axis=-1):
    assert axis == -1
    return installed.psislw(-ary, reff=r_eff)


def _ess(data, sample_dims=None, group="posterior", var_names=None, filter_vars=None, coords=None, method="bulk",
         relative=False, prob=None, chain_axis=0, draw_axis=1):  # fmt: skip
    assert isinstance(data, np.ndarray) and (chain_axis, draw_axis) == (0, 1)
    return installed.ess({"x": data}, method=method)["x"].values


def _compare(compare_dict, method="stacking", var_name=None, reference=None, round_to="auto"):
    assert round_to == "none"
    order = sorted(compare_dict, key=lambda name: -compare_dict[name].elpd)
    best, found = compare_dict[order[0]].elpd, [compare_dict[name] for name in order]
    columns = {"rank": range(len(order)), "elpd_diff": [one.elpd - best for one in found]}
    return pd.DataFrame({**columns, "p": [one.p for one in found], "elpd": [one.elpd for one in found]}, index=order)


@pytest.fixture
def newer(monkeypatch):
    """ArviZ 1.x in the place of the installed one."""
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.3.0" if name == "arviz" else version(name))
    library: Any = ModuleType("arviz")
    library.loo, library.ess, library.compare = _loo, _ess, _compare
    base: Any = ModuleType("arviz_stats.base")
    base.array_stats = SimpleNamespace(psislw=_psislw)
    monkeypatch.setitem(sys.modules, "arviz", library)
    monkeypatch.setitem(sys.modules, "arviz_stats.base", base)


@pytest.fixture(scope="module")
def answers():
    return (np.random.default_rng(0).random((25, 3)) < 0.3).astype(float)


@pytest.fixture(scope="module")
def fits(answers) -> dict[str, ci.Fit]:
    model = MixtureOfCategoricals(num_components=1, num_features=3, num_categories=2)
    with_posterior = ci.VariationalEM(guide="vb").fit(model, answers, progress=False)
    settings = {"num_samples": 100, "warmup": 5, "thin": 1, "chains": 2}
    return {"vb": with_posterior, "gibbs": ci.CollapsedGibbs(**settings).fit(model, answers, progress=False)}


def both(fits: dict[str, ci.Fit], request: Any, ask: Any) -> tuple[Any, Any]:
    """What both versions say."""
    old = ask(fits)
    request.getfixturevalue("newer")
    return old, ask(fits)


@pytest.mark.parametrize("kind", ["vb", "gibbs"])
def test_leave_one_out_is_the_same_by_either_version(kind, fits, request):
    old, new = both(fits, request, lambda fits: ci.loo(fits[kind], num_draws=200, progress=False))
    assert (new.elpd, new.p_loo) == pytest.approx((old.elpd, old.p_loo)) and new.num_draws == old.num_draws == 200
    assert new.se == pytest.approx(old.se * (25 / 24) ** 0.5)  # 1.x takes the unbiased variance
    assert np.allclose(new.pointwise, old.pointwise) and np.allclose(new.pareto_k, old.pareto_k, equal_nan=True)
    assert new.good_k == pytest.approx(old.good_k) and new.table.index.equals(old.table.index)
    assert new.arviz.p == pytest.approx(new.p_loo)


def test_comparisons_have_the_same_columns_by_either_version(fits, request):
    old, new = both(fits, request, lambda fits: ci.compare_loo(fits, num_draws=200, progress=False))
    assert list(new.index) == list(old.index)
    for column in ("rank", "elpd_loo", "p_loo", "elpd_diff", "bad_k"):
        assert np.allclose(new[column].astype(float), old[column].astype(float)), column


def test_groups_are_those_of_a_tree(fits, newer, tmp_path):
    tree = fits["gibbs"].to_arviz(num_copies=10)
    assert isinstance(tree, xr.DataTree) and tree.attrs["model"] == "MixtureOfCategoricals"
    drawn = {"posterior_predictive", "prior", "prior_predictive"}
    assert set(tree.children) == {"posterior", "sample_stats", "log_likelihood", "observed_data", *drawn}
    assert tree["posterior"]["response"].dims == ("chain", "draw", "component", "feature", "category")
    tree.to_netcdf(tmp_path / "tree.nc")
    with xr.open_datatree(tmp_path / "tree.nc") as back:
        np.testing.assert_array_equal(back["posterior"]["response"], fits["gibbs"].draws["response"])


def test_checks_are_a_tree_too(fits, newer):
    check = ci.posterior_predictive_check(fits["gibbs"], num_samples=20, progress=False)
    assert isinstance(check.to_arviz(), xr.DataTree)


def test_summaries_are_asked_for_by_the_names_of_sites(fits, newer, monkeypatch):
    def summary(data, var_names=None, filter_vars=None, group="posterior", coords=None, sample_dims=None, kind="all",
                fmt="wide", ci_prob=None, ci_kind=None, round_to="auto", skipna=False):  # fmt: skip
        return pd.DataFrame({"mean": [float(data["posterior"][name].mean()) for name in var_names]}, index=var_names)

    monkeypatch.setattr(sys.modules["arviz"], "summary", summary, raising=False)
    table = arviz().summary(fits["gibbs"].to_arviz(num_copies=0), ["mixing_proportion"])
    assert table.loc["mixing_proportion", "mean"] == 1.0
