"""What figures and reports say of block models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from custom_inference.core.presentation import Presentation, block_labels
from ppl_models import SBM, CovariateSBM, DegreeCorrectedSBM, PoissonSBM

_OF_BLOCKS = Presentation(
    value="P(edge)",
    local="P(block | graph)",
    prominence=lambda _, params: params["block_proportion"],
    columns=lambda _, params: {"proportion": params["block_proportion"]},
    labels=block_labels,
)


def _covariate_labels(model: CovariateSBM, features: Sequence[Any]) -> list[Any]:
    """The columns of the component matrix (K, K F): the blocks, and the entries of f(x_i, x_j)."""
    entries = ["constant", *(f"{model.combine} {f}" for f in range(model.num_weights - 1))]
    return [f"{block}, {entry}" for block in block_labels(model, features) for entry in entries]


PRESENTATIONS = {
    SBM: _OF_BLOCKS,
    PoissonSBM: replace(_OF_BLOCKS, value="expected edges"),
    DegreeCorrectedSBM: replace(_OF_BLOCKS, value="expected edges"),
    CovariateSBM: replace(_OF_BLOCKS, value="weight", labels=_covariate_labels),
}
