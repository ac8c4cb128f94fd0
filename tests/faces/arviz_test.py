"""Fits as ArviZ takes them: groups, dims, labels, and that ArviZ's own functions accept the result."""

from __future__ import annotations

import warnings
from dataclasses import replace

import custom_inference.arviz as conversion
import numpy as np
import pytest
import torch
import xarray as xr

from custom_inference.core import draws
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local, solve_local
from custom_inference.core.posteriors import BernoulliPosterior
from custom_inference.em.method import EM
from custom_inference.faces.arviz import to_arviz
from ppl_models import NOCA, Data, MethodError
from tests.support.fits import given

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    import arviz

# ArviZ 0.23 with matplotlib 3.11: nothing of ours.
PLOTTING = pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")
# A point estimate has no variance to divide by.
CONSTANT = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


@pytest.fixture(scope="module")
def labelled() -> Data:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    example = NOCA.example()
    torch.set_default_dtype(before)
    coords = {"feature": list("abcdef"), "row": [f"site {n}" for n in range(len(example.data))]}
    return Data(x=example.data.x, coords=coords)


@pytest.fixture(scope="module")
def point(labelled: Data) -> Fit:
    model = NOCA(num_components=3, num_features=6)
    return EM(search=None, max_iterations=40).fit(model, labelled, seed=0, progress=False)


@pytest.fixture(scope="module")
def sampled(point: Fit) -> Fit:
    """A fit with draws of its globals: two chains of jittered copies of the point estimate."""
    generator = torch.Generator().manual_seed(1)

    def jittered(value: torch.Tensor) -> torch.Tensor:
        noise = 0.3 * torch.randn(2, 60, *value.shape, generator=generator, dtype=value.dtype)
        return torch.sigmoid(torch.logit(value.clamp(0.02, 0.98)) + noise)

    draws = {site: jittered(value) for site, value in point.params.items()}
    params = {site: value.mean((0, 1)) for site, value in draws.items()}
    stats = {"lp": torch.zeros(2, 60), "diverging": torch.zeros(2, 60, dtype=torch.bool)}
    outcome = {"bound_name": "log joint (codes summed out)", "status": "drew 2 chains of 60", "method": "NUTS"}
    return given(point.model, params, point.data, elbo=torch.empty(0), draws=draws, sample_stats=stats, **outcome)


def test_a_point_estimate_is_repeated_and_says_so(point):
    data = to_arviz(point, num_draws=30)
    posterior = data.posterior
    assert posterior.attrs["globals"] == "point estimate"
    assert posterior["loading"].dims == ("chain", "draw", "component", "feature")
    assert posterior["loading"].shape == (1, 30, 3, 6)
    np.testing.assert_array_equal(posterior["leak"][0, 7], point.params["leak"])
    assert set(data.groups()) == {"posterior", "log_likelihood", "observed_data"}


@pytest.mark.quick
def test_labels_of_the_data_are_the_coordinates(point):
    data = to_arviz(point, num_draws=5, max_rows=10)
    assert data.posterior["feature"].values.tolist() == list("abcdef")
    assert data.posterior["row"].values.tolist() == [f"site {n}" for n in range(10)]
    value = data.posterior["loading"].sel(component=1, feature="c", chain=0, draw=0)
    assert float(value) == float(point.params["loading"][1, 2])
    assert data.observed_data["x"].sel(row="site 3", feature="b") == point.data.x[3, 1]


def test_draws_of_the_locals_have_the_posterior_mean(point):
    source = to_arviz(point, num_draws=4000, max_rows=20).posterior["source"]
    assert source.dims == ("chain", "draw", "row", "component")
    assert set(np.unique(source)) <= {0.0, 1.0}
    # Four standard errors of a proportion of 4000.
    np.testing.assert_allclose(source.mean(("chain", "draw")), point.posterior.mean[:20], atol=4 * 0.5 / 4000**0.5)


def test_locals_can_be_left_out(point, sampled):
    assert "source" not in to_arviz(point, locals_=False).posterior
    assert "source" not in to_arviz(sampled, locals_=False).posterior


@pytest.mark.quick
def test_the_log_likelihood_is_the_exact_one_of_every_draw(point, sampled):
    group = to_arviz(point, num_draws=3).log_likelihood
    assert group.attrs["bound"] == "exact"
    np.testing.assert_allclose(group["x"][0, 2], point.evidence)
    group = to_arviz(sampled).log_likelihood
    assert group["x"].dims == ("chain", "draw", "row")
    draw = {site: value[1, 17] for site, value in sampled.draws.items()}
    expected = solve_local(sampled.model, draw, sampled.data, bound="exact").bound
    np.testing.assert_allclose(group["x"][1, 17], expected)


def test_draws_of_the_fit_are_kept_with_their_statistics(sampled):
    data = to_arviz(sampled, num_draws=7)
    assert data.posterior.attrs["globals"] == "draws"
    np.testing.assert_array_equal(data.posterior["loading"], sampled.draws["loading"])
    assert data.posterior["source"].shape == (2, 60, 60, 3)
    assert data.sample_stats["diverging"].dims == ("chain", "draw")


def test_locals_of_draws_are_left_out_where_they_are_expensive(sampled, monkeypatch):
    monkeypatch.setattr(draws, "_CHEAP", 10.0)
    assert "source" not in to_arviz(sampled).posterior


def test_beyond_enumeration_the_fits_bound_stands_in_by_name():
    model = NOCA(num_components=20, num_features=30)
    params = {site: torch.full(shape, 0.1) for site, shape in model.shapes.items()}
    local = Local(BernoulliPosterior(torch.full((4, 20), 0.2)), torch.tensor([-1.0, -2.0, -3.0, -4.0]))
    fit = given(model, params, Data(x=torch.zeros(4, 30)), bound_name="mean_field", local=local)
    group = to_arviz(fit, num_draws=2).log_likelihood
    assert group.attrs["bound"] == "mean_field"
    np.testing.assert_array_equal(group["x"][0, 1], [-1.0, -2.0, -3.0, -4.0])


def test_missing_entries_are_nan_and_the_mask_is_kept(labelled):
    x = labelled.x.clone()
    x[::5, 2] = torch.nan
    model = NOCA(num_components=3, num_features=6)
    fit = EM(search=None, max_iterations=5).fit(model, x, seed=0, progress=False)
    data = to_arviz(fit, num_draws=2)
    np.testing.assert_array_equal(data.constant_data["mask"], ~torch.isnan(x))
    np.testing.assert_array_equal(np.isnan(data.observed_data["x"]), torch.isnan(x))


def test_attributes_say_where_it_came_from(point):
    data = to_arviz(point, num_draws=2)
    expected = {"model": "NOCA", "method": "EM", "status": point.status, "bound_name": "exact", "seed": 0}
    assert expected.items() <= data.attrs.items()
    assert expected.items() <= data.posterior.attrs.items()


def test_labels_that_repeat_or_mix_types_are_made_selectable(point):
    data = Data(x=point.data.x, coords={"feature": ["a", "a", "a (2)", "a", 5, 5]})
    names = to_arviz(replace(point, data=data), num_draws=2).posterior["feature"].values.tolist()
    assert names == ["a", "a (2)", "a (2) (2)", "a (3)", "5", "5 (2)"]


def test_numbers_of_draws_and_rows_are_checked(point):
    with pytest.raises(MethodError, match="num_draws = 0"):
        to_arviz(point, num_draws=0)


@CONSTANT
def test_arviz_summarises_both_kinds(point, sampled):
    table = arviz.summary(to_arviz(point, num_draws=20), var_names=["source_prior", "loading"])
    assert "loading[0, a]" in table.index
    assert table.loc["source_prior[1]", "mean"] == pytest.approx(float(point.params["source_prior"][1]), abs=1e-3)
    table = arviz.summary(to_arviz(sampled), var_names=["leak"])
    assert (table["r_hat"] < 1.1).all()


@PLOTTING
@pytest.mark.filterwarnings("ignore:Your data appears to have a single value:UserWarning")
@pytest.mark.parametrize("name", ["plot_trace", "plot_posterior", "plot_forest"])
def test_arviz_plots_it(name, point, sampled):
    import matplotlib.pyplot as plt

    if not hasattr(arviz, name):
        pytest.skip(f"this ArviZ has no {name}: 1.x renamed it")
    for fit in (point, sampled):
        getattr(arviz, name)(to_arviz(fit, num_draws=20), var_names=["source_prior"])
        plt.close("all")


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto distribution:UserWarning")
def test_arviz_computes_loo(point, sampled):
    # Of a point estimate, loo is its log-likelihood: there is nothing to reweight.
    loo = arviz.loo(to_arviz(point, num_draws=50))
    assert float(loo["elpd_loo"]) == pytest.approx(float(point.evidence.sum()))
    loo = arviz.loo(to_arviz(sampled))
    assert np.isfinite(float(loo["elpd_loo"]))


def test_netcdf_keeps_everything(point, tmp_path):
    data = to_arviz(point, num_draws=4)
    data.to_netcdf(str(tmp_path / "fit.nc"))
    back = arviz.from_netcdf(str(tmp_path / "fit.nc"))
    xr.testing.assert_identical(back.posterior.load(), data.posterior)
    assert back.attrs["method"] == "EM"


def test_for_arviz_1_it_is_a_datatree(sampled, monkeypatch, tmp_path):
    monkeypatch.setattr(conversion, "_takes_inference_data", lambda: False)
    tree = to_arviz(sampled)
    assert isinstance(tree, xr.DataTree)
    assert set(tree.children) == {"posterior", "sample_stats", "log_likelihood", "observed_data"}
    assert tree["posterior"]["loading"].dims == ("chain", "draw", "component", "feature")
    assert tree.attrs["model"] == "NOCA"
    tree.to_netcdf(tmp_path / "tree.nc")
    with xr.open_datatree(tmp_path / "tree.nc") as back:
        np.testing.assert_array_equal(back["posterior"]["leak"], sampled.draws["leak"])
