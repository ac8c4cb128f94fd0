"""The relational topic model by variational EM: q over proportions and tokens' topics, globals as points.

q(pi_n) = Dirichlet(g_n), q(topic of each token of word v in n) = phi_nv; m_n = E[qbar_n]. For a pair let a_k = qbar_ik
qbar_jk, so that s = w_0 + w'a. Both link functions have bounds that are quadratic in s,

    log p(R | s) >= c + h s - kappa s^2 / 2       (sigmoid: Jaakkola & Jordan; else see ``responses.expansions``)

and as a >= 0 and sum_k a_k <= 1, (w'a)^2 <= sum_k w_k^2 a_k by Cauchy and Schwarz: what is left is linear in a, whose
mean is m_i m_j. In the tokens of one document the bound is therefore linear, and they are updated document by document,

    phi_vk  proportional to  b_kv exp(Psi(g_k) + sum_j m_jk [(h_ij - kappa_ij w_0) w_k - kappa_ij w_k^2 / 2] / L)

then g = alpha + sum n phi (27.41). Without negatives one pair more at the prior means stands for all without
a link (``LinkPairs.regularise``). M step: topics as LDA's (27.42); in (w, w_0) the bound is a quadratic,
maximised with its Normal priors. Of documents that take one topic each nothing is lost by the second inequality.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit, gammaln, log_expit, psi
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.links.pairs import Array, LinkedRows, LinkPairs
from custom_inference.families.responses.expansions import MARGIN
from custom_inference.families.topics.common import FLOOR, TopicEngine
from custom_inference.families.topics.dirichlet import equal_shares
from ppl_models import RTM, Data, PriorError
from ppl_models.distributions.tokens import Cells


class LinkExpansion(NamedTuple):
    """constant, slope and curvature (P,): constant + slope s - curvature s^2 / 2 <= log p(R | s)."""

    constant: Array
    slope: Array
    curvature: Array


def expand_bound(kind: str, pairs: LinkPairs, mean: Array, second: Array, most: float) -> LinkExpansion:
    """Compute the bounds at E[s] and E[s^2], (P,); of the exponential link they hold up to most + ``MARGIN``."""
    y, e = pairs.y, pairs.e
    if kind == "sigmoid":
        at = np.sqrt(np.maximum(second, 1e-12))
        bend = (expit(at) - 0.5) / (2 * at)
        return LinkExpansion(e * (log_expit(at) - at / 2 + bend * at**2), y - e / 2, 2 * e * bend)
    at = np.minimum(mean, most)
    reach, rate = most + MARGIN - at, np.exp(at)
    bend = 2 * rate * (np.expm1(reach) - reach) / reach**2
    return LinkExpansion(-e * (rate * (1 - at) + bend * at**2 / 2), y - e * (rate - bend * at), e * bend)


def largest(weight: Array | Tensor, bias: Tensor | float) -> float:
    """Return the largest score of a pair."""
    return float(bias) + max(float(weight.max()), 0.0)


class _LinkedDocuments:
    """All documents at given globals, in double precision: what rounds of updates need."""

    def __init__(self, model: RTM, params: Params, rows: LinkedRows, alpha: Tensor, temperature: float):
        self.cells, self.alpha = Cells.of(rows.counts), _array(alpha)
        self.kind, self.copies = model.link, model.link_copies * temperature
        self.pairs = rows.pairs.regularise(self.alpha)
        topic = _array(params["topic"]).T[self.cells.word.cpu().numpy()]
        self.log_topic = temperature * np.log(np.maximum(topic, FLOOR))
        self.weight, self.bias = _array(params["link_weight"]), float(params["link_bias"])
        self.count, self.length = _array(self.cells.count), _array(self.cells.length)
        row = self.cells.row.cpu().numpy()
        self.row, self.begin = row, np.searchsorted(row, np.arange(len(rows) + 1))
        self.start, self.other, self.pair = rows.pairs.neighbours()

    def expansion(self, share: Array) -> LinkExpansion:
        return expand_bound(self.kind, self.pairs, *self.moments(share), largest(self.weight, self.bias))

    def moments(self, share: Array) -> tuple[Array, Array]:
        """Compute E[s] of every pair, and the bound on E[s^2], (P,)."""
        a, w, b = self.pairs.features(share), self.weight, self.bias
        linear = a @ w
        return linear + b, b**2 + 2 * b * linear + a @ w**2

    def sweep(self, g: Array, share: Array, at: LinkExpansion, phi: Array) -> None:
        """One update of every document, in place."""
        first, second = at.slope - at.curvature * self.bias, -0.5 * at.curvature
        w, squared = self.copies * self.weight, self.copies * self.weight**2
        for i, (begin, end) in enumerate(zip(self.begin[:-1], self.begin[1:], strict=True)):
            if begin == end:
                continue
            near = slice(self.start[i], self.start[i + 1])
            pair, others = self.pair[near], share[self.other[near]]
            pull = w * (first[pair] @ others) + squared * (second[pair] @ others)
            logits = self.log_topic[begin:end] + (psi(g[i]) + pull / self.length[i])
            logits -= logits.max(1, keepdims=True)
            found = np.exp(logits)
            phi[begin:end] = found / found.sum(1, keepdims=True)
            taken = self.count[begin:end] @ phi[begin:end]
            share[i], g[i] = taken / self.length[i], self.alpha + taken

    def bound(self, g: Array, share: Array, at: LinkExpansion, phi: Array) -> Array:
        """(N,): every document's own part, and half of that of its pairs."""
        expected = psi(g) - psi(g.sum(1, keepdims=True))
        words = (phi * (self.log_topic + expected[self.row] - np.log(np.maximum(phi, 1e-300)))).sum(1)
        total = np.bincount(self.row, self.count * words, len(g))
        total += gammaln(self.alpha.sum()) - gammaln(self.alpha).sum() + gammaln(g).sum(1) - gammaln(g.sum(1))
        total += ((self.alpha - g) * expected).sum(1)
        mean, second = self.moments(share)
        each = 0.5 * self.copies * (at.constant + at.slope * mean - 0.5 * at.curvature * second)
        constant, pairs = self.copies * self.pairs.constant, len(self.pairs.first)
        for ends in (self.pairs.first, self.pairs.second):
            total += np.bincount(ends, each[:pairs], len(g))
        return total + (constant + 2 * each[pairs:].sum()) / max(len(g), 1)

    def equations(self, share: Array, at: LinkExpansion) -> tuple[Array, Array]:
        """The quadratic in (w, w_0): minus its Hessian (K + 1, K + 1), and its slope at 0."""
        a = self.pairs.features(share)
        cross = at.curvature @ a
        matrix = np.diag(np.append(cross, at.curvature.sum()))
        matrix[:-1, -1] = matrix[-1, :-1] = cross
        return self.copies * matrix, self.copies * np.append(at.slope @ a, at.slope.sum())


@dataclass(frozen=True, kw_only=True)
class LinkedDirichlet(TopicEngine):
    """Dirichlet posteriors of the topic proportions, globals as points; for the sigmoid and the exponential link.

    sweeps, cold_sweeps: rounds an E step, from where the last ended and from LDA's start.
    """

    additive = False
    one_process = True
    ascends = False  # E steps end early, and the weights are found by a search with a tolerance

    sweeps: int = 5
    cold_sweeps: int = 60

    name = "dirichlet"

    def rows(self, model: RTM, data: Data) -> LinkedRows:
        """Without the links where there is no bound for them: what is inferred is then LDA's."""
        bounded = model.link != "additive" and model.link_on == "tokens"
        return LinkedRows.with_links(model, data if bounded else replace(data, others={}))

    def check(self, model: RTM, rows: LinkedRows) -> None:
        super().check(model, rows)
        if model.link == "additive" or model.link_on != "tokens":
            found = f"link={model.link!r}, link_on={model.link_on!r}"
            raise PriorError(f"no variational bound for {found}; CollapsedGibbs has the additive link, SVI proportions")
        for site in ("link_weight", "link_bias"):
            Normal.of(model, site, model.shapes[site], rows.like.values())

    def complete(self, model: RTM, params: Params, counts: Tensor | None = None) -> Params:
        """Add weights of 0: the first E step is LDA's. Of the additive link, for other methods, positive ones."""
        weight, bias = (1.0, 0.1) if model.link == "additive" else (0.0, -1.0)
        topic = params["topic"]
        return {**params, "link_weight": topic.new_full((len(topic),), weight), "link_bias": topic.new_full((), bias)}

    def e_step(
        self, model: RTM, params: Params, rows: LinkedRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        like = rows.like.values()
        made = _LinkedDocuments(model, params, rows, self.alpha(model, like), temperature)
        phi = np.full((len(made.count), model.num_topics), 1 / model.num_topics)
        if warm:
            g, share, sweeps = _array(warm["concentration"]), _array(warm["share"]), self.sweeps
        else:
            g, sweeps = _array(equal_shares(rows, self.alpha(model, like))), self.cold_sweeps
            share = np.where(made.length[:, None] > 1, g / g.sum(1, keepdims=True), 0.0)
        at = made.expansion(share)
        for _ in range(sweeps):
            before = g.copy()
            made.sweep(g, share, at, phi)
            at = made.expansion(share)
            if np.abs(g - before).max() < 1e-7 * (1 + made.length.max()):
                break
        words = np.zeros((model.vocabulary_size, model.num_topics))
        np.add.at(words, made.cells.word.cpu().numpy(), made.count[:, None] * phi)
        matrix, slope = made.equations(share, at)
        found = {"topic": words.T, "pair": matrix, "answer": slope}
        statistics = {name: torch.as_tensor(value).to(like) for name, value in found.items()}
        local = {"concentration": torch.as_tensor(g).to(like), "share": torch.as_tensor(share).to(like)}
        return EStep(statistics, local, torch.as_tensor(made.bound(g, share, at, phi)).to(like))

    def m_step(self, model: RTM, params: Params, step: EStep, rows: LinkedRows) -> Params:
        weight, bias = params["link_weight"], params["link_bias"]
        priors = [Normal.of(model, site, model.shapes[site], weight) for site in ("link_weight", "link_bias")]
        center, precision = (torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*priors, strict=True))
        matrix = step.statistics["pair"] + torch.diag(precision + 1e-9)
        found = torch.linalg.solve(matrix, step.statistics["answer"] + precision * center)
        if model.link == "exponential":  # the bound holds for scores up to here
            old, most = torch.cat([weight, bias.reshape(1)]), largest(weight, bias) + MARGIN
            rise = largest(found[:-1], found[-1])
            while rise > most:
                found = 0.5 * (found + old)
                rise = largest(found[:-1], found[-1])
        found = {"link_weight": found[:-1], "link_bias": found[-1]}
        return {**super().m_step(model, params, step, rows), **found}

    def posterior(self, model: RTM, params: Params, rows: LinkedRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])


def _array(value: Tensor) -> Array:
    return value.detach().cpu().double().numpy().copy()
