"""The problems of the scoreboard: small enough that exact posteriors are to be had of every model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ppl_models import MODELS, Example, graph

#: Nodes of the graphs: all labelings are summed over, and all counts of memberships.
NODES, NODES_OF_MEMBERSHIPS = 8, 4


def toy(name: str) -> Example:
    """A model's ``example()``; of graphs, what some of its nodes leave of it."""
    example = MODELS[name].example()
    return induced(example, NODES_OF_MEMBERSHIPS if name == "mmsb" else NODES) if example.model.is_graph else example


def induced(example: Example, num_nodes: int) -> Example:
    """The graph among ``num_nodes`` nodes at even distances, which the blocks share as they share all nodes."""
    model: Any = example.model
    every = model.num_nodes
    kept = torch.linspace(0, every - 1, num_nodes).round().long()
    settings = {**model.settings(), "num_nodes": num_nodes}
    if "covariates" in settings:
        settings["covariates"] = model.covariates[kept]
    x = example.data.x.to_dense()[kept][:, kept]
    data = graph(x.numpy(), directed=model.directed)
    truth = {site: _of_nodes(value, kept, every) for site, value in example.truth.items()}
    return replace(example, model=type(model)(**settings), data=data, truth=truth)


def _of_nodes(value: Tensor, kept: Tensor, every: int) -> Tensor:
    return value[kept] if value.ndim and len(value) == every else value
