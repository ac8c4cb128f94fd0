"""How a search finds good starting values for an engine: what the registry has of each family beside its engines."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.core.engine import Engine, Params
from custom_inference.core.states import State
from ppl_models import Model

#: Random starts beside the informed ones, at most.
MOST_RANDOM = 160


class Proposals:
    """Starting values for ``engine``, and what a search does with them. The defaults serve any engine.

    tolerance: the best start climbs in single precision until it gains less than this a row.
    random_rows: random starts beside the informed ones go through about so many rows in all: one start of large data,
        many of few rows, which have many optima, and where informed starts may all lead to the same one.

    Proposals know engines (they may run EM themselves); engines know nothing of proposals.
    """

    tolerance: float = 1e-4
    random_rows: int = 0

    def __init__(self, engine: Any):
        self.engine = engine

    def propose(self, model: Model, rows: Any, generator: torch.Generator, attempt: int) -> Params:
        """An informed start, different for every ``attempt``; by default a random one."""
        del attempt
        return self.engine.initial(model, rows, generator)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        """Whether ``propose`` draws the start of this attempt at random, without a look at what the data suggest."""
        del attempt, num_rows
        return type(self).propose is Proposals.propose

    def draw(self, model: Model, rows: Any, generator: torch.Generator) -> Any:
        """A random start; by default the engine's."""
        return self.engine.initial(model, rows, generator)

    def random_starts(self, model: Model, num_rows: int) -> int:
        """How many random starts the default search makes beside the informed ones; one or more, unless the
        informed ones have random ones among them."""
        return max(1, min(MOST_RANDOM, self.random_rows // num_rows))

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """How many starts, on how many rows, the default search should make."""
        del model
        return 5, num_rows

    def refine(self, model: Model, rows: Any, params: Params, generator: torch.Generator, agreed: bool) -> Params:
        """The best start, improved by other means than EM (pruning, splits, ...); by default as it is. agreed: as many
        starts as the search asks for found these components."""
        del model, rows, generator, agreed
        return params

    def weigh(self, model: Model, state: Any, rows: Any, objective: float) -> float:
        """What starts are compared by: an estimate of the evidence of the mode that a start has settled in; by default
        the objective there."""
        del model, state, rows
        return objective

    def remark(self, model: Model, state: Any) -> str:
        """Return a remark for the status of a solution that is worth little; by default nothing."""
        del model, state
        return ""

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Whether two starts found the same components, in whatever order; by default only if they are one start."""
        return first is second

    def compares(self, model: Model, state: State | Params) -> bool:
        """Whether ``same_solution`` looks at the components of such states; else only their objectives are compared."""
        del model, state
        return type(self).same_solution is not Proposals.same_solution

    def finishing(self) -> Engine:
        """The engine that takes the best start of a search to convergence; by default the same."""
        return self.engine
