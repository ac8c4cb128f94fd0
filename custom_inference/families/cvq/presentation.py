"""What figures and reports say of the cooperative vector quantizer."""

from __future__ import annotations

from custom_inference.core.presentation import Presentation

#: Prominence: what each source adds to the expected square of a row, pi_i |w_i|^2.
PRESENTATION = Presentation(
    value="weight: what a present source adds",
    local="P(source present | row)",
    prominence=lambda _, params: params["source_prior"] * params["weight"].square().sum(-1),
    columns=lambda _, params: {"prior": params["source_prior"], "norm": params["weight"].norm(dim=-1)},
)
