"""Latents with heavy tails: integrals reach far out, where rates are rounded to 0, and slopes stay numbers."""

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

from custom_inference import fit
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import row_evidence
from ppl_models import MethodError, RowModel, Site

RNG = np.random.default_rng(0)
RATES = np.exp(RNG.standard_normal((50, 1)) * 0.7 + np.array([0.0, 1.0, 0.5]))
#: A fifth of the entries is missing, and a row and the last are wholly so.
X = np.where(RNG.random((50, 3)) < 0.2, np.nan, RNG.poisson(RATES).astype(float))
X[[3, 49]] = np.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts(RowModel):
    """Counts whose log rates move together by a latent with ``freedom`` degrees of freedom; cusped: by a function of
    base that has no slope."""

    num_features: int
    freedom: float = 4.0
    cusped: bool = False
    axes: ClassVar[Any] = {"feature": "num_features"}
    sites: ClassVar[Any] = {
        "base": Site("global", ("feature",), support=constraints.real),
        "size": Site("latent", (), plates=("row",), support=constraints.real),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"base": dist.Normal(0.0, 2.0)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        base = self.sample("base")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            size = pyro.sample("size", dist.StudentT(self.freedom, 0.0, 0.7))
            level = base + (base - base.detach()).abs().sqrt() if self.cusped else base
            return rows.observe("x", dist.Poisson((level + size.unsqueeze(-1)).exp()))


def log_density(base: np.ndarray, row: np.ndarray, freedom: float) -> float:
    """log p(x_n | base) by scipy's quadrature over the latent."""
    seen = ~np.isnan(row)

    def joint(size: float) -> float:
        each = stats.poisson.logpmf(row[seen], np.exp(base[seen] + size)).sum()
        return float(np.exp(each + stats.t.logpdf(size, freedom, 0, 0.7)))

    return float(np.log(integrate.quad(joint, -400, 8, points=[-20, -5, 0, 3], limit=400)[0]))


@pytest.mark.parametrize("freedom", [1.0, 4.0])
def test_slopes_of_the_evidence_are_its_differences(freedom):
    model = Counts(num_features=3, freedom=freedom)
    base = torch.tensor([0.1, 1.2, 0.7], dtype=torch.float64)
    density = RowDensity.of(model, {"base": base}, model.prepare(X, dtype=torch.float64).dense())
    evidence = row_evidence(density)
    leaf = base.clone().requires_grad_()
    evidence({"base": leaf}).sum().backward()
    assert leaf.grad is not None
    for j in range(3):
        move = torch.zeros(3, dtype=torch.float64)
        move[j] = 1e-4
        with torch.no_grad():
            ends = [float(evidence({"base": base + sign * move}).sum()) for sign in (1, -1)]
        assert float(leaf.grad[j]) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_counts_with_missing_entries_are_fitted():
    found = fit(Counts(num_features=3), X, progress=False)
    base = found.params["base"].double().numpy()
    assert np.isfinite(base).all()
    expected = [log_density(base, row, 4.0) for row in X[:3]]
    np.testing.assert_allclose(found.log_likelihood(X[:3]).numpy(), expected, atol=1e-5)


def test_a_program_without_slopes_says_which_site_became_no_number():
    model = Counts(num_features=3, cusped=True)
    with pytest.raises(MethodError, match="site 'base' of Counts became no finite number"):
        fit(model, X[:5], progress=False)
