"""Inference of rows whose log p has terms in their shares, or in averages of their choices, beside their words.

q(theta_n) = Dirichlet(g_n), and q(choice of a token of word w) is proportional to exp(h_nk + s_kw). With the expected
numbers n_k of choices of every component, and terms T(g) of the shares and R(n) of the choices, the bound is

    F(g, h) = sum_w c_w log sum_k exp(h_k + s_kw) + sum_k n_k (E log theta_k - h_k)
              - KL(Dirichlet(g) || Dirichlet(alpha)) + T(g) + R(n).

Its natural gradients, those divided by Fisher's information, G = diag(psi'(g)) - psi'(sum g) of Dirichlets, are

    alpha + n - g + G^-1 dT/dg   and   E log theta + dR/dn - h:

without terms they vanish where ordinary sweeps do, and whole steps along them are these sweeps. Steps are halved, row
by row, where they would lower the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.compiled.admixture.responses import Terms
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.documents import DocumentRows

#: The least part of a concentration that a step leaves; the least part of a step that is tried.
_LEFT, _LEAST = 0.1, 1e-4


class Climbed(NamedTuple):
    """concentration (N, K): g; log_share (N, K): h; bound (N,); tokens (N, K): n; counts (K, W): of every word."""

    concentration: Tensor
    log_share: Tensor
    bound: Tensor
    tokens: Tensor
    counts: Tensor


class _Words(NamedTuple):
    """share (B, K): exp h relative to its largest; ratio (B, M): counts over mixtures; tokens (B, K): n; value (B,)."""

    share: Tensor
    ratio: Tensor
    tokens: Tensor
    value: Tensor


class _Point(NamedTuple):
    """concentration, log_share (B, K), the words there, and the bound (B,)."""

    concentration: Tensor
    log_share: Tensor
    words: _Words
    value: Tensor


def climb_rows(
    documents: DocumentRows, score: Tensor, alpha: Tensor, start: tuple[Tensor, Tensor], terms: Terms, sweeps: int,
    threshold: float,
) -> Climbed:  # fmt: skip
    """Climb until concentrations change by less than ``threshold`` on average.

    score: (W, K) of words, relative to the largest of each. start: g and h (N, K).
    """
    concentration, log_share = (value.clone() for value in start)
    tokens, share = torch.zeros_like(concentration), torch.zeros_like(concentration)
    bound = torch.zeros(len(documents), dtype=torch.float64)
    ratio = score.new_zeros(len(documents.counts.values()) + 1)  # the last place takes the padding
    for block in documents.blocks:
        own, seen = block.documents, block.of_words(score)
        rows = _Rows(seen, block.count.to(score), alpha, terms.select(own))
        begin = rows.visit(concentration[own], log_share[own], rows.read(log_share[own]))
        end = rows.climb(begin, sweeps, threshold)
        concentration[own], log_share[own], bound[own] = end.concentration, end.log_share, end.value.double()
        tokens[own], share[own], ratio[block.cells] = end.words.tokens, end.words.share, end.words.ratio
    counts = score * documents.sum_by_word(ratio[:-1], share)
    return Climbed(concentration, log_share, bound, tokens, counts.T)


class _Rows:
    """Rows of a block at given scores (B, M, K) and counts (B, M) of their words."""

    def __init__(self, seen: Tensor, count: Tensor, alpha: Tensor, terms: Terms):
        self.seen, self.count, self.alpha, self.terms = seen, count, alpha, terms

    def read(self, log_share: Tensor) -> _Words:
        largest = log_share.amax(-1, keepdim=True)
        share = (log_share - largest).exp()
        mixture = (self.seen @ share.unsqueeze(-1)).squeeze(-1)
        ratio = self.count / mixture
        tokens = share * (ratio.unsqueeze(1) @ self.seen).squeeze(1)
        value = torch.xlogy(self.count, mixture).sum(-1) + largest[:, 0] * self.count.sum(-1)
        return _Words(share, ratio, tokens, value)

    def visit(self, concentration: Tensor, log_share: Tensor, words: _Words) -> _Point:
        """Add the bound up."""
        own = Dirichlet(concentration)
        value = words.value + (words.tokens * (own.expected() - log_share)).sum(-1) - own.kl(self.alpha)
        value = value + self.terms.expect_of_shares(concentration) + self.terms.expect_of_choices(words.tokens)
        return _Point(concentration, log_share, words, value)

    def step(self, at: _Point, size: Tensor) -> _Point:
        """Go a part (B, 1) of the way along the natural gradients."""
        choices = Dirichlet(at.concentration).expected() + _slope(self.terms.expect_of_choices, at.words.tokens)
        log_share = at.log_share + size * (choices - at.log_share)
        words = self.read(log_share)
        slope = _divide(at.concentration, _slope(self.terms.expect_of_shares, at.concentration))
        moved = at.concentration + size * (self.alpha + words.tokens + slope - at.concentration)
        return self.visit(torch.maximum(moved, _LEFT * at.concentration), log_share, words)

    def climb(self, at: _Point, sweeps: int, threshold: float) -> _Point:
        """Take steps until all rows stand still."""
        size = torch.ones_like(at.concentration[:, :1])
        rounding = 20 * torch.finfo(self.seen.dtype).eps
        for _ in range(sweeps):
            after = self.step(at, size)
            good = after.value >= at.value - rounding * (1 + at.value.abs())
            change = (after.concentration - at.concentration).abs().mean(-1) / size[:, 0]
            at = _choose(good, after, at)
            size = torch.where(good.unsqueeze(-1), (2 * size).clamp(max=1.0), 0.5 * size)
            if bool(((good & (change < threshold)) | (size[:, 0] < _LEAST)).all()):
                break
        return at


def _choose(good: Tensor, after: _Point, before: _Point) -> _Point:
    """Return the one point in some rows, the other in the rest."""

    def choose(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(good.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    words = _Words(*map(choose, after.words, before.words))
    return _Point(
        choose(after.concentration, before.concentration), choose(after.log_share, before.log_share), words,
        choose(after.value, before.value),
    )  # fmt: skip


def _slope(term: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Return the gradient of a term of every row."""
    with torch.enable_grad():
        leaf = at.detach().requires_grad_()
        value = term(leaf)
        return torch.autograd.grad(value.sum(), leaf)[0] if value.requires_grad else torch.zeros_like(at)


def _divide(concentration: Tensor, slope: Tensor) -> Tensor:
    """Return G^-1 slope, by Sherman and Morrison."""
    inverse = 1 / torch.polygamma(1, concentration.double())
    of_all = torch.polygamma(1, concentration.double().sum(-1, keepdim=True))
    own = inverse * slope
    found = own + inverse * of_all * own.sum(-1, keepdim=True) / (1 - of_all * inverse.sum(-1, keepdim=True))
    return found.to(concentration)
