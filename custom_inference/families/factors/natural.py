"""Rows of exponential-family PCA in natural form, whatever the likelihood: what all engines of these models work on.

G groups of C natural parameters eta_g = b_g + sum_k s_k w_kg (+ the row's offset): a feature of one number (C = 1), one
of C categories, or all words of a document (G = 1). With statistics T and totals L, both over the dispersion,

    log p(x_n | s_n) = sum_g [T_g . eta_g - L_g A(eta_g)] + log h(x_n)

Under eta_g ~ N(m, S) engines take E[A] (or a bound on it), and its slopes

    E[A] = a,   da / dm = p,   2 da / dS = D = diag(r) - c u u'

with a scalar's r = E[A''] and u = 0, and for the softmax the tilted bound (Knowles & Minka, *Non-conjugate variational
message passing for multinomial and binary regression*, NIPS 2011): for any t on the simplex

    E[log sum_c e^eta_c] <= t'S t / 2 + log sum_c exp(m_c + S_cc / 2 - (S t)_c)

best where t is the softmax of those exponents, and there p = r = u = t, c = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.posteriors.scores import SEPARATE
from ppl_models.core.likelihood import ExponentialFamily, hermite, softmax_and_log_sum

#: Nodes of the one-dimensional rule for expectations that have no closed form.
_NODES = 32


def outer_products(matrix: Tensor) -> Tensor:
    """Compute the outer product of every row of (M, K) with itself, (M, K * K)."""
    return (matrix[:, :, None] * matrix[:, None, :]).flatten(1)


def extend_moments(score: Tensor, covariance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute E[s~], (N, K + 1), and E[s~ s~'], (N, (K + 1)^2), of s~ = (s, 1): of Gaussians, or of points."""
    one = torch.cat([score, torch.ones_like(score[:, :1])], 1)
    pair = outer_products(one)
    if covariance is None:
        return one, pair
    return one, pair + torch.nn.functional.pad(covariance, (0, 1, 0, 1)).reshape(len(one), -1)


class Curvature(NamedTuple):
    """diag(rate) - strength share share' of every group: rate, share (N, G, C), strength (N, G); of numbers the first
    alone."""

    rate: Tensor
    share: Tensor | None = None
    strength: Tensor | None = None

    def scale_by(self, total: Tensor) -> Curvature:
        """Multiply by ``total`` (N, G)."""
        if self.share is None or self.strength is None:
            return Curvature(self.rate * total.unsqueeze(-1))
        return Curvature(self.rate * total.unsqueeze(-1), self.share, self.strength * total)

    def of_scores(self, weight: Tensor) -> Tensor:
        """Compute sum_g w_g D_g w_g' of every row, (N, K, K), for weights (K, G, C)."""
        size, flat = len(weight), weight.flatten(1)
        found = (self.rate.flatten(1) @ outer_products(flat.T)).unflatten(1, (size, size))
        if self.share is None or self.strength is None:
            return found
        pulled = pull_back(self.share, weight)
        return found - (pulled * self.strength.unsqueeze(-1)).mT @ pulled

    def times(self, direction: Tensor) -> Tensor:
        """Compute D_g d_g of every group, (N, G, C)."""
        if self.share is None or self.strength is None:
            return self.rate * direction
        along = self.strength * (self.share * direction).sum(-1)
        return self.rate * direction - along.unsqueeze(-1) * self.share


def pull_back(value: Tensor, weight: Tensor) -> Tensor:
    """Compute w_g v_g of every group, (N, G, K), from values (N, G, C)."""
    if weight.shape[1] == 1:
        return (value.flatten(1) @ weight.flatten(1).T).unsqueeze(1)
    return torch.einsum("ngc,kgc->ngk", value, weight)


class Spread(NamedTuple):
    """The covariance of eta_g: w_g' V w_g, from covariances V (N, K, K) of the scores."""

    covariance: Tensor
    weight: Tensor

    def variance(self) -> Tensor:
        """Return the diagonals, (N, G, C)."""
        pairs = outer_products(self.weight.flatten(1).T)
        found = self.covariance.flatten(1) @ pairs.T
        return found.clamp(min=0).view(-1, *self.weight.shape[1:])

    def apply_to(self, value: Tensor) -> Tensor:
        """Compute V w_g v_g of every group, (N, G, K)."""
        return pull_back(value, self.weight) @ self.covariance

    def times(self, value: Tensor) -> Tensor:
        """Compute w_g' V w_g v_g of every group, (N, G, C)."""
        if self.weight.shape[1] == 1:
            return (self.apply_to(value)[:, 0] @ self.weight.flatten(1)).unsqueeze(1)
        return torch.einsum("ngk,kgc->ngc", self.apply_to(value), self.weight)


class NaturalExpectations(NamedTuple):
    """a (N, G), p (N, G, C) and D of every group; tilt: a better t (N, G, C), of vectors."""

    normaliser: Tensor
    mean: Tensor
    curvature: Curvature
    tilt: Tensor | None = None


@dataclass(frozen=True)
class Separate:
    """Groups of one number each."""

    likelihood: ExponentialFamily

    present: ClassVar[None] = None

    def at(self, eta: Tensor) -> NaturalExpectations:
        """Compute the expectations at points eta (N, G, 1)."""
        mean = self.likelihood.mean(eta)
        return NaturalExpectations(
            self.likelihood.log_normaliser(eta)[..., 0], mean, Curvature(self.likelihood.curvature(eta))
        )

    def over(self, eta: Tensor, spread: Spread, tilt: Tensor | None = None) -> NaturalExpectations:
        """Compute the expectations under eta ~ N(eta, spread): exact, or for log-odds by quadrature."""
        del tilt
        variance = spread.variance()
        if self.likelihood.kind == "real":
            value = (eta.square() + variance) / 2
            return NaturalExpectations(value[..., 0], eta, Curvature(torch.ones_like(eta)))
        if self.likelihood.kind == "counts":
            rate = torch.exp(eta + variance / 2)
            return NaturalExpectations(rate[..., 0], rate, Curvature(rate))
        node, weight = (part.to(eta) for part in hermite(_NODES))
        points = eta + variance.sqrt() * node  # the last axis, of one, becomes that of the nodes
        mean, rate = (f(points) @ weight for f in (self.likelihood.mean, self.likelihood.curvature))
        value = self.likelihood.log_normaliser(points) @ weight
        return NaturalExpectations(value, mean.unsqueeze(-1), Curvature(rate.unsqueeze(-1)))

    def third(self, eta: Tensor, spread: Spread) -> Tensor:
        """Compute d tr(S A''(eta)) / d eta with S held, (N, G, 1): A''' times the variance."""
        with torch.enable_grad():
            leaf = eta.detach().requires_grad_()
            slope = self.likelihood.curvature(leaf)
            bend = torch.autograd.grad(slope.sum(), leaf)[0] if slope.requires_grad else torch.zeros_like(eta)
        return bend * spread.variance()

    @property
    def kind(self) -> int:
        """Its place in ``SEPARATE``."""
        return SEPARATE.index(self.likelihood)

    @property
    def bounded(self) -> bool:
        """Whether the curvature of A is bounded."""
        return self.likelihood.kind != "counts"

    def steepest(self, like: Tensor) -> Curvature:
        """Return the largest curvature that A has anywhere, where it is bounded; (N, G, C) like ``like``."""
        most = 0.25 if self.likelihood.kind == "binary" else 1.0
        return Curvature(torch.full_like(like, most))


@dataclass(frozen=True)
class Softmax:
    """Groups of C logits. present: which of them there are, (G, C) of 0 and 1."""

    present: Tensor

    bounded: ClassVar[bool] = True
    kind: ClassVar[int] = len(SEPARATE)

    def at(self, eta: Tensor) -> NaturalExpectations:
        """Compute the expectations at points eta (N, G, C)."""
        share, normaliser = softmax_and_log_sum(eta)
        return NaturalExpectations(normaliser, share, self._curvature(share))

    def over(self, eta: Tensor, spread: Spread, tilt: Tensor | None = None) -> NaturalExpectations:
        """Compute the tilted bound on the expectations under eta ~ N(eta, spread) at ``tilt``; by default at the
        softmax of eta."""
        tilt = softmax_and_log_sum(eta)[0] if tilt is None else tilt
        turned = spread.times(tilt)
        variance = spread.variance()
        exponent = eta + variance / 2 - turned
        best, value = softmax_and_log_sum(exponent)
        value = value + (tilt * turned).sum(-1) / 2
        # Its Hessian in t is S + S D S, at most (1 + tr(D S)) S: so long a step does not overshoot.
        length = 1 / (1 + (best * (variance - spread.times(best))).sum(-1, keepdim=True).clamp(min=0))
        return NaturalExpectations(value, best, self._curvature(best), tilt + length * (best - tilt))

    def third(self, eta: Tensor, spread: Spread) -> Tensor:
        """Compute d tr(S (diag p - p p')) / d eta with S held: (diag p - p p')(diag S - 2 S p), (N, G, C)."""
        share = softmax_and_log_sum(eta)[0]
        return self._curvature(share).times(spread.variance() - 2 * spread.times(share))

    def steepest(self, like: Tensor) -> Curvature:
        """Return Boehning's bound on the curvature, (I - 1 1' / C) / 2, no smaller than any curvature."""
        present = self.present.to(like).expand_as(like)
        number = present.sum(-1)
        return Curvature(present / 2, present / number.unsqueeze(-1), number / 2)

    def _curvature(self, share: Tensor) -> Curvature:
        return Curvature(share, share, torch.ones_like(share[..., 0]))


Normaliser = Separate | Softmax
