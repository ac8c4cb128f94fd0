"""Factors of a program (``pyro.factor``): they count in its density, and draws of the program leave them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from ppl_models import Model, ModelError


def factors_in(nodes: Mapping[str, Any]) -> dict[str, Tensor]:
    """Name -> logarithm of each factor in a run of a program."""
    return {
        name: node["fn"].log_factor
        for name, node in nodes.items()
        if node["type"] == "sample" and type(node["fn"]).__name__ == "Unit"
    }


def refuse_factors(model: Model, names: Iterable[str], of: str = "latents and data") -> None:
    """Refuse to draw where there are factors. of: what they are of. Raises ModelError, which names them."""
    named = ", ".join(f"'{name}'" for name in names)
    if named:
        raise ModelError(
            f"{type(model).__name__} has factors of {of} ({named}), which draws of its program leave out: they would "
            "not be from the distribution that is fitted; state what the factors stand for as distributions of sites"
        )
