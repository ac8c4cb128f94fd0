"""The adapter to ArviZ: whichever is installed; where that is 0.23, also stand-ins with the signatures of 1.x."""

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
from custom_inference.faces.arviz_library import arviz, rename_paths
from ppl_models import MixtureOfCategoricals

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz as installed

OLD = metadata.version("arviz").startswith("0.")


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
    if (np.ptp(ary, axis=-1) == 0).any():
        raise ValueError("All tail values are the same")
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
    if not OLD:
        pytest.skip("ArviZ 1.x is installed: all tests run with it")
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


def test_names_with_slashes_are_written_with_dots(tmp_path):
    """Trees and netCDF files take "/" for a path."""
    group = xr.Dataset({"layer/weight": (("chain", "draw", "unit/one"), np.zeros((1, 4, 2)))}, {"unit/one": ["a", "b"]})
    taken = xr.Dataset({"layer.weight": ("unit/one", np.ones(2))})
    data = arviz().container({"posterior": group, "constant_data": taken}, {})
    posterior = data["posterior"]
    assert set(posterior.data_vars) == {"layer.weight_"} and posterior["layer.weight_"].dims[2:] == ("unit.one",)
    assert posterior["layer.weight_"].attrs["long_name"] == "layer/weight"
    assert float(data["constant_data"]["layer.weight"].sum()) == 2.0
    data.to_netcdf(tmp_path / "data.nc")
    assert group.attrs == {} and "layer/weight" in group  # what was given is as it was
    assert rename_paths({"x": taken.rename({"unit/one": "unit"})})["x"].equals(taken.rename({"unit/one": "unit"}))


def test_equal_weights_have_no_tail_to_smooth():
    """All of one weight, or the largest of one weight, beside a line that has a tail."""
    rng = np.random.default_rng(0)
    tied = np.minimum(rng.standard_normal(200), -0.5)
    lines = np.stack([np.full(200, 3.0), tied, rng.standard_normal(200)])
    weights, k = arviz().smooth(lines)
    assert k[0] == k[1] == -np.inf and np.isfinite(k[2])
    assert np.allclose(weights[:2], lines[:2] - logsumexp(lines[:2], axis=1, keepdims=True))
    assert np.allclose(logsumexp(weights, axis=1), 0.0)
    assert np.array_equal(arviz().smooth(lines[2:])[0], weights[2:])


def test_leave_one_out_by_plain_sums():
    """Weights whose tails are equal are not smoothed: every number is a sum over draws."""
    each = np.tile([[-1.0, -2.0, -3.0], [-1.5, -2.0, -2.0]], (30, 1)).reshape(2, 30, 3)
    values = xr.Dataset({"x": (("chain", "draw", "row/a"), each)}, {"row/a": [0, 1, 2]})
    found = arviz().loo(values)
    flat = each.reshape(60, 3)
    assert np.allclose(found.pointwise, -np.log(np.exp(-flat).mean(0))) and found.num_draws == 60
    assert found.elpd == pytest.approx(found.pointwise.sum())
    assert found.p_loo == pytest.approx(np.log(np.exp(flat).mean(0)).sum() - found.elpd)
    assert (found.pareto_k == -np.inf).all() and found.se > 0 and not found.data.warning
    assert "elpd_loo" in repr(found.data)
