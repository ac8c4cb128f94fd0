"""Topic models and profiles of users: Dirichlet, variational Bayes, CVB0, point and exact engines, Gibbs, tempering."""

from dataclasses import replace

import torch

from custom_inference.core.presentation import Presentation, mean_share
from custom_inference.core.registry import Family
from custom_inference.families.topics.correlated import CorrelatedGaussian
from custom_inference.families.topics.cvb0 import LdaCvb0
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.exact import LdaExact
from custom_inference.families.topics.gibbs import LdaSampler
from custom_inference.families.topics.map import LdaMap
from custom_inference.families.topics.propose import (
    CorrelatedProposals,
    PointProposals,
    ProfileProposals,
    TopicProposals,
)
from custom_inference.families.topics.supervised import SupervisedDirichlet, predicted_response
from custom_inference.families.topics.tempered import TemperedEM
from custom_inference.families.topics.user_rating_profile import ProfileDirichlet, ProfileExact, ProfileMap, ProfileVB
from custom_inference.families.topics.vb import LdaVB
from ppl_models import CTM, LDA, PLSA, MultinomialPCA, SupervisedLDA, UserRatingProfile

_share = mean_share("topic_proportion")

#: The share of each topic, and the number of words it spreads over (the exponential of its entropy).
OF_TOPICS = Presentation(
    value="P(word | topic)",
    local="topic proportion",
    prominence=_share,
    columns=lambda model, params: {
        "share": _share(model, params),
        "words": torch.exp(-torch.xlogy(params["topic"], params["topic"]).sum(-1)),
    },
)
_membership = mean_share("membership")

OF_PROFILES = Presentation(
    value="P(category | component)",
    local="membership",
    prominence=_membership,
    columns=lambda model, params: {"share": _membership(model, params)},
)

#: A topic's share of the mean document, softmax(mu) at the mean logits.
OF_CORRELATED_TOPICS = replace(
    OF_TOPICS,
    local="topic logit",
    prominence=lambda _, params: torch.softmax(params["mean"], -1),
    columns=lambda _, params: {
        "share at the mean": torch.softmax(params["mean"], -1),
        "words": torch.exp(-torch.xlogy(params["topic"], params["topic"]).sum(-1)),
    },
)

OF_SUPERVISED_TOPICS = replace(
    OF_TOPICS, columns=lambda model, params: {"share": _share(model, params), "weight": params["response_weight"]}
)

_SEARCH = {"map": PointProposals} | dict.fromkeys(("exact", "dirichlet", "vb", "cvb0"), TopicProposals)
_POINT_TOPICS = {"exact": LdaExact, "dirichlet": LdaDirichlet, "map": LdaMap}

FAMILIES = (
    *(
        Family(
            model=model,
            engines={**_POINT_TOPICS, "vb": LdaVB, "cvb0": LdaCvb0},
            search=_SEARCH,
            default="vb",
            sampler=LdaSampler,
            methods={"tempered": TemperedEM},
            presentation=OF_TOPICS,
        )
        for model in (LDA, MultinomialPCA)
    ),
    Family(
        model=PLSA,
        engines=_POINT_TOPICS,
        search=_SEARCH,
        default="map",
        methods={"tempered": TemperedEM},
        presentation=OF_TOPICS,
    ),
    Family(
        model=CTM,
        engines={"gaussian": CorrelatedGaussian},
        search=CorrelatedProposals,
        default="gaussian",
        presentation=OF_CORRELATED_TOPICS,
    ),
    Family(
        model=SupervisedLDA,
        engines={"dirichlet": SupervisedDirichlet},
        search=TopicProposals,
        default="dirichlet",
        presentation=OF_SUPERVISED_TOPICS,
        predict=predicted_response,
    ),
    Family(
        model=UserRatingProfile,
        engines={"exact": ProfileExact, "dirichlet": ProfileDirichlet, "vb": ProfileVB, "map": ProfileMap},
        search=ProfileProposals,
        default="vb",
        presentation=OF_PROFILES,
    ),
)
