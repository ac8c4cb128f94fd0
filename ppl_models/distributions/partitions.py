"""Distributions of relational models: partitions of unboundedly many clusters, and cells of several relations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import require_room
from ppl_models.distributions.basic import Law, Shape, UnexpandedLaw

#: Cells that are generated at most.
_CELLS = 2**24


class ChineseRestaurant(Law):
    """The clusters of N entities, (N,) whole numbers, as one event: the Chinese restaurant process of concentration c.

    Entity i joins a cluster of n before it with probability n / (i + c), and a new one with c / (i + c):

        p(z) = c^K Gamma(c) / Gamma(c + N) prod_k Gamma(n_k).

    Samples number clusters in order of appearance. ``log_prob`` is that of the partition, whatever its labels.
    num_clusters: None, or K: proportions ~ Dirichlet(c, ..., c) integrated out, and labels below K mean what they say.
    """

    arg_constraints: ClassVar[Any] = {"concentration": constraints.positive}

    def __init__(
        self, concentration: Tensor, size: int, num_clusters: int | None = None, validate_args: bool | None = None
    ):
        self.concentration, self.size, self.num_clusters = torch.as_tensor(concentration), size, num_clusters
        super().__init__(self.concentration.shape, torch.Size([size]), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.independent(constraints.integer_interval(0, (self.num_clusters or self.size) - 1), 1)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        return type(self)(self.concentration.expand(batch_shape), self.size, self.num_clusters, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        c, value = self.concentration, value.long()
        counts = c.new_zeros(*value.shape[:-1], self.num_clusters or self.size)
        counts = counts.scatter_add(-1, value, torch.ones_like(value, dtype=counts.dtype))
        if self.num_clusters is not None:
            each = torch.lgamma(c[..., None] + counts) - torch.lgamma(c)[..., None]
            return torch.lgamma(self.num_clusters * c) - torch.lgamma(self.num_clusters * c + self.size) + each.sum(-1)
        full = counts > 0
        each = torch.where(full, torch.lgamma(counts.clamp(min=1)), torch.zeros_like(counts)).sum(-1)
        return full.sum(-1) * torch.log(c) + torch.lgamma(c) - torch.lgamma(c + self.size) + each

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            shape = (*sample_shape, *self.batch_shape)
            c, many = self.concentration.expand(shape), self.num_clusters or self.size
            label = torch.zeros(*shape, self.size, dtype=torch.long, device=c.device)
            # Of every label what it has of the next entity; where they are unbounded the first unused one has c.
            fixed = self.num_clusters is not None
            weight = c[..., None].repeat_interleave(many, -1) if fixed else torch.zeros(*shape, many).to(c)
            for i in range(self.size):
                unused = (weight > 0).sum(-1, keepdim=True).clamp(max=many - 1)
                chance = weight if fixed else weight.scatter_add(-1, unused, c[..., None])
                label[..., i] = torch.distributions.Categorical(chance, validate_args=False).sample()
                weight = weight.scatter_add(-1, label[..., i : i + 1], torch.ones_like(weight[..., :1]))
            return label


class Relation(NamedTuple):
    """The cells of one relation: clusters of the entities along every axis (N_a,); what gives the distribution of cells
    in blocks, from indices of the blocks along every axis; and whether unlisted cells are 0.

    symmetric: (i, j) and (j, i) are one cell, listed with i <= j. loops: (i, i) is a cell; of two axes of one type.
    """

    clusters: Sequence[Tensor]
    cell: Any
    closed: bool
    symmetric: bool = False
    loops: bool = True

    @property
    def num_cells(self) -> int:
        size, every = len(self.clusters[0]), math.prod(map(len, self.clusters))
        pairs = every if self.loops else every - size
        return (every + (size if self.loops else -size)) // 2 if self.symmetric else pairs

    def places(self) -> Tensor:
        """The entities of all cells, (C, A)."""
        sizes = [torch.arange(len(one), device=one.device) for one in self.clusters]
        place = torch.stack([one.flatten() for one in torch.meshgrid(*sizes, indexing="ij")], 1)
        place = place[place[:, 0] <= place[:, 1]] if self.symmetric else place
        return place if self.loops else place[place[:, 0] != place[:, 1]]

    def blocks(self, place: Tensor) -> tuple[Tensor, ...]:
        """The blocks of cells, of a symmetric relation those on and above the diagonal."""
        found = [cluster[place[:, a]] for a, cluster in enumerate(self.clusters)]
        return (torch.minimum(*found), torch.maximum(*found)) if self.symmetric else tuple(found)

    def cells_in_blocks(self, like: Tensor) -> Tensor:
        """How many cells every block has, (K_1, ..., K_A)."""
        number, counts = like.new_ones(()), [torch.bincount(cluster).to(like) for cluster in self.clusters]
        for count in counts:
            number = number[..., None] * count
        if self.symmetric:  # of n entities n (n - 1) / 2 pairs, and perhaps each with itself
            own = torch.diag(counts[0] if self.loops else -counts[0])
            return torch.triu(number, 1) + torch.diag((number + own).diag() / 2)
        return number if self.loops else number - torch.diag(counts[0])


class RelationCells(UnexpandedLaw):
    """The cells of several relations as a table (C, 2 + A): relation, entities (-1 behind the last), value.

    A value of NaN is missing. Cells that are not listed are 0 in a closed relation, and missing in others.
    """

    support: ClassVar[Any] = constraints.independent(constraints.real, 2)

    def __init__(self, relations: Sequence[Relation], like: Tensor):
        self.relations, self.like = relations, like
        cells = sum(relation.num_cells for relation in relations)
        width = 2 + max(len(relation.clusters) for relation in relations)
        super().__init__(torch.Size(), torch.Size([cells, width]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        total, which = self.like.new_zeros(()), value[:, 0].long()
        for r, relation in enumerate(self.relations):
            rows = value[which == r]
            place = rows[:, 1 : 1 + len(relation.clusters)].long()
            blocks = relation.blocks(place)
            seen = ~torch.isnan(rows[:, -1])
            known = tuple(block[seen] for block in blocks)
            total = total + relation.cell(known).log_prob(rows[seen, -1]).sum()
            if relation.closed:
                total = total + self._log_prob_unlisted(relation, blocks)
        return total

    def _log_prob_unlisted(self, relation: Relation, blocks: tuple[Tensor, ...]) -> Tensor:
        """log p of the cells that are not listed: of every block as many zeros."""
        number = relation.cells_in_blocks(self.like)
        listed = torch.zeros_like(number).index_put_(blocks, torch.ones_like(blocks[0]).to(number), accumulate=True)
        every = torch.meshgrid(*(torch.arange(n, device=number.device) for n in number.shape), indexing="ij")
        each = relation.cell(every).log_prob(torch.zeros_like(number))
        left = number - listed
        return torch.where(left > 0, left * each, torch.zeros_like(each)).sum()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """All cells, none of them missing."""
        cells, width = self.event_shape
        fits = "fewer entities"
        require_room(f"{cells} cells", 8.0 * cells * width * math.prod(sample_shape), 8.0 * _CELLS * width, fits)
        with torch.no_grad():
            drawn = [torch.cat([self._draw_relation(r, one, width) for r, one in enumerate(self.relations)])
                     for _ in range(math.prod(sample_shape))]  # fmt: skip
            return torch.stack(drawn).reshape(*sample_shape, cells, width)

    def _draw_relation(self, r: int, relation: Relation, width: int) -> Tensor:
        place = relation.places()
        rows = self.like.new_full((len(place), width), -1.0)
        rows[:, 0], rows[:, 1 : 1 + place.shape[1]] = r, place.to(rows)
        rows[:, -1] = relation.cell(relation.blocks(place)).sample().to(rows)
        return rows
