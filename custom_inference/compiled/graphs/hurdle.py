"""Dyads that are 0 with some probability, and have a weight otherwise: what costs is stored edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.laws import (
    BetaLaw,
    Exponential,
    ExponentialLaw,
    GammaLaw,
    Law,
    NormalLaw,
    Said,
    clamp_off,
)
from custom_inference.compiled.reading import NotCompiled, Statement, read_statement, without_wrappers
from ppl_models.distributions import Hurdle

#: Laws of real numbers, for which 0 has no probability.
_DENSITIES = (NormalLaw, GammaLaw, ExponentialLaw, BetaLaw)


@dataclass(frozen=True)
class HurdleLaw(Exponential):
    """Numbers that are 0 with a probability, else of another law, to whose parameters that of others than 0 is added.

    Features: those of that law, 0 where the value is; whether it is something else, whether it is 0.
    """

    base_law: Law

    @property
    def kinds(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {**self.base_law.kinds, "probs": "chance"}

    def say(self, counted: Tensor, parameters: Tensor) -> dict[str, Said]:
        said = self.base_law.say(counted[..., :-2], parameters[..., :-1])
        return {**said, "probs": ("chance", (counted[..., -2], counted[..., -1]))}

    def features(self, value: Tensor) -> Tensor:
        present = (value != 0).to(value)
        own = self.base_law.features(torch.where(value != 0, value, self.base_law.inside))
        return torch.cat([own * present.unsqueeze(-1), torch.stack([present, 1 - present], -1)], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        chance = clamp_off(parameters[..., -1:])
        own = self.base_law.natural(parameters[..., :-1])
        return torch.cat([own, torch.log(chance), torch.log1p(-chance)], -1)


def read_hurdle(name: str, node: Mapping[str, Any], number: int) -> Statement | None:
    """Read the law of dyads that are 0 with some probability; None of others. Raises NotCompiled for one whose other
    values have a law without features."""
    made, _, masks, _ = without_wrappers(node["fn"])
    if type(made) is not Hurdle:
        return None
    base = read_statement(name, {**node, "fn": made.base}, -1, number, False)
    if type(base.law) not in _DENSITIES:
        raise NotCompiled(f"'{name}' has the law Hurdle of {base.law.kind.__name__}, of which no features are known")
    probs = made.probs.expand(number)[:, None, None].to(base.parameters)
    law = HurdleLaw(Hurdle, (*base.law.names, "probs"), (*base.law.sizes, 0), base_law=base.law)
    seen = [mask.all() for mask, _ in masks] + ([] if base.seen is None else [base.seen.all()])
    return Statement(law, torch.cat([base.parameters, probs], -1), base.value, torch.stack(seen) if seen else None)
