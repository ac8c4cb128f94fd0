"""What the models of exponential-family PCA share: their sites, the rotation of their scores, learned scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import require_whole
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.core.turns import canonical_turn


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearScores(RowModel):
    """Rows whose natural parameters are linear in K Gaussian scores: what the models of this kind share.

    They say which ``likelihood`` their entries have and may change the shapes of the sites: ``weight`` (K, D) or
    (K, D, C), ``bias`` (D,) or (D, C), ``score`` (N, K).
    """

    #: About Fisher's of an entry on its natural parameter.
    information: ClassVar[float] = 1.0

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "feature")),
        "bias": Site("global", ("feature",)),
        "score": Site("latent", ("component",), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.real),
    }

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn weights to orthogonal rows, the longest first, the largest entry of each positive, and scores alike."""
        weight = values["weight"]
        turn = canonical_turn(weight.flatten(1))
        turned = {"weight": (turn @ weight.flatten(1)).view_as(weight)}
        if "score" in values:
            turned["score"] = values["score"] @ turn.T
        return {**values, **turned}

    def with_learned_scales(self, num_rows: int) -> Self:
        """Return this model with components that learn how large their weights are: surplus ones go to 0, set K high.

        A hyper-prior, InverseGamma(1, M f^2 / 2) on the variance of the M weights of a component, which is the site
        ``weight_variance`` (K,), with f^2 = 1 / (num_rows I), I the ``information`` of an entry: about the squared
        standard error of a weight that is learned from so many rows. Maximised over, it makes the log prior of the
        weights -(M / 2 + 2) log(|w_k|^2 + M f^2): to keep a component costs about M / 2 log(mean of its squared weights
        / f^2), as BIC has it. Automatic relevance determination: MacKay, *Bayesian methods for backpropagation
        networks* (1994); as a mode: Tan & Fevotte, IEEE TPAMI 35 (2013).

        Raises ModelError for a number of rows that is no whole number of at least 1.
        """
        require_whole({"num_rows": num_rows})
        shape = self.shapes["weight"]
        rate = torch.full((shape[0],), math.prod(shape[1:]) / (2 * num_rows * self.information))
        hyper = dist.InverseGamma(torch.ones(shape[0]), rate)
        return self.with_priors(weight_variance=hyper, weight=_RowScales(len(shape)))

    @property
    def num_natural(self) -> int:
        """M: natural parameters of a row that the data can tell apart."""
        return self.sizes["feature"]

    def num_unseen(self, num_rows: int) -> int:
        """Count the rotations, K (K - 1) / 2; of scores as points K^2, as any invertible matrix can be moved from these
        to the weights, and K, as what is added to them can be to the biases. And what of logits the data cannot tell
        apart."""
        k, unknown, own = self.sizes["component"], self.unknown_sites, math.prod(self.shapes["bias"]) - self.num_natural
        turns = k**2 if num_rows else k * (k - 1) // 2
        biases = own + (k if num_rows else 0)
        return ("weight" in unknown) * (turns + k * own) + ("bias" in unknown) * biases


@dataclass(frozen=True)
class _RowScales:
    """The prior of weights with so many axes whose rows have variances of their own."""

    num_axes: int

    def __call__(self, weight_variance: Tensor) -> Any:
        return dist.Normal(0.0, weight_variance.sqrt().view(-1, *[1] * (self.num_axes - 1)))
