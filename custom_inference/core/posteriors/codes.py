"""Posteriors over finite local latents: binary codes, and choices as one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.posteriors.protocol import Layout, LocalPosterior, draw_slots
from ppl_models import CapacityError
from ppl_models.distributions import BernoulliVector, all_codes


@dataclass(frozen=True)
class CodePosterior(LocalPosterior):
    """A probability for each of a set of codes: all 2^K of them (exact), or a row's own few (truncated).

    codes: (C, K) shared by the rows, or (N, S, K).
    log_weight: (N, C) or (N, S), normalised; -inf marks an unused slot.
    """

    layout: ClassVar[Layout] = {"codes": "ck|nsk", "log_weight": "nc|ns"}

    codes: Tensor
    log_weight: Tensor

    @property
    def shared(self) -> bool:
        return self.codes.ndim == 2

    @property
    def mean(self) -> Tensor:
        weight, codes = self.log_weight.exp(), self.codes.to(self.log_weight)
        mean = weight @ codes if self.shared else torch.einsum("ns,nsk->nk", weight, codes)
        return mean.clamp(max=1.0)  # the weights sum to 1 but for rounding

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

    def rows(self, index: Tensor | slice) -> CodePosterior:
        return CodePosterior(self.codes if self.shared else self.codes[index], self.log_weight[index])

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


@dataclass(frozen=True)
class BernoulliPosterior(LocalPosterior):
    """Independent bits: probs (N, K)."""

    layout: ClassVar[Layout] = {"probs": "*"}

    probs: Tensor

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return (self.probs > 0.5).to(self.probs)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.bernoulli(self.probs.cpu().expand(num_samples, -1, -1), generator=generator).to(self.probs)

    def log_prob(self, source: Tensor) -> Tensor:
        return BernoulliVector(self.probs, validate_args=False).log_prob(source)

    def rows(self, index: Tensor | slice) -> BernoulliPosterior:
        return BernoulliPosterior(self.probs[index])

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
