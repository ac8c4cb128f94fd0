"""Standard errors against closed forms: by refits, and by the observed information."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

import custom_inference as ci
from ppl_models import MODELS, MethodError, MixtureOfBernoullis, MixtureOfPoissons, RowModel
from ppl_models.core.sites import Site
from tests.support.levels import Levels

RNG = np.random.default_rng(1)
ONE = MixtureOfBernoullis(num_components=1, num_features=3)
TWO = MixtureOfBernoullis(num_components=2, num_features=4)
X = (RNG.random((150, 3)) < [0.3, 0.5, 0.8]) * 1.0
CLASS = RNG.random(400) < 0.4
PAIRS = (RNG.random((400, 4)) < np.where(CLASS[:, None], [0.9, 0.8, 0.2, 0.7], [0.2, 0.3, 0.8, 0.1])) * 1.0


def fitted(model, x, **settings):
    return ci.EM(tolerance=1e-11, max_iterations=2000).fit(model, x, progress=False, **settings)


@pytest.fixture(scope="module")
def one():
    return fitted(ONE, X)


@pytest.fixture(scope="module")
def two():
    return fitted(TWO, PAIRS)


def of_means(x):
    """sqrt(p (1 - p) / N)."""
    mean = x.mean(0)
    return np.sqrt(mean * (1 - mean) / len(x))


def test_information_of_one_class_is_that_of_a_mean(one):
    found = ci.observed_information(one)
    assert np.allclose(found.standard_error["probability"][0], of_means(X), rtol=1e-4)
    assert float(found.standard_error["mixing_proportion"]) == 0.0
    low, high = found.interval(0.95)["probability"]
    assert np.allclose((high - low).numpy()[0] / of_means(X), 2 * 1.959964, rtol=1e-4)


def log_likelihood(theta):
    """Of the mixture of two classes at (pi_1, p_1, p_2), in plain NumPy."""
    weight, p = np.array([theta[0], 1 - theta[0]]), theta[1:].reshape(2, 4)
    each = PAIRS @ np.log(p).T + (1 - PAIRS) @ np.log(1 - p).T + np.log(weight)
    return np.logaddexp(each[:, 0], each[:, 1]).sum()


def test_information_of_a_mixture_by_differences(two):
    """The inverse of minus the second differences of log p(x), in the globals themselves: no coordinates are shared."""
    theta, h = np.concatenate([two.params["mixing_proportion"][:1], two.params["probability"].flatten()]), 1e-4
    steps = np.eye(9) * h
    bend = np.array([
        [log_likelihood(theta + a + b) - log_likelihood(theta + a - b) - log_likelihood(theta - a + b)
         + log_likelihood(theta - a - b) for b in steps] for a in steps
    ]) / (4 * h * h)  # fmt: skip
    expected = np.sqrt(np.diag(np.linalg.inv(-bend)))
    found = ci.observed_information(two).standard_error
    assert np.allclose(found["probability"].flatten(), expected[1:], rtol=1e-3)
    assert np.allclose(found["mixing_proportion"], expected[0], rtol=1e-3)  # of both, which add up to 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds(RowModel):
    """The mixture of two Bernoullis as a program of one's own, without an engine."""

    num_kinds: int = 2
    num_features: int = 4
    axes: ClassVar = {"kind": "num_kinds", "feature": "num_features"}
    sites: ClassVar = {
        "weight": Site("global", ("kind",), support=constraints.simplex),
        "chance": Site("global", ("kind", "feature"), support=constraints.unit_interval),
        "kind": Site("latent", ("kind",), plates=("row",), support=constraints.one_hot),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.boolean),
    }

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, chance = self.sample("weight"), self.sample("chance")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            kind = pyro.sample("kind", dist.OneHotCategorical(weight))
            return rows.observe("x", dist.Bernoulli(kind @ chance))


@pytest.mark.filterwarnings("error")
def test_information_of_a_program_without_an_engine_is_that_of_its_engine(two):
    """Summed over finite latents, the evidence bends by itself, and not its prior alone."""
    mapping = {"weight": two.params["mixing_proportion"], "chance": two.params["probability"]}
    method = ci.SVI(guide="delta", optimizer="lbfgs", steps=1, restarts=1)
    own = method.fit(Kinds(), PAIRS, init=mapping, progress=False)
    found = ci.observed_information(replace(own, params=mapping)).standard_error
    expected = ci.observed_information(two).standard_error
    assert torch.allclose(found["weight"], expected["mixing_proportion"], rtol=1e-4)
    assert torch.allclose(found["chance"], expected["probability"], rtol=1e-4)


@pytest.mark.filterwarnings("error")
def test_information_with_a_real_latent_integrated_out():
    """The means of rows are normal with variance 1 + 1/2 about the mean."""
    x = RNG.normal(size=(9, 1)) + RNG.normal(size=(9, 2)) + 3.0
    fit = ci.SVI(guide="normal", steps=3).fit(Levels(), x, progress=False)
    assert fit.bound_name == "elbo (latents integrated out)" and "(mean objective over the last" in fit.status
    best = replace(fit, params={"mean": torch.tensor(x.mean())})
    assert float(ci.observed_information(best).standard_error["mean"]) == pytest.approx(np.sqrt(1.5 / 9), rel=1e-3)


def test_information_under_a_prior_without_a_mode():
    """Gamma(a, b) with a < 1 is maximised in the logarithm of the rate: there the standard error of a rate with c
    counts in N rows is rate / sqrt(a + c)."""
    counts = RNG.poisson([2.0, 9.0], (60, 2)) * 1.0
    fit = ci.fit(MixtureOfPoissons(num_components=1, num_features=2), counts, progress=False)
    prior = fit.model.priors["rate"]
    assert float(prior.concentration) < 1
    rate = (counts.sum(0) + float(prior.concentration)) / (60 + float(prior.rate))
    found = ci.observed_information(fit).standard_error["rate"][0].numpy()
    assert np.allclose(found, rate / np.sqrt(counts.sum(0) + float(prior.concentration)), rtol=1e-3)


@pytest.mark.parametrize("how", ["rows", "parametric"])
def test_bootstrap_of_one_class_is_that_of_a_mean(one, how):
    """Within Monte Carlo error: the error of a standard error by B draws is about 1 / sqrt(2 B) of it."""
    draws = 200
    found = ci.bootstrap(one, draws=draws, how=how, seed=3, progress=False)
    ratio = found.standard_error["probability"][0].numpy() / of_means(X)
    assert np.abs(ratio - 1).max() < 4 / np.sqrt(2 * draws)
    low, high = found.interval()["probability"]
    assert bool((low < one.params["probability"]).all()) and bool((high > one.params["probability"]).all())
    again = ci.bootstrap(one, draws=3, how=how, seed=3, progress=False)
    assert torch.equal(again.draws["probability"], found.draws["probability"][:3])


def test_refits_stay_with_their_components(two):
    """Refits by a method that names the classes the other way round: as if it did not."""

    @dataclass(frozen=True, kw_only=True)
    class Swapped(ci.EM):
        def fit(self, *arguments, **settings):
            fit = super().fit(*arguments, **settings)
            fit.params = {site: value.flip(0) for site, value in fit.params.items()}
            return fit

    plain, swapped = (ci.bootstrap(two, draws=4, method=method, progress=False) for method in (ci.EM(), Swapped()))
    for site, value in plain.draws.items():
        assert torch.allclose(swapped.draws[site], value)


def test_tables_have_labels(two):
    frame = pd.DataFrame(PAIRS, columns=list("abcd"))
    found = ci.bootstrap(fitted(TWO, frame, init=two), draws=5, progress=False)
    table, cube = found.table(0.9), found.to_xarray(0.9)
    assert table.loc[("probability", "1, c"), "estimate"] == pytest.approx(
        float(two.params["probability"][1, 2]), abs=1e-4
    )
    assert list(table.columns) == list(cube.statistic.values) == ["estimate", "standard_error", "low", "high"]
    assert float(cube["probability"].sel(statistic="high", component=0, feature="d")) == pytest.approx(
        table.loc[("probability", "0, d"), "high"]
    )
    assert "5 refits by EM" in repr(found)


def test_weights_are_repeated_rows():
    count = np.arange(150) % 3
    weighted, repeated = fitted(ONE, X, weights=count), fitted(ONE, np.repeat(X, count, 0))
    errors = [ci.observed_information(one).standard_error["probability"] for one in (weighted, repeated)]
    assert torch.allclose(*errors, rtol=1e-4)
    found = ci.bootstrap(weighted, draws=60, progress=False).standard_error["probability"][0].numpy()
    assert np.abs(found / of_means(np.repeat(X, count, 0)) - 1).max() < 4 / np.sqrt(120)


def test_graphs_are_drawn_anew():
    example = MODELS["sbm"].example()
    fit = ci.fit(example.model, example.data, seed=0, progress=False)
    with pytest.raises(MethodError, match="parametric"):
        ci.bootstrap(fit, draws=2, method=ci.VariationalEM(), progress=False)
    method = ci.VariationalEM(guide=fit.bound_name)
    found = ci.bootstrap(fit, draws=3, how="parametric", method=method, progress=False)
    site = example.model.component_site
    assert found.draws[site].shape == (3, *fit.params[site].shape)


@dataclass(frozen=True, kw_only=True)
class Stubborn(ci.EM):
    takes_no_init = "it begins where it begins"


def test_what_has_no_answer_is_refused(one, two):
    with pytest.raises(MethodError, match="bootstrap 'row'"):
        ci.bootstrap(one, how="row", progress=False)
    with pytest.raises(MethodError, match="takes no init"):
        ci.bootstrap(one, method=Stubborn(), progress=False)
    with pytest.raises(MethodError, match="expected method="):
        ci.bootstrap(ci.SVI(guide="delta", steps=5).fit(ONE, X, progress=False), progress=False)
    with pytest.raises(MethodError, match="standard errors from a maximum"):
        ci.observed_information(replace(two, params=two.params | {"probability": 0.95 * two.params["probability"]}))
    edge = fitted(ONE, np.where(np.arange(3) == 1, X, 1.0 * (np.arange(150) % 2)[:, None]))
    edge.params["probability"] = torch.tensor([[0.5, 0.5, 1.0]])
    with pytest.raises(MethodError, match="edge of its support"):
        ci.observed_information(edge)
    pca = MODELS["gaussian_pca"].example()
    with pytest.raises(MethodError, match="can be turned"):
        ci.observed_information(fitted(pca.model, pca.data))
