"""Points under hierarchical priors: what has no maximum is said, and what has one is found without a word."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.ended import Ended
from ppl_models import DataWarning, Example, RowModel
from ppl_models.core.sites import Site


@dataclass(frozen=True, kw_only=True, eq=False)
class Treated(RowModel):
    """Rows half of which are treated, unknown which; what treatment does to each entry has a prior with a scale tau."""

    num_features: int

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features"}

    def draw_locals(self, site):
        del site
        return pyro.sample("treated", dist.Bernoulli(0.5))

    @classmethod
    def example(cls):
        return Example.of(cls(num_features=3), np.random.default_rng(0).poisson(1.0, size=(12, 3)))


def sites_of(effect: str, support: Any, entry: Any) -> dict[str, Site]:
    return {
        "tau": Site("global", (), support=constraints.positive),
        effect: Site("global", ("feature",), support=support),
        "treated": Site("latent", (), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), entry),
    }


class Lifted(Treated):
    """Counts, lifted by lift_j ~ Gamma(tau, 1): the log joint has no maximum, as lift_j^(tau - 1) has none at 0."""

    sites: ClassVar[Mapping[str, Site]] = sites_of("lift", constraints.positive, constraints.nonnegative_integer)

    def default_priors(self):
        return {"tau": dist.Exponential(1.0), "lift": lambda tau: dist.Gamma(tau.expand(self.num_features), 1.0)}

    def entries(self, site, local):
        return dist.Poisson(1.0 + local.unsqueeze(-1) * site["lift"])


class Sloped(Treated):
    """Numbers, moved by slope_j ~ Normal(0, tau): the log joint grows as 1 / tau^3 as tau and the slopes go to 0."""

    sites: ClassVar[Mapping[str, Site]] = sites_of("slope", constraints.real, constraints.real)

    def default_priors(self):
        return {"tau": dist.Exponential(1.0), "slope": lambda tau: dist.Normal(torch.zeros(self.num_features), tau)}

    def entries(self, site, local):
        mean = local.unsqueeze(-1) * site["slope"]
        return dist.Normal(mean, torch.ones_like(mean))


def untreated(kind):
    """Data of the model without any effect of the treatment, to which the fit then collapses."""
    generator = np.random.default_rng(1)
    return generator.poisson(1.0, (40, 3)) if kind is Lifted else 0.3 * generator.normal(size=(40, 3))


CLIMB = ci.SVI(guide="delta", optimizer="lbfgs", steps=200)


@pytest.mark.parametrize(("kind", "effect"), [(Lifted, "lift"), (Sloped, "slope")])
def test_a_log_joint_without_a_maximum_is_said(kind, effect):
    model, collapsed = kind(num_features=3), {"tau": torch.tensor(0.02), effect: torch.full((3,), 1e-3)}
    with pytest.warns(DataWarning, match=f"log joint has no maximum: it rises without end along .*'{effect}'") as said:
        fit = CLIMB.fit(model, untreated(kind), init=collapsed, progress=False)
    assert "method='svi_normal'" in str(said[0].message) and "prior bounded away" in str(said[0].message)
    assert fit.ended is Ended.UNBOUNDED and "no maximum along" in fit.status
    assert "converged" not in fit.status


@pytest.mark.slow
def test_the_default_says_so_and_its_cures_do_not():
    """The default ended with an error of torch's, Gamma of concentration 0, where its line search went to the edge."""
    model, x = Lifted(num_features=3), untreated(Lifted)
    with pytest.warns(DataWarning, match="rises without end along 'lift'"):
        assert ci.fit(model, x, progress=False).ended is Ended.UNBOUNDED
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrated = ci.fit(model, x, method="svi_normal", steps=20, progress=False)
        bounded = CLIMB.fit(model.with_priors(tau=dist.LogNormal(1.0, 0.1)), x, progress=False)
    assert integrated.ended is Ended.COMPLETE and bounded.ended is Ended.CONVERGED


@pytest.mark.parametrize("prior", [dist.LogNormal(0.0, 0.3), dist.Gamma(6.0, 3.0)])
def test_a_proper_maximum_is_found_without_a_word(prior):
    """Even from a start within the funnel: under these priors of tau the log joint falls as tau goes to 0."""
    model, x = Sloped(num_features=3).with_priors(tau=prior), untreated(Sloped)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fits = [CLIMB.fit(model, x, init=init, progress=False) for init in (None, dict(tau=0.05, slope=[1e-3] * 3))]
    assert all(fit.ended is Ended.CONVERGED and "no maximum" not in fit.status for fit in fits)
    assert all(float(fit.params["tau"]) > 0.3 for fit in fits)


def test_starts_that_find_no_maximum_do_not_count():
    """Where some starts climb to a maximum and others fall into the funnel, the best of the former is the fit."""
    generator = np.random.default_rng(1)
    x = generator.normal(generator.integers(0, 2, size=(60, 1)) * np.array([3.0, -6.0, 1.5]))
    fit = ci.SVI(guide="delta", optimizer="lbfgs", restarts=3, steps=200).fit(Sloped(num_features=3), x, progress=False)
    assert fit.ended is Ended.CONVERGED and float(fit.params["tau"]) > 1.0
