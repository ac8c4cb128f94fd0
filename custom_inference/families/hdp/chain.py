"""Collapsed Gibbs sampling of the hierarchical Dirichlet process (Teh et al., JASA 2006, section 5.3, in blocks).

Every draw has, in ``Fit.sample_stats``, "num_topics", how many topics have tokens, and "num_large_topics", how many
have at least one in a hundred of them.

Given beta and a the topics of the tokens are those of LDA with the concentration a beta. Given these, document i has
n_ik tokens of topic k, sat at m_ik tables of a Chinese restaurant whose law is Antoniak's (Annals of Statistics 1974):
the number of successes among n_ik trials of probability a beta_k / (a beta_k + j), j = 0 .. n_ik - 1. With m_k = sum_i
m_ik and the K' topics that have tables,

    p(m | c)  proportional to  c^K' Gamma(c) / Gamma(c + m.)
    p(m | a)  proportional to  a^m. prod_i Gamma(a) / Gamma(a + L_i)
    (beta_1 .. beta_K', rest) | m ~ Dirichlet(m_1 .. m_K', c)

c and a move by slice steps on these and their priors, which may be any. The rest is shared among topics without tokens
by sticks of Beta(1, c), so that the next sweep may give any of them tokens: without a limit it is the sampler of the
process itself, in which topics have no order. At ``max_topics`` the last has all of the rest.

Topics that have names of their own, since some are known or have priors that others have not, keep the sticks' order:
the k-th has the k-th stick, v_k | m ~ Beta(1 + m_k, c + m_(k+1) + ... + m_K), and with these integrated out

    p(m | c)  proportional to  prod_k<K c B(1 + m_k, c + m_(k+1) + ... + m_K).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from scipy.special import betaln, gammaln
from torch import Tensor

from custom_inference.core.exchangeable import exchangeable
from custom_inference.families.common.slices import slice_step
from custom_inference.families.hdp.engine import LEAST, SITES, has_sticks
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.gibbs.protocol import Params
from ppl_models import HDP, Model

#: The share of the tokens from which on a topic counts as large.
_LARGE = 0.01


class HdpChain(LdaChain):
    """LDA's chain at concentrations a beta that are values of its state.

    weight: beta (K,). concentration: a. stick_concentration: c.
    """

    def __init__(self, model: HDP, tokens: TokenList, gamma: Tensor, seed: int, start: Params, **settings: Any):
        self.model = model
        self.weight = start["topic_weight"].double().numpy().copy()
        self.concentration, self.stick_concentration = (float(start[site]) for site in SITES[1:])
        self._known, self._by_sticks = set(model.known), has_sticks(model)
        self._named = exchangeable(without_order(model)) != [[*range(model.max_topics)]]
        super().__init__(tokens, model.max_topics, self._alpha(), gamma, seed, **settings)

    def _alpha(self) -> Tensor:
        return torch.as_tensor((self.concentration * self.weight).clip(LEAST))

    def sweep(self) -> None:
        super().sweep()
        tables = self._tables()
        if "stick_concentration" not in self._known:
            seated = self._of_sticks(tables)
            self.stick_concentration = self._slice_on_log_scale("stick_concentration", self.stick_concentration, seated)
        if "concentration" not in self._known:
            self.concentration = self._slice_on_log_scale("concentration", self.concentration, self._of_tables(tables))
        if "topic_weight" not in self._known:
            self.weight = self._draw_weight(tables)
            self._sort()
        self.alpha = self._alpha().numpy()

    def _tables(self) -> NDArray[np.int64]:
        """m_k (K,)."""
        counts = self.document_topic
        row, topic = counts.nonzero()
        number = counts[row, topic]
        trial = np.arange(number.sum()) - np.repeat(number.cumsum() - number, number)
        topic, alpha = np.repeat(topic, number), self.alpha
        seated = self._generator.random(len(topic)) * (alpha[topic] + trial) < alpha[topic]
        return np.bincount(topic[seated], minlength=self.num_topics)

    def _of_sticks(self, tables: NDArray[np.int64]) -> Any:
        used, total = (tables > 0).sum(), tables.sum()
        if not self._by_sticks:
            return lambda c: 0 * c
        if self._named:
            own, later = tables[:-1], _later(tables)
            return lambda c: (np.log(c) + betaln(1 + own, c + later)).sum()
        return lambda c: used * np.log(c) + gammaln(c) - gammaln(c + total)

    def _of_tables(self, tables: NDArray[np.int64]) -> Any:
        length, total = np.diff(self.tokens.start), tables.sum()
        return lambda a: total * np.log(a) + (gammaln(a) - gammaln(a + length)).sum()

    def _slice_on_log_scale(self, site: str, value: float, log_likelihood: Any) -> float:
        """Take a slice step of the logarithm."""
        prior = self.model.prior(site, like=torch.zeros((), dtype=torch.float64))

        def density(offset: Tensor) -> Tensor:
            new = value * np.exp(float(offset))
            found = float(log_likelihood(new)) + float(prior.log_prob(torch.tensor(new).double())) + float(offset)
            return torch.tensor([found if np.isfinite(found) else -np.inf], dtype=torch.float64)

        return value * float(slice_step(density, torch.ones(1, dtype=torch.float64), self._generator).exp())

    def _draw_weight(self, tables: NDArray[np.int64]) -> NDArray[np.float64]:
        prior, random = self.model.priors["topic_weight"], self._generator
        if not self._by_sticks:
            return random.dirichlet(prior.concentration.double().numpy() + tables).clip(LEAST)
        if self._named:
            stick = random.beta(1.0 + tables[:-1], self.stick_concentration + _later(tables))
            before = np.concatenate([[1.0], (1 - stick).cumprod()])
            weight = np.concatenate([before[:-1] * stick, before[-1:]]).clip(LEAST)
            return weight / weight.sum()
        used, empty = np.flatnonzero(tables), np.flatnonzero(tables == 0)
        weight = np.zeros(self.num_topics)
        shares = random.dirichlet([*tables[used], self.stick_concentration if len(empty) else 1e-10])
        weight[used], rest = shares[:-1], shares[-1]
        if len(empty):
            left = random.beta(self.stick_concentration, 1.0, len(empty) - 1)
            before = np.concatenate([[1.0], left.cumprod()])
            weight[empty] = rest * np.concatenate([before[:-1] * (1 - left), before[-1:]])
        return weight.clip(LEAST) / weight.clip(LEAST).sum()

    def _sort(self) -> None:
        """Put the topics in the order of their shares: those of the sticks, as far as this order has a meaning."""
        if not self._by_sticks or self._named or self.explicit is not None:
            return
        order = np.argsort(-self.weight, kind="stable")
        size, place = self.num_topics, np.argsort(order)
        self.weight, self.topic = self.weight[order], place[self.topic].astype(np.int32)
        self._word_topic[:, :size] = self._word_topic[:, :size][:, order]
        self._total[:size] = self._total[:size][order]

    def num_used(self) -> int:
        """Count the topics that have tokens."""
        return int((self._total > 0).sum())

    def watch(self) -> dict[str, float]:
        large = float((self._total >= _LARGE * len(self.tokens)).sum())
        return {"num_topics": float(self.num_used()), "num_large_topics": large}

    def profile(self) -> Tensor:
        """Topics with next to no tokens are all alike, whichever words these are."""
        even = _LARGE * len(self.tokens) / self.tokens.vocabulary_size
        return torch.as_tensor(self.word_topic.T + even)

    def _values(self) -> Params:
        values = self.weight, self.concentration, self.stick_concentration
        own = {s: torch.as_tensor(np.array(value)) for s, value in zip(SITES, values, strict=True)}
        return super()._values() | own

    def list_sampled(self) -> dict[str, str]:
        full = self.num_used() == self.num_topics
        used = f"{self.num_used()} topics in use" + (", all there may be: raise max_topics" if full else "")
        own = {"topic_weight": f"topic_weight by tables ({used})"}
        own |= {site: f"{site} by slice steps" for site in SITES[1:]}
        return super().list_sampled() | {site: note for site, note in own.items() if site not in self._known}

    def log_joint(self) -> float:
        """Compute the log joint of LDA plus the log prior density of beta, a and c."""
        values = {site: value.double() for site, value in self._values().items() if site in SITES}
        free = [site for site in SITES if site not in self._known]
        priors = [self.model.prior(s, like=values[s], values=values).log_prob(values[s]) for s in free]
        return super().log_joint() + sum(float(one) for one in priors)

    def with_fitted_priors(self, model: HDP) -> Model:
        return model


def begin(model: HDP) -> Params:
    """Return even shares of the topics, and concentrations of 1."""
    even, one = torch.full((model.max_topics,), 1 / model.max_topics).double(), torch.ones(()).double()
    return dict(zip(SITES, (even, one, one), strict=True))


def without_order(model: HDP) -> Model:
    """The model without what the order of the sticks says of its topics."""
    if not has_sticks(model):
        return model
    return model.with_priors(topic_weight=dist.Dirichlet(torch.ones(model.sizes["component"])))


def _later(tables: NDArray[np.int64]) -> NDArray[np.int64]:
    """m_(k+1) + ... + m_K of all topics but the last."""
    return tables.sum() - tables.cumsum()[:-1]
