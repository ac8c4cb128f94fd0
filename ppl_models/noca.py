"""Noisy-or component analysis (NOCA).

Singliar & Hauskrecht, *Noisy-OR Component Analysis and its Application to Link Analysis*, JMLR 7 (2006),
sections 2-2.1.

    s_i        ~ Bernoulli(pi_i)                                                        i = 1..K
    x_j | s    ~ Bernoulli(1 - (1 - p_0j) prod_i (1 - p_ij)^{s_i})                      j = 1..D      (eq. 2)
    p(x_j | s) = exp[x_j log(1 - e^{-a_j}) - (1 - x_j) a_j],  a_j = theta_0j + sum_i theta_ij s_i     (eq. 3)

with theta = -log(1 - p). An equivalent story, which gives closed-form M steps: every present source i, and the
always-present leak, independently *transmits* to feature j with probability p_ij (p_0j), and x_j is the OR of
the transmissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import pyro
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.datasets.images import sample_noca
from ppl_models.distributions import BernoulliVector, NoisyOr
from ppl_models.likelihoods import Bernoulli


@dataclass(frozen=True, kw_only=True, eq=False)
class NOCA(ComponentModel):
    """Noisy-or component analysis: x is the noisy OR of K binary sources and a leak.

    Sites
    -----
    source_prior: pi (K,), P(s_i = 1); prior flat on [0, 1] by default.
    loading: p (K, D), probability that a present source i turns feature j on; flat by default.
    leak: p0 (D,), probability that feature j is on for other causes; flat by default.
    source: s (N, K), one event vector a row.
    x: (N, D), observed.

    With the flat default priors AutoDelta gives maximum likelihood. Swap a prior with
    ``model.with_priors(leak=dist.Beta(1., 99.))``.

    Raises ModelError for K > D: the model is not identified.
    """

    likelihood: ClassVar[Any] = Bernoulli()
    wide_reason: ClassVar[str | None] = "more sources than features are not identified"
    sites: ClassVar[Mapping[str, Site]] = {
        "source_prior": Site("global", ("component",), support=constraints.unit_interval),
        "loading": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "leak": Site("global", ("feature",), support=constraints.unit_interval),
        "source": Site("latent", ("component",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        source_prior = self.sample("source_prior")
        loading = self.sample("loading")
        leak = self.sample("leak")
        with self.rows(x, **plate) as rows:
            source = pyro.sample("source", BernoulliVector(source_prior))
            return rows.observe("x", NoisyOr(source, loading, leak))

    @classmethod
    def example(cls) -> Example:
        """Three sources over six features, sixty rows."""
        loading = torch.full((3, 6), 0.02)
        for i in range(3):
            loading[i, 2 * i : 2 * i + 2] = 0.85
        loading[0, 2] = loading[2, 1] = 0.6
        truth = {"source_prior": torch.tensor([0.3, 0.4, 0.25]), "loading": loading, "leak": torch.full((6,), 0.05)}
        drawn = sample_noca(truth, 60, seed=7)
        return Example(model=cls(num_components=3, num_features=6), data=drawn.data, truth=drawn.truth)
