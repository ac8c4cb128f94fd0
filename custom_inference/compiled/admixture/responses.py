"""Responses of rows: normal numbers about weighted means of the components' numbers.

The weights w of a row are its shares theta, or how often its choices are each component, over all of them:

    y_n ~ Normal(sum_k w_nk b_k, scale).

With the mean m of the weights under a posterior, their second moments are (1 - c) m_j m_k + c m_k [j = k], exactly
where the posterior of theta is Dirichlet(g), at c = 1 / (sum g + 1); of L independent choices with c = 1 / L that is
an upper bound in the direction of b, by Cauchy and Schwarz (``families.responses.supervised``), so that log p(y) is
bounded from below. Either is linear in the features y w, w w', y^2 and 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions.constraints import Constraint

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.laws import Exponential, Said
from custom_inference.compiled.sources import Entries, Source


class AverageLaw(Exponential):
    """Normals about the mean of K numbers with weights of the row. Features: y w, w w', y^2, 1."""

    def natural(self, parameters: Tensor) -> Tensor:
        loc, scale = parameters[..., :-1], parameters[..., -1:]
        precision = scale**-2
        pairs = (loc.unsqueeze(-1) * loc.unsqueeze(-2)).flatten(-2)
        constant = -torch.log(scale) - 0.5 * math.log(2 * math.pi)
        return torch.cat([loc * precision, -0.5 * precision * pairs, -0.5 * precision, constant], -1)

    def expect(self, value: Tensor, mean: Tensor, apart: Tensor | float) -> Tensor:
        """Return the expected features (N, U, F) of values (N, U), NaN where unknown, at weights with the mean (N, K)
        and c = ``apart`` (N, 1)."""
        mean = mean.double()
        pairs = mean.unsqueeze(-1) * mean.unsqueeze(-2)
        second = pairs + (torch.diag_embed(mean) - pairs) * torch.as_tensor(apart).unsqueeze(-1)
        known, own = torch.nan_to_num(value), (~value.isnan()).to(value)
        of_row = torch.cat([mean, second.flatten(-2)], -1).unsqueeze(1).expand(-1, value.shape[1], -1)
        sizes = torch.tensor([mean.shape[-1], mean.shape[-1] ** 2])
        times = torch.stack([known, own], -1).repeat_interleave(sizes, -1)
        return torch.cat([of_row * times, known.square().unsqueeze(-1), own.unsqueeze(-1)], -1)


@dataclass(frozen=True)
class AcrossSource:
    """Numbers (1, 1, U, K) of all components beside each other, from a source of (1, K, U, 1); of some of them."""

    source: Source
    components: slice

    of_entries: ClassVar[bool] = False

    @property
    def sites(self) -> frozenset[str]:
        return self.source.sites

    def parameters(self, flat: Tensor) -> Tensor:
        return self.source.parameters(flat)[:, self.components].transpose(1, 3)

    def part_of(self, kind: str, site: str, support: Constraint, entries: Entries) -> str:
        """Return that there is no closed form."""
        del kind, site, support, entries
        return "mixed"

    def count(self, said: Said, parameters: Tensor, flat: Tensor, total: dict[str, Tensor]) -> None:
        """Count nothing: parameters are multiplied by each other."""

    def as_sums(self) -> None:
        """Return None: parameters are multiplied by each other."""

    def to(self, like: Tensor) -> AcrossSource:
        return replace(self, source=self.source.to(like))


@dataclass(frozen=True)
class Response:
    """A statement of responses. of_choices: whether the weights are counts of choices rather than shares."""

    name: str
    law: AverageLaw
    block: Block
    of_choices: bool

    @classmethod
    def of(cls, name: str, block: Block, of_choices: bool) -> Response:
        """Make it of the components' block of normals, (1, K, U, 2)."""
        size, (loc, scale) = block.sizes[0], block.sources
        law = AverageLaw(block.law.kind, block.law.names, (size, 0))
        sources = AcrossSource(loc, slice(None)), AcrossSource(scale, slice(1))
        return cls(name, law, Block(law, ((0,),), (1,), sources, elements=block.elements), of_choices)


@dataclass(frozen=True)
class Terms:
    """What log p of rows has beside their words, as functions of the posteriors of shares and choices.

    exposure: (N, K) what rates of the components sum to in a row; None where none are summed by shares. responses: of
    each whether it is of choices, the law, values (N, U), and natural parameters (U, F). places: how many choices.
    """

    exposure: Tensor | None
    responses: tuple[tuple[bool, AverageLaw, Tensor, Tensor], ...]
    places: int

    def select(self, index: Tensor) -> Terms:
        exposure = None if self.exposure is None else self.exposure[index]
        parts = tuple((by, law, value[index], natural) for by, law, value, natural in self.responses)
        return replace(self, exposure=exposure, responses=parts)

    def expect_of_shares(self, concentration: Tensor) -> Tensor:
        """Return E of what depends on theta under Dirichlet(concentration (N, K)), (N,)."""
        total = concentration.sum(-1, keepdim=True)
        mean = concentration / total
        found = torch.zeros_like(total[:, 0])
        if self.exposure is not None:
            found = found - (mean * self.exposure).sum(-1)
        return found + self._expect(mean, 1 / (total + 1), False)

    def expect_of_choices(self, counts: Tensor) -> Tensor:
        """Return a lower bound on E of what depends on the choices, from expected numbers (N, K) of each, (N,)."""
        return self._expect(counts / max(self.places, 1), 1 / max(self.places, 1), True)

    def gather(self, concentration: Tensor, tokens: Tensor) -> list[Tensor]:
        """Return the expected features (1, 1, U, F) of all responses of all rows."""
        found, places = list[Tensor](), max(self.places, 1)
        for of_choices, law, value, _ in self.responses:
            total = concentration.sum(-1, keepdim=True)
            mean, apart = (tokens / places, 1 / places) if of_choices else (concentration / total, 1 / (total + 1))
            found.append(law.expect(value, mean, apart).sum(0)[None, None])
        return found

    def _expect(self, mean: Tensor, apart: Tensor | float, of_choices: bool) -> Tensor:
        found = mean.new_zeros(len(mean))
        for by, law, value, natural in self.responses:
            if by == of_choices:
                found = found + (law.expect(value, mean, apart) * natural).sum((-1, -2))
        return found
