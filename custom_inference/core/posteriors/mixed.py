"""Posteriors over several latents of a row, finite and continuous: a table of the finite ones' values, and Gaussians of
the real numbers that stand for the continuous ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.core.posteriors.nodes import standard_nodes
from custom_inference.core.posteriors.protocol import ContinuousPosterior, draw_slots
from ppl_models import MethodError

#: Kinds of latents in ``maps``, and what they are mapped onto from real numbers.
FINITE, REAL, ABOVE, BETWEEN, BELOW, SIMPLEX = range(6)
#: Nodes that means are taken by where product rules have too many.
_MEAN_NODES = 512


def support_of(kind: int, low: float, high: float) -> Any:
    """The support that a row of ``maps`` stands for."""
    kinds: dict[int, Any] = {
        REAL: constraints.real,
        ABOVE: constraints.greater_than(low),
        BETWEEN: constraints.interval(low, high),
        BELOW: constraints.less_than(high),
        SIMPLEX: constraints.simplex,
    }
    return kinds[kind]


@dataclass(frozen=True)
class MixedPosterior(ContinuousPosterior):
    """q(s_n) = sum_c w_nc [finite latents have value c] Normal(u_n; location_nc, root_nc root_nc^T), u the real numbers
    that stand for the continuous latents.

    codes (C, W): values of the finite latents, 0 where continuous ones stand. log_weight (N, C), normalised. location
    (N, E, R), root (N, E, R, R) lower triangular, E = C, or 1 where the real numbers do not depend on c. maps (L, 5): a
    row for each latent, in the order of the code: its kind, its entries in the code, the length of its last axis, and
    the bounds of its support.
    """

    codes: Annotated[Tensor, "ck", "real"]
    log_weight: Annotated[Tensor, "nc", "log_weights"]
    location: Annotated[Tensor, "ner"]
    root: Annotated[Tensor, "nerr"]
    maps: Annotated[Tensor, "lf"]

    def __post_init__(self) -> None:
        widths, reals = 0, 0
        for kind, width, last, low, high in self.maps.tolist():
            whole = all(value == int(value) and value >= 1 for value in (width, last)) and kind in range(6)
            if not whole or width % last or (kind == BETWEEN and not low < high):
                raise MethodError(
                    f"a latent of the kind {kind}, {width} entries, last axis {last}, between {low}, {high}"
                )
            widths += int(width)
            reals += 0 if kind == FINITE else int(width - width // last if kind == SIMPLEX else width)
        if (widths, reals) != (self.codes.shape[-1], self.location.shape[-1]):
            raise MethodError(f"latents of {widths} entries and {reals} real numbers, codes of {self.codes.shape[-1]}")
        if self.location.shape[1] not in (1, len(self.codes)):
            raise MethodError(f"{self.location.shape[1]} Gaussians for {len(self.codes)} values")

    def _latents(self) -> Iterable[tuple[int, int, int, Any]]:
        """The kind of each latent, its entries in the code, its last axis, and its transform."""
        for kind, width, last, low, high in self.maps.tolist():
            transform = None if kind == FINITE else biject_to(support_of(int(kind), low, high))
            yield int(kind), int(width), int(last), transform

    def constrain(self, code: Tensor, reals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (..., W) with the continuous latents from real numbers (..., R), and the log volume (...)."""
        parts, volume, start, place = [], reals.new_zeros(reals.shape[:-1]), 0, 0
        for kind, width, last, transform in self._latents():
            if transform is None:
                parts.append(code[..., place : place + width].expand(*reals.shape[:-1], width))
            else:
                size = width - width // last if kind == SIMPLEX else width
                own = reals[..., start : start + size]
                own = own.reshape(*own.shape[:-1], -1, last - 1) if kind == SIMPLEX else own
                value = transform(own)
                volume = volume + transform.log_abs_det_jacobian(own, value).sum(-1)
                parts.append(value.reshape(*reals.shape[:-1], width))
                start += size
            place += width
        return torch.cat(parts, -1), volume

    def unconstrain(self, code: Tensor) -> Tensor:
        """Real numbers (..., R) of codes (..., W)."""
        parts, place = [], 0
        for kind, width, last, transform in self._latents():
            if transform is not None:
                own = code[..., place : place + width]
                own = own.reshape(*own.shape[:-1], -1, last) if kind == SIMPLEX else own
                parts.append(transform.inv(own).reshape(*code.shape[:-1], -1))
            place += width
        return torch.cat(parts, -1)

    @property
    def _finite_columns(self) -> Tensor:
        kinds = [torch.full((int(width),), int(kind) == FINITE) for kind, width, *_ in self.maps.tolist()]
        return torch.cat(kinds).to(self.codes.device)

    def _moment(self, power: int) -> Tensor:
        size = self.location.shape[-1]
        nodes = standard_nodes(size, None if size <= 3 else _MEAN_NODES).to(self.location)
        u = self.location[None] + torch.einsum("ners,qs->qner", self.root, nodes.place)
        code, _ = self.constrain(self.codes if u.shape[2] > 1 else self.codes[:1], u)
        each = torch.einsum("q,qnew->new", nodes.log_weight.exp(), code**power)
        weight = self.log_weight.exp()
        mean = torch.einsum("nc,ncw->nw", weight, each.expand(-1, len(self.codes), -1))
        return torch.where(self._finite_columns, weight @ self.codes**power, mean)

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        return (self._moment(2) - self._moment(1).square()).clamp_min(0)

    @property
    def mode(self) -> Tensor:
        """The most probable value of the finite latents, and what the centre of the real numbers beside it is."""
        best = self.log_weight.argmax(-1)
        every = torch.arange(len(best), device=best.device)
        return self.constrain(self.codes[best], self.location[every, best if self.location.shape[1] > 1 else 0 * best])[
            0
        ]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        slot = draw_slots(self.log_weight, num_samples, generator).T
        shape = (num_samples, len(self.location), self.location.shape[-1])
        noise = torch.randn(shape, generator=generator, dtype=self.location.dtype).to(self.location)
        place = slot if self.location.shape[1] > 1 else torch.zeros_like(slot)
        every = torch.arange(len(self.location), device=slot.device)
        u = self.location[every, place] + (self.root[every, place] @ noise.unsqueeze(-1)).squeeze(-1)
        return self.constrain(self.codes[slot], u)[0]

    def log_prob(self, local: Tensor) -> Tensor:
        """Evaluate the log density at codes (..., N, W)."""
        u = self.unconstrain(local)
        _, volume = self.constrain(local, u)
        apart = (u.unsqueeze(-2) - self.location).unsqueeze(-1)
        standard = torch.linalg.solve_triangular(self.root, apart, upper=False).squeeze(-1)
        scale = self.root.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        size = u.shape[-1]
        normal = -0.5 * standard.square().sum(-1) - scale - 0.5 * size * torch.log(2 * torch.pi * u.new_ones(()))
        finite = self._finite_columns
        same = (self.codes[:, finite] == local[..., None, finite]).all(-1)
        weight = torch.where(same, self.log_weight, torch.full_like(self.log_weight, -torch.inf))
        return (weight + normal).logsumexp(-1) - volume
