"""Variational Bayes of relational models (Xu, Tresp, Yu, Yu & Kriegel, *Fast inference in infinite hidden relational
models*, MLG 2007): Categoricals q(z_i) of all entities, the rest at its best given them.

With labels z, tables eta, sticks v of pi_k = v_k prod_(l < k) (1 - v_l) (Blei & Jordan, *Variational inference for
Dirichlet process mixtures*, Bayesian Analysis 1, 2006), and q(z) q(eta) prod_t q(v_t, c_t),

    log p(x) >= sum_b f(E s_b, E n_b) + sum_t log int p(c_t) prod_k B(1 + m_k, c_t + sum_(l > k) m_l) / B(1, c_t) dc_t
                + sum_i H(q(z_i)),        m_k = sum_i q(z_i = k).

The tables' priors are conjugate: the best q(eta) of a block has the hyper-parameters that its expected sums E s_b and
expected number of cells E n_b give, and what it brings is their log marginal likelihood f, see ``scores``. Sticks
beyond the truncation keep their prior, so this bounds the evidence of unbounded clusters. With K clusters, of
proportions Dirichlet(c, ..., c), the second term is log int p(c) G(K c) / G(K c + N) prod_k G(c + m_k) / G(c) dc.

The bound's gradient in q(z_i) is what log q(z_i) is at its optimum, so that an update of one type is a step of its
natural gradient. Entities of a type that no relation has on two axes do not touch each other, and a whole step raises
the bound; others take the largest of 1, 1/2, 1/4, ... that does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.progress import Progress
from custom_inference.families.relations.arrays import CATEGORIES, COUNTS, Cells, Wholes
from custom_inference.families.relations.exact import partitions
from custom_inference.families.relations.state import Clusters, PartitionPrior

#: The least share of a step that is tried.
_LEAST = 2.0**-12
#: How sure responsibilities are of labels that they start from.
_SURE = 0.9
_LETTERS = "abcdefgh"

Groups = tuple[tuple[int, ...], ...]


class Listed(NamedTuple):
    """Listed cells of a relation with one entity on the axes of each of ``groups``, and different ones otherwise.

    Axes are summed out one after the other: of each group the entities of the rows (C_g,), and the rows of the next
    group that they add to. weight (C, S + 1): what the cells add to the sums, and to the number of observed cells.
    """

    groups: Groups
    entity: list[Tensor]
    into: list[Tensor]
    weight: Tensor

    def sums(self, shares: list[Tensor]) -> Tensor:
        """Expected sums (K_1, ..., K_A, S + 1). shares: (N, K) of every axis."""
        found, width = self.weight, self.weight.shape[1]
        for group, entity, into in zip(self.groups, self.entity, self.into, strict=True):
            each = shares[group[0]][entity][:, :, None] * found[:, None]
            rows = int(into.max()) + 1
            found = each.new_zeros(rows, *each.shape[1:]).index_add(0, into, each).reshape(rows, -1)
        sizes = [shares[group[0]].shape[1] for group in self.groups]
        found = found.reshape(*sizes[::-1], width).permute(*range(len(sizes))[::-1], len(sizes))
        first = [(found, "".join(_LETTERS[group[0]] for group in self.groups) + "z")]
        return _einsum([*first, *_diagonals(self.groups, shares)], _LETTERS[: len(shares)] + "z")


def _einsum(parts: Iterable[tuple[Tensor, str]], to: str) -> Tensor:
    tensors, letters = zip(*parts, strict=True)
    return torch.einsum(",".join(letters) + "->" + to, *tensors)


def _diagonals(groups: Groups, shares: list[Tensor]) -> Iterator[tuple[Tensor, str]]:
    """One label on all axes of a group."""
    for first, *rest in groups:
        for other in rest:
            yield torch.eye(shares[first].shape[1], dtype=shares[first].dtype), _LETTERS[first] + _LETTERS[other]


def _divisions(axes: list[int]) -> Iterator[Groups]:
    """Every partition of some axes."""
    for label in partitions(len(axes), len(axes)):
        yield tuple(tuple(a for a, k in zip(axes, label, strict=True) if k == c) for c in range(max(label) + 1))


def _cumulant(shares: list[Tensor], axes: list[int]) -> Tensor:
    """Compute the joint cumulant (K, ..., K) of the numbers of entities with each label, sums of independent one-hot
    vectors."""
    total: Any = 0.0
    for groups in _divisions(axes):
        sign = (-1) ** (len(groups) - 1) * math.factorial(len(groups) - 1)
        each = [(shares[group[0]], "i" + _LETTERS[group[0]]) for group in groups]
        total = total + sign * _einsum([*each, *_diagonals(groups, shares)], "".join(_LETTERS[a] for a in axes))
    return total


def number_of_all(shares: list[Tensor], types: list[int]) -> Tensor:
    """The expected number of all cells of every block, (K_1, ..., K_A): products of the numbers of entities with each
    label. Those of one type on several axes depend on each other: the moment is the sum over the partitions of these
    axes of products of cumulants."""
    found: Any = torch.ones((), dtype=shares[0].dtype)
    known = ""
    for t in dict.fromkeys(types):
        axes, moment = [a for a, one in enumerate(types) if one == t], 0.0
        own = "".join(_LETTERS[a] for a in axes)
        for groups in _divisions(axes):
            each = [(_cumulant(shares, list(group)), "".join(_LETTERS[a] for a in group)) for group in groups]
            moment = moment + _einsum(each, own)
        found, known = _einsum([(found, known), (moment, own)], known + own), known + own  # pyright: ignore[reportArgumentType]
    return _einsum([(found, known)], _LETTERS[: len(types)])


def list_cells(cells: Cells, r: int) -> list[Listed]:
    """Return the listed cells of relation r, by which of their entities are one."""
    types, chosen = cells.types[r, : cells.arity[r]], np.flatnonzero(cells.relation == r)
    entity, value = cells.entity[chosen, : len(types)] - cells.first[types], cells.value[chosen]
    seen, width = ~np.isnan(value), int(cells.width[r])
    weight, filled = np.zeros((len(value), width + 1)), np.nan_to_num(value)
    weight[:, width] = cells.count[chosen]  # of the unlisted ones all are counted, and missing ones taken out
    if cells.kind[r] == CATEGORIES:
        weight[:, :width] = (filled[:, None] == np.arange(1, width + 1)) & seen[:, None]
    else:
        weight[:, :width] = (seen * filled)[:, None] ** np.arange(1, width + 1)
    alike = (types[:, None] == types) & (entity[:, :, None] == entity[:, None, :])
    place, found = alike.argmax(2), []  # the first axis with this entity
    for pattern in np.unique(place, axis=0):
        own = np.flatnonzero((place == pattern).all(1) & (weight != 0).any(1))
        groups = tuple(tuple(np.flatnonzero(pattern == a).tolist()) for a in np.unique(pattern))
        rows, entities, into = entity[own][:, [group[0] for group in groups]], [], []
        for _ in groups if len(own) else ():
            entities.append(torch.as_tensor(rows[:, 0].copy()))
            rows, there = np.unique(rows[:, 1:], axis=0, return_inverse=True)
            into.append(torch.as_tensor(there.ravel()))
        if len(own):
            found.append(Listed(groups, entities, into, torch.as_tensor(weight[own])))
    return found


def block_scores(kind: int, hyper: Tensor, sums: Tensor, number: Tensor) -> Tensor:
    """f of ``scores`` at expected sums (..., S) and numbers of cells (...), without its constant."""
    if kind == CATEGORIES:
        counts = torch.cat([(number - sums.sum(-1))[..., None], sums], -1).clamp(min=0.0)
        each = hyper[: counts.shape[-1]]
        return torch.lgamma(each + counts).sum(-1) - torch.lgamma(each.sum() + number)
    if kind == COUNTS:
        shape = hyper[0] + sums[..., 0]
        return torch.lgamma(shape) - shape * (hyper[1] + number).log()
    mean, strength = hyper[0], hyper[1]
    k, a, off = strength + number, hyper[2] + number / 2, sums[..., 0] - number * mean
    b = hyper[3] + (sums[..., 1] - 2 * mean * sums[..., 0] + number * mean**2 - off**2 / k) / 2
    return (
        torch.lgamma(a) - a * b.clamp(min=1e-300).log() + (strength / k).log() / 2 - number * math.log(2 * math.pi) / 2
    )


def log_partition(prior: PartitionPrior, t: int, sizes: Tensor) -> Tensor:
    """p(c) and what expected sizes (K,) of the clusters say of c, in logarithms, at every c of the grid (G,).

    Sticks are broken from the largest cluster on: labels are the bound's own choice.
    """
    c, weight = (torch.as_tensor(one[t])[:, None] for one in (prior.grid, prior.weight))
    if prior.fixed[t]:
        each = torch.lgamma(c + sizes) - torch.lgamma(c)
        whole = len(sizes) * c
        return weight[:, 0] + each.sum(1) + (torch.lgamma(whole) - torch.lgamma(whole + sizes.sum()))[:, 0]
    sizes = sizes.sort(descending=True).values
    later = (sizes.sum() - sizes.cumsum(0)).clamp(min=0.0)
    each = torch.lgamma(1 + sizes) + torch.lgamma(c + later) - torch.lgamma(1 + c + sizes + later) + c.log()
    return weight[:, 0] + each.sum(1)


class Bound:
    """The bound on log p(x), and its gradient, as a function of log q(z), (N_t, K_t) of every type."""

    def __init__(self, clusters: Clusters):
        self.cells, self.prior, self.constant = clusters.cells, clusters.prior, clusters.constant
        self.types = [row[row >= 0].tolist() for row in self.cells.types]
        self.listed = [list_cells(self.cells, r) for r in range(len(self.types))]
        self.hyper = torch.as_tensor(self.cells.hyper)

    def sums(self, r: int, shares: list[Tensor]) -> Tensor:
        """Expected sums of the blocks of relation r, and their numbers of observed cells, (K_1, ..., K_A, S + 1)."""
        types, width = self.types[r], int(self.cells.width[r])
        own = [shares[t] for t in types]
        total = shares[0].new_zeros(*(one.shape[1] for one in own), width + 1)
        for part in self.listed[r]:
            total = total + part.sums(own)
        if self.cells.closed[r]:
            every = number_of_all(own, types)[..., None]
            total = total + torch.cat([torch.zeros_like(total[..., :-1]), every], -1)
        if self.cells.symmetric[r]:  # those on the diagonal hold every cell twice
            total = total * (1.0 - 0.5 * torch.eye(len(total), dtype=total.dtype))[..., None]
        return total

    def of_labels(self, shares: list[Tensor]) -> Tensor:
        """The bound but for the entropy of q(z)."""
        total: Any = self.constant
        for r in range(len(self.types)):
            sums, kind = self.sums(r, shares), int(self.cells.kind[r])
            if self.cells.symmetric[r]:  # (a, b) and (b, a) are one block
                sums = sums[tuple(torch.triu_indices(*sums.shape[:2]))]
            score = block_scores(kind, self.hyper[r], sums[..., :-1], sums[..., -1])
            total = total + score.sum() + float(self.cells.constant[r]) * score.numel()
        for t, share in enumerate(shares):
            total = total + log_partition(self.prior, t, share.sum(0)).logsumexp(0)
        return total

    def at(self, logs: list[Tensor]) -> tuple[float, Tensor, list[Tensor]]:
        """The bound; of what has a gradient, the part without entropy and q(z)."""
        shares = [log.exp().requires_grad_() for log in logs]
        with torch.enable_grad():
            inner = self.of_labels(shares)
        entropy = sum(float(torch.special.entr(one.detach()).sum()) for one in shares)
        return float(inner.detach()) + entropy, inner, shares

    def maximise(
        self, logs: list[Tensor], iterations: int, tolerance: float, bar: Progress
    ) -> tuple[list[Tensor], list[float]]:
        """Update log q(z) of all types in rounds, until they gain less than ``tolerance``; return it and the bound
        after each.

        Ctrl-C ends them; ``logs`` are changed in place.
        """
        value, inner, shares = self.at(logs)
        trace = [value]
        for _ in range(iterations):
            for t in range(len(logs)):
                (goal,) = torch.autograd.grad(inner, shares[t])
                old, step, found = logs[t], 1.0, None
                while found is None and step >= _LEAST:
                    logs[t] = ((1 - step) * old + step * goal).log_softmax(-1)
                    found = self.at(logs)
                    if not found[0] >= value - 1e-12 * abs(value):
                        found, step = None, step / 2
                if found is None:
                    logs[t] = old
                value, inner, shares = found or self.at(logs)
            trace.append(value)
            bar.advance(value)
            if trace[-1] - trace[-2] < tolerance:
                break
        return logs, trace


def soften_labels(clusters: Clusters, labels: Wholes, truncation: int | None = None) -> list[Tensor]:
    """Return log q(z) of every type, close to labels (E,). truncation: clusters at most, where their number is
    unbounded; None: half as many again as there are."""
    found = []
    for t, size in enumerate(clusters.sizes.tolist()):
        own = labels[clusters.of_type(t)]
        names, place = np.unique(own, return_inverse=True)
        most = min(max(len(names), truncation or 1 + len(names) + len(names) // 2), size)
        if clusters.prior.fixed[t]:
            most, place = int(clusters.prior.clusters[t]), own
        share = torch.full((len(own), most), (1 - _SURE) / most, dtype=torch.float64)
        share[torch.arange(len(own)), torch.as_tensor(place)] += _SURE
        found.append(share.log())
    return found


def draw_labels(clusters: Clusters, logs: list[Tensor], number: int, seed: int) -> list[Tensor]:
    """Draw the labels of every type from q(z), (1, S, N_t), the largest cluster first, and the concentrations (1, S,
    T)."""
    generator, found, concentrations = torch.Generator().manual_seed(seed), [], []
    for t, log in enumerate(logs):
        share = log.exp()
        if not clusters.prior.fixed[t]:
            share = share[:, share.sum(0).argsort(descending=True)]
        found.append(torch.multinomial(share, number, replacement=True, generator=generator).T[None])
        weight = log_partition(clusters.prior, t, share.sum(0)).softmax(0)
        grid = torch.as_tensor(clusters.prior.grid[t])
        concentrations.append(grid[torch.multinomial(weight, number, replacement=True, generator=generator)])
    return [*found, torch.stack(concentrations, -1)[None]]
