"""Starts of generic methods: values of the globals; for graphs a partition of the nodes and values to match it.

From equal blocks there is no way out (every gradient is the same), and from random ones most ends are bad: on graphs
generic methods start, as the closed-form steps do, from a partition of high integrated likelihood, whatever the globals
are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.align import exchange
from custom_inference.core.dyads import estimate_log_joint
from custom_inference.core.registry import engine_for, engines_of, propose_partition
from custom_inference.core.states import values_of
from custom_inference.em.any_prior import with_any_prior
from ppl_models import Data, GraphModel, Model, PriorError
from ppl_models.core.priors import support_of
from ppl_models.data import sparse

#: How much of a node's membership is in its own block at the start; the rest is spread evenly.
_OWN_BLOCK = 0.85
#: Permutations of so many blocks are all tried; of more, swaps while they help.
_ALL_PERMUTATIONS = 4
#: Dyads that the log joint of a permutation is estimated by.
_ESTIMATED_BY = 2**18


def clamp_to_interior(model: Model, params: Mapping[str, Tensor], margin: float) -> dict[str, Tensor]:
    """Values moved ``margin`` inside the support of their priors, where unconstrained coordinates are finite."""
    inside = dict(params)
    for site in params.keys() & model.priors.keys():  # not blocks, which have no edges
        support, value = support_of(model.priors[site]), inside[site]
        low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
        if support is constraints.simplex:
            value = (value + margin) / (value + margin).sum(-1, keepdim=True)
        if low is not None:
            value = value.clamp(min=float(low) + margin)
        if high is not None:
            value = value.clamp(max=float(high) - margin)
        inside[site] = value
    return inside


def initial_values(model: Model, data: Data, seed: int) -> dict[str, Tensor]:
    """A random start for the globals: the engine's own where the model has one, else a draw from the prior."""
    engines = engines_of(model)
    if engines:
        engine = engine_for(model, next(iter(engines)))
        with contextlib.suppress(PriorError):  # of priors that no engine takes, the start needs none
            engine = with_any_prior(engine, model)
        with contextlib.suppress(PriorError):  # nor does a draw, where the engine's start reads the priors
            start = engine.initial(model, engine.rows(model, data), torch.Generator().manual_seed(seed))
            return model.check_params(values_of(model, start))
    return draw_globals(model, data.x)


def draw_globals(model: Model, like: Tensor) -> dict[str, Tensor]:
    """A draw of the globals from their priors."""
    values: dict[str, Tensor] = {}
    for site in model.global_sites:
        values[site] = model.prior(site, like=like, values=values).sample()
    return values


def graph_start(model: GraphModel, data: Data, seed: int) -> dict[str, Tensor]:
    """Globals and the local site: a partition, and the densities between its parts."""
    labels = _propose_labels(model, data, seed)
    return {**_globals_at(model, data, labels), model.local_site: local_of_labels(model, labels, data)}


def _propose_labels(model: GraphModel, data: Data, seed: int) -> Tensor:
    """(N,) blocks of high integrated likelihood, as the closed-form steps start from."""
    return torch.as_tensor(propose_partition(model, data, seed), dtype=torch.long, device=data.x.device)


def _globals_at(model: GraphModel, data: Data, labels: Tensor) -> dict[str, Tensor]:
    """Values of the global sites at a partition: densities between the blocks, their sizes, degrees; else draws."""
    x = data.observed_x
    observed = sparse.to_scipy(x if sparse.is_sparse(x) else sparse.from_dense(x))
    adjacency, one_hot = scipy.sparse.csr_matrix(observed, dtype=float), np.eye(model.num_blocks)[labels.cpu().numpy()]
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
    like = _like(data)
    drawn = {site: value for site, value in draw_globals(model, like).items() if site not in known}
    found = {s: drawn[s] if s in drawn else torch.as_tensor(np.asarray(known[s])).to(like) for s in model.global_sites}
    return model.check_params(found)


def _like(data: Data) -> Tensor:
    return data.stored


def local_of_labels(model: GraphModel, labels: Tensor, data: Data) -> Tensor:
    """The local site at a partition: the blocks themselves, or memberships that are mostly in them."""
    return soft_labels(labels, model.num_blocks).to(_like(data)) if model.has_continuous_locals else labels


def soft_labels(labels: Tensor, num_blocks: int) -> Tensor:
    """(N, K) with most of every row at its label."""
    one_hot = torch.nn.functional.one_hot(labels, num_blocks)
    return _OWN_BLOCK * one_hot + (1 - _OWN_BLOCK) / num_blocks


def match_partition(model: GraphModel, data: Data, params: Mapping[str, Tensor], seed: int) -> Tensor:
    """A partition whose parts are named as given values of the globals would have them: by the highest log joint."""
    labels = _propose_labels(model, data, seed)

    def rename(order: tuple[int, ...]) -> Tensor:
        return torch.tensor(order, device=labels.device)[labels]

    def value(order: tuple[int, ...]) -> float:
        local = local_of_labels(model, rename(order), data)
        return float(estimate_log_joint(model, params, data, local, batch_size=_ESTIMATED_BY))

    names = tuple(range(model.num_blocks))
    if model.num_blocks <= _ALL_PERMUTATIONS:
        return rename(max(permutations(names), key=value))
    return rename(exchange(names, value))
