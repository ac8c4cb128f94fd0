"""Fits made by hand: what scores and figures are given is then known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import PointPosterior
from ppl_models import Data, GraphData, GraphModel, Model


def given(model: Model, params: dict[str, Tensor], data: Data, **settings: Any) -> Fit:
    """A fit with these values of its sites."""
    outcome = {
        "bound_name": "map",
        "objective": "log joint",
        "status": "given",
        "method": "given",
        "seed": 0,
        "elbo": torch.zeros(1),
    }
    return Fit(model=model, params=params, data=data, **{**outcome, **settings})


def given_graph(model: GraphModel, data: GraphData, mean: Tensor, params: dict[str, Tensor], **settings: Any) -> Fit:
    """A fit with these globals and posterior means (N, K) of the nodes."""
    proportion = {"block_proportion": mean.mean(0)} if "block_proportion" in model.shapes else {}
    outcome = {"bound_name": "vb", "objective": "bound", "method": "none", "elbo": torch.tensor([-2.0, -1.0])}
    outcome |= {"local": Local(PointPosterior(mean), torch.zeros(1))}
    return given(model, {**proportion, **params}, data, **{**outcome, **settings})


def one_hot(block: Tensor, num_blocks: int) -> Tensor:
    return torch.nn.functional.one_hot(block, num_blocks).to(torch.get_default_dtype())
