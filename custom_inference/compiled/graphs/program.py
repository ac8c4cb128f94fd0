"""Runs of the program of a graph on chosen dyads, with its nodes labelled in a chosen way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor

from custom_inference.compiled.graphs.hurdle import read_hurdle
from custom_inference.compiled.laws import CategoricalLaw
from custom_inference.compiled.reading import NotCompiled, Statement, read_statement
from custom_inference.core.programs.statements import run
from ppl_models import Data, GraphData, GraphModel
from ppl_models.distributions import Labelling

#: The program's plate of dyads.
_PLATE = "data"


class _OfDyads(Messenger):
    """Gives the plate of dyads those of some numbers."""

    def __init__(self, numbers: Tensor):
        super().__init__()
        self.numbers, self.used = numbers, False

    def _process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] == _PLATE and type(msg["fn"]).__name__ == "_Subsample":
            msg["value"], msg["done"], self.used = self.numbers, True, True


@dataclass(frozen=True)
class GraphProgram:
    """The program of a graph.

    data: of which the program is given x, and no mask. tabulated: whether the law of the dyads is taken as one of few
    values, with all of its numbers.
    """

    model: GraphModel
    data: GraphData
    tabulated: bool = False

    @classmethod
    def of(cls, model: GraphModel, data: Data) -> GraphProgram:
        """Take the program of a graph in double precision. Raises NotCompiled for data that are no graph."""
        if data.container != GraphData.container:
            raise NotCompiled("its data are no graph")
        return cls(model, replace(cast(GraphData, data).to(dtype=torch.float64), hidden=None, mask=None))

    @property
    def node_site(self) -> str:
        return self.model.local_site

    @property
    def num_labels(self) -> int:
        """K, among how many values a node chooses."""
        return self.model.sizes[str(self.model.sites[self.node_site].choice)]

    def states(self, params: Mapping[str, Tensor], labels: Tensor, dyads: Tensor) -> dict[str, Any]:
        """Run on some dyads (B,), by their numbers, at labels (N,) of the nodes; return the nodes of the trace.

        Raises NotCompiled where the program does not run so, or states something else.
        """
        model, on_dyads = self.model, _OfDyads(dyads)

        def program(x: Tensor, **given: Any) -> Any:
            with on_dyads:
                return model(x, batch_size=len(dyads), **given)

        try:
            found = run(program, self.data, {**params, self.node_site: labels})
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise NotCompiled(f"it does not run at labels of the nodes that are given ({reason})") from None
        others = set(found) - set(params) - {self.node_site, model.observed_site}
        if others or not on_dyads.used or not {self.node_site, model.observed_site} <= set(found):
            listed = ", ".join(f"'{name}'" for name in sorted(others))
            stated = f"states {listed} too" if others else "does not state its dyads by 'with graph as (i, j)'"
            raise NotCompiled(
                f"it {stated}; expected '{self.node_site}' of nodes, and '{model.observed_site}' of dyads"
            )
        return found

    def read(self, params: Mapping[str, Tensor], labels: Tensor, dyads: Tensor) -> dict[str, Statement]:
        """Read the laws of the nodes (1, N, P), and of some dyads (B, 1, P), in one run."""
        found = self.states(params, labels, dyads)
        return {
            self.node_site: _read_nodes(self.node_site, found[self.node_site], self.data.num_nodes, self.num_labels),
            self.model.observed_site: self._read_dyads(found[self.model.observed_site], len(dyads)),
        }

    def _read_dyads(self, node: Mapping[str, Any], number: int) -> Statement:
        name, every = self.model.observed_site, self.model.num_dyads(self.data.num_nodes)
        scale = torch.as_tensor(node.get("scale", 1.0), dtype=torch.float64)
        if not bool(((scale - every / number).abs() <= 1e-6 * every / number).all()):
            raise NotCompiled(f"'{name}' is scaled")
        stated = read_hurdle(name, {**node, "scale": 1.0}, number)
        if stated is None:
            stated = read_statement(name, {**node, "scale": 1.0}, -1, number, self.tabulated)
        if stated.parameters.shape[1] != 1 or (stated.value.ndim > 2 and not stated.law.has_trials):
            raise NotCompiled(f"'{name}' states several numbers of a dyad")
        if stated.seen is not None and not bool(stated.seen.all()):
            raise NotCompiled(f"'{name}' masks dyads itself; expected hidden ones in the data")
        return stated


def _read_nodes(name: str, node: Mapping[str, Any], number: int, labels: int) -> Statement:
    """The law of the labels of all nodes as a row of as many elements."""
    made, value = node["fn"], node["value"]
    if bool(torch.as_tensor(node.get("scale", 1.0) != 1.0).any()):
        raise NotCompiled(f"'{name}' is scaled")
    if type(made) is Labelling:
        if made.probs.shape != (number, labels):
            raise NotCompiled(f"'{name}' has probabilities {tuple(made.probs.shape)}, expected {(number, labels)}")
        law = CategoricalLaw(Labelling, ("probs",), (labels,))
        return Statement(law, made.probs.unsqueeze(0), value.unsqueeze(0))
    stated = read_statement(name, node, 0 if made.event_dim else -1, number, False)
    if type(stated.law) is not CategoricalLaw or stated.parameters.shape[1:] != (1, labels):
        raise NotCompiled(f"'{name}' has the law {stated.law.kind.__name__}, expected one choice of each node")
    return replace(stated, parameters=stated.parameters.transpose(0, 1), value=stated.value.transpose(0, 1))
