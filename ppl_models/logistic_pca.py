"""Logistic PCA: binary rows whose log-odds are linear in a few Gaussian scores.

The baseline of sources 000 (section 5) and 001 (section 3, eq. 25). Schein, Saul & Ungar, *A generalized linear model
for principal component analysis of binary data* (AISTATS 2003); Collins, Dasgupta & Schapire, *A generalization of
principal component analysis to the exponential family* (NIPS 2002), which is the same for every exponential family;
Tipping, *Probabilistic visualisation of high-dimensional binary data* (NIPS 1999), who integrates the scores out.

    s_n        ~ Normal(0, I_K)                                                   n = 1..N
    theta_nt   = b_t + sum_k s_nk w_kt                                            t = 1..D
    x_nt | s_n ~ Bernoulli(sigmoid(theta_nt)),   log p(x | theta) = x theta - log(1 + e^theta)

Nothing changes if the scores are turned by an orthogonal matrix and the weights with them: only the space that the
weights span and their lengths in it are identified. Fits by closed-form steps are turned so that the rows of the weight
are orthogonal, the longest first, and the largest entry of each is positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.model import Example
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.likelihoods import Bernoulli


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticPCA(ComponentModel):
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
        "weight": Site("global", ("component", "feature")),
        "bias": Site("global", ("feature",)),
        "score": Site("latent", ("component",), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 3.0), "bias": dist.Normal(0.0, 10.0), "score": dist.Normal(0.0, 1.0)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return self.likelihood.distribution(site["bias"] + local @ site["weight"])

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights with orthogonal rows, the longest first, the largest entry of each positive; scores turned alike."""
        turn = canonical_turn(values["weight"])
        turned = {"weight": turn @ values["weight"]}
        if "score" in values:
            turned["score"] = values["score"] @ turn.T
        return {**values, **turned}

    def num_parameters(self, num_rows: int) -> int:
        """KD + D - K (K - 1) / 2: weights and biases less the rotations.

        With the scores of ``num_rows`` rows estimated as points too: D + K (N + D) - K^2, as any invertible matrix can
        then be moved from the scores to the weights.
        """
        k, d = self.num_components, self.num_features
        return d + k * (num_rows + d) - k**2 if num_rows else k * d + d - k * (k - 1) // 2

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


def canonical_turn(weight: Tensor) -> Tensor:
    """The orthogonal matrix (K, K) that makes the rows of weights (K, D) orthogonal, ordered and of one sign."""
    # Singular vectors of W itself: the Gram matrix W W' would square the condition number.
    turn = torch.linalg.svd(weight, full_matrices=False)[0].T
    turned = turn @ weight
    sign = torch.sign(turned.gather(1, turned.abs().argmax(1, keepdim=True)))
    return torch.where(sign == 0, torch.ones_like(sign), sign) * turn
