"""Small graphs under every model of graphs, and what the tests of all of them share."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models import MODELS, Data, Example, GraphModel

GRAPHS = [name for name, kind in MODELS.items() if issubclass(kind, GraphModel)]
#: Sites over pairs of blocks, symmetric where the model is undirected.
PAIRS = ("edge_probability", "edge_rate", "weight")


def mirrored(value: Tensor) -> Tensor:
    """The upper triangle of the first two axes, on both sides of the diagonal."""
    first = torch.arange(len(value))
    return value[torch.minimum(first[:, None], first), torch.maximum(first[:, None], first)]


def small_model(name: str, *, directed: bool, num_nodes: int = 7, num_blocks: int = 2, **settings: Any) -> GraphModel:
    kind: Any = MODELS[name]
    if name == "covariate_sbm":
        features = torch.as_tensor(np.random.default_rng(3).standard_normal((num_nodes, 2)))
        settings = {"centre": 0.0, "unit": 1.0, **settings}  # those of the truth
        return kind(num_blocks=num_blocks, covariates=features, directed=directed, **settings)
    return kind(num_blocks=num_blocks, num_nodes=num_nodes, directed=directed, **settings)


def small_truth(model: GraphModel, seed: int = 0) -> dict[str, Tensor]:
    """Blocks that are told apart, the first the larger; the rest near what it would be in a real graph."""
    rng, size, blocks = np.random.default_rng(seed), model.num_nodes, model.num_blocks
    levels = np.where(np.eye(blocks, dtype=bool), 0.8, 0.15) + rng.uniform(-0.05, 0.05, (blocks, blocks))
    label = np.sort(np.arange(size) * blocks // (size + 1))
    share = 0.85 * np.eye(blocks)[label] + 0.15 * rng.dirichlet(np.ones(blocks), size)
    values: dict[str, Any] = {
        "block_proportion": np.bincount(label, minlength=blocks) / size,
        "edge_probability": levels,
        "edge_rate": 2 * levels,
        "weight": np.zeros((1, 1, 1)),
        "block": label,
        "membership": share,
        "sparsity": np.array(0.1),
        **{site: rng.gamma(5.0, 0.2, size) for site in ("propensity", "out_propensity", "in_propensity")},
    }
    if "weight" in model.shapes:
        slope = rng.normal(0.0, 0.4, (blocks, blocks, model.shapes["weight"][2] - 1))
        values["weight"] = np.concatenate([np.log(levels / (1 - levels))[..., None], slope], -1)
    sites = {site: torch.as_tensor(values[site]) for site in (*model.global_sites, model.local_site)}
    return sites if model.directed else {site: mirrored(v) if site in PAIRS else v for site, v in sites.items()}


def small_problem(name: str, *, directed: bool, hidden: float = 0.0, seed: int = 0, **settings: Any) -> Example:
    """A graph of a few nodes, every labeling of which can be listed, drawn from the model at known values."""
    model = small_model(name, directed=directed, **settings)
    truth = small_truth(model, seed)
    return Example(model=model, data=drawn(model, truth, hidden=hidden, seed=seed), truth=truth)


def drawn(model: GraphModel, truth: dict[str, Tensor], *, hidden: float = 0.0, seed: int = 0) -> Data:
    """A graph from the model at ``truth``, nodes named, some of its dyads hidden, no node without an edge."""
    rng = np.random.default_rng([seed, 1])
    i, j = model.dyads(torch.arange(model.num_dyads()))
    params = {site: truth[site] for site in model.global_sites}
    mean, names = model.edge_distribution(params, truth[model.local_site], i, j).mean.numpy(), None
    while names is None:
        values = rng.poisson(mean) if model.edge_kind == "counts" else rng.random(len(mean)) < mean
        seen = model.as_data(torch.as_tensor((rng.random(len(mean)) >= hidden).astype(float))) > 0
        x = model.as_data(torch.as_tensor(values.astype(float))) * seen
        if bool((x.sum(0) + x.sum(1) > x.diagonal()).all()):
            names = [f"node {n}" for n in range(len(x))]
    mask = seen | ((torch.eye(len(x)) > 0) & (not model.self_loops)) if hidden else None
    data = model.prepare(x, mask=mask, dtype=torch.float64)
    return replace(data, coords={**data.coords, "row": names, "feature": names})


def reference_of(name: str) -> Any:
    return importlib.import_module(f"tests.references.{name}")


def keywords(model: GraphModel) -> dict[str, Any]:
    """What the functions of the references take beside the parameters."""
    given: dict[str, Any] = {"directed": model.directed, "self_loops": model.self_loops}
    if hasattr(model, "covariates"):
        about: Any = model
        features = about.covariates - about.scale_of_columns(about.covariates)[0]
        given |= {"covariates": features.numpy(), "combine": about.combine}
    return given


def arrays(params: dict[str, Tensor], model: GraphModel) -> dict[str, np.ndarray]:
    """The globals as the references take them; a fixed sparsity among them."""
    found = {site: params[site].numpy() for site in model.global_sites}
    if isinstance(getattr(model, "sparsity", None), float):
        found["sparsity"] = np.array(model.sparsity)  # pyright: ignore
    return found


def concentration_of(model: GraphModel) -> np.ndarray:
    """alpha of the memberships' prior."""
    prior: Any = model.priors["membership"]
    return prior.concentration.numpy()


def exact_evidence(model: GraphModel, params: dict[str, Tensor], data: Data) -> float:
    """log p(x | globals) by the references: all labelings, or all terms of the memberships' polynomial."""
    name, dense = next(name for name, kind in MODELS.items() if kind is type(model)), data.dense()
    mask = None if dense.mask is None else dense.mask.numpy()
    values, given = arrays(params, model), keywords(model)
    if name == "mmsb":
        alpha = concentration_of(model)
        return reference_of(name).log_evidence_polynomial(values, dense.x.numpy(), alpha, mask, **given)
    return exact_graph(model, params, data).log_evidence()


def exact_graph(model: GraphModel, params: dict[str, Tensor], data: Data) -> Any:
    """The reference's ``Labelled`` of a block model."""
    name, dense = next(name for name, kind in MODELS.items() if kind is type(model)), data.dense()
    mask = None if dense.mask is None else dense.mask.numpy()
    return reference_of(name).graph(arrays(params, model), dense.x.numpy(), mask=mask, **keywords(model))


def relabelled(values: dict[str, Tensor], model: GraphModel, order: list[int]) -> dict[str, Tensor]:
    """Globals and locals with block ``order[a]`` called a."""
    index, moved = torch.tensor(order), {}
    for site, value in values.items():
        for axis, name in enumerate(model.dims[site]):
            if name in ("component", "to_component"):
                value = value.index_select(axis, index)
        moved[site] = torch.argsort(index)[value] if site == "block" else value
    return moved


def reordered(values: dict[str, Tensor], model: GraphModel, order: Tensor) -> dict[str, Tensor]:
    """Globals and locals with the nodes in another order."""
    return {site: value[order] if model.dims[site][:1] == ("node",) else value for site, value in values.items()}


def reordered_model(model: GraphModel, order: Tensor) -> GraphModel:
    if hasattr(model, "covariates"):
        return replace(model, covariates=model.covariates[order])  # pyright: ignore
    return model


def reordered_data(model: GraphModel, data: Data, order: Tensor) -> Data:
    dense = data.dense()
    mask = None if dense.mask is None else dense.mask[order][:, order]
    return model.prepare(dense.x[order][:, order], mask=mask, dtype=torch.float64)


def informative(model: GraphModel) -> GraphModel:
    """The model with conjugate priors that are not flat, and tell the blocks apart."""
    alpha = torch.linspace(1.2, 2.0, model.num_blocks)
    priors: dict[str, Any] = {
        "block_proportion": dist.Dirichlet(alpha),
        "edge_probability": dist.Beta(1.3, 2.1),
        "edge_rate": dist.Gamma(1.3, 1.1),
        "membership": dist.Dirichlet(0.3 * alpha),
        "sparsity": dist.Beta(1.5, 6.0),
        "weight": dist.Normal(0.2, 1.5),
        **{site: dist.Gamma(2.0, 1.8) for site in ("propensity", "out_propensity", "in_propensity")},
    }
    return model.with_priors(**{site: prior for site, prior in priors.items() if site in model.priors})
