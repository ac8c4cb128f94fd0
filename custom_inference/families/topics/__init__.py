"""Topic models and profiles of users: Dirichlet, variational Bayes, CVB0, point and exact engines, Gibbs, tempering."""

from custom_inference.core.registry import Family
from custom_inference.families.topics.correlated import CorrelatedGaussian
from custom_inference.families.topics.cvb0 import LdaCvb0
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.exact import LdaExact
from custom_inference.families.topics.gibbs import LdaSampler
from custom_inference.families.topics.map import LdaMap
from custom_inference.families.topics.presentation import (
    OF_CORRELATED_TOPICS,
    OF_PROFILES,
    OF_SUPERVISED_TOPICS,
    OF_TOPICS,
)
from custom_inference.families.topics.propose import (
    CorrelatedProposals,
    PointProposals,
    ProfileProposals,
    SupervisedProposals,
    TopicProposals,
)
from custom_inference.families.topics.supervised import SupervisedDirichlet, predicted_response
from custom_inference.families.topics.tempered import TemperedEM
from custom_inference.families.topics.user_rating_profile import ProfileDirichlet, ProfileExact, ProfileMap, ProfileVB
from custom_inference.families.topics.vb import LdaVB
from ppl_models import CTM, LDA, PLSA, MultinomialPCA, SupervisedLDA, UserRatingProfile

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
        search=SupervisedProposals,
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
