"""What figures and reports say of mixed memberships."""

from __future__ import annotations

from custom_inference.core.presentation import Presentation, block_labels, mean_share

_share = mean_share("membership")

PRESENTATION = Presentation(
    value="P(edge)",
    local="membership",
    prominence=_share,
    columns=lambda model, params: {"share": _share(model, params)},
    labels=block_labels,
)
