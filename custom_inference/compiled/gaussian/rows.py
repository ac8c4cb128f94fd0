"""Rows of a program with Gaussian latents: the posterior of their latents, log p(x_n), and moments, all exact.

In information form: with the coefficients C_e and intercepts b_e of the elements e of row n, which are seen where m_e
is 1, a latent that is drawn among the C_e with -1 and its value 0,

    V^-1 = sum_e m_e C_e C_e' / s_e^2,    V^-1 m = sum_e m_e C_e (x_e - b_e) / s_e^2,
    log p(x_n) = sum_e m_e log Normal(x_e; b_e + C_e'm, s_e) + W / 2 log 2 pi + 1/2 log|V|.

V is the same for all rows that miss the same entries and have the same coefficients. Beside finite latents all of this
is so given each of their C values together; their posterior follows from log p(x_n | value), and that of all latents is
a mixture.
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

from custom_inference.compiled.blocks import Block, Part
from custom_inference.compiled.gaussian.structure import GaussianStructure
from custom_inference.compiled.messages import margin
from custom_inference.compiled.structure import Bound, keys_of
from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.posteriors import GaussianPosterior, LocalPosterior, MixedPosterior
from custom_inference.core.posteriors.mixed import FINITE, REAL
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
    """The coefficients of a block in rows at every value of the finite latents: intercept and scale (C, N or 1, G, U),
    slope (C, N or 1, G, U, R)."""

    intercept: Tensor
    slope: Tensor
    scale: Tensor

    def rows(self, index: Tensor) -> Terms:
        """Return those of some rows."""
        return self if self.scale.shape[1] == 1 else Terms(*(one[:, index] for one in self))

    def find_means(self, latents: Tensor) -> Tensor:
        """Return the means (C, N, G, U) at latents (C, N, G, R); of what is drawn less itself."""
        if self.scale.shape[1] == 1:
            return self.intercept + torch.einsum("cgur,cngr->cngu", self.slope[:, 0], latents)
        return self.intercept + (self.slope * latents.unsqueeze(-2)).sum(-1)

    def pull(self, apart: Tensor) -> Tensor:
        """Return the sums (C, N, G, R) over elements of numbers (C, N, G, U) times slopes."""
        if self.scale.shape[1] == 1:
            return torch.einsum("cgur,cngu->cngr", self.slope[:, 0], apart)
        return (apart.unsqueeze(-2) @ self.slope).squeeze(-2)


class Solved(NamedTuple):
    """Given each value of the finite latents: means (C, N, W), covariances (C, P, W, W) of patterns, the pattern (N,)
    of every row; and log p(x_n, value), (N, C)."""

    mean: Tensor
    covariance: Tensor
    pattern: Tensor
    log_joint: Tensor


@dataclass(frozen=True)
class GaussianRows:
    """A structure and the rows that it has read, in double precision.

    parts: what each block reads. cells: how many cells of parameters each has, 0 where all rows have the same. kinds:
    (N,) the same of rows that see the same entries and have the same coefficients. like: of the rows' type. finite:
    rows as the factors of finite latents read them. steps: the M steps of models on them.
    """

    structure: GaussianStructure
    blocks: tuple[Block, ...]
    parts: tuple[Read, ...]
    cells: tuple[int, ...]
    kinds: Tensor
    like: Tensor
    finite: Bound | None = None
    steps: weakref.WeakKeyDictionary[Model, Any] = field(default_factory=weakref.WeakKeyDictionary, repr=False)

    def __len__(self) -> int:
        return len(self.kinds)

    def select(self, index: Tensor | slice) -> GaussianRows:
        """Return some of the rows."""
        finite = None if self.finite is None else self.finite.select(index)
        return replace(
            self, parts=tuple(one.select(index) for one in self.parts), kinds=self.kinds[index], finite=finite
        )

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
        own = [f"{place} of {id(self.blocks)}" if number else str(place) for place, number in named]
        return own if self.finite is None else [*own, *(f"finite {key}" for key in keys_of(self.finite))]

    @property
    def all_blocks(self) -> tuple[Block, ...]:
        """The blocks of Gaussian laws, and those of the factors of finite latents."""
        return self.blocks if self.finite is None else (*self.blocks, *self.finite.blocks)

    @property
    def all_parts(self) -> list[Part | None]:
        """What the factors of finite latents read, behind nothing of the Gaussian laws."""
        return [*[None] * len(self.blocks), *(() if self.finite is None else self.finite.parts)]

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
        wide *= len(self.structure.codes)
        rows = max(1, _PART // wide)
        if rows >= len(self):
            return [self]
        return [self.select(slice(start, start + rows)) for start in range(0, len(self), rows)]

    def parameters(self, flat: Tensor) -> list[Tensor]:
        """Return the parameters (G, C, U, P) of every block at a vector of all entries."""
        return [block.parameters(flat.double()) for block in self.blocks]

    def terms(self, flat: Tensor) -> list[Terms]:
        """Return the coefficients of every block at a vector of all entries."""
        found = []
        for block, part in zip(self.blocks, self.parts, strict=True):
            own = block.parameters(flat.double()).movedim(1, 0)  # (C, G, U, P)
            own = own.unsqueeze(1) if part.cells is None else own[:, 0][:, part.cells].unsqueeze(2)
            found.append(Terms(own[..., 0], own[..., 1:-1], own[..., -1]))
        return found

    def log_joint(self, flat: Tensor, values: Tensor, latents: Tensor) -> Tensor:
        """Return log p(x_n, latents_n | globals), (N,), at the numbers (N,) of values of the finite latents and at real
        ones (N, W)."""
        every = latents.expand(len(self.structure.codes), -1, -1)
        joint = self._log_joint(self.terms(flat), every, 1.0).T + self._weigh_values(flat, 1.0)
        return joint.gather(1, values.unsqueeze(1))[:, 0]

    def _weigh_values(self, flat: Tensor, temperature: float) -> Tensor:
        """Return what log p has of every value of the finite latents together beside Gaussian laws, (N or 1, C)."""
        if self.finite is None:
            return flat.new_zeros(1, 1).double()
        tables = self.finite.tables(self.finite.naturals(flat.double()), temperature)
        return self.finite.join(tables) + temperature * self.finite.offset.unsqueeze(1)

    def _log_joint(self, terms: Sequence[Terms], latents: Tensor, temperature: float) -> Tensor:
        """Return what log p has of Gaussian laws at latents (C, N, W), (C, N)."""
        total = latents.new_zeros(latents.shape[:2])
        for block, part, term in zip(self.blocks, self.parts, terms, strict=True):
            apart = (part.x - term.find_means(latents[..., scope_of(block)])) / term.scale
            each = -0.5 * (apart.square() + _LOG_2PI) - torch.log(term.scale)
            each = each if part.seen is None else each * part.seen
            total = total + (1.0 if self.is_latent(block) else temperature) * each.flatten(2).sum(2)
        return total

    def solve(self, flat: Tensor, temperature: float = 1.0) -> Solved:
        """Find the posterior of the real latents given each value of the finite ones. Gradients flow to the globals."""
        terms, size = self.terms(flat), self.structure.size
        first, pattern = self.patterns
        precision, pull = torch.zeros(1, 1, size**2).double(), torch.zeros(1, len(self), size).double()
        for block, part, term in zip(self.blocks, self.parts, terms, strict=True):
            scope = scope_of(block)
            weight = (1.0 if self.is_latent(block) else temperature) * term.scale**-2
            own = term.rows(first)
            pair = own.slope.unsqueeze(-1) * own.slope.unsqueeze(-2)  # (C, P or 1, G, U, R, R)
            heavy = weight if weight.shape[1] == 1 else weight[:, first]
            if part.seen is None or pair.shape[1] > 1:
                heavy = heavy if part.seen is None else heavy * part.seen[first]
                local = torch.einsum("cpgu,cpgurs->cpgrs", heavy, pair)
            else:
                weighed = (heavy.unsqueeze(-1) * pair.flatten(-2))[:, 0]
                local = torch.einsum("pgu,cgux->cpgx", part.seen[first].to(weighed), weighed)
            place = (scope.unsqueeze(-1) * size + scope.unsqueeze(-2)).reshape(-1)
            zeros = torch.zeros(*local.shape[:2], size**2, dtype=local.dtype)
            precision = precision + zeros.index_add(2, place, local.flatten(2))
            apart = (part.x - term.intercept) * weight
            slopes = term.pull(apart if part.seen is None else apart * part.seen)
            pull = pull.expand(len(slopes), -1, -1).index_add(2, scope.reshape(-1), slopes.flatten(2))
        factor = _factorise(precision.unflatten(2, (size, size)))
        less = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)  # (C, P)
        if factor.shape[1] == 1:
            mean, pattern = torch.cholesky_solve(pull.mT, factor[:, 0]).mT, torch.zeros_like(pattern)
        else:
            mean = torch.cholesky_solve(pull.unsqueeze(-1), factor[:, pattern])[..., 0]
        joint = self._log_joint(terms, mean, temperature) + 0.5 * (size * _LOG_2PI - less[:, pattern])
        joint = joint.T + self._weigh_values(flat, temperature)
        return Solved(mean, torch.cholesky_inverse(factor), pattern, joint)

    def log_evidence(self, flat: Tensor) -> Tensor:
        """Return log p(x_n | globals), (N,). Gradients flow to the globals."""
        return torch.cat([part.solve(flat).log_joint.logsumexp(1) for part in self.cut()]).to(self.like)

    def posterior(self, flat: Tensor) -> LocalPosterior:
        """Return the posterior of the latents. Raises CapacityError where its covariances do not fit into memory."""
        size, codes = self.structure.size, self.structure.codes
        if len(self.patterns[0]) > 1 or self.finite is not None:
            what = f"the covariances of {size} latents in each of {len(self)} rows"
            bytes_ = 8.0 * len(self) * len(codes) * size**2
            require(what, bytes_, allowed=memory_limit(), fits="take fewer rows at a time")
        found = [part.solve(flat) for part in self.cut()]
        mean = torch.cat([one.mean for one in found], 1).transpose(0, 1).to(self.like)  # (N, C, W)
        if self.finite is None and len(self.patterns[0]) <= 1:
            return GaussianPosterior(mean[:, 0], found[0].covariance[0].to(self.like).expand(len(self), size, size))
        spread = torch.cat([one.covariance[:, one.pattern] for one in found], 1).transpose(0, 1)  # (N, C, W, W)
        if self.finite is None:
            return GaussianPosterior(mean[:, 0], spread[:, 0].to(self.like))
        weight = torch.log_softmax(torch.cat([one.log_joint for one in found]), 1).to(self.like)
        kinds = [FINITE if one.transform is None else REAL for one in self.structure.layout]
        maps = [[kind, one.width, 1.0, 0.0, 0.0] for kind, one in zip(kinds, self.structure.layout, strict=True)]
        root = torch.linalg.cholesky(spread).to(self.like)
        return MixedPosterior(codes.to(self.like), weight, mean, root, self.like.new_tensor(maps))

    def expect(
        self, flat: Tensor, weights: Tensor | None = None, temperature: float = 1.0, held: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Return the moments of every block, summed over rows with their weights, and log p(x_n), (N,). held: further
        log weights (N, C) of the values of the finite latents."""
        parts = self.cut()
        sizes, every = [len(part) for part in parts], list[list[Tensor]]()
        weighed, beside = ([None] * len(parts) if w is None else w.double().split(sizes) for w in (weights, held))
        bounds = list[Tensor]()
        for part, weight, more in zip(parts, weighed, beside, strict=True):
            solved = part.solve(flat, temperature)
            joint = solved.log_joint if more is None else solved.log_joint + more
            bounds.append(joint.logsumexp(1))
            share = (joint - bounds[-1].unsqueeze(1)).exp()
            every.append(part.gather(solved, share if weight is None else share * weight.unsqueeze(1), temperature))
        direct = [block.is_direct for block in self.all_blocks]
        total = [
            torch.cat(own, 1) if kept else torch.stack(own).sum(0)
            for kept, own in zip(direct, zip(*every, strict=True), strict=True)
        ]
        return total, torch.cat(bounds).to(self.like)

    def gather(self, solved: Solved, share: Tensor, temperature: float = 1.0) -> list[Tensor]:
        """Return the moments (G, C, U, F) of every block where real latents are so given each value of the finite ones,
        and rows have weights (N, C) for these; and the expected statistics of the factors of finite latents."""
        found = [
            self.moments(place, solved, share) * (1.0 if self.is_latent(block) else temperature)
            for place, block in enumerate(self.blocks)
        ]
        if self.finite is None:
            return found
        sizes = self.finite.structure.variables.sizes
        every, wide = tuple(range(len(sizes))), share.reshape(-1, *sizes)
        pairs = zip(self.finite.blocks, self.finite.parts, strict=True)
        shared = [part is None for block, part in pairs for _ in block.scopes]
        marginals = [margin(wide, every, s, summed) for s, summed in zip(self.finite.scopes, shared, strict=True)]
        return found + self.finite.gather(marginals)

    def moments(self, place: int, solved: Solved, share: Tensor) -> Tensor:
        """Return the sums over rows with weights (N, C) of E[v v'] of a block, v = (x, 1, u), (G, C, U, F)."""
        block, part, weight = self.blocks[place], self.parts[place], share.T[:, :, None, None]
        scope = scope_of(block)
        mean = solved.mean[..., scope]  # (C, N, G, R)
        one = torch.cat([torch.ones_like(mean[..., 0]).unsqueeze(-1), mean], -1)
        spread = solved.covariance[..., scope.unsqueeze(-1), scope.unsqueeze(-2)]
        spread = torch.nn.functional.pad(spread, (1, 0, 1, 0))  # (C, P, G, 1 + R, 1 + R)
        if part.cells is not None:
            return self._moments_of_cells(place, one, spread[:, solved.pattern], weight)
        if part.seen is None:
            number = torch.zeros(spread.shape[:2], dtype=one.dtype).index_add(1, solved.pattern, weight[..., 0, 0])
            pair = torch.einsum("cngr,cngs->gcrs", one * weight, one) + torch.einsum("cp,cpgrs->gcrs", number, spread)
            pair = pair.unsqueeze(2).expand(-1, -1, part.x.shape[2], -1, -1)
        else:
            weight = weight * part.seen
            every = (one.unsqueeze(-1) * one.unsqueeze(-2) + spread[:, solved.pattern]).flatten(3)
            pair = torch.einsum("cngu,cngx->gcux", weight, every).unflatten(-1, one.shape[-1:] * 2)
        weighed = weight * part.x
        cross = torch.einsum("cngu,cngr->gcur", weighed, one)
        square = torch.einsum("cngu,ngu->gcu", weighed, part.x)[..., None, None]
        top = torch.cat([square, cross.unsqueeze(-2)], -1)
        return torch.cat([top, torch.cat([cross.unsqueeze(-1), pair], -1)], -2).flatten(-2)

    def _moments_of_cells(self, place: int, one: Tensor, spread: Tensor, weight: Tensor) -> Tensor:
        """Return the same of parameters that differ between rows, by their cells: (1, C, U, F)."""
        part, number = self.parts[place], self.cells[place]
        assert part.cells is not None
        x = part.x[:, 0].unsqueeze(-1).expand(len(one), -1, -1, -1)  # (C, N, E, 1)
        v = torch.cat([x, one.expand(-1, -1, x.shape[2], -1)], -1)
        pairs = v.unsqueeze(-1) * v.unsqueeze(-2) + torch.nn.functional.pad(spread, (1, 0, 1, 0))
        heavy = weight if part.seen is None else weight * part.seen  # (C, N, 1, E or 1)
        pairs = pairs.flatten(-2) * heavy[:, :, 0].unsqueeze(-1)
        found = pairs.new_zeros(len(pairs), number, pairs.shape[-1])
        return found.index_add(1, part.cells.reshape(-1), pairs.flatten(1, 2))[None]


def scope_of(block: Block) -> Tensor:
    """Return the parents (G, R) of the factors of a block."""
    return torch.tensor(block.scopes, dtype=torch.long)


def _factorise(precision: Tensor) -> Tensor:
    """Return the Cholesky factors of precision matrices; of those that rounding made singular, a little raised."""
    factor, info = torch.linalg.cholesky_ex(precision)
    if not bool((info == 0).all()):
        raised = precision + torch.diag_embed(_RIDGE * precision.diagonal(dim1=-2, dim2=-1))
        factor = torch.where((info == 0)[..., None, None], factor, torch.linalg.cholesky_ex(raised)[0])
    return factor
