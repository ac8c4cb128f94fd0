"""What figures and reports say of the aspect Bernoulli model."""

from __future__ import annotations

from custom_inference.core.presentation import Presentation, mean_share

_share = mean_share("membership")

PRESENTATION = Presentation(
    value="P(entry = 1 | aspect)",
    local="membership",
    prominence=_share,
    columns=lambda model, params: {
        "membership": _share(model, params),
        "features on": params["aspect_probability"].sum(-1),
    },
)
