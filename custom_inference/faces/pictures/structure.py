"""The structure that a picture of a model shows, from Pyro's own tracking of what a site of the program depends on."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import scipy.sparse
import torch
from pyro import poutine
from pyro.infer.inspect import generate_graph_specification, get_model_relations
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution

from custom_inference.core.isolation import isolated
from ppl_models import Model
from ppl_models.data import sparse
from ppl_models.distributions import Flat

#: Values of a vector that an annotation spells out.
_SPELLED = 3


@dataclass(frozen=True)
class Node:
    """One node: what it is drawn from, with the prior's parameters, and its axes other than those of its plates."""

    name: str
    distribution: str
    axes: tuple[str, ...] = ()
    observed: bool = False


@dataclass(frozen=True)
class Plate:
    """A plate of the program, the sites in it, and the plate around it."""

    name: str
    label: str
    members: tuple[str, ...]
    parent: str | None = None


@dataclass(frozen=True)
class Structure:
    """sites and plates by name; edges: (site, site that depends on it)."""

    title: str
    sites: dict[str, Node]
    edges: list[tuple[str, str]]
    plates: dict[str, Plate] = field(default_factory=dict)

    def plates_of(self, site: str) -> list[str]:
        """The plates that a site is in, the outermost first."""
        found = [plate for plate in self.plates.values() if site in plate.members]
        return [plate.name for plate in sorted(found, key=lambda plate: self.depth(plate.name))]

    def depth(self, plate: str) -> int:
        """How many plates are around a plate."""
        parent = self.plates[plate].parent
        return 0 if parent is None else 1 + self.depth(parent)


def structure_of(model: Model) -> Structure:
    """The graph of a model's program: run once, on rows that it generates itself."""
    with isolated(0):
        x, settings = _some_data(model)
        program = _FirstDyad()(model) if model.is_graph else model
        relations = get_model_relations(program, (x,), settings)
    graph = generate_graph_specification(relations)
    plates = {}
    for name, members in graph["plate_groups"].items():
        if name is not None:
            label = name.split("__CLONE")[0]
            if label == "data":
                label = "data: dyads" if model.is_graph else f"data: {model.row_axis}s"
            plates[name] = Plate(name, label, tuple(members), graph["plate_data"][name]["parent"])
    edges = [(str(source), str(target)) for source, target in graph["edge_list"]]
    found = Structure(type(model).__name__, {}, edges, plates)
    for name, data in graph["node_data"].items():
        said = data["distribution"]
        if name in model.priors:
            said = prior_text(model.priors[name]) + (", symmetric" if said == "Symmetric" else "")
        axes = _free_axes(model, name, found.plates_of(name))
        follows = name in (*model.part_sites, *model.sites_of("latent"))  # from other sites, which say what it is
        observed = bool(data["is_observed"]) and not follows
        found.sites[name] = Node(name, said, axes, observed)
    return found


class _FirstDyad(Messenger):
    """The plate of dyads holds the first: Pyro would put all dyads of a large graph in random order to draw one."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] == "data" and site_is_subsample(msg):
            msg["value"], msg["done"] = torch.zeros(1, dtype=torch.long), True


def _some_data(model: Model) -> tuple[Tensor, dict[str, Any]]:
    """Data to run the program on: some rows of its own; an empty graph, of which one dyad is looked at."""
    dtype = torch.get_default_dtype()
    if model.is_graph:
        nodes = int(model.settings()["num_nodes"])
        return sparse.from_scipy(scipy.sparse.csr_matrix((nodes, nodes)), dtype=dtype), {"batch_size": 1}
    drawn: Any = poutine.trace(model.summed_out).get_trace(num_rows=2)
    x, *others = (name for name, site in model.sites.items() if site.role == "observed")
    return drawn.nodes[x]["value"].to(dtype), {name: drawn.nodes[name]["value"] for name in others}


def _free_axes(model: Model, site: str, plates: list[str]) -> tuple[str, ...]:
    """The named axes of a site that none of its plates stands for."""
    covered = {name for plate in plates for name in (plate, plate.removesuffix("s"))}
    if "data" in plates:
        covered |= {"node", "to_node", "dyad"} if model.is_graph else {model.row_axis}
    return tuple(axis for axis in model.dims.get(site, ()) if axis not in covered)


def prior_text(prior: Distribution) -> str:
    """A distribution as one would write it: "Beta(1, 99)", "Dirichlet(0.1)" where all concentrations are alike."""
    if isinstance(prior, Flat):
        return "flat"
    names = [name for name in inspect.signature(type(prior).__init__).parameters if name in prior.arg_constraints]
    if "probs" in names and "logits" in names:
        names.remove("logits")
    return f"{type(prior).__name__}({', '.join(_value_text(getattr(prior, name)) for name in names)})"


def _value_text(value: Tensor | float) -> str:
    entries = torch.as_tensor(value).flatten().tolist()
    if len(set(entries)) == 1:
        return f"{entries[0]:.3g}"
    return "[" + ", ".join(f"{entry:.3g}" for entry in entries[:_SPELLED]) + (", …" * (len(entries) > _SPELLED)) + "]"
