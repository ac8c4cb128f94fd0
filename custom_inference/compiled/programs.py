"""Which compiled engines programs of one's own may have, by the names that methods know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from custom_inference.compiled.engine import CompiledExact
from custom_inference.compiled.gaussian import may_be_gaussian
from custom_inference.compiled.gaussian_engine import CompiledGaussian
from custom_inference.core.engine import Engine
from custom_inference.core.latent_values import is_own_of_rows
from ppl_models import Model


def compiled_engines(model: Model) -> Mapping[str, Callable[[], Engine]]:
    """Name -> what makes the engine, of those that are compiled from a program without engines, the default first.

    Whether the program has the structure that they need is found when rows are read: they raise NotCompiled then.
    """
    if not is_own_of_rows(model):
        return {}
    if not model.has_continuous_locals:
        return {CompiledExact.name: CompiledExact}
    return {CompiledGaussian.name: CompiledGaussian} if may_be_gaussian(model) else {}
