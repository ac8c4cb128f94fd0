"""Which compiled engines programs of one's own may have, by the names that methods know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from custom_inference.compiled.engine import CompiledExact
from custom_inference.compiled.variational import CompiledVB
from custom_inference.core.engine import Engine
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.registry import family_of
from ppl_models import Model


def compiled_engines(model: Model) -> Mapping[str, Callable[[], Engine]]:
    """Name -> what makes the engine, of those that are compiled from a program without engines, the default first.

    Whether the program has the structure that they need is found when rows are read: they raise NotCompiled then.
    """
    family = family_of(model)
    if family.compiled:
        return {name: make for name, make in family.engines.items() if name != "exact"}
    if is_sampled_by_sums(model):
        return {CompiledExact.name: CompiledExact, CompiledVB.name: CompiledVB}
    return {}


def is_sampled_by_sums(model: Model) -> bool:
    """Whether a program may have chains that draw the latents of rows backwards through a sum (``gibbs``): rows with
    finite latents alone."""
    return is_own_of_rows(model) and not model.has_continuous_locals
