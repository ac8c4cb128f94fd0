"""Ratings, clicks and choices: users integrated out, alternating least squares, quadratic bounds, message passing.

Two ways of computing: engines of EM in torch, for any device, double precision, masks and streams; variational Bayes
and Gibbs sampling in compiled loops over arrays, for millions of ratings on the processor, user by user.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.ratings.choices import predict_choices
from custom_inference.families.ratings.clicks import predict_clicks
from custom_inference.families.ratings.gaussian import RatingsExact, RatingsMap
from custom_inference.families.ratings.gradient import RatingsSGD
from custom_inference.families.ratings.learned import RatingsBound, RatingsLearned
from custom_inference.families.ratings.matchbox import Matchbox
from custom_inference.families.ratings.predict import predict_ratings
from custom_inference.families.ratings.quadratic import ChoiceBound, ClickBound
from custom_inference.families.ratings.recommend import recommend_items
from custom_inference.families.ratings.sampler import RatingsGibbs, RatingsSampler
from custom_inference.families.ratings.vb import RatingsVB
from ppl_models import PMF, BilinearPMF, ChoicePMF, Model


@dataclass(frozen=True, kw_only=True)
class _Ratings(Family):
    """Closed forms are those of Gaussian ratings; of learned priors variational Bayes and Gibbs sampling."""

    def for_priors(self, model: Model) -> Family:
        assert isinstance(model, PMF)
        beside = model.num_user_covariates or model.num_item_covariates
        learned_priors = model.adaptive and model.biases and (model.likelihood == "gaussian" or not model.timed)
        kept: dict[str, Any] = {"engines": {}, "methods": {}, "default": None, "sampler": None}
        if learned_priors:
            learned = {name: make for name, make in self.methods.items() if name != "sgd"}
            engines = {
                "exact": RatingsLearned,
                **({} if model.likelihood == "gaussian" else {"gaussian": RatingsBound}),
            }
            kept |= {"methods": learned, "default": "vb", "engines": engines}
            kept |= {"sampler": RatingsSampler}
        elif model.likelihood == "gaussian" and not (beside or model.timed or model.noise_shape):
            kept |= {"engines": self.engines, "methods": {"sgd": self.methods["sgd"]}, "default": "exact"}
        baseline = "item_bias" if model.biases else None
        return replace(self, presentation=replace(self.presentation, baseline=baseline), **kept)


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
        stages=("principal axes of what the biases leave, then random ones",),
        default="exact",
        sampler=RatingsSampler,
        methods={"vb": RatingsVB, "gibbs": RatingsGibbs, "sgd": RatingsSGD},
        own_threads=True,
        predict=predict_ratings,
        reads_queries=True,
        recommend=recommend_items,
        presentation=replace(_FACTORS, local="profile", baseline="item_bias"),
    ),
    Family(
        model=BilinearPMF,
        engines={"gaussian": ClickBound},
        default="matchbox",
        methods={"matchbox": Matchbox},
        predict=predict_clicks,
        reads_queries=True,
        recommend=recommend_items,
        presentation=_FACTORS,
    ),
    Family(
        model=ChoicePMF,
        engines={"gaussian": ChoiceBound},
        default="gaussian",
        predict=predict_choices,
        reads_queries=True,
        presentation=replace(_FACTORS, labels=lambda model, _: [f"item {v}" for v in range(model.num_items)]),
    ),
)
