"""Collapsed Gibbs sampling of the relational topic model: tokens' topics given the links, the weights given the topics.

Topics and proportions are integrated out. A token's conditional is LDA's (Murphy 2012, eq. 27.37) times the probability
of the links of its document with the token moved, evaluated exactly (``kernels.sweep_links``); of the additive link
that takes only the linked pairs, as the others are a product over topics. The weights of the additive link are drawn by
a topic for every link, which has k with probability ~ w_k qbar_ik qbar_jk and none ~ w_0:

    w_k | rest ~ Gamma(1 + number of links of topic k, 1 + sum over pairs of qbar_ik qbar_jk)   under Gamma(1, 1)

and other priors accept these by the ratio of the densities. The weights of the other links are proposed from Student's
t about their mode, and accepted so. The first sweeps are LDA's. Without negatives (``RTM.negatives = 0``) tokens read
the links alone; of the additive link pairs without a link then speak of the weights only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from custom_inference.families.links.pairs import Array, LinkedRows, LinkPairs
from custom_inference.families.responses.gibbs import Value
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.gibbs.protocol import Params
from ppl_models import RTM
from ppl_models.rtm import LINKS

#: Sweeps of LDA before the links count; degrees of freedom of proposals.
LDA_SWEEPS, _FREEDOM = 20, 6.0


class LinkChain(LdaChain):
    """LDA's chain with the weights and the bias of the links as values of its state."""

    def __init__(self, model: RTM, rows: LinkedRows, seed: int, start: Params | None, **settings: Any):
        self.kind, self.copies, self.pairs = model.link, model.link_copies, rows.pairs
        start, density = start or {}, _density(rows.pairs)
        first = density if self.kind == "additive" else np.log(density)
        weight = torch.full(model.shapes["link_weight"], float(self.kind == "additive"))
        self.weights = Value(model, "link_weight", start.get("link_weight", weight))
        self.bias = Value(model, "link_bias", start.get("link_bias", torch.tensor(first)))
        self._ends, self._other, pair = rows.pairs.neighbours()
        self._y, self._e, self._base = rows.pairs.y[pair], rows.pairs.e[pair], rows.pairs.base
        self.cut = self.kind == "additive" and model.negatives == 0
        if self.cut:
            self._e, self._base = np.zeros(len(pair)), 0.0
        self.plain_sweeps = LDA_SWEEPS
        super().__init__(TokenList.of(rows), model.num_topics, seed=seed, **settings)

    @property
    def lengths(self) -> Array:
        return np.maximum(np.diff(self.tokens.start), 1).astype(np.float64)[:, None]

    @property
    def share(self) -> Array:
        """qbar, (N, K)."""
        return self.document_topic / self.lengths

    def sweep(self) -> None:
        from custom_inference.families.links.kernels import sweep_links

        if not self._begun or self.plain_sweeps > 0:
            self.plain_sweeps -= 1
            super().sweep()
            return
        share = self.share
        empty = np.zeros((0, self.num_topics))
        given = empty if self.explicit is None else np.ascontiguousarray(self.explicit.value.numpy().T, np.float64)
        settings = given, LINKS_KIND[self.kind], float(self.copies), self.weights.value.numpy()
        pairs = float(self.bias.value), self._ends, self._other, self._y, self._e, self._base
        tokens: Any = self.tokens.word, self.topic, self.tokens.start, self.alpha, self.gamma
        sweep_links(*tokens, self._word_topic, self._total, *settings, *pairs, share, self._rng)
        if self.explicit is not None:
            self.assign(self.topic)
            self.explicit.update(self._word_counts(), self._generator)
        self.move_links(share)

    def move_links(self, share: Array) -> None:
        """New weights and bias given qbar."""
        if self.kind == "additive":
            self._move_rates(share)
        else:
            self._move_weights(share)

    def _move_rates(self, share: Array) -> None:
        generator, number = self._generator, self._numbers(share)
        exposure = [self.copies * np.asarray(part) for part in self.pairs.exposure(share)]
        for value, links, exposed in zip((self.weights, self.bias), (number[:-1], number[-1]), exposure, strict=True):
            if value.known is None:
                new = torch.as_tensor(generator.gamma(1.0 + links, 1 / (1.0 + exposed))).clamp(min=1e-300)
                prior = value.prior
                ratio = prior.log_prob(new) + new - prior.log_prob(value.value) - value.value
                accepted = torch.as_tensor(np.log(generator.random(new.shape))) < ratio
                value.value = torch.where(accepted, new, value.value)

    def _numbers(self, share: Array) -> Array:
        """How many links have every topic, and none, (K + 1,): drawn."""
        pairs, linked = self.pairs, self.pairs.y > 0
        weight, bias = self.weights.value.numpy(), float(self.bias.value)
        parts = np.column_stack([pairs.features(share)[linked] * weight, np.full(linked.sum(), bias)])
        edges = parts.cumsum(1).repeat((self.copies * pairs.y[linked]).astype(int), 0)
        drawn = (edges <= self._generator.random((len(edges), 1)) * edges[:, -1:]).sum(1).clip(max=len(weight))
        return np.bincount(drawn, minlength=len(weight) + 1).astype(np.float64)

    def _move_weights(self, share: Array) -> None:
        values, feature = (self.weights, self.bias), self.pairs.features(share)
        free = np.concatenate([np.full(v.value.numel(), v.known is None) for v in values])
        if not free.any():
            return
        inputs = np.column_stack([feature, np.ones(len(feature))])
        before = np.concatenate([v.value.numpy().reshape(-1) for v in values])
        stands = [v.reference if v.known is None else (v.value, torch.zeros(())) for v in values]
        centre, tight = (
            np.concatenate([part.expand(v.shape).reshape(-1) for part, v in zip(parts, values, strict=True)])
            for parts in zip(*stands, strict=True)
        )
        start = np.where(free, centre, before)
        mode, precision = regression_mode(self.kind, self.pairs, inputs, start, free, self.copies, centre, tight)
        chol = np.linalg.cholesky(precision)
        shrink = np.sqrt(self._generator.chisquare(_FREEDOM) / _FREEDOM)
        new = before.copy()
        new[free] = mode[free] + np.linalg.solve(chol.T, self._generator.standard_normal(len(mode[free]))) / shrink

        def log_density(at: Array) -> float:
            away = ((chol.T @ (at - mode)[free]) ** 2).sum()
            heavy = 0.5 * (_FREEDOM + free.sum()) * np.log1p(away / _FREEDOM)
            prior = self.weights.log_prior(torch.as_tensor(at[:-1])) + self.bias.log_prior(torch.as_tensor(at[-1]))
            return self.copies * self.pairs.log_prob(self.kind, share, at[:-1], float(at[-1])) + prior + heavy

        if np.log(self._generator.random()) < log_density(new) - log_density(before):
            self.weights.value, self.bias.value = torch.as_tensor(new[:-1]), torch.as_tensor(new[-1])

    def log_joint(self) -> float:
        """LDA's, log p(R | qbar, w), and the log priors of the weights."""
        weight, bias = self.weights.value.numpy(), float(self.bias.value)
        own = sum(one.log_prior(one.value) for one in (self.weights, self.bias))
        return super().log_joint() + self.copies * self.pairs.log_prob(self.kind, self.share, weight, bias) + own

    def _values(self) -> Params:
        return super()._values() | {one.site: one.value.clone() for one in (self.weights, self.bias)}

    def list_sampled(self) -> dict[str, str]:
        how = "given a topic for every link" if self.kind == "additive" else "by Metropolis steps from their mode"
        how += ", which pairs without a link do not inform" if self.cut else ""
        notes = {one.site: f"{one.site} {how}" for one in (self.weights, self.bias) if one.known is None}
        return super().list_sampled() | notes


LINKS_KIND = {name: place for place, name in enumerate(LINKS)}


def _density(pairs: LinkPairs) -> float:
    """Links a pair."""
    every = pairs.base * pairs.size * (pairs.size - 1) / 2 + pairs.e.sum()
    return (float(pairs.y.sum()) + 0.5) / (max(float(every), 1.0) + 1.0)


def regression_mode(
    kind: str, pairs: LinkPairs, inputs: Array, start: Array, free: Any, copies: float, centre: Array, tight: Array
) -> tuple[Array, Array]:
    """The mode (K + 1,) of the weights and the bias given qbar, under Normal(centre, 1 / sqrt(tight)), and minus the
    Hessian there, of those that are ``free``; the others stay. inputs: (P, K + 1). Newton's method, halved where it
    overshoots.
    """
    value, last, hessian = start.astype(np.float64), -np.inf, np.eye(int(free.sum()))

    def objective(at: Array) -> float:
        score = inputs @ at
        normaliser = np.logaddexp(0, score) if kind == "sigmoid" else np.exp(np.minimum(score, 700))
        return float(copies * (pairs.y * score - pairs.e * normaliser).sum() - 0.5 * (tight * (at - centre) ** 2).sum())

    last = objective(value)
    for _ in range(50):
        score = inputs @ value
        mean = 1 / (1 + np.exp(-score)) if kind == "sigmoid" else np.exp(np.minimum(score, 700))
        curvature = copies * pairs.e * (mean * (1 - mean) if kind == "sigmoid" else mean)
        slope = (copies * inputs.T @ (pairs.y - pairs.e * mean) - tight * (value - centre))[free]
        some = inputs[:, free]
        hessian = (some * curvature[:, None]).T @ some + np.diag(tight[free])
        step, size = np.zeros(len(value)), 1.0
        step[free] = np.linalg.solve(hessian, slope)
        while objective(value + size * step) < last and size > 1e-6:
            size /= 2
        value = value + size * step
        before, last = last, objective(value)
        if last - before < 1e-8 * (1 + abs(last)):
            break
    return value, hessian
