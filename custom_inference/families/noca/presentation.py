"""What figures and reports say of noisy-or component analysis."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from custom_inference.core.presentation import Presentation

#: Shut off are sources whose prior, or the sum of whose links, is below these (000, sections 3.3 and 4.2).
_PRIOR_BELOW, _LINKS_BELOW = 0.005, 0.1


def _shut_off(
    params: Mapping[str, Tensor], *, prior_below: float = _PRIOR_BELOW, links_below: float = _LINKS_BELOW
) -> Tensor:
    """A source is shut off where its prior is below ``prior_below``, or where all its links sum to less than
    ``links_below``: the expected number of features that its presence turns on."""
    return (params["source_prior"] < prior_below) | (params["loading"].sum(-1) < links_below)


#: Prominence: the expected number of features that each source turns on in a row.
PRESENTATION = Presentation(
    value="P(feature on | source present)",
    local="P(source present | row)",
    baseline="leak",
    prominence=lambda _, params: params["source_prior"] * params["loading"].sum(-1),
    columns=lambda _, params: {"prior": params["source_prior"], "features on": params["loading"].sum(-1)},
    shut_off=_shut_off,
)
