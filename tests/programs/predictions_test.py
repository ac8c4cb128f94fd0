"""E[x | covariates] under programs of one's own, against sums and integrals in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import expit
from torch.distributions import constraints

import custom_inference as ci
from ppl_models import DataError, MethodError, ModelError, RowModel
from ppl_models.core.sites import Site

EFFORT = np.array([-1.5, 0.0, 0.4, 2.0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Given(RowModel):
    """Rows of two entries that are given a number u; what latent there is, subclasses say."""

    num_features: int = 2

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features"}
    base: ClassVar[Any] = torch.tensor([0.2, -0.4])
    support: ClassVar[Any] = constraints.nonnegative_integer

    def default_priors(self):
        return {"slope": dist.Normal(0.0, 1.0)}

    def __call__(self, x=None, *, u=None, mask=None, batch_size=None, num_rows=1):
        slope = self.sample("slope")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            u = rows.of(torch.zeros(rows.number) if u is None else u)
            return rows.observe("x", self.law(slope, u))


def sites_of(latents, support=constraints.nonnegative_integer):
    return {
        "slope": Site("global", (), support=constraints.real),
        **{name: Site("latent", (), plates=("row",), **settings) for name, settings in latents.items()},
        "u": Site("given", (), plates=("row",), support=constraints.real),
        "x": Site("observed", ("feature",), plates=("row",), support=support),
    }


class Experts(Given):
    """Two lines: z_n ~ Bernoulli(sigmoid(slope u)) says which, and x_nj ~ Normal(base_j + (1 - 3 z) u, 1)."""

    sites = sites_of({"z": {"support": constraints.boolean}}, constraints.real)

    def law(self, slope, u):
        z = pyro.sample("z", dist.Bernoulli(logits=slope * u))
        return dist.Normal(self.base.to(u) + ((1 - 3 * z) * u).unsqueeze(-1), 1.0)

    @staticmethod
    def mean(slope, u):
        share = expit(slope * u)
        return np.array([0.2, -0.4]) + ((1 - share) * u + share * -2 * u)[:, None]


class Absent(Given):
    """Counts of what may be absent, z_n ~ Bernoulli(sigmoid(1 - u)), else x_nj ~ Poisson(exp(base_j + slope u)), or 0
    with probability .2."""

    sites = sites_of({"z": {"support": constraints.boolean}})

    def law(self, slope, u):
        z = pyro.sample("z", dist.Bernoulli(logits=1 - u))
        rate = z.unsqueeze(-1).clamp_min(1e-12) * torch.exp(self.base.to(u) + (slope * u).unsqueeze(-1))
        return dist.ZeroInflatedPoisson(rate, gate=torch.full_like(rate, 0.2))

    @staticmethod
    def mean(slope, u):
        return 0.8 * (expit(1 - u)[:, None] * np.exp(np.array([0.2, -0.4]) + slope * u[:, None]))


class Visits(Given):
    """x_nj ~ Poisson(exp(base_j + slope u + z_n)), z_n ~ Normal(0, .5): E[x] = exp(base_j + slope u + 1/8)."""

    sites = sites_of({"z": {"support": constraints.real}})

    def law(self, slope, u):
        z = pyro.sample("z", dist.Normal(0.0, 0.5))
        return dist.Poisson(torch.exp(self.base.to(u) + (slope * u + z).unsqueeze(-1)))

    @staticmethod
    def mean(slope, u):
        return np.exp(np.array([0.2, -0.4]) + slope * u[:, None] + 0.125)


class Both(Given):
    """A real and a finite latent: log rates z_n + b_n, b_n a bit of probability sigmoid(u)."""

    sites = sites_of({"z": {"support": constraints.real}, "b": {"support": constraints.boolean}})

    def law(self, slope, u):
        z = pyro.sample("z", dist.Normal(u, 0.5))
        b = pyro.sample("b", dist.Bernoulli(logits=u))
        return dist.Poisson(torch.exp(self.base.to(u) + (slope * z + b).unsqueeze(-1)))

    @staticmethod
    def mean(slope, u):
        factor = 1 + expit(u) * (np.e - 1)
        return np.exp(np.array([0.2, -0.4]) + (slope * u + slope**2 / 8)[:, None]) * factor[:, None]


class Many(Given):
    """Five real numbers a row, which no quadrature reaches: log rates slope u + their mean."""

    sites: ClassVar[Mapping[str, Site]] = {
        **sites_of({}), "z": Site("latent", ("part",), plates=("row",), support=constraints.real)
    }  # fmt: skip
    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features", "part": "num_parts"}
    num_parts: ClassVar[int] = 5

    def law(self, slope, u):
        z = pyro.sample("z", dist.Normal(torch.zeros(5), 0.5).to_event(1).expand(u.shape))
        return dist.Poisson(torch.exp(self.base.to(u) + (slope * u + z.mean(-1)).unsqueeze(-1)))

    @staticmethod
    def mean(slope, u):
        return np.exp(np.array([0.2, -0.4]) + slope * u[:, None] + 0.25 / 5 / 2)


def fit_of(kind, rows=6):
    rng = np.random.default_rng(0)
    x, u = rng.poisson(1.0, (rows, 2)) + 0.0, rng.normal(size=rows)
    x[0] = [0, 3]
    return ci.fit(kind().with_priors(slope=0.7), x, u=u, progress=False), u


@pytest.mark.parametrize("kind", [Experts, Absent, Visits, Both])
def test_what_is_expected_at_new_covariates_is_exact(kind):
    """As many rows as are asked for, of which nothing else is known; and the rows of the fit by default."""
    fit, u = fit_of(kind)
    assert np.allclose(fit.predict(u=EFFORT).numpy(), kind.mean(0.7, EFFORT), rtol=1e-5)
    assert np.allclose(fit.predict().numpy(), kind.mean(0.7, u), rtol=1e-5)
    assert np.allclose(fit.predict(u=EFFORT[:1]).numpy(), kind.mean(0.7, EFFORT[:1]), rtol=1e-5)


def test_latents_that_no_sum_reaches_are_drawn_by_the_seed_of_the_fit():
    x, u = np.random.default_rng(0).poisson(1.0, (6, 2)) + 0.0, np.zeros(6)
    model = Many().with_priors(slope=0.7)
    fit = ci.SVI(guide="gaussian", steps=3).fit(model, x, u=u, progress=False)
    found, expected = fit.predict(u=EFFORT).numpy(), Many.mean(0.7, EFFORT)
    error = expected * np.sqrt(np.exp(0.25 / 5) - 1) / np.sqrt(2000)
    assert (np.abs(found - expected) < 5 * error).all()
    assert np.array_equal(fit.predict(u=EFFORT).numpy(), found)


def test_what_cannot_be_predicted_is_said():
    fit, u = fit_of(Visits)
    for ask, kind, message in (
        (lambda: fit.predict(np.ones((4, 2)), u=EFFORT), MethodError, r"x= of predict of Visits.*expected u= alone"),
        (lambda: fit.predict(names=True, u=EFFORT), MethodError, "names= of predict of Visits"),
        (lambda: fit.predict(v=EFFORT), DataError, "unknown argument 'v'"),
        (lambda: fit.predict(u=EFFORT[:, None, None]), DataError, "site 'u': shape"),
        (lambda: fit.transform(u=u), MethodError, "u= without x"),
    ):
        with pytest.raises(kind, match=message):
            ask()


def test_a_distribution_without_a_mean_is_named():
    class Wild(Visits):
        """Cauchy noise."""

        sites = sites_of({"z": {"support": constraints.real}}, constraints.real)

        def law(self, slope, u):
            z = pyro.sample("z", dist.Normal(0.0, 0.5))
            return dist.Cauchy(self.base.to(u) + (slope * u + z).unsqueeze(-1), 1.0)

    fit, _ = fit_of(Wild)
    with pytest.raises(MethodError, match="no prediction of 'x' of Wild: its distribution has no finite mean"):
        fit.predict(u=EFFORT)


def test_a_program_without_a_mask_is_refused():
    """Nothing is known of x: entries that count though they are missing would be taken for zeros."""

    class Bare(Visits):
        """States x itself."""

        def __call__(self, x=None, *, u=None, mask=None, batch_size=None, num_rows=1):
            slope = self.sample("slope")
            with self.rows(x, mask, batch_size, num_rows) as rows:
                u = torch.zeros(rows.number) if u is None else u
                return pyro.sample("x", self.law(slope, u).to_event(1), obs=x)

    fit, _ = fit_of(Bare)
    with pytest.raises(ModelError, match="the 8 missing entries as if they were observed"):
        fit.predict(u=EFFORT)


def test_reconstructions_at_new_covariates_are_those_at_the_most_probable_latents():
    """E[x | mode of z given x and u], in rows that the fit has not seen."""
    fit, _ = fit_of(Absent)
    x = np.array([[0.0, 0.0], [2.0, 1.0]])
    u = np.array([3.0, 3.0])
    found = fit.reconstruct(x, u=u).numpy()
    rate = np.exp(np.array([0.2, -0.4]) + 0.7 * 3.0)
    assert np.allclose(found, [[0.0, 0.0], 0.8 * rate], rtol=1e-6)
    assert np.isfinite(fit.plugin_log_likelihood(x, u=u).numpy()).all()
