"""A model of one's own, without a record in the registry: a feature is on unless a present source forbids it.

s_nk ~ Bernoulli(source_prior_k),    p(x_nj = 1 | s_n) = base_j prod_k (1 - veto_kj)^s_nk
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import ComponentModel, Example
from ppl_models.core.sites import Site
from ppl_models.distributions import BernoulliVector


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyAnd(ComponentModel):
    """A noisy AND."""

    sites: ClassVar[Mapping[str, Site]] = {
        "source_prior": Site("global", ("component",), support=constraints.unit_interval),
        "veto": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "base": Site("global", ("feature",), support=constraints.unit_interval),
        "source": Site("latent", ("component",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("source", BernoulliVector(site["source_prior"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(torch.exp(site["base"].log() + local @ torch.log1p(-site["veto"])))

    @classmethod
    def example(cls) -> Example:
        return planted(0)


def planted(seed: int, *, num_rows: int = 200, num_features: int = 10, present: float = 0.4) -> Example:
    """Two sources, each with a veto on a random half of the features, and little other noise: most random starts end in
    an optimum in which one source does the work of two."""
    generator = np.random.default_rng(seed)
    veto = np.where(generator.random((2, num_features)) < 0.5, 0.9, 0.001)
    truth = {"source_prior": np.full(2, present), "veto": veto, "base": np.full(num_features, 0.97)}
    source = (generator.random((num_rows, 2)) < present).astype(float)
    x = generator.random((num_rows, num_features)) < truth["base"] * np.exp(source @ np.log1p(-veto))
    model = NoisyAnd(num_components=2, num_features=num_features)
    return Example.of(model, x.astype(float), {**truth, "source": source})


def log_evidence(params: Mapping[str, Tensor], x: Tensor) -> float:
    """sum_n log sum_s p(x_n, s | params), in NumPy, over the four codes."""
    prior, veto, base = (params[site].numpy() for site in ("source_prior", "veto", "base"))
    codes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    on = base * np.prod((1 - veto[None]) ** codes[:, :, None], 1)
    weight = np.log(np.where(codes == 1, prior, 1 - prior)).sum(-1)
    data = x.numpy()[:, None]
    joint = weight + (data * np.log(on) + (1 - data) * np.log1p(-on)).sum(-1)
    return float(np.logaddexp.reduce(joint, -1).sum())
