"""The joint posterior over the blocks of a graph's nodes, which depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.posteriors.codes import CodePosterior
from custom_inference.core.posteriors.protocol import Layout, LocalPosterior, draw_slots
from ppl_models import MethodError


@dataclass(frozen=True)
class LabellingPosterior(LocalPosterior):
    """p(q) over a set of labelings: all K^N of them (exact), or draws.

    labels: (C, N) whole numbers. log_weight: (C,), normalised. Labelings may occur more than once (draws); their
        weights add up. num_blocks: K, a tensor ().
    """

    layout: ClassVar[Layout] = {"labels": "cn", "log_weight": "c", "num_blocks": ""}

    labels: Tensor
    log_weight: Tensor
    num_blocks: Tensor

    joint = True

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
        labels, log_weight = self._distinct()
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

    def rows(self, index: Tensor | slice) -> LabellingPosterior:
        """The joint posterior of some of the nodes."""
        return LabellingPosterior(self.labels[:, index], self.log_weight, self.num_blocks)

    def table(self) -> tuple[Tensor, Tensor]:
        """The labelings (C, N) and their log-probabilities (1, C)."""
        return self.labels, self.log_weight[None]

    def together(self) -> Tensor:
        """P(q_i = q_j), (N, N): what does not depend on the names of the blocks."""
        one_hot = self._one_hot(self.labels)
        return torch.einsum("c,cik,cjk->ij", self.log_weight.exp(), one_hot, one_hot).clamp(max=1.0)

    def _distinct(self) -> tuple[Tensor, Tensor]:
        labels, place = torch.unique(self.labels.long(), dim=0, return_inverse=True)
        weight = self.log_weight.new_zeros(len(labels)).index_add(0, place, self.log_weight.exp())
        return labels, weight.log()


def joint_divergence(q: LocalPosterior, p: LocalPosterior) -> Tensor:
    """KL(q || p) of posteriors over labelings, (1,): exact, where one of them lists its labelings.

    A posterior of independent nodes is laid out over the labelings that the other lists; its mass elsewhere makes the
    divergence from it infinite, as it should where p lists all that are possible.
    """
    listed = p if isinstance(p, LabellingPosterior) else q
    assert isinstance(listed, LabellingPosterior)
    labels, _ = listed._distinct()
    log_q, log_p = _at(q, labels), _at(p, labels)
    weight = log_q.exp()
    if float(weight.sum()) < 1 - 1e-6:
        return weight.new_full((1,), torch.inf)
    difference = torch.where(weight > 0, log_q - log_p, torch.zeros_like(log_q))
    return (weight * difference).sum().unsqueeze(0)


def _at(posterior: LocalPosterior, labels: Tensor) -> Tensor:
    """log-probabilities (C,) of labelings (C, N), all different."""
    if isinstance(posterior, CodePosterior) and posterior.shared:
        order = posterior.codes.argmax(-1)  # the codes are one-hot
        by_block = posterior.log_weight[:, torch.argsort(order)]
        return by_block[torch.arange(labels.shape[1], device=labels.device), labels.long()].sum(-1)
    if isinstance(posterior, LabellingPosterior):
        listed, log_weight = posterior._distinct()
        both, place = torch.unique(torch.cat([listed, labels.to(listed)]), dim=0, return_inverse=True)
        found = log_weight.new_full((len(both),), -torch.inf)
        found[place[: len(listed)]] = log_weight
        return found[place[len(listed) :]]
    raise MethodError(f"no divergence between labelings and a {type(posterior).__name__}")
