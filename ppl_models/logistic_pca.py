"""Logistic PCA: binary rows whose log-odds are linear in a few Gaussian scores.

The baseline of sources 000 (section 5) and 001 (section 3, eq. 25). Schein, Saul & Ungar, *A generalized linear model
for principal component analysis of binary data* (AISTATS 2003); it is :mod:`ppl_models.exponential_family_pca` for 0/1
data:

    s_n        ~ Normal(0, I_K)                                                   n = 1..N
    theta_nt   = b_t + sum_k s_nk w_kt                                            t = 1..D
    x_nt | s_n ~ Bernoulli(sigmoid(theta_nt)),   log p(x | theta) = x theta - log(1 + e^theta)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch.distributions import constraints

from ppl_models.core.model import Example
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.exponential_family_pca import LinearScores
from ppl_models.likelihoods import Bernoulli


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticPCA(LinearScores, ComponentModel):
    """Logistic PCA: the log-odds of x are linear in K Gaussian scores.

    Sites
    -----
    weight: w (K, D); Normal(0, 3) by default.
    bias: b (D,), the log-odds at score 0; Normal(0, 10) by default.
    score: s (N, K), one event vector a row; Normal(0, 1) by default. Its prior can be exchanged like those of globals.
    x: (N, D), observed.

    The default priors are wide for log-odds, yet proper: with flat ones the likelihood has no maximum whenever a
    feature is constant or the scores separate its ones from its zeros, and the estimates run off to infinity. Under
    point estimates of scores and weights ("map") the two Normal priors together are a penalty on the nuclear norm of
    S W, 1 / (scale of s * scale of w) times it, so that only the product of the scales matters.

    Raises ModelError for K > D: the weights would not be identified.
    """

    likelihood: ClassVar[Any] = Bernoulli()
    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"
    sites: ClassVar[Mapping[str, Site]] = {
        **LinearScores.sites,
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 3.0), "bias": dist.Normal(0.0, 10.0), "score": dist.Normal(0.0, 1.0)}

    @classmethod
    def example(cls) -> Example:
        """Two components over seven features, eighty rows."""
        generator = torch.Generator().manual_seed(13)
        truth = {
            "weight": torch.tensor([[2.5, 2.0, -2.0, -2.5, 0.5, 0.0, 1.0], [0.5, -0.5, 0.5, -0.5, 2.0, -1.5, -1.0]]),
            "bias": torch.tensor([0.0, -0.5, 0.5, 0.0, -1.0, 0.5, 0.0]),
            "score": torch.randn((80, 2), generator=generator),
        }
        log_odds = truth["bias"] + truth["score"] @ truth["weight"]
        x = torch.bernoulli(torch.sigmoid(log_odds), generator=generator)
        return Example(model=cls(num_components=2, num_features=7), data=Data(x=x), truth=truth)
