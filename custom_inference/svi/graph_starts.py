"""Where generic methods start on graphs: a partition of the nodes, and values of the globals that go with it.

From equal blocks there is no way out (every gradient is the same), and from random ones most ends are bad: generic
methods start, as the closed-form steps do, from a partition
of high integrated likelihood, whatever the globals are.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, permutations
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from custom_inference.core.dyads import sampled_log_joint
from custom_inference.families.common.graph_rows import GraphRows
from ppl_models import Data, GraphModel
from ppl_models.data import sparse as _sparse

#: How much of a node's membership is in its own block at the start; the rest is spread evenly.
_SHARE = 0.85
#: Permutations of so many blocks are all tried; of more, swaps while they help.
_ALL_PERMUTATIONS = 4
#: Dyads that the log joint of a permutation is judged by.
_JUDGED = 2**18


def graph_start(model: GraphModel, data: Data, seed: int) -> dict[str, Tensor]:
    """Globals and the local site: a partition, and the densities between its parts."""
    labels = partition(model, data, seed)
    return {**globals_of(model, data, labels), model.local_site: local_of_labels(model, labels, data)}


def partition(model: GraphModel, data: Data, seed: int) -> Tensor:
    """(N,) blocks of high integrated likelihood, as the closed-form steps start from."""
    likelihood = "poisson" if model.edge_kind == "counts" else "bernoulli"
    if any(site.endswith("propensity") for site in model.shapes):
        likelihood = "degree_corrected"
    from custom_inference.families.blocks.partitions import propose_partition  # loads all engines of blocks

    label = propose_partition(GraphRows.of(model, data), model.num_blocks, likelihood, seed, attempt=0)
    return torch.as_tensor(label, dtype=torch.long, device=data.x.device)


def _adjacency(data: Data) -> scipy.sparse.csr_matrix:
    """The observed edges."""
    x = data.x if data.mask is None else data.x * data.mask
    return scipy.sparse.csr_matrix(_sparse.to_scipy(x if _sparse.is_sparse(x) else _sparse.from_dense(x)), dtype=float)


def globals_of(model: GraphModel, data: Data, labels: Tensor) -> dict[str, Tensor]:
    """Values of the global sites at a partition: densities between the blocks, their shares, degrees; else draws."""
    like = data.x.values() if _sparse.is_sparse(data.x) else data.x
    adjacency, one_hot = _adjacency(data), np.eye(model.num_blocks)[labels.cpu().numpy()]
    count = one_hot.sum(0)
    # Both orders of an undirected pair are counted, above and below.
    edges = one_hot.T @ (adjacency @ one_hot) + 1
    pairs = np.outer(count, count) - (0 if model.self_loops else 1) * np.diag(count) + 2
    density = edges / pairs
    sent, received = (np.asarray(adjacency.sum(axis)).ravel() + 0.5 for axis in (1, 0))
    known: dict[str, Any] = {
        "block_proportion": (count + 1) / (count + 1).sum(),
        "edge_probability": np.minimum(density, 0.999),
        "edge_rate": density,
        "propensity": sent / sent.mean(),
        "out_propensity": sent / sent.mean(),
        "in_propensity": received / received.mean(),
        "sparsity": 0.05,
    }
    if "weight" in model.shapes:
        chance = np.clip(density, 1e-3, 0.999)
        known["weight"] = np.zeros(model.shapes["weight"])
        known["weight"][..., 0] = np.log(chance / (1 - chance))
    drawn = {s: model.prior(s, like=like).sample() for s in model.global_sites if s not in known}
    values = {s: torch.as_tensor(np.asarray(known[s])).to(like) for s in model.global_sites if s in known}
    return {site: (values | drawn)[site] for site in model.global_sites}


def local_of_labels(model: GraphModel, labels: Tensor, data: Data) -> Tensor:
    """The local site at a partition: the blocks themselves, or memberships that are mostly in them."""
    if not model.has_continuous_locals:
        return labels
    like = data.x.values() if _sparse.is_sparse(data.x) else data.x
    return soft_labels(labels, model.num_blocks).to(like)


def random_locals(model: GraphModel, data: Data, number: int) -> list[Tensor]:
    """Values of the local site at random partitions."""
    labels = torch.randint(model.num_blocks, (number, len(data)), device=data.x.device)
    return [local_of_labels(model, one, data) for one in labels]


def soft_labels(labels: Tensor, num_blocks: int) -> Tensor:
    """(N, K) with most of every row at its label."""
    one_hot = torch.nn.functional.one_hot(labels, num_blocks)
    return _SHARE * one_hot + (1 - _SHARE) / num_blocks


def matched_partition(model: GraphModel, data: Data, params: Mapping[str, Tensor], seed: int) -> Tensor:
    """A partition whose parts are named as given values of the globals would have them: by the highest log joint."""
    labels, blocks = partition(model, data, seed), model.num_blocks

    def value(order: tuple[int, ...]) -> float:
        moved = torch.tensor(order, device=labels.device)[labels]
        local = local_of_labels(model, moved, data)
        return float(sampled_log_joint(model, params, data, local, batch_size=_JUDGED))

    best = tuple(range(blocks))
    if blocks <= _ALL_PERMUTATIONS:
        best = max(permutations(best), key=value)
    else:
        best = _by_swaps(best, value)
    return torch.tensor(best, device=labels.device)[labels]


def _by_swaps(order: tuple[int, ...], value: Any) -> tuple[int, ...]:
    """Swaps of two names while one helps."""
    highest, improved = value(order), True
    while improved:
        improved = False
        for a, b in combinations(range(len(order)), 2):
            swapped = list(order)
            swapped[a], swapped[b] = order[b], order[a]
            found = value(tuple(swapped))
            if found > highest + 1e-9 * abs(highest):
                order, highest, improved = tuple(swapped), found, True
    return order
