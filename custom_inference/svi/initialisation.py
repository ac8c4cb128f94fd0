"""Starting values of the globals for generic methods, and how many documents a step takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.registry import engine_for, engines_of
from custom_inference.core.states import values_of
from custom_inference.svi.graph_starts import graph_start
from ppl_models import Data, Model
from ppl_models.core.priors import support_of


def off_the_edges(model: Model, params: Mapping[str, Tensor], margin: float) -> dict[str, Tensor]:
    """Values moved ``margin`` inside the support of their priors, where unconstrained coordinates are finite."""
    inside = {}
    for site, value in params.items():
        if site not in model.priors:  # blocks, which have no edges
            inside[site] = value
            continue
        support = support_of(model.priors[site])
        low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
        if support is constraints.simplex:
            value = (value + margin) / (value + margin).sum(-1, keepdim=True)
        if low is not None:
            value = value.clamp(min=float(low) + margin)
        if high is not None:
            value = value.clamp(max=float(high) - margin)
        inside[site] = value
    return inside


def initial_values(model: Any, data: Data, seed: int) -> dict[str, Tensor]:
    """A random start for the globals: the engine's own where the model has one, else a draw from the prior.

    Of graphs the densities between the parts of a good partition.
    """
    generator = torch.Generator().manual_seed(seed)
    if model.is_graph:
        start = graph_start(model, data, seed)
        return off_the_edges(model, {site: start[site] for site in model.global_sites}, 1e-3)
    engines = engines_of(model)
    if engines:
        engine = engine_for(model, next(iter(engines)))
        start = engine.initial(model, engine.rows(model, data), generator)
        return model.check_params(values_of(model, start))
    return {site: model.prior(site, like=data.x).sample() for site in model.global_sites}


#: A draw of a topic's word probability with its gradient costs about as much as so many (cell, topic) products.
_DRAW_COST = 16
#: Products of a minibatch's cells with the topics are held in at most this many numbers.
_MOST_PRODUCTS = 2**24


def documents_a_step(model: Model, data: Data) -> int | None:
    """So many that their words cost about as much as a draw of all topics, and fit into memory; None for all."""
    num_topics, vocabulary = model.shapes[model.component_site]
    cells = data.x.values().numel() / len(data) if data.is_sparse else vocabulary
    size = int(min(_DRAW_COST * vocabulary, _MOST_PRODUCTS / num_topics) / max(cells, 1.0))
    return None if size >= len(data) else max(size, 16)
