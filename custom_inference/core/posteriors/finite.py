"""Posteriors over finite local latents: binary codes, choices as one-hot vectors, blocks of nodes; and divergences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from custom_inference.core.posteriors.protocol import LocalPosterior, WeightedValues, draw_slots
from ppl_models import CapacityError
from ppl_models.distributions import BernoulliVector, all_codes

#: Draws for the divergence of continuous posteriors.
DRAWS = 1000
#: Draws of labelings are kept in files up to so many entries.
_LABELS = 2**24
#: Independent bits that means are sums over all codes of, at most.
_SUMMED_BITS = 12


@dataclass(frozen=True)
class CodePosterior(LocalPosterior):
    """A probability for each of a set of codes: all 2^K of them (exact), or a row's own few (truncated).

    codes: (C, K) shared by the rows, or (N, S, K).
    log_weight: (N, C) or (N, S), normalised; -inf marks an unused slot.
    """

    codes: Annotated[Tensor, "ck|nsk", "boolean"]
    log_weight: Annotated[Tensor, "nc|ns", "log_weights"]

    @property
    def shared(self) -> bool:
        return self.codes.ndim == 2

    def is_kept(self, *, exact: bool, by_engine: bool) -> bool:
        if not self.shared:
            return self.stored
        small = len(self.codes) <= self.codes.shape[1]  # a table of no more entries than the means
        return self.stored and not exact and (small or not by_engine)

    @property
    def mean(self) -> Tensor:
        weight, codes = self.log_weight.exp(), self.codes.to(self.log_weight)
        mean = weight @ codes if self.shared else torch.einsum("ns,nsk->nk", weight, codes)
        return mean.clamp(max=1.0)  # the weights sum to 1 but for rounding

    @property
    def variance(self) -> Tensor:
        return self.mean * (1 - self.mean)

    def _pick(self, slot: Tensor) -> Tensor:
        """Codes in the slots (..., N) of each row -> (..., N, K)."""
        if self.shared:
            return self.codes[slot].to(self.log_weight)
        return self.codes[torch.arange(self.codes.shape[0], device=slot.device), slot].to(self.log_weight)

    @property
    def mode(self) -> Tensor:
        return self._pick(self.log_weight.argmax(-1))

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return self._pick(draw_slots(self.log_weight, num_samples, torch.Generator().manual_seed(seed)).T)

    def log_prob(self, source: Tensor) -> Tensor:
        same = (self.codes.to(source) == source.unsqueeze(-2)).all(-1)
        return torch.where(same, self.log_weight, torch.full_like(self.log_weight, -torch.inf)).logsumexp(-1)

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        return WeightedValues(self.codes.to(self.log_weight), self.log_weight.exp(), False)

    def expect(self, value: Callable[[Tensor], Tensor], *, seed: int = 0) -> Tensor:
        """Return E[value(s_n)] of every row, (N,), by the sum over its codes."""
        total = torch.zeros_like(self.log_weight[:, 0])
        for slot in range(self.log_weight.shape[1]):
            code = self.codes[slot].expand(len(total), -1) if self.shared else self.codes[:, slot]
            weight = self.log_weight[:, slot].exp()
            total += torch.where(weight > 0, weight * value(code.to(weight)), 0.0)
        return total

    def table(self) -> tuple[Tensor, Tensor]:
        if self.shared:
            return self.codes, self.log_weight
        num_bits = self.codes.shape[-1]
        every = all_codes(num_bits, dtype=self.log_weight.dtype, device=self.codes.device)
        powers = 2 ** torch.arange(num_bits, device=self.codes.device)
        position = (self.codes.long() * powers).sum(-1)
        filled = torch.full((len(self.codes), len(every)), -torch.inf).to(self.log_weight)
        # Unused slots may repeat a used code: they must not overwrite it, so take the maximum.
        return every, filled.scatter_reduce(1, position, self.log_weight, "amax")

    def log_prob_of_labels(self, labels: Tensor) -> Tensor:
        if not self.shared:
            return super().log_prob_of_labels(labels)
        order = self.codes.argmax(-1)  # the codes are one-hot
        by_block = self.log_weight[:, torch.argsort(order)]
        return by_block[torch.arange(labels.shape[1], device=labels.device), labels.long()].sum(-1)


@dataclass(frozen=True)
class TablePosterior(CodePosterior):
    """A probability for each of a set of values of the latents of a row, of any numbers: codes (C, K), shared by the
    rows, log_weight (N, C) normalised."""

    codes: Annotated[Tensor, "ck", "real"]
    log_weight: Annotated[Tensor, "nc", "log_weights"]

    @property
    def mean(self) -> Tensor:
        return self.log_weight.exp() @ self.codes.to(self.log_weight)

    @property
    def variance(self) -> Tensor:
        return (self.log_weight.exp() @ self.codes.to(self.log_weight).square() - self.mean.square()).clamp_min(0)


@dataclass(frozen=True)
class BernoulliPosterior(LocalPosterior):
    """Independent bits: probs (N, K)."""

    probs: Annotated[Tensor, "*", "unit_interval"]

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    @property
    def mode(self) -> Tensor:
        return (self.probs > 0.5).to(self.probs)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.bernoulli(self.probs.cpu().expand(num_samples, -1, -1), generator=generator).to(self.probs)

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        """Return all codes of few bits; of more, draws by the same random numbers in every row, so that equal rows have
        equal means."""
        bits = self.probs.shape[1]
        if bits <= _SUMMED_BITS:
            return super().weigh_values(number, seed=seed)
        uniform = torch.rand(number, bits, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        drawn = (uniform.to(self.probs) < self.probs.unsqueeze(1)).to(self.probs)
        return WeightedValues(drawn, torch.full(drawn.shape[:2], 1 / number).to(drawn), True)

    def log_prob(self, source: Tensor) -> Tensor:
        return BernoulliVector(self.probs, validate_args=False).log_prob(source)

    def table(self) -> tuple[Tensor, Tensor]:
        num_bits = self.probs.shape[1]
        if num_bits > 16:
            raise CapacityError(
                f"a table of 2^{num_bits} codes a row; at most 16 bits are tabulated",
                needed_bytes=8.0 * len(self.probs) * 2**num_bits,
                allowed_bytes=8.0 * len(self.probs) * 2**16,
            )
        every = all_codes(num_bits, dtype=self.probs.dtype, device=self.probs.device)
        # Finite in place of log 0, which times a 0 of the code would be NaN; its exponential is 0 all the same.
        on, off = (torch.log(p).clamp_min(-800.0) for p in (self.probs, 1 - self.probs))
        return every, on @ every.T + off @ (1 - every).T


@dataclass(frozen=True)
class LabellingPosterior(LocalPosterior):
    """p(q) over a set of labelings of a graph's nodes, which depend on each other: all K^N (exact), or draws.

    labels: (C, N) whole numbers. log_weight: (C,), normalised. Labelings may occur more than once (draws); their
        weights add up. num_blocks: K, a tensor ().
    """

    labels: Annotated[Tensor, "cn", "nonnegative_integer"]
    log_weight: Annotated[Tensor, "c", "log_weights"]
    num_blocks: Annotated[Tensor, "", "positive_integer"]

    joint = True
    lists_labels = True

    def is_kept(self, *, exact: bool, by_engine: bool) -> bool:
        return not exact and self.labels.numel() <= _LABELS

    @classmethod
    def of_draws(cls, labels: Tensor, num_blocks: int) -> LabellingPosterior:
        """An equal mixture of draws (S, N)."""
        weight = torch.full((len(labels),), 1.0 / len(labels), dtype=torch.float64, device=labels.device)
        return cls(labels, weight.log(), torch.tensor(num_blocks, device=labels.device))

    def _one_hot(self, labels: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(labels.long(), int(self.num_blocks)).to(self.log_weight)

    @property
    def mean(self) -> Tensor:
        """P(q_i = k), (N, K)."""
        weight = self.log_weight.exp()
        size, blocks = self.labels.shape[1], int(self.num_blocks)
        place = self.labels.long() + blocks * torch.arange(size, device=self.labels.device)
        mean = weight.new_zeros(size * blocks).index_add(0, place.flatten(), weight.repeat_interleave(size))
        return mean.reshape(size, blocks).clamp(max=1.0)  # the weights sum to 1 but for rounding

    @property
    def mode(self) -> Tensor:
        """The most probable labeling, one-hot (N, K)."""
        labels, log_weight = self.distinct()
        return self._one_hot(labels[log_weight.argmax()])

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        """Labelings, one-hot (num_samples, N, K)."""
        slot = draw_slots(self.log_weight, num_samples, torch.Generator().manual_seed(seed))
        return self._one_hot(self.labels[slot])

    def log_prob(self, source: Tensor) -> Tensor:
        """log p of one labeling, one-hot (N, K) or whole numbers (N,): (1,), that of all nodes together."""
        labels = source.argmax(-1) if source.ndim == 2 else source
        same = (self.labels == labels.to(self.labels)).all(-1)
        return torch.where(same, self.log_weight, torch.full_like(self.log_weight, -torch.inf)).logsumexp(-1)[None]

    def table(self) -> tuple[Tensor, Tensor]:
        """The labelings (C, N) and their log-probabilities (1, C)."""
        return self.labels, self.log_weight[None]

    def together(self) -> Tensor:
        """P(q_i = q_j), (N, N): what does not depend on the names of the blocks."""
        one_hot = self._one_hot(self.labels)
        return torch.einsum("c,cik,cjk->ij", self.log_weight.exp(), one_hot, one_hot).clamp(max=1.0)

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Return every labeling once, and its log-probability."""
        labels, place = torch.unique(self.labels.long(), dim=0, return_inverse=True)
        weight = self.log_weight.new_zeros(len(labels)).index_add(0, place, self.log_weight.exp())
        return labels, weight.log()

    def log_prob_of_labels(self, labels: Tensor) -> Tensor:
        listed, log_weight = self.distinct()
        both, place = torch.unique(torch.cat([listed, labels.to(listed)]), dim=0, return_inverse=True)
        found = log_weight.new_full((len(both),), -torch.inf)
        found[place[: len(listed)]] = log_weight
        return found[place[len(listed) :]]


def kullback_leibler(q: LocalPosterior, p: LocalPosterior, *, seed: int = 0) -> Tensor:
    """KL(q || p) of each row, (N,).

    Over finite latents the exact sum over all values in both tables, or where these are too many what ``p`` has
    (``divergence_from``); over continuous ones the mean of
    log q - log p over ``DRAWS`` draws from q, an estimate. Infinite for a point: it has no density. Of the nodes of a
    graph, where one of the two is joint, (1,): the divergence of the joint distributions.
    """
    if q.is_point:
        return torch.full_like(q.mean[:, 0], torch.inf)
    if q.continuous:
        if not (q.stored and p.stored):  # densities of programs take all draws at once
            draws, log_q = q.sample_with_density(DRAWS, seed=seed)
            log_p = p.log_prob(draws)
            if log_q.shape == log_p.shape:
                return (log_q - log_p).mean(0)
            return (log_q.sum(-1) - log_p.sum(-1)).mean(0, keepdim=True)
        draws = q.sample(DRAWS, seed=seed)
        pairs = [(q.log_prob(one), p.log_prob(one)) for one in draws]
        if q.joint or p.joint:
            return torch.stack([log_q.sum() - log_p.sum() for log_q, log_p in pairs]).mean().unsqueeze(0)
        return torch.stack([log_q - log_p for log_q, log_p in pairs]).mean(0)
    if q.lists_labels or p.lists_labels:
        return _of_labellings(q, p)
    if not p.tabulated:
        return p.divergence_from(q, seed=seed)
    return _kl_of_tables(*_on_common_codes(q.table(), p.table()))


def _on_common_codes(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The log-probabilities (N, C) of two tables, by the same codes: each may list its own, in an order of its own."""
    (codes, log_q), (others, log_p) = one, other
    if codes.shape == others.shape and torch.equal(codes, others.to(codes)):
        return log_q, log_p
    every, place = torch.unique(torch.cat([codes, others.to(codes)]), dim=0, return_inverse=True)
    found = []
    for log_weight, at in zip((log_q, log_p), place.split([len(codes), len(others)]), strict=True):
        empty = log_weight.new_full((len(log_weight), len(every)), -torch.inf)
        found.append(empty.index_copy(1, at, log_weight))
    return found[0], found[1]


def _kl_of_tables(log_q: Tensor, log_p: Tensor) -> Tensor:
    """sum_c q_c (log q_c - log p_c), (...), of tables (..., C)."""
    weight = log_q.exp()
    return (weight * torch.where(weight > 0, log_q - log_p, torch.zeros_like(log_q))).sum(-1)


def _of_labellings(q: LocalPosterior, p: LocalPosterior) -> Tensor:
    """KL(q || p) of posteriors over labelings, (1,): exact, where one of them lists its labelings.

    A posterior of independent nodes is laid out over the labelings that the other lists; its mass elsewhere makes the
    divergence from it infinite, as it should where p lists all that are possible.
    """
    labels = torch.unique((p if p.lists_labels else q).table()[0].long(), dim=0)
    log_q, log_p = q.log_prob_of_labels(labels), p.log_prob_of_labels(labels)
    if float(log_q.exp().sum()) < 1 - 1e-6:
        return log_q.new_full((1,), torch.inf)
    return _kl_of_tables(log_q, log_p).unsqueeze(0)
