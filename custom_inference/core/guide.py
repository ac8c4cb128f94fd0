"""Families of local posteriors as settings: what ``VariationalEM(guide=...)`` and ``SVI(guide=...)`` take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from custom_inference.core.engine import Engine
from custom_inference.core.registry import engine_for
from ppl_models import Data, MethodError, Model

#: How a Pyro guide treats the globals: by name (see ``SVI``), or values at which the model was conditioned.
Globals = str | Mapping[str, Tensor]


class Guide:
    """A family of local posteriors, as settings. Subclasses are frozen dataclasses.

    ``engine(model)`` gives its closed-form E and M steps for ``VariationalEM``; ``bind(model, data, ...)`` gives a
    Pyro guide for ``pyro.infer.SVI``. A family that has only one of the two says so with a MethodError.
    """

    #: The name of the family's engines, where models have them.
    name: ClassVar[str]
    #: Whether a step of ``SVI`` sums over, or samples, binary codes of the rows, so that minibatches pay.
    enumerates: ClassVar[bool] = True

    def __str__(self) -> str:
        return self.name

    def engine(self, model: Model) -> Engine:
        return engine_for(model, self.name)

    def bind(
        self, model: Model, data: Data, *, globals_: Globals = "delta", init: dict[str, Tensor] | None = None
    ) -> Any:
        raise MethodError(f"{type(self).__name__} has no Pyro guide; use it in VariationalEM")


def engine_of(guide: str | Guide, model: Model) -> Engine:
    """The engine of a guide, or of the name of one."""
    return guide.engine(model) if isinstance(guide, Guide) else engine_for(model, guide)
