"""Exact posteriors of few scores: densities of no standard form, given up to their integrals.

Of exponential-family PCA (:mod:`ppl_models.pca`), with the natural parameters in G groups of C
(:mod:`custom_inference.families.factors.natural`):

    log p(s | x_n) = sum_g [T_ng . eta_ng - L_ng A(eta_ng)] + log h(x_n) + log N(s; prior) - log p(x_n)

Mean, covariance and log p(x_n) are those of adaptive quadrature (:mod:`custom_inference.families.factors.quadrature`).

Of logistic PCA it is log p(x_n | s) + log N(s; prior) - log p(x_n), concave in s.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.posteriors.nodes import standard_nodes
from custom_inference.core.posteriors.protocol import ContinuousPosterior, WeightedValues, draw_slots
from ppl_models.core.likelihood import log_two_cosh_half
from ppl_models.likelihoods import Bernoulli, Gaussian, Poisson

#: Cells an axis of the grid that draws come from, by the number of components, and how far it goes, in standard
#: deviations: a log-concave density has tails no heavier than exponential.
_CELLS, _REACH = {1: 600, 2: 64}, {1: 10.0, 2: 8.0}
#: Entries of the (rows, points, features) arrays per block.
_BLOCK_ENTRIES = 2**21
#: The likelihoods of groups of one number, by their number in ``ScoreJoint.kind``; the next is the softmax's.
SEPARATE = (Bernoulli(), Poisson(), Gaussian())


@dataclass(frozen=True)
class GridPosterior(ContinuousPosterior):
    """A posterior of few scores that is known up to its integral.

    location (N, K), covariance (N, K, K), log_evidence (N,): its mean, its covariance and log p(x_n). Subclasses say
    which parameters their ``joint_density`` is made of.

    Draws come from its values on a fine grid, a cell chosen by its probability and a place within it evenly, drawn
    together by as much as this widens them (West 1993): moments and log-likelihoods are right to about 1e-3.
    """

    location: Annotated[Tensor, "*"]
    covariance: Annotated[Tensor, "*k", "covariances"]
    log_evidence: Annotated[Tensor, "n"]

    @property
    @abc.abstractmethod
    def joint_density(self) -> Any:
        """log p(x_n, s) as a function of scores (N, Q, K), (N, Q)."""

    @property
    @abc.abstractmethod
    def num_columns(self) -> int:
        """Entries that a value of ``joint_density`` takes."""

    @property
    def mean(self) -> Tensor:
        return self.location

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def log_prob(self, local: Tensor) -> Tensor:
        return self.joint_density(local.unsqueeze(-2))[..., 0] - self.log_evidence

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        """Return nodes of the normal of its mean and covariance, weighted by how much denser the posterior is there."""
        nodes = standard_nodes(self.location.shape[1], number, fine=True).to(self.location)
        root, values, weights = torch.linalg.cholesky(self.covariance), [], []
        denser = nodes.log_weight + nodes.place.square().sum(-1) / 2
        per_block = max(1, _BLOCK_ENTRIES // (len(denser) * self.num_columns))
        for start in range(0, len(root), per_block):
            some: Any = replace(self, **self._of_rows(slice(start, start + per_block)))
            values.append(some.location[:, None] + nodes.place @ root[start : start + per_block].mT)
            weights.append((some.joint_density(values[-1]) + denser).softmax(-1))
        return WeightedValues(torch.cat(values), torch.cat(weights), nodes.drawn)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        rows, size = self.location.shape
        cells, reach = _CELLS.get(size, 24), _REACH.get(size, 6.0)
        width = 2 * reach / cells
        axis = (torch.arange(cells, dtype=torch.float64) + 0.5) * width - reach
        grid = torch.cartesian_prod(*[axis] * size).reshape(-1, size)
        per_block = max(1, _BLOCK_ENTRIES // (len(grid) * self.num_columns))
        parts = []
        for start in range(0, rows, per_block):
            some = replace(self, **self._of_rows(slice(start, start + per_block)))
            parts.append(some._draw_on_grid(num_samples, grid.to(self.location), width, generator))
        return torch.cat(parts, 1)

    def _draw_on_grid(self, num_samples: int, grid: Tensor, width: float, generator: torch.Generator) -> Tensor:
        """Draw few rows, (num_samples, N, K), from a grid (Q, K) in standard deviations about the mean."""
        root = torch.linalg.cholesky(self.covariance)
        log_weight = self.joint_density(self.location[:, None] + grid @ root.mT).log_softmax(-1)
        chosen = grid[draw_slots(log_weight, num_samples, generator)]  # (N, S, K)
        within = torch.rand(chosen.shape, generator=generator, dtype=torch.float64).to(chosen) - 0.5
        apart = (chosen + width * within) / math.sqrt(1 + width**2 / 12)
        return (self.location[:, None] + apart @ root.mT).transpose(0, 1)


class ScoreJoint(NamedTuple):
    """log p(x_n, s) as a function of s: target (N, G, C), total (N, G), base (N,), offset (N,), weight (K, G, C), bias
    (G, C), prior_mean (N, K), prior_precision (K,), kind: a place in ``SEPARATE``, or the softmax."""

    target: Tensor
    total: Tensor
    base: Tensor
    offset: Tensor
    weight: Tensor
    bias: Tensor
    prior_mean: Tensor
    prior_precision: Tensor
    kind: Tensor

    def __call__(self, score: Tensor) -> Tensor:
        """Evaluate at scores (..., N, Q, K), with result (..., N, Q)."""
        eta = self.eta(score)
        number = int(self.kind)
        value = SEPARATE[number].log_normaliser(eta)[..., 0] if number < len(SEPARATE) else eta.logsumexp(-1)
        fit = (eta.flatten(-2) @ self.target.flatten(1)[..., None] - value @ self.total[..., None])[..., 0]
        distance = ((score - self.prior_mean.unsqueeze(-2)).square() * self.prior_precision).sum(-1)
        constant = 0.5 * (self.prior_precision.log().sum() - len(self.prior_precision) * math.log(2 * math.pi))
        return fit + self.base[:, None] - 0.5 * distance + constant

    def eta(self, score: Tensor) -> Tensor:
        """(..., N, Q, G, C)."""
        own = (score @ self.weight.flatten(1)).unflatten(-1, self.bias.shape)
        return own + self.bias + self.offset.view(-1, 1, 1, 1)


@dataclass(frozen=True)
class ScorePosterior(GridPosterior):
    """p(s_n | x_n) of exponential-family PCA with few components. peak (N, K): its mode; for the rest see
    :class:`ScoreJoint`."""

    peak: Annotated[Tensor, "*"]
    target: Annotated[Tensor, "ngc"]
    total: Annotated[Tensor, "ng"]
    base: Annotated[Tensor, "n"]
    offset: Annotated[Tensor, "n"]
    weight: Annotated[Tensor, "kgc"]
    bias: Annotated[Tensor, "gc"]
    prior_mean: Annotated[Tensor, "nk"]
    prior_precision: Annotated[Tensor, "k", "positive"]
    kind: Annotated[Tensor, "", "nonnegative_integer"]

    @property
    def joint_density(self) -> ScoreJoint:
        return ScoreJoint(
            self.target, self.total, self.base, self.offset, self.weight, self.bias, self.prior_mean,
            self.prior_precision, self.kind,
        )  # fmt: skip

    @property
    def num_columns(self) -> int:
        return self.bias.numel()

    @property
    def mode(self) -> Tensor:
        return self.peak


class LogisticJoint(NamedTuple):
    """temperature log p(x_n | s) + log N(s; prior_mean, 1 / prior_precision) as a function of s.

    half: x - 1/2, 0 where not observed (N, D). weight (K, D), bias (D,). observed: 1 where x is, None: everywhere.
    """

    half: Tensor
    weight: Tensor
    bias: Tensor
    prior_mean: Tensor
    prior_precision: Tensor
    observed: Tensor | None = None
    temperature: float = 1.0

    def __call__(self, score: Tensor) -> Tensor:
        """Evaluate at scores (..., N, Q, K), with result (..., N, Q)."""
        odds = self.bias + score @ self.weight
        loss = log_two_cosh_half(odds.abs())
        loss = loss.sum(-1) if self.observed is None else (loss @ self.observed[..., None])[..., 0]
        fit = (odds @ self.half[..., None])[..., 0] - loss
        distance = ((score - self.prior_mean).square() * self.prior_precision).sum(-1)
        constant = 0.5 * (self.prior_precision.log().sum() - len(self.prior_mean) * math.log(2 * math.pi))
        return self.temperature * fit - 0.5 * distance + constant

    def mode(self, steps: int = 12) -> tuple[Tensor, Tensor]:
        """About the mode (N, K), and the Cholesky factor of minus the Hessian there (N, K, K).

        Newton steps where they climb, which they do near the mode; elsewhere steps under the bound whose curvature is
        the largest there is, 1/4 for every feature (Boehning 1992), which never descend.
        """
        at = self.prior_mean.expand(len(self.half), -1)
        every, row = self._curvature(torch.full_like(self.half, 0.25)), torch.arange(len(at), device=at.device)
        for _ in range(steps):
            slope, factor = self._slope_and_curvature(at)
            moves = [torch.cholesky_solve(slope[..., None], each)[..., 0] for each in (factor, every)]
            candidates = torch.stack([at, at + moves[0], at + moves[1]], 1)
            at = candidates[row, self(candidates).argmax(-1)]
        return at, self._slope_and_curvature(at)[1]

    def _slope_and_curvature(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient (N, K) at scores (N, K), and the Cholesky factor of minus the Hessian."""
        odds = self.bias + at @ self.weight
        miss = self.half - self._where_observed(torch.tanh(odds / 2) / 2)
        slope = self.temperature * miss @ self.weight.T - self.prior_precision * (at - self.prior_mean)
        return slope, self._curvature(torch.sigmoid(odds) * torch.sigmoid(-odds))

    def _curvature(self, rate: Tensor) -> Tensor:
        """The Cholesky factor (N, K, K) of sum_d rate_nd w_d w_d' + the prior's precision."""
        pairs = (self.weight[:, None] * self.weight).flatten(0, 1)
        size = len(self.weight)
        total = (self.temperature * self._where_observed(rate) @ pairs.T).reshape(-1, size, size)
        return torch.linalg.cholesky(total + torch.diag(self.prior_precision))

    def _where_observed(self, value: Tensor) -> Tensor:
        return value if self.observed is None else value * self.observed


@dataclass(frozen=True)
class LogisticPosterior(GridPosterior):
    """p(s_n | x_n) of logistic PCA with few components.

    location (N, K), covariance (N, K, K), log_evidence (N,): its mean, its covariance and log p(x_n). half (N, D),
    weight (K, D), bias (D,), prior_mean and prior_precision (K,): see :class:`LogisticJoint`.
    """

    half: Annotated[Tensor, "nd"]
    weight: Annotated[Tensor, "kd"]
    bias: Annotated[Tensor, "d"]
    prior_mean: Annotated[Tensor, "k"]
    prior_precision: Annotated[Tensor, "k", "positive"]

    @property
    def joint_density(self) -> LogisticJoint:
        """log p(x_n, s)."""
        seen = self.half != 0
        observed = None if bool(seen.all()) else seen.to(self.half)
        return LogisticJoint(self.half, self.weight, self.bias, self.prior_mean, self.prior_precision, observed)

    @property
    def num_columns(self) -> int:
        return len(self.bias)

    @property
    def mode(self) -> Tensor:
        return self.joint_density.mode(steps=30)[0]
