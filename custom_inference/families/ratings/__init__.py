"""Ratings, clicks and choices: users integrated out, alternating least squares, quadratic bounds, message passing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.ratings.gaussian import RatingsExact, RatingsMap
from custom_inference.families.ratings.matchbox import Matchbox
from custom_inference.families.ratings.quadratic import ClickBound
from ppl_models import PMF, BilinearPMF, Model


@dataclass(frozen=True, kw_only=True)
class _Ratings(Family):
    """Closed forms are those of Gaussian ratings."""

    def for_priors(self, model: Model) -> Family:
        assert isinstance(model, PMF)
        plain = not (model.num_user_covariates or model.num_item_covariates or model.time_edges or model.adaptive)
        closed = model.likelihood == "gaussian" and plain
        engines = {} if closed else {"engines": {}, "default": None}
        baseline = "item_bias" if model.biases else None
        return replace(self, presentation=replace(self.presentation, baseline=baseline), **engines)


_FACTORS = Presentation(
    value="factor of the item",
    local="factor of the user",
    prominence=lambda _, params: params["item"].norm(dim=0),
    columns=lambda _, params: {"norm": params["item"].norm(dim=0)},
)

FAMILIES = (
    _Ratings(
        model=PMF,
        engines={"exact": RatingsExact, "map": RatingsMap},
        default="exact",
        presentation=replace(_FACTORS, local="profile", baseline="item_bias"),
    ),
    Family(
        model=BilinearPMF,
        engines={"gaussian": ClickBound},
        default="gaussian",
        methods={"matchbox": Matchbox},
        presentation=_FACTORS,
    ),
)
