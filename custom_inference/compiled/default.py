"""The default of programs of finite latents: which are compiled, and what fits others, told before it starts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from custom_inference.compiled.gaussian.structure import may_have_bits
from custom_inference.compiled.programs import engines_of_program
from custom_inference.core.fit import Fit
from custom_inference.core.instead import Instead
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import enumerate_table
from custom_inference.core.programs.reference import count_reals
from custom_inference.core.programs.windows import settle
from custom_inference.core.registry import family_of
from custom_inference.core.stages import Stage, Stages
from ppl_models import Data, Model
from ppl_models.core.errors import warn_caller
from ppl_models.core.hierarchy import is_function, typical_values
from ppl_models.data.held import Source
from ppl_models.data.row_blocks import RowBlocks
from ppl_models.distributions.labellings import MAX_LABELINGS

_Any = TypeVar("_Any")

#: Rows that an evaluation is first timed on, the seconds it must take for its rows to tell (fewer are what a call costs
#: at any size), evaluations of a fit with its starts, and the times of an evaluation that one with its gradient takes.
_ROWS, _TELLING, _EVALUATIONS, _GRADIENT = 16, 0.02, 400, 3.0
#: Seconds of a fit above which they are told.
_LONG = 20.0

#: Methods that sum over all labellings of a graph.
_LISTING = ("exact", "em", "svi_delta", "svi_normal", "nuts")


def within_reach(model: Model, methods: Mapping[str, _Any]) -> dict[str, _Any]:
    """Return the methods without those that sum over all labellings, where a graph of one's own has too many."""
    family = family_of(model)
    nodes = getattr(model, "num_nodes", 0) if family.compiled else 0
    few = nodes * math.log(model.local_shape[0] if nodes else 1) <= math.log(MAX_LABELINGS)
    return {name: make for name, make in methods.items() if few or name not in _LISTING}


def is_compilable(model: Model) -> bool:
    """Whether a program without engines may have a compiled one that is the default: its latents have one, and priors
    do not depend on each other (whose log joint may have no maximum, which climbing its gradient tells)."""
    return bool(engines_of_program(model)) and not any(map(is_function, model.priors.values()))


def is_compiled_by_default(model: Model) -> bool:
    """Whether what fits a program is compiled unless another method is asked for: bits behind one real latent are
    integrated, of which a bound misses more than it saves."""
    return is_compilable(model) and not (may_have_bits(model) and count_reals(model) == 1)


def expect_seconds(model: Model, data: Data) -> float:
    """Estimate the seconds of a fit of a program that is not compiled, by one evaluation on as many rows as tell.

    Raises CapacityError where the values of the latents are too many for a sum.
    """
    values = {site: value.to(data.x) for site, value in typical_values(model).items()}
    size = min(_ROWS, len(data))
    while True:
        density = RowDensity.of(model, values, data.rows(torch.arange(size)))
        if density.layout.num_reals:
            return 0.0  # integrals are another method's
        settled = settle(density)
        seconds = min(_time_sum(settled) for _ in range(2))  # the first call pays for what torch sets up
        if seconds > _TELLING or size == len(data):
            return seconds * len(data) / size * _EVALUATIONS * _GRADIENT
        size = min(4 * size, len(data))


def _time_sum(density: RowDensity) -> float:
    """Seconds of one sum over all values of the latents."""
    begin = time.perf_counter()
    with torch.no_grad():
        enumerate_table(density, looks=False)
    return time.perf_counter() - begin


def warn_of_time(model: Model, data: Data, reason: str) -> None:
    """Warn of a fit that will take long, with the reason why."""
    seconds = expect_seconds(model, data)
    if seconds > _LONG:
        told = f"{seconds:.0f} seconds" if seconds < 600 else f"{seconds / 60:.0f} minutes"
        warn_caller(
            f"{reason}; all values of its latents together are summed over instead, which takes about {told} for "
            f"{len(data)} rows. Fewer rows or values are faster, and so are statements of torch's or Pyro's "
            "distributions whose parameters are looked up by the latents"
        )


@dataclass(frozen=True)
class ByDensity(Instead):
    """The method that fits a program through its density; the stages and the status say why it is not compiled."""

    def fit(self, model: Model, data: Source, **arguments: object) -> Fit:
        """Fit, having told how long that may take."""
        if type(data) is not RowBlocks and getattr(self.method, "guide", "delta") == "delta":  # which sums
            reading: Any = {name: arguments[name] for name in ("mask", *model.other_sites) if name in arguments}
            warn_of_time(model, model.prepare(data, **reading), self.said)
        found = super().fit(model, data, **arguments)
        found.stages = Stages((Stage(self.said, 0.0), *found.stages))
        return found
