"""Rows of a program with Gaussian latents: the posterior of their latents, log p(x_n), and moments, all exact.

In information form: with the coefficients C_e and intercepts b_e of the elements e of row n, which are seen where m_e
is 1, a latent that is drawn among the C_e with -1 and its value 0,

    V^-1 = sum_e m_e C_e C_e' / s_e^2,    V^-1 m = sum_e m_e C_e (x_e - b_e) / s_e^2,
    log p(x_n) = sum_e m_e log Normal(x_e; b_e + C_e'm, s_e) + W / 2 log 2 pi + 1/2 log|V|.

V is the same for all rows that miss the same entries and have the same coefficients.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.gaussian.structure import GaussianStructure
from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.posteriors import GaussianPosterior
from ppl_models import Model

_LOG_2PI = math.log(2 * math.pi)
#: Numbers of the arrays of a part of the rows.
_PART = 2**21
#: What the diagonal of a precision matrix that rounding made singular is raised by, as a part of itself.
_RIDGE = 1e-10


@dataclass(frozen=True)
class Read:
    """What a block reads of N rows: values (N, G, U), which of them are seen (None: all), and of parameters that differ
    between rows the cells (N, U)."""

    x: Tensor
    seen: Tensor | None = None
    cells: Tensor | None = None

    def select(self, index: Tensor | slice) -> Read:
        """Return some of the rows."""
        parts = (self.x, self.seen, self.cells)
        return Read(*(None if one is None else one[index] for one in parts))  # type: ignore[arg-type]


class Terms(NamedTuple):
    """The coefficients of a block in rows: intercept (N or 1, G, U), slope (N or 1, G, U, R), scale (N or 1, G, U)."""

    intercept: Tensor
    slope: Tensor
    scale: Tensor

    def rows(self, index: Tensor) -> Terms:
        """Return those of some rows."""
        return self if len(self.scale) == 1 else Terms(*(one[index] for one in self))


class Solved(NamedTuple):
    """Means (N, W), covariances (P, W, W) of patterns, the pattern (N,) of every row, and log p(x_n), (N,)."""

    mean: Tensor
    covariance: Tensor
    pattern: Tensor
    log_evidence: Tensor


@dataclass(frozen=True)
class GaussianRows:
    """A structure and the rows that it has read, in double precision.

    parts: what each block reads. cells: how many cells of parameters each has, 0 where all rows have the same. kinds:
    (N,) the same of rows that see the same entries and have the same coefficients. like: of the rows' type. steps: the
    M steps of models on them.
    """

    structure: GaussianStructure
    blocks: tuple[Block, ...]
    parts: tuple[Read, ...]
    cells: tuple[int, ...]
    kinds: Tensor
    like: Tensor
    steps: weakref.WeakKeyDictionary[Model, Any] = field(default_factory=weakref.WeakKeyDictionary, repr=False)

    def __len__(self) -> int:
        return len(self.kinds)

    def select(self, index: Tensor | slice) -> GaussianRows:
        """Return some of the rows."""
        return replace(self, parts=tuple(one.select(index) for one in self.parts), kinds=self.kinds[index])

    def to(self, dtype: torch.dtype) -> GaussianRows:
        """Return the rows for states of another type; sums over them stay in double precision."""
        return replace(self, like=self.like.to(dtype))

    @cached_property
    def patterns(self) -> tuple[Tensor, Tensor]:
        """The first row of every pattern, and the pattern of every row."""
        _, pattern = torch.unique(self.kinds, return_inverse=True)
        number = int(pattern.max()) + 1 if len(pattern) else 0
        first = torch.full((number,), len(self)).scatter_reduce(0, pattern, torch.arange(len(self)), "amin")
        return first, pattern

    @property
    def keys(self) -> list[str]:
        """Names of the moments of every block: after these rows where they do not add up with those of others."""
        named = zip(range(len(self.blocks)), self.cells, strict=True)
        return [f"{place} of {id(self.blocks)}" if number else str(place) for place, number in named]

    def is_latent(self, block: Block) -> bool:
        """Whether the elements of a block are latents."""
        return block.elements[0][0] in self.structure.layout.names

    def cut(self) -> list[GaussianRows]:
        """Return the rows in parts of a limited number of entries."""
        size = self.structure.size
        wide = size**2 if len(self.patterns[0]) > 1 else size
        for block, number in zip(self.blocks, self.cells, strict=True):
            many, pairs = len(block.scopes), (len(block.scopes[0]) + 2) ** 2
            wide += many * pairs * (block.elements[0][1].numel() if number else 1)
        rows = max(1, _PART // wide)
        if rows >= len(self):
            return [self]
        return [self.select(slice(start, start + rows)) for start in range(0, len(self), rows)]

    def terms(self, flat: Tensor) -> list[Terms]:
        """Return the coefficients of every block at a vector of all entries."""
        found = []
        for block, part in zip(self.blocks, self.parts, strict=True):
            own = block.parameters(flat)[:, 0]  # (G, U, P)
            own = own[None] if part.cells is None else own[0][part.cells].unsqueeze(1)
            found.append(Terms(own[..., 0], own[..., 1:-1], own[..., -1]))
        return found

    def log_joint(self, flat: Tensor, latents: Tensor, temperature: float = 1.0) -> Tensor:
        """Return log p(x_n, u_n | globals), (N,), at latents (N, W); that of data times a temperature."""
        return self._log_joint(self.terms(flat.double()), latents, temperature)

    def _log_joint(self, terms: Sequence[Terms], latents: Tensor, temperature: float) -> Tensor:
        total = latents.new_zeros(len(self))
        for block, part, term in zip(self.blocks, self.parts, terms, strict=True):
            apart = (part.x - self.find_means(block, term, latents)) / term.scale
            each = -0.5 * (apart.square() + _LOG_2PI) - torch.log(term.scale)
            each = each if part.seen is None else each * part.seen
            total = total + (1.0 if self.is_latent(block) else temperature) * each.flatten(1).sum(1)
        return total

    def find_means(self, block: Block, term: Terms, latents: Tensor) -> Tensor:
        """Return the means (N, G, U) at latents (N, W); of what is drawn less itself."""
        own = latents[:, torch.tensor(block.scopes, dtype=torch.long)]  # (N, G, R)
        return term.intercept + (term.slope * own.unsqueeze(-2)).sum(-1)

    def solve(self, flat: Tensor, temperature: float = 1.0) -> Solved:
        """Find the posterior of the latents. Gradients flow to the globals."""
        terms, size = self.terms(flat.double()), self.structure.size
        first, pattern = self.patterns
        precision, pull = flat.new_zeros(1, size**2).double(), flat.new_zeros(len(self), size).double()
        for block, part, term in zip(self.blocks, self.parts, terms, strict=True):
            scope = torch.tensor(block.scopes, dtype=torch.long)  # (G, R)
            weight = (1.0 if self.is_latent(block) else temperature) * term.scale**-2
            own = term.rows(first)
            pair = own.slope.unsqueeze(-1) * own.slope.unsqueeze(-2)  # (P or 1, G, U, R, R)
            heavy = weight if len(weight) == 1 else weight[first]
            if part.seen is None or len(pair) > 1:
                heavy = heavy if part.seen is None else heavy * part.seen[first]
                local = torch.einsum("pgu,pgurs->pgrs", heavy, pair)
            else:
                weighed = (heavy.unsqueeze(-1) * pair.flatten(-2))[0]
                local = torch.einsum("pgu,gux->pgx", part.seen[first].to(weighed), weighed)
            place = (scope.unsqueeze(-1) * size + scope.unsqueeze(-2)).reshape(-1)
            added = torch.zeros(len(local), size**2, dtype=local.dtype).index_add(
                1, place, local.reshape(len(local), -1)
            )
            precision = precision + added
            apart = (part.x - term.intercept) * weight
            apart = apart if part.seen is None else apart * part.seen
            slopes = (apart.unsqueeze(-2) @ term.slope).squeeze(-2)  # (N, G, R)
            pull = pull.index_add(1, scope.reshape(-1), slopes.flatten(1))
        factor = _factorise(precision.unflatten(1, (size, size)))
        less = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        if len(factor) == 1:
            mean, less = torch.cholesky_solve(pull.T, factor[0]).T, less.expand(len(self))
        else:
            mean, less = torch.cholesky_solve(pull.unsqueeze(-1), factor[pattern])[..., 0], less[pattern]
        evidence = self._log_joint(terms, mean, temperature) + 0.5 * (size * _LOG_2PI - less)
        pattern = pattern if len(factor) > 1 else torch.zeros_like(pattern)
        return Solved(mean, torch.cholesky_inverse(factor), pattern, evidence)

    def log_evidence(self, flat: Tensor) -> Tensor:
        """Return log p(x_n | globals), (N,). Gradients flow to the globals."""
        return torch.cat([part.solve(flat).log_evidence for part in self.cut()]).to(self.like)

    def posterior(self, flat: Tensor) -> GaussianPosterior:
        """Return the posterior of the latents. Raises CapacityError where its covariances do not fit into memory."""
        size = self.structure.size
        if len(self.patterns[0]) > 1:
            what = f"the covariances of {size} latents in each of {len(self)} rows"
            require(what, 8.0 * len(self) * size**2, allowed=memory_limit(), fits="take fewer rows at a time")
        found = [part.solve(flat) for part in self.cut()]
        mean = torch.cat([one.mean for one in found]).to(self.like)
        if all(len(one.covariance) == 1 for one in found) and len(self.patterns[0]) <= 1:
            return GaussianPosterior(mean, found[0].covariance.to(self.like).expand(len(self), size, size))
        return GaussianPosterior(mean, torch.cat([one.covariance[one.pattern] for one in found]).to(self.like))

    def expect(
        self, flat: Tensor, weights: Tensor | None = None, temperature: float = 1.0
    ) -> tuple[list[Tensor], Tensor]:
        """Return the moments (G, 1, U, F) of every block, summed over rows with their weights, and log p(x_n), (N,)."""
        parts = self.cut()
        weighed = [None] * len(parts) if weights is None else weights.double().split([len(part) for part in parts])
        total, bounds = list[Tensor](), list[Tensor]()
        for part, weight in zip(parts, weighed, strict=True):
            solved = part.solve(flat, temperature)
            own = [
                part.moments(place, solved, weight) * (1.0 if part.is_latent(block) else temperature)
                for place, block in enumerate(part.blocks)
            ]
            total = [before + more for before, more in zip(total, own, strict=True)] if total else own
            bounds.append(solved.log_evidence)
        return total, torch.cat(bounds).to(self.like)

    def moments(self, place: int, solved: Solved, weights: Tensor | None = None) -> Tensor:
        """Return the sums over rows of E[v v'] of a block, v = (x, 1, u), (G, 1, U, F)."""
        block, part = self.blocks[place], self.parts[place]
        scope = torch.tensor(block.scopes, dtype=torch.long)  # (G, R)
        one = torch.cat([solved.mean.new_ones(len(self), len(scope), 1), solved.mean[:, scope]], -1)  # (N, G, 1 + R)
        spread = torch.nn.functional.pad(
            solved.covariance[:, scope.unsqueeze(-1), scope.unsqueeze(-2)], (1, 0, 1, 0)
        )  # (P, G, 1 + R, 1 + R)
        weight = part.x.new_ones(len(self), 1, 1) if weights is None else weights[:, None, None]
        if part.cells is not None:
            return self._moments_of_cells(place, one, spread[solved.pattern], weight)
        if part.seen is None:
            number = torch.zeros(len(spread), dtype=one.dtype).index_add(0, solved.pattern, weight[:, 0, 0])
            pair = torch.einsum("ngr,ngs->grs", one * weight, one) + torch.einsum("p,pgrs->grs", number, spread)
            pair = pair.unsqueeze(1).expand(-1, part.x.shape[2], -1, -1)
        else:
            weight = weight * part.seen
            every = (one.unsqueeze(-1) * one.unsqueeze(-2) + spread[solved.pattern]).flatten(2)
            pair = torch.einsum("ngu,ngx->gux", weight, every).unflatten(-1, one.shape[-1:] * 2)
        weighed = weight * part.x
        cross = torch.einsum("ngu,ngr->gur", weighed, one)
        square = (weighed * part.x).sum(0)[..., None, None]  # (G, U, 1, 1)
        top = torch.cat([square, cross.unsqueeze(-2)], -1)
        return torch.cat([top, torch.cat([cross.unsqueeze(-1), pair], -1)], -2).flatten(-2).unsqueeze(1)

    def _moments_of_cells(self, place: int, one: Tensor, spread: Tensor, weight: Tensor) -> Tensor:
        """Return the same of parameters that differ between rows, by their cells: (1, 1, U, F)."""
        part, number = self.parts[place], self.cells[place]
        assert part.cells is not None
        x = part.x[:, 0].unsqueeze(-1)  # (N, E, 1)
        v = torch.cat([x, one.expand(-1, x.shape[1], -1)], -1)
        pairs = v.unsqueeze(-1) * v.unsqueeze(-2) + torch.nn.functional.pad(spread, (1, 0, 1, 0))
        every = weight.expand(len(self), 1, x.shape[1]) if part.seen is None else weight * part.seen
        pairs = pairs.flatten(-2) * every[:, 0].unsqueeze(-1)
        found = pairs.new_zeros(number, pairs.shape[-1])
        return found.index_add(0, part.cells.reshape(-1), pairs.flatten(0, 1))[None, None]


def _factorise(precision: Tensor) -> Tensor:
    """Return the Cholesky factors of precision matrices; of those that rounding made singular, a little raised."""
    factor, info = torch.linalg.cholesky_ex(precision)
    if not bool((info == 0).all()):
        raised = precision + torch.diag_embed(_RIDGE * precision.diagonal(dim1=-2, dim2=-1))
        factor = torch.where((info == 0)[:, None, None], factor, torch.linalg.cholesky_ex(raised)[0])
    return factor
