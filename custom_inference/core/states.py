"""States of engines: what their iterations change.

Of an engine of point estimates the state is the values of the global sites (``Params``). Where it is more (the locals
that a start consists of) or something else (the parameters of a posterior over the globals, expected counts), it is a
:class:`State` of the engine's own, which says what values of the sites it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import torch
from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior
from ppl_models import Model

#: Values of sites.
Params = dict[str, Tensor]


@dataclass(frozen=True)
class State:
    """A frozen dataclass whose fields are tensors, dictionaries of tensors, or None where there is no such part."""

    def values(self, model: Model) -> Params:
        """The values of the global sites that the state stands for: of a posterior its means."""
        return {site: posterior.mean for site, posterior in self.posteriors(model).items()}

    def posteriors(self, model: Model) -> Mapping[str, ContinuousPosterior]:
        """The posteriors of the global sites, where the state has them."""
        del model
        return {}

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, ContinuousPosterior]) -> Self | None:
        """The state with these posteriors of the global sites, where they say all that an E step of further rows
        needs; None where they do not, and such rows are inferred at the means."""
        del posteriors
        return None

    def with_fitted_priors(self, model: Model) -> Model:
        """The model with what was learned of its priors; by default as it is."""
        return model

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name; those of a dictionary as "field/name"."""
        found: dict[str, Tensor] = {}
        for name, value in ((one.name, getattr(self, one.name)) for one in fields(self)):
            if isinstance(value, dict):
                found |= {f"{name}/{part}": tensor for part, tensor in value.items()}
            elif value is not None:
                found[name] = value
        return found

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The state with these tensors, as :meth:`tensors` names them."""
        found: dict[str, Any] = {name: value for name, value in tensors.items() if "/" not in name}
        for name, value in tensors.items():
            if "/" in name:
                found.setdefault(name.partition("/")[0], {})[name.partition("/")[2]] = value
        return cls(**found)


@dataclass(frozen=True)
class PointsWithLocals(State):
    """Values of the sites, with what is known of the locals: where optima are many the values alone do not say which
    of them is meant. locals: by their names in ``EStep.locals``."""

    sites: Params
    locals: dict[str, Tensor] = field(default_factory=dict)

    def values(self, model: Model) -> Params:
        del model
        return self.sites

    @classmethod
    def from_any(cls, state: PointsWithLocals | Params) -> PointsWithLocals:
        """Values alone are taken too."""
        return state if isinstance(state, PointsWithLocals) else cls(state)


def values_of(model: Model, state: Any) -> Params:
    """The values of the sites that a state stands for."""
    return state.values(model) if isinstance(state, State) else state


def tensors_of(state: State | Params) -> dict[str, Tensor]:
    """The tensors of a state, by name."""
    return state.tensors() if isinstance(state, State) else state


def with_tensors(state: Any, tensors: dict[str, Tensor]) -> Any:
    """A state like the given one, of other tensors."""
    return type(state).of(tensors) if isinstance(state, State) else tensors


def move_state(state: Any, to: Tensor | torch.device) -> Any:
    """The state on a device, or in the dtype and on the device of a tensor."""
    return with_tensors(state, {name: value.to(to) for name, value in tensors_of(state).items()})
