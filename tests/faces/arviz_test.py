"""Fits as ArviZ takes them: groups, dims, labels, and that ArviZ's own functions accept the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from custom_inference.checks.leave_one_out import loo
from custom_inference.checks.predictive_check import posterior_predictive_check
from custom_inference.core import draws
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local, solve_local
from custom_inference.core.posteriors import BernoulliPosterior
from custom_inference.em.method import EM, VariationalEM
from custom_inference.faces import arviz_groups
from custom_inference.faces.arviz import to_arviz
from custom_inference.svi.method import SVI
from ppl_models import MODELS, NOCA, Data, MethodError, MixtureOfCategoricals
from tests.support.arviz_calls import NO_SCORES, arviz, group_names
from tests.support.fits import given

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


def test_a_point_estimate_is_one_draw_in_a_group_of_its_own(point):
    data = to_arviz(point, num_draws=30)
    assert data.posterior.attrs["globals"] == "point estimate" and set(data.posterior) == {"source"}
    assert data.posterior.attrs["point_estimates"] == "source_prior, loading, leak"
    points = data.point_estimates
    assert points["loading"].dims == ("chain", "draw", "component", "feature")
    assert points["loading"].shape == (1, 1, 3, 6)
    np.testing.assert_array_equal(points["leak"][0, 0], point.params["leak"])
    drawn, always = {"posterior_predictive", "prior", "prior_predictive"}, {"posterior", "point_estimates"}
    assert group_names(data) == {*always, "observed_data", *drawn}
    assert group_names(to_arviz(point, num_draws=30, num_copies=0)) == {*always, "observed_data"}


@pytest.mark.quick
def test_labels_of_the_data_are_the_coordinates(point):
    data = to_arviz(point, num_draws=5, max_rows=10)
    assert data.point_estimates["feature"].values.tolist() == list("abcdef")
    assert data.posterior["row"].values.tolist() == [f"site {n}" for n in range(10)]
    value = data.point_estimates["loading"].sel(component=1, feature="c", chain=0, draw=0)
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
def test_the_log_likelihood_is_the_exact_one_of_every_draw(sampled):
    group = to_arviz(sampled).log_likelihood
    assert group["x"].dims == ("chain", "draw", "row") and group.attrs["bound"] == "exact"
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


def test_of_points_there_is_no_log_likelihood_and_arviz_refuses_to_compare_them(point):
    """It does not vary there, so that leave-one-out would take the globals to be known."""
    data = to_arviz(point, num_draws=3)
    assert "point estimate" in data.posterior.attrs["log_likelihood"]
    with pytest.raises(NO_SCORES):
        arviz.loo(data)


def test_what_leave_one_out_warns_of_leaves_without_a_table_for_arviz():
    """A guide too far from the posterior: ``loo`` says so of every row, and ArviZ, which cannot, is given nothing."""
    example = MixtureOfCategoricals.example()
    fit = SVI(guide="normal", steps=30).fit(example.model, example.data, progress=False)
    with pytest.warns(UserWarning, match="not to be relied on"):
        ours = loo(fit, num_draws=100, progress=False)
    assert ours.approximation_k is not None and ours.approximation_k > 0.7
    data = to_arviz(fit, num_draws=100, num_copies=0)
    assert "log_likelihood" not in group_names(data)
    assert "use custom_inference.loo" in data.posterior.attrs["log_likelihood"]
    with pytest.raises(NO_SCORES):
        arviz.loo(data)
    with pytest.raises(NO_SCORES):
        arviz.compare({"one": data, "two": data})


def test_a_log_likelihood_that_is_asked_for_is_attached_or_refused(point, sampled):
    with pytest.raises(MethodError, match="log_likelihood=True.*point estimate"):
        to_arviz(point, log_likelihood=True)
    assert "log_likelihood" not in group_names(to_arviz(sampled, log_likelihood=False, num_copies=0))
    assert "approximation" not in to_arviz(sampled, log_likelihood=True, num_copies=0).log_likelihood.attrs


def test_draws_of_an_approximate_posterior_are_scored_each():
    """Two classes of two categories: log sum_k pi_k prod_j b_kj(x_j) in NumPy, at the draws that the group has."""
    x = np.random.default_rng(0).integers(0, 2, (12, 3)).astype(float)
    model = MixtureOfCategoricals(num_components=2, num_features=3, num_categories=2)
    fit = VariationalEM(guide="vb").fit(model, x, progress=False)
    with pytest.warns(UserWarning, match="those of an approximation"):
        data = to_arviz(fit, num_draws=40, log_likelihood=True)
    assert data.posterior.attrs["globals"] == "approximate posterior"
    pi, b = (data.posterior[site].values[0] for site in ("mixing_proportion", "response"))
    each = np.where(x[:, None] == 1, b[:, None, :, :, 1], b[:, None, :, :, 0]).prod(-1)  # (draw, row, class)
    expected = np.log((pi[:, None] * each).sum(-1))
    np.testing.assert_allclose(data.log_likelihood["x"][0], expected, rtol=1e-9)
    assert data.log_likelihood["x"].std("draw").min() > 0.01


def test_beyond_enumeration_a_bound_stands_in_by_name(point):
    model = NOCA(num_components=20, num_features=30)
    params = {site: torch.full(shape, 0.1) for site, shape in model.shapes.items()}
    local = Local(BernoulliPosterior(torch.full((4, 20), 0.2)), torch.zeros(4))
    draws = {site: value.expand(1, 2, *value.shape) for site, value in params.items()}
    fit = given(model, params, Data(x=torch.ones(4, 30)), bound_name="mean_field", local=local, draws=draws)
    with pytest.warns(UserWarning, match="those of an approximation"):
        group = to_arviz(fit, log_likelihood=True).log_likelihood
    assert group.attrs["bound"] == "mean_field"
    np.testing.assert_allclose(group["x"][0, 1], fit.log_likelihood(bound="mean_field"))


def test_copies_and_draws_of_the_prior(sampled):
    """Means within 5 standard errors: of the copies E[x] at the draws, of data from flat priors by integration."""
    data = to_arviz(sampled, num_copies=400)
    assert data.posterior_predictive["x"].shape == (1, 400, 60, 6) and data.prior["loading"].shape == (1, 400, 3, 6)
    probability = data.prior["leak"].values
    assert abs(probability.mean() - 0.5) < 5 * (1 / 12 / probability.size) ** 0.5
    # p(x = 0) = (1 - leak) prod_k (1 - prior_k loading_k): a factor of 1/2, and 3/4 for each of three sources.
    by_draw = data.prior_predictive["x"].values[0].mean((1, 2))
    assert abs(by_draw.mean() - (1 - 0.5 * 0.75**3)) < 5 * by_draw.std() / 400**0.5
    source, loading, leak = (data.posterior[site] for site in ("source", "loading", "leak"))
    expected = 1 - (1 - leak) * (1 - source * loading).prod("component")
    copies = data.posterior_predictive["x"].mean(("chain", "draw"))
    error = np.sqrt(0.25 / 400 + 0.25 / 120)
    assert float(abs(copies - expected.mean(("chain", "draw"))).max()) < 5 * error
    assert float(data.posterior_predictive["x"].mean() - expected.mean()) == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("name", ["lda", "covariate_sbm", "supervised_lda"])
def test_what_is_given_and_what_else_is_observed(name):
    example = MODELS[name].example()
    method = EM(search=None, max_iterations=1) if name == "lda" else None
    brief = method or VariationalEM(guide="mean_field" if "sbm" in name else "dirichlet", search=None, max_iterations=1)
    data = to_arviz(brief.fit(example.model, example.data, progress=False), num_draws=2, num_copies=10)
    if name == "covariate_sbm":
        group = data.constant_data["covariates"]
        np.testing.assert_array_equal(group, example.model.covariates)
        assert group.dims[0] == "node"
    else:
        np.testing.assert_array_equal(data.constant_data["num_tokens"], example.data.dense().x.sum(1))
        np.testing.assert_array_equal(
            data.posterior_predictive["x"].sum("word")[0, 3], data.constant_data["num_tokens"]
        )
    if name == "supervised_lda":
        np.testing.assert_array_equal(data.observed_data["response"], example.data.others["response"])
        assert data.prior_predictive["response"].dims == ("chain", "draw", "document")


def test_what_is_too_large_is_left_out_and_said(point, monkeypatch):
    monkeypatch.setattr(arviz_groups, "_ENTRIES", 60 * 6 * 12)
    data = to_arviz(point, num_draws=2)
    assert data.posterior_predictive.sizes["draw"] == 12 and "prior" in group_names(data)
    monkeypatch.setattr(arviz_groups, "_ENTRIES", 60 * 6 * 3)
    data = to_arviz(point, num_draws=2)
    assert "prior" not in group_names(data) and "too large" in data.posterior.attrs["posterior_predictive"]


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
    expected |= {"objective": "evidence"}
    assert expected.items() <= data.attrs.items()
    assert expected.items() <= data.posterior.attrs.items()


def test_labels_that_repeat_or_mix_types_are_made_selectable(point):
    data = Data(x=point.data.x, coords={"feature": ["a", "a", "a (2)", "a", 5, 5]})
    names = to_arviz(replace(point, data=data), num_draws=2).point_estimates["feature"].values.tolist()
    assert names == ["a", "a (2)", "a (2) (2)", "a (3)", "5", "5 (2)"]


def test_numbers_of_draws_and_rows_are_checked(point):
    with pytest.raises(MethodError, match="num_draws = 0"):
        to_arviz(point, num_draws=0)
    with pytest.raises(MethodError, match="num_copies = -1"):
        to_arviz(point, num_copies=-1)


@pytest.mark.filterwarnings("ignore")  # of what ArviZ divides by
def test_arviz_summarises_both_kinds(point, sampled):
    data = to_arviz(point, num_draws=20)
    table = arviz.summary(data, var_names=["source_prior", "loading"], group="point_estimates")
    assert "loading[0, a]" in table.index
    assert table.loc["source_prior[1]", "mean"] == pytest.approx(float(point.params["source_prior"][1]), abs=1e-3)
    table = arviz.summary(to_arviz(sampled), var_names=["leak"])
    assert (table["r_hat"] < 1.1).all()


@pytest.mark.quick
def test_counted_values_are_whole_numbers_which_arviz_draws_as_bars():
    """Of numbers of any other type it draws smooth densities: two hills for 0 and 1. Missing ones stay NaN."""
    quick = EM(search=None, max_iterations=2)
    whole = NOCA.example().data.x
    for x, kind in (
        (whole, "i"),
        (whole.masked_fill(torch.arange(6) == torch.arange(60)[:, None] % 9, torch.nan), "f"),
    ):
        found = quick.fit(NOCA(num_components=2, num_features=6), x, progress=False)
        data = found.to_arviz(num_draws=2, num_copies=4)
        assert data["observed_data"]["x"].dtype.kind == kind
        np.testing.assert_array_equal(data["observed_data"]["x"], x)
        assert data["posterior_predictive"]["x"].dtype.kind == data["prior_predictive"]["x"].dtype.kind == "i"
        assert data["point_estimates"]["leak"].dtype.kind == "f"
    check = posterior_predictive_check(found, statistics=["mean"], num_samples=4, keep=2, progress=False)
    assert check.to_arviz()["observed_data"]["mean"].dtype.kind == "f"
