"""What figures and reports say of factor models."""

from __future__ import annotations

from custom_inference.core.presentation import Presentation

#: Prominence: the standard deviation of each component's part of the log-odds.
PRESENTATION = Presentation(
    value="weight on the log odds",
    local="score",
    prominence=lambda _, params: params["weight"].norm(dim=-1),
    columns=lambda _, params: {"norm": params["weight"].norm(dim=-1)},
)
