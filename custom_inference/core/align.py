"""Labels of components are arbitrary: match them before comparing fits, chains, or a fit with the truth."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.result import Result
from ppl_models import MODELS, Model, ModelError

#: Sets of components that may change places, each among themselves.
Sets = Sequence[Sequence[int]]
#: Which component stands in each place.
Order = tuple[int, ...]
#: The axes of sites that renaming the components moves, and those whose last places are the components'.
AXES, COORDINATES = ("component", "to_component"), ("coordinate", "to_coordinate")
#: What is known of single nodes, and sites over pairs of blocks, by which mappings without a model are told.
_NODE_SITES, _PAIR_SITES = ("membership", "block"), ("edge_probability", "edge_rate")
#: Blocks whose permutations are all tried; beyond, random starts.
_EXHAUSTIVE, _RANDOM_STARTS = 8, 20


@dataclass(frozen=True)
class Alignment:
    """order[i] is the component of ``found`` that matches component i of ``reference``; similarity (K,) cosines.

    Where ``found`` has more components than the reference, the unmatched ones follow at the end of ``order``;
    where it has fewer, the reference's left-over components have similarity 0 and no entry in ``order``.
    """

    order: list[int]
    similarity: Tensor

    def apply(self, params: dict[str, Tensor], dims: dict[str, tuple[str, ...]]) -> dict[str, Tensor]:
        """The globals (or locals) with their component axes reordered; whole numbers are those of components."""
        index, moved = torch.tensor(self.order), {}
        for site, value in params.items():
            if value.dtype == torch.int64:
                value = torch.argsort(index).to(value.device)[value]
            # Draws carry (chain, draw) in front: axes are counted from the right.
            for axis, name in enumerate(reversed(dims.get(site, ())), start=1):
                if name in AXES:
                    value = value.index_select(-axis, index.to(value.device))
                elif name in COORDINATES:
                    before = value.shape[-axis] - len(index)
                    order = torch.cat([torch.arange(before), before + index])
                    value = value.index_select(-axis, order.to(value.device))
            moved[site] = value
        return moved


def rename_components(
    values: dict[str, Tensor], order: Sequence[int], dims: dict[str, tuple[str, ...]]
) -> dict[str, Tensor]:
    """Values with component order[i] of all sites in place i."""
    return Alignment(order=list(order), similarity=torch.ones(len(order))).apply(values, dims)


def match_components(reference: Any, found: Any, *, within: Sets | None = None, by_distance: bool = False) -> Alignment:
    """Hungarian matching of rows by cosine similarity: the maximum-weight one-to-one matching (Singliar & Hauskrecht
    2006, 5.4.2).

    by_distance: match by squared distances, as draws from one posterior are: their scale is the same, and components
        may differ in level alone, which no angle shows.

    Components that are matrices, as in (K, R, C), are taken entry by entry. within: sets of components that may change
    places, each among themselves, while all others stay; by default all may.
    """
    left, right = torch.as_tensor(reference), torch.as_tensor(found)
    if left.ndim < 2 or left.shape[1:] != right.shape[1:]:
        raise ModelError(f"cannot match components of shapes {tuple(left.shape)} and {tuple(right.shape)}")
    first, second = (side.detach().to(torch.float64).cpu().flatten(1).numpy() for side in (left, right))
    cosine = _unit(first) @ _unit(second).T
    cost = np.square(first[:, None] - second).sum(-1) if by_distance else -cosine
    chosen, partner = _assignment(cost, _pairs_within(within, len(second)))
    similarity, order = np.zeros(len(first)), partner.tolist()
    similarity[chosen] = cosine[chosen, partner]
    order += sorted({*range(len(second))} - {*order})
    return Alignment(order, torch.from_numpy(similarity))


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1; those of length 0 stay."""
    return rows / np.maximum(np.sqrt(np.einsum("kd,kd->k", rows, rows)), 1e-12)[:, None]


def _pairs_within(within: Sets | None, size: int) -> Any:
    """(K, K): which component may take which place; None where every one may take all."""
    if within is None or any(len(one) == size for one in within):
        return None
    allowed = np.eye(size, dtype=bool)
    for one in within:
        allowed[np.ix_(one, one)] = True
    return allowed


def match_blocks(reference: Any, found: Any, *, within: Sets | None = None) -> Alignment:
    """The permutation of blocks, of rows and columns at once, that brings two matrices over pairs of blocks closest.

    reference, found: (K, K) or (K, K, F). Least squares: exhaustive up to 8 blocks; beyond, the best of some local
    optima of this quadratic assignment problem (Vogelstein et al., *Fast approximate quadratic programming for graph
    matching*, PLoS ONE 10, 2015, with whole steps). similarity: cosines of what each block sends and receives.
    within: sets of blocks that may change places, as in :func:`match_components`.
    """
    left, right = (torch.as_tensor(side).to(torch.float64).cpu() for side in (reference, found))
    if left.ndim < 2 or left.shape != right.shape or left.shape[0] != left.shape[1]:
        raise ModelError(f"cannot match blocks of shapes {tuple(left.shape)} and {tuple(right.shape)}")
    first, second = (side.reshape(*side.shape[:2], -1).numpy() for side in (left, right))
    allowed = _pairs_within(within, len(first))
    if len(first) <= _EXHAUSTIVE:
        orders = _permutations(len(first))
        if allowed is not None:
            orders = orders[allowed[np.arange(len(first)), orders].all(1)]
        each = np.einsum("ijf,pijf->p", first, second[orders[:, :, None], orders[:, None]])
        order = orders[each.argmax()]
    else:
        climbed = [_climb(first, second, start, allowed) for start in _starts(first, second, allowed)]
        order = max(climbed, key=lambda one: _agreement(first, second, one))
    moved = second[np.ix_(order, order)]
    both = [torch.as_tensor(np.concatenate([m, m.swapaxes(0, 1)], 1)).flatten(1) for m in (first, moved)]
    return Alignment(order.tolist(), torch.cosine_similarity(*both, dim=-1))


@lru_cache(maxsize=_EXHAUSTIVE)
def _permutations(size: int) -> np.ndarray:
    """All of them, (size!, size)."""
    return np.array([*itertools.permutations(range(size))])


def _agreement(first: np.ndarray, second: np.ndarray, order: np.ndarray) -> float:
    """Inner product after the permutation: all of the squared distance that depends on it."""
    return float((first * second[np.ix_(order, order)]).sum())


def _starts(first: np.ndarray, second: np.ndarray, allowed: NDArray[np.bool_] | None) -> list[np.ndarray]:
    """Blocks matched by what does not depend on names, and at random."""

    def features(matrix: np.ndarray) -> np.ndarray:
        own = np.einsum("iif->if", matrix)
        return np.concatenate([own, *(np.sort(m, 1).reshape(len(m), -1) for m in (matrix, matrix.swapaxes(0, 1)))], 1)

    apart = ((features(first)[:, None] - features(second)[None]) ** 2).sum(-1)
    generator = np.random.default_rng(0)
    chance = [generator.permutation(len(first)) for _ in range(_RANDOM_STARTS)]
    if allowed is not None:
        chance = [_assignment(generator.random(apart.shape), allowed)[1] for _ in chance]
    return [_assignment(apart, allowed)[1], *chance]


def _climb(first: np.ndarray, second: np.ndarray, order: np.ndarray, allowed: NDArray[np.bool_] | None) -> np.ndarray:
    """Assignments at the gradient of the agreement while that rises, then exchanges of two."""
    best = _agreement(first, second, order)
    while True:
        gradient = np.einsum("ijf,kjf->ik", first, second[:, order]) + np.einsum("jif,jkf->ik", first, second[order])
        following = _assignment(-gradient, allowed)[1]
        value = _agreement(first, second, following)
        if value <= best + 1e-12:
            break
        best, order = value, following
    swapped = exchange(
        tuple(order.tolist()),
        lambda places: _agreement(first, second, np.array(places)),
        lambda pair: allowed is None or allowed[pair],
    )
    return np.array(swapped)


def exchange(
    order: Order, value: Callable[[Order], float], differ: Callable[[tuple[int, int]], Any] = lambda pair: True
) -> Order:
    """Return the order after exchanges of two places that differ, while one of them raises the value."""
    highest, improved = value(order), True
    while improved:
        improved = False
        for a, b in filter(differ, itertools.combinations(range(len(order)), 2)):
            swapped = list(order)
            swapped[a], swapped[b] = order[b], order[a]
            reached = value(tuple(swapped))
            if reached > highest + 1e-9 * abs(highest):
                order, highest, improved = tuple(swapped), reached, True
    return order


def align(
    found: Result | dict[str, Tensor],
    to: Result | dict[str, Tensor],
    *,
    site: str | None = None,
    within: Sets | None = None,
) -> Alignment:
    """Match the components of one fit (or mapping of parameters) to those of another.

    site: the site (K, D) or (K, R, C) to match by; by default the component site of whichever of the two is a fit,
        or else the first site of that kind that both mappings have. Blocks of the same graph's nodes are matched by
        these nodes: by ``block`` or ``membership`` where both have it; otherwise by their rates of edges
        (:func:`match_blocks`).
    within: sets of components that may change places, each among themselves; by default all may, also those that priors
        or known values tell apart.
    """
    first, second = (of if isinstance(of, dict) else of.params for of in (to, found))
    for nodes in _NODE_SITES if site is None else ():
        if nodes in first and nodes in second and len(first[nodes]) == len(second[nodes]):
            size = max(*map(_num_blocks, (first, second)), *(1 + max(one) for one in within or ()))
            return match_components(*(_of_nodes(side[nodes], size) for side in (first, second)), within=within)
    models = [side.model for side in (found, to) if not isinstance(side, dict)]
    if site is None and models:
        site = models[0].component_site
    elif site is None:
        known = [model.component_site for model in _examples()]
        site = next((one for one in known if one in first and one in second), known[0])
    for params in (second, first):
        if site not in params:
            raise ModelError(f"no site '{site}' to align by; there are: {', '.join(params)}")
    blocks = any(model.is_graph for model in models) or site in _PAIR_SITES
    if blocks:
        return match_blocks(first[site], second[site], within=within)
    model = models[0] if models else next((one for one in _examples() if one.component_site == site), None)
    axis = 0 if model is None else model.dims[site].index("component")
    return match_components(*(side[site].movedim(axis, 0) for side in (first, second)), within=within)


def _examples() -> list[Model]:
    return [kind.example().model for kind in MODELS.values()]


def _num_blocks(params: dict[str, Tensor]) -> int:
    """Return the number of blocks of a graph's fit: the length of a component axis, or else the largest label + 1."""
    known = [len(params[site]) for site in (*_PAIR_SITES, "block_proportion") if site in params]
    return known[0] if known else int(params["block"].max()) + 1 if "block" in params else 0


def _of_nodes(value: Tensor, num_blocks: int) -> Tensor:
    """The membership of every node in every block, (K, N); of each a little, so that blocks without nodes agree."""
    membership = torch.nn.functional.one_hot(value, num_blocks) if value.dtype == torch.int64 else value
    return membership.T.double() + 1e-3


def align_draws(
    draws: dict[str, Tensor], dims: dict[str, tuple[str, ...]], *, site: str, within: Sets | None = None
) -> dict[str, Tensor]:
    """Reorder the components of every (chain, draw) to match the mean of the first chain's last draws.

    Removes label switching within and between chains; draws (chain, draw, ...). Those of block models are matched by
    the nodes' memberships where these are among the draws, else by :func:`match_blocks`.

    within: the sets of components that may change places: of a model's posterior those that are ``exchangeable``; by
        default all may.
    """
    if (within is not None and not within) or site not in draws or "component" not in dims.get(site, ()):
        return draws
    chains, length = draws[site].shape[:2]
    rows = partial(match_components, by_distance=True)
    by, match = draws[site], match_blocks if "to_component" in dims[site] else rows
    if "membership" in draws and "to_component" in dims[site]:
        by, match = draws["membership"].transpose(-1, -2), rows
    by = by.movedim(2 + dims[site].index("component"), 2) if by is draws[site] else by
    reference = by[0, -max(1, length // 4) :].mean(0)
    aligned = {name: value.clone() for name, value in draws.items()}
    for chain in range(chains):
        for draw in range(length):
            alignment = match(reference, by[chain, draw], within=within)
            moved = alignment.apply({name: value[chain, draw] for name, value in draws.items()}, dims)
            for name, value in moved.items():
                aligned[name][chain, draw] = value
    return aligned


def _assignment(cost: NDArray[np.float64], allowed: NDArray[np.bool_] | None = None) -> tuple[Any, Any]:
    """The pairs (row, column) of least cost, of those that are allowed."""
    from scipy.optimize import linear_sum_assignment  # takes long to load, and is needed by few

    return linear_sum_assignment(cost if allowed is None else np.where(allowed, cost, np.inf))
