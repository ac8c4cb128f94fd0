"""Topic models and profiles of users: Dirichlet, variational Bayes, CVB0, point and exact engines, Gibbs, tempering."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.presentation import Params, Presentation
from custom_inference.core.registry import Family
from custom_inference.em.guides import CollapsedVariationalBayes
from custom_inference.em.method import VariationalEM
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.cvb0 import LdaCvb0
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.exact import LdaExact
from custom_inference.families.topics.gibbs import LdaSampler
from custom_inference.families.topics.laplace import LdaLaplace, ProfileLaplace
from custom_inference.families.topics.map import LdaMap
from custom_inference.families.topics.propose import (
    CollapsedProposals,
    Cvb0Proposals,
    PointProposals,
    ProfileProposals,
    TopicProposals,
)
from custom_inference.families.topics.tempered import TemperedEM
from custom_inference.families.topics.tokens import token_filter
from custom_inference.families.topics.user_rating_profile import (
    ProfileDirichlet,
    ProfileExact,
    ProfileMap,
    ProfileVB,
    is_short,
    of_many_rows,
)
from custom_inference.families.topics.vb import LdaVB
from custom_inference.gibbs import CollapsedGibbs
from ppl_models import LDA, PLSA, Data, Model, MultinomialPCA, UserRatingProfile


def _token_share(engine: TopicEngine) -> Callable[[Any, Params, Data, Tensor], Tensor]:
    """The mean over the tokens of their responsibilities at the posterior means of the proportions (N, K)."""

    def share(model: Model, params: Params, data: Data, mean: Tensor) -> Tensor:
        rows = engine.rows(model, data)
        word = engine.topics(model, dict(params)).T
        parts = [rows.select(slice(at, at + _DOCUMENTS)) for at in range(0, len(rows), _DOCUMENTS)]
        means = mean.split(_DOCUMENTS)
        total = sum(
            (p.counts.values() @ p.responsibilities(m, word) for p, m in zip(parts, means, strict=True)), 0 * mean[0]
        )
        return total / total.sum()

    return share


def num_words(params: Params) -> Tensor:
    """The number of words that a topic spreads over, the exponential of its entropy."""
    return torch.exp(-torch.xlogy(params["topic"], params["topic"]).sum(-1))


OF_TOPICS = Presentation(
    value="P(word | topic)",
    local="topic proportion",
    share=_token_share(LdaDirichlet()),
    columns=lambda model, params: {"words": num_words(params)},
)
OF_PROFILES = Presentation(value="P(category | component)", local="membership", share=_token_share(ProfileDirichlet()))

#: Documents whose responsibilities are made at a time.
_DOCUMENTS = 4096

_SEARCH = {"map": PointProposals, "vb": CollapsedProposals, "cvb0": Cvb0Proposals}
_SEARCH |= dict.fromkeys(("exact", "dirichlet"), TopicProposals)
_MERGED = ("collapsed Gibbs sampling, topics merged",)
_STAGES = dict.fromkeys(_SEARCH, _MERGED) | {"vb": ("collapsed Gibbs sampling, topics merged, then CVB0 sweeps",)}
_POINT_TOPICS = {"exact": LdaExact, "dirichlet": LdaDirichlet, "map": LdaMap}
_ADMIXTURE: dict[str, Any] = {
    "search": _SEARCH,
    "stages": _STAGES,
    "methods": {"tempered": TemperedEM},
    "estimator": token_filter,
    "presentation": OF_TOPICS,
}
_BAYESIAN = {**_POINT_TOPICS, "vb": LdaVB, "cvb0": LdaCvb0}
#: Held-out documents gain nothing from iterations that gain less than a hundredth of a nat a document. "learned": with
#: the concentrations of both priors.
_WITH_PRIORS: dict[str, Any] = {
    **_ADMIXTURE,
    "methods": {
        "cvb0": partial(VariationalEM, guide=CollapsedVariationalBayes(), tolerance=0.01),
        "learned": partial(CollapsedGibbs, learn=True),
        **_ADMIXTURE["methods"],
    },
}

#: Under a prior of the proportions that is no Dirichlet.
_LAPLACE: dict[str, Any] = {
    "engines": {"laplace": LdaLaplace},
    "search": TopicProposals,
    "stages": _MERGED,
    "default": "laplace",
}
_OF_PROFILES: dict[str, Any] = {"engines": {"laplace": ProfileLaplace}, "search": ProfileProposals, "stages": _MERGED}

FAMILIES = (
    *(
        Family(
            model=model,
            engines=_BAYESIAN,
            default="cvb0",
            stand_in="vb",
            sampler=LdaSampler,
            otherwise=Family(model=model, **_LAPLACE),
            **_WITH_PRIORS,
        )
        for model in (LDA, MultinomialPCA)
    ),
    Family(model=PLSA, engines=_POINT_TOPICS, default="map", otherwise=Family(model=PLSA, **_LAPLACE), **_ADMIXTURE),
    Family(
        model=UserRatingProfile,
        otherwise=Family(model=UserRatingProfile, default="laplace", **_OF_PROFILES),
        engines={"exact": ProfileExact, "dirichlet": ProfileDirichlet, "vb": ProfileVB, "map": ProfileMap},
        search=ProfileProposals,
        stages=_MERGED,
        default=lambda model, _: "exact" if is_short(model) else "map",
        by_size=of_many_rows,
        presentation=OF_PROFILES,
    ),
)
