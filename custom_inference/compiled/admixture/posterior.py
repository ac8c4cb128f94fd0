"""The posterior of the shares and of the choices of rows, which are independent in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.admixture.rows import AdmixtureRows
from custom_inference.compiled.admixture.structure import AdmixtureStructure
from custom_inference.core.posteriors import (
    BetaPosterior,
    ContinuousPosterior,
    DirichletPosterior,
    GammaPosterior,
    LocalPosterior,
)
from custom_inference.core.posteriors.protocol import draw_slots
from custom_inference.families.conjugate.dirichlet import Dirichlet


def posterior_of_rows(rows: AdmixtureRows, score: Tensor, locals_: dict[str, Tensor]) -> LocalPosterior:
    """Return the posterior of all latents of rows, from the scores (K, W) of their words."""
    if "rate" in locals_:
        return GammaPosterior(locals_["concentration"], locals_["rate"])
    concentration = locals_["concentration"]
    if rows.structure.beta and not rows.token.shape[1]:
        return BetaPosterior(concentration[:, 1:], concentration[:, :1])
    share, of_choices = DirichletPosterior(concentration), locals_.get("log_share")
    if not rows.token.shape[1]:
        return share
    of_choices = Dirichlet(concentration).expected() if of_choices is None else of_choices
    return ShareAndChoices(rows.structure, share, of_choices, score.T.contiguous(), rows.token)


@dataclass(frozen=True)
class ShareAndChoices(ContinuousPosterior):
    """q(theta_n, z_n) = Dirichlet(theta_n) prod_l q(z_nl), but z_nl that nothing was observed of given theta_n.

    log_share: (N, K) what scores of words are added to. score: (W, K) of the words, token (N, V): which word each
    choice decides, -1: none.
    """

    structure: AdmixtureStructure
    share: DirichletPosterior
    log_share: Tensor
    score: Tensor
    token: Tensor

    stored = False

    @cached_property
    def log_choice(self) -> Tensor:
        """log q(z_nl = k), (N, V, K)."""
        known = self.log_share.unsqueeze(1) + self.score[self.token.clamp(min=0)]
        missing = self.share.mean.log().unsqueeze(1)
        return torch.where((self.token < 0).unsqueeze(-1), missing, torch.log_softmax(known, -1))

    def _code(self, share: Tensor, of_choices: Tensor) -> Tensor:
        """Put theta (..., N, K) and the codes of choices (..., N, X) into the order of the layout."""
        parts, own = [], self.structure.variables.layout.slices
        for latent in self.structure.layout:
            is_share = latent.name == self.structure.latent.name
            parts.append(self.structure.encode(share) if is_share else of_choices[..., own[latent.name]])
        return torch.cat(parts, -1)

    def _parts(self, local: Tensor) -> tuple[Tensor, Tensor]:
        """Return theta (..., N, K), and the numbers (..., N, V) of the choices' values."""
        slices, variables = self.structure.layout.slices, self.structure.variables
        finite = torch.cat([local[..., slices[one.name]] for one in variables.layout], -1)
        own = [
            (finite[..., place].unsqueeze(-2) - options.to(local)).abs().sum(-1).argmin(-1)
            for place, options in zip(variables.places, variables.options, strict=True)
        ]
        share = local[..., slices[self.structure.latent.name]]
        share = torch.cat([1 - share, share], -1) if self.structure.beta else share
        return share, torch.stack(own, -1)

    def _expect(self, power: int) -> Tensor:
        """Return E[code^power] of the choices, (N, X)."""
        variables, share = self.structure.variables, self.log_choice.exp()
        found = share.new_zeros(len(share), variables.layout.width)
        for v, (place, options) in enumerate(zip(variables.places, variables.options, strict=True)):
            found[:, place] = share[:, v] @ options.to(share) ** power
        return found

    @property
    def mean(self) -> Tensor:
        return self._code(self.share.mean, self._expect(1))

    @property
    def variance(self) -> Tensor:
        return self._code(self.share.variance, (self._expect(2) - self._expect(1).square()).clamp_min(0))

    @property
    def mode(self) -> Tensor:
        """The mode of theta, and the most probable choices."""
        return self._code(self.share.mode, self.structure.variables.codes(self.log_choice.argmax(-1), self.score))

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        share = self.share.sample(num_samples, seed=seed)
        generator = torch.Generator().manual_seed(seed + 1)
        flat = self.log_choice.flatten(0, 1)
        chosen = draw_slots(flat, num_samples, generator).T.reshape(num_samples, *self.token.shape)
        if bool((self.token < 0).any()):
            number = self.token.shape[1]
            given = draw_slots(share.flatten(0, 1).log(), number, generator).reshape(num_samples, -1, number)
            chosen = torch.where(self.token < 0, given, chosen)
        return self._code(share, self.structure.variables.codes(chosen, self.score))

    def log_prob(self, local: Tensor) -> Tensor:
        share, chosen = self._parts(local)
        each = self.log_choice.expand(*chosen.shape, -1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        given = share.clamp_min(torch.finfo(share.dtype).tiny).log().gather(-1, chosen)
        return self.share.log_prob(share) + torch.where(self.token < 0, given, each).sum(-1)

    def rows(self, index: Tensor | slice) -> Any:
        share = DirichletPosterior(self.share.concentration[index])
        return replace(self, share=share, log_share=self.log_share[index], token=self.token[index])

    def to(self, device: torch.device | str) -> Any:
        return self
