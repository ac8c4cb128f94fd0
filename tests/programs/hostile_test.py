"""Programs that ask for more than the zoo does: modes far apart, heavy tails, courses by latents, covariates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.over_draws import posteriors_along
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.importance import sample_by_importance
from ppl_models import DataError, DataWarning, Example, MethodError, ModelError, RowModel
from ppl_models.core.sites import Site
from tests.programs.zoo import case_of

LATENT = {
    "real": Site("latent", (), plates=("row",), support=constraints.real),
    "positive": Site("latent", (), plates=("row",), support=constraints.positive),
    "bit": Site("latent", (), plates=("row",), support=constraints.boolean),
    "count": Site("latent", (), plates=("row",), support=constraints.nonnegative_integer),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Row(RowModel):
    """One latent z a row, of a kind that subclasses say, a shift of all entries, and D entries about them."""

    num_features: int

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features"}

    def default_priors(self):
        return {"shift": dist.Normal(0.0, 1.0)}

    @classmethod
    def example(cls):
        return Example.of(cls(num_features=2), np.random.default_rng(0).normal(size=(6, 2)))


def program(kind, prior, entries, support=constraints.real):
    """A program of one latent a row: its prior, and the law of the entries (N, D) given z (N, 1) and the shift."""

    @dataclass(frozen=True, kw_only=True, eq=False)
    class Own(Row):
        """A program of a test."""

        sites: ClassVar[Mapping[str, Site]] = {
            "shift": Site("global", (), support=constraints.real),
            "z": LATENT[kind],
            "x": Site("observed", ("feature",), plates=("row",), support=support),
        }

        def draw_locals(self, site):
            return pyro.sample("z", prior())

        def entries(self, site, local):
            return entries(local.unsqueeze(-1), site["shift"] + torch.zeros(self.num_features))

    return Own


def at_zero(kind, x):
    """The default fit where the shift is known to be 0."""
    return ci.fit(kind(num_features=x.shape[1]).with_priors(shift=0.0), x, progress=False)


def integral(log_density, place):
    """log of the integral over uneven places, the mean of the place, of each row of log densities (N, Q)."""
    weight = log_density + np.log(np.gradient(place))
    total = logsumexp(weight, axis=1)
    return total, (np.exp(weight - total[:, None]) * place).sum(1)


@pytest.mark.parametrize("far", [0.3, 1.0, 3.0, 9.0])
@pytest.mark.parametrize(("bend", "noise"), [("abs", 0.05), ("square", 0.3)])
def test_both_of_two_separate_modes_count(bend, noise, far):
    """However narrow they are and however far apart; draws come from both."""
    kind = program("real", lambda: dist.Normal(0.0, 2.0), lambda z, m: dist.Normal(getattr(torch, bend)(z) + m, noise))
    x = np.array([[far, far + noise], [far, far - noise]])
    fit, place = at_zero(kind, x), np.linspace(-14, 14, 400_001)
    joint = stats.norm.logpdf(x[..., None], getattr(np, bend)(place), noise).sum(1) + stats.norm.logpdf(place, 0, 2)
    evidence, _ = integral(joint, place)
    assert np.abs(fit.log_likelihood().numpy() - evidence).max() < 1e-4
    posterior = fit.posteriors["z"]
    assert float(posterior.mean.abs().max()) < 1e-3
    drawn = posterior.sample(400, seed=1)
    assert 0.35 < float((drawn > 0).double().mean()) < 0.65


def test_rows_may_differ_in_how_many_modes_they_have(monkeypatch):
    """From one to a dozen, whatever rows are looked at together."""
    from custom_inference.core.programs import modes

    kind = program("real", lambda: dist.Normal(0.0, 2.0), lambda z, m: dist.Normal(torch.sin(2 * z) * z + m, 0.2))
    x, place = np.array([[3.0, 3.02], [0.5, 0.52]]), np.linspace(-14, 14, 400_001)
    joint = stats.norm.logpdf(x[..., None], np.sin(2 * place) * place, 0.2).sum(1) + stats.norm.logpdf(place, 0, 2)
    evidence, _ = integral(joint, place)
    found = [at_zero(kind, x).log_likelihood().numpy()]
    monkeypatch.setattr(modes, "_ROWS", 1)
    found.append(at_zero(kind, x).log_likelihood().numpy())
    assert all(np.abs(one - evidence).max() < 1e-3 for one in found)


def test_two_heavy_tails_at_once():
    """A Cauchy latent and Cauchy noise: up to three modes, tails that reach far."""
    kind = program("real", lambda: dist.Cauchy(0.0, 1.0), lambda z, m: dist.Cauchy(z + m, 0.2))
    x = np.array([[-4.0, 4.2], [0.0, 8.0], [1.0, 1.1], [20.0, -20.0]])
    place = np.sinh(np.linspace(-14, 14, 200_001))
    joint = stats.cauchy.logpdf(x[..., None], place, 0.2).sum(1) + stats.cauchy.logpdf(place)
    evidence, mean = integral(joint, place)
    fit = at_zero(kind, x)
    assert np.abs(fit.log_likelihood().numpy() - evidence).max() < 1e-4
    assert np.abs(fit.posteriors["z"].mean[:, 0].numpy() - mean).max() < 2e-3


def test_moments_of_a_density_without_a_bound_at_the_edge():
    """Gamma(.3, .3) and Poisson counts: the posterior is Gamma(.3 + sum, .3 + D), unbounded at 0 for a row of zeros."""
    kind = program(
        "positive", lambda: dist.Gamma(0.3, 0.3), lambda z, m: dist.Poisson(z + m), constraints.nonnegative_integer
    )
    x = np.array([[0.0, 0.0], [1.0, 0.0], [10.0, 12.0]])
    posterior = at_zero(kind, x).posteriors["z"]
    shape, rate = 0.3 + x.sum(1), 2.3
    assert np.allclose(posterior.mean[:, 0], shape / rate, atol=1e-4)
    assert np.allclose(posterior.variance[:, 0], shape / rate**2, atol=1e-3)


def test_a_count_without_an_upper_bound_is_exact_by_mean_field():
    """Its values reach as far as the data ask for, not the prior."""
    kind = program("count", lambda: dist.Poisson(2.0), lambda z, m: dist.Normal(z + m, 1.0))
    x = np.array([[1.0, 2.0], [40.0, 42.0]])
    model = kind(num_features=2)
    table = ci.compare(["exact", "mean_field"], model, x, at={"shift": torch.tensor(0.0)}, progress=False).table
    place = np.arange(200)
    joint = stats.norm.logpdf(x[..., None], place, 1.0).sum(1) + stats.poisson.logpmf(place, 2.0)
    assert np.allclose(table["evidence"], logsumexp(joint, axis=1).sum(), atol=1e-6)
    assert np.abs(table["kl_per_row"]).max() < 1e-6


def test_a_course_that_depends_on_a_finite_latent_is_run_value_by_value():
    def entries(z, m):
        return dist.Normal(m + (1.0 if bool((z == 1).all()) else -1.0) + 0 * z, 0.5)

    kind, x = program("bit", lambda: dist.Bernoulli(0.3), entries), np.random.default_rng(0).normal(size=(6, 2))
    with pytest.warns(DataWarning, match="depends on values of its latents"):
        fit = at_zero(kind, x)
        joint = [np.log(p) + stats.norm.logpdf(x, at, 0.5).sum(1) for p, at in ((0.7, -1), (0.3, 1))]
        evidence = logsumexp(joint, axis=0)
        assert np.abs(fit.log_likelihood().numpy() - evidence).max() < 1e-6
        assert np.abs(fit.posteriors["z"].mean[:, 0].numpy() - np.exp(joint[1] - evidence)).max() < 1e-6


def test_a_course_that_depends_on_a_real_latent_is_refused():
    kind = program(
        "real", lambda: dist.Normal(0.0, 1.0), lambda z, m: dist.Normal(m + (z if bool((z > 0).any()) else -z), 0.5)
    )
    with pytest.raises(ModelError, match=r"'z' is continuous; write it with torch\.where"):
        at_zero(kind, np.ones((4, 2)))


def test_rows_that_depend_on_each_other_are_refused():
    kind = program(
        "real", lambda: dist.Normal(0.0, 1.0), lambda z, m: dist.Normal(z + z.mean(-2, keepdim=True) + m, 0.5)
    )
    with pytest.raises(ModelError, match=r"rows of Own depend on each other: log p\(x, latents\) of row 0"):
        at_zero(kind, np.ones((4, 2)))


def test_a_global_without_a_prior_is_named():
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Bare(program("bit", lambda: dist.Bernoulli(0.3), lambda z, m: dist.Normal(z + m, 1.0))):
        """A program of a test."""

        def default_priors(self):
            return {}

    with pytest.raises(ModelError, match="global 'shift' of Bare has no prior"):
        Bare(num_features=2)


def test_sites_that_are_misspelt_are_named():
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Misspelt(program("bit", lambda: dist.Bernoulli(0.3), lambda z, m: dist.Normal(z + m, 1.0))):
        """A program of a test."""

        def default_priors(self):
            return {"shift": dist.Normal(0.0, 1.0), "shfit": dist.Normal(0.0, 1.0)}

    with pytest.raises(
        ModelError, match=r"unknown site in default_priors\(\) of Misspelt 'shfit' \(did you mean 'shift'"
    ):
        Misspelt(num_features=2)
    with pytest.raises(ModelError, match=r"unknown site of FiveReals 'bais'"):
        FiveReals(num_features=2).sample("bais")


@dataclass(frozen=True, kw_only=True, eq=False)
class FiveReals(Row):
    """x_n = W z_n + noise with five real numbers z a row: a Gaussian posterior is exact."""

    sites: ClassVar[Mapping[str, Site]] = {
        "shift": Site("global", (), support=constraints.real),
        "z": Site("latent", ("part",), plates=("row",), support=constraints.real),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.real),
    }
    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features", "part": "num_parts"}
    num_parts: int = 5

    def draw_locals(self, site):
        return pyro.sample("z", dist.Normal(torch.zeros(5), 1.0).to_event(1))

    def entries(self, site, local):
        weight = torch.sin(torch.arange(5.0 * self.num_features)).reshape(5, -1).to(local)
        return dist.Normal(local @ weight + site["shift"], 0.3)


def test_more_reals_than_quadrature_takes_have_the_best_gaussian_also_at_known_globals():
    x = np.random.default_rng(3).normal(size=(8, 4))
    model = FiveReals(num_features=4).with_priors(shift=0.0)
    fit = ci.fit(model, x, method="gaussian", progress=False)
    weight = np.sin(np.arange(20.0)).reshape(5, 4)
    law = stats.multivariate_normal(np.zeros(4), weight.T @ weight + 0.09 * np.eye(4))
    assert abs(float(fit.elbo[-1]) - law.logpdf(x).sum()) < 1e-3 and "converged" in fit.status
    found = sample_by_importance(RowDensity.of(fit.model, fit.globals, fit.data).double())
    error = found.standard_error.numpy()
    assert (np.abs(found.log_evidence.numpy() - law.logpdf(x)) < 6 * error + 1e-6).all()
    assert np.allclose(at_zero(FiveReals, x).log_likelihood(), law.logpdf(x), rtol=0, atol=1e-9)


@dataclass(frozen=True, kw_only=True, eq=False)
class Covariate(Row):
    """x_nj ~ Normal(z_n + u_n + shift, 1/2), z_n ~ Normal(0, 1), u given."""

    sites: ClassVar[Mapping[str, Site]] = {
        "shift": Site("global", (), support=constraints.real),
        "z": LATENT["real"],
        "u": Site("given", (), plates=("row",), support=constraints.real),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.real),
    }

    def draw_locals(self, site):
        return pyro.sample("z", dist.Normal(0.0, 1.0))

    def observe_rows(self, site, local, x, mask, index, u):
        mean = (
            (local + (u if index is None else u[index])).unsqueeze(-1) + site["shift"] + torch.zeros(self.num_features)
        )
        return self.observe(dist.Normal(mean, 0.5), x, mask, index)


def test_covariates_are_arguments_by_their_names(tmp_path):
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(6, 2)), np.arange(6.0)
    model = Covariate(num_features=2).with_priors(shift=0.0)
    fit = ci.fit(model, x, u=u, progress=False)
    law = stats.multivariate_normal(np.zeros(2), 1 + 0.25 * np.eye(2))
    assert np.abs(fit.log_likelihood().numpy() - law.logpdf(x - u[:, None])).max() < 1e-6
    new = fit.transform(x[:2], u=u[:2])
    assert torch.allclose(new, fit.transform()[:2], atol=1e-6)
    assert fit.sample(8)["x"].shape == (8, 2) and fit.predictive(2).shape == (2, 6, 2)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"), model=Covariate)
    assert torch.allclose(loaded.log_likelihood(), fit.log_likelihood())
    assert set(fit.to_arviz(num_draws=3).posterior) >= {"z"}
    for wrong, message in (
        ({}, "not among the arguments; expected u="),
        ({"u": u[:3]}, r"shape \(3,\); expected one value a row, of shape \(6,\)"),
        ({"u": np.full(6, np.nan)}, "6 values are not finite"),
    ):
        with pytest.raises(DataError, match=message):
            ci.fit(model, x, progress=False, **wrong)
    with pytest.raises(MethodError, match="unknown setting of EM 'v'; valid: .* u,"):
        ci.fit(model, x, u=u, v=u, progress=False)


def test_posteriors_along_draws_are_those_at_each():
    """Quadrature that goes on from the draw before finds what it finds from nothing."""
    case = case_of("rasch").few(6)
    values = [{"difficulty": case.truth["difficulty"] + shift} for shift in (0.0, 0.3, -1.0)]
    along = posteriors_along(case.model, values, case.data, seed=0)
    for at, posterior in zip(values, along, strict=True):
        alone = solve_local(case.model, at, case.data).posterior
        assert float((posterior.mean - alone.mean).abs().max()) < 1e-5
