"""The evidence of programs whose latents are real numbers, sampled together with the globals, against integrals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.checks.evidence.likelihood import joint_target_of
from ppl_models import CTM, RowModel
from ppl_models.core.sites import Site


@dataclass(frozen=True, kw_only=True, eq=False)
class Means(RowModel):
    """Rows about means of their own, which are about one of all."""

    num_items: int

    axes: ClassVar = {"item": "num_items"}
    sites: ClassVar = {
        "centre": Site("global", (), support=constraints.real),
        "mean": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("item",), ("row",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"centre": dist.Normal(0.0, 1.0)}

    def __call__(self, x: Any = None, **plate: Any) -> Any:
        centre = self.sample("centre")
        with self.rows(x, **plate) as rows:
            mean = pyro.sample("mean", dist.Normal(centre, 1.0))
            return rows.observe("x", dist.Normal(mean.unsqueeze(-1).expand(*mean.shape, self.num_items), 1.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Rates(RowModel):
    """Counts whose rates are Gamma, of one unknown scale."""

    num_items: int

    axes: ClassVar = {"item": "num_items"}
    sites: ClassVar = {
        "scale": Site("global", (), support=constraints.positive),
        "rate": Site("latent", ("item",), ("row",), constraints.positive),
        "x": Site("observed", ("item",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"scale": dist.Gamma(2.0, 1.0)}

    def __call__(self, x: Any = None, **plate: Any) -> Any:
        scale = self.sample("scale")
        with self.rows(x, **plate) as rows:
            shape = torch.full((self.num_items,), 2.0, dtype=scale.dtype)
            rate = pyro.sample("rate", dist.Gamma(shape, scale).to_event(1))
            return rows.observe("x", dist.Poisson(rate))


RNG = np.random.default_rng(0)


def test_normal_means_have_the_evidence_of_one_normal():
    x = RNG.normal(size=(10, 2)) + RNG.normal(size=(10, 1)) + 0.5
    covariance = np.eye(20) + np.kron(np.eye(10), np.ones((2, 2))) + 1.0
    found = ci.marginal_likelihood(Means(num_items=2), x, seconds=6.0, progress=False)
    exact = stats.multivariate_normal.logpdf(x.ravel(), np.zeros(20), covariance)
    assert "and latents" in found.how and found.standard_error < 0.3
    assert "moved together" in found.remarks[-1]
    known = ci.marginal_likelihood(Means(num_items=2).with_priors(centre=0.0), x, progress=False)
    assert known.standard_error == 0.0 and known.log_evidence == pytest.approx(
        stats.multivariate_normal.logpdf(x.ravel(), np.zeros(20), covariance - 1.0), abs=1e-5
    )
    assert abs(found.log_evidence - exact) < 5 * found.standard_error


def test_rates_beyond_quadrature_have_the_evidence_of_negative_binomials():
    """Four rates a row: p(x | scale) is a product of negative binomials, integrated over the scale."""
    x = RNG.poisson(2.0, size=(4, 4)).astype(float)

    def joint(scale: float) -> float:
        return np.exp(stats.nbinom.logpmf(x, 2, scale / (scale + 1)).sum() + stats.gamma.logpdf(scale, 2))

    exact = np.log(integrate.quad(joint, 0, 20)[0])
    found = ci.marginal_likelihood(Rates(num_items=4), x, seconds=6.0, progress=False)
    assert found.standard_error < 0.3 and abs(found.log_evidence - exact) < 5 * found.standard_error


def test_latents_beyond_quadrature_at_known_globals_are_annealed():
    x = RNG.poisson(2.0, size=(4, 4)).astype(float)
    found = ci.marginal_likelihood(Rates(num_items=4).with_priors(scale=1.5), x, seconds=8.0, progress=False)
    exact = stats.nbinom.logpmf(x, 2, 1.5 / 2.5).sum()
    assert found.method == "ais" and abs(found.log_evidence - exact) < 5 * found.standard_error < 2.0


def test_supplied_models_without_a_closed_form_are_sampled_together():
    example = CTM.example()
    model = example.model.with_priors(topic=dist.Dirichlet(torch.ones(example.model.sizes["word"])))
    data = model.as_read(model.prepare(example.data, dtype=torch.float64)).rows(torch.arange(3))
    assert joint_target_of(example.model, data) is not None
