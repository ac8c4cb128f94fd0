"""Which closed-form steps there are: model -> bound name -> steps ("evidence" where they are exact)."""

from __future__ import annotations

from collections.abc import Callable

from custom_inference.steps._protocol import Steps
from custom_inference.steps.aspect_dirichlet import AspectDirichlet
from custom_inference.steps.aspect_exact import AspectExact
from custom_inference.steps.aspect_map import AspectMap
from custom_inference.steps.covariate_sbm import CovariateExact, CovariateMeanField
from custom_inference.steps.cvq_exact import CvqExact
from custom_inference.steps.cvq_mean_field import CvqMeanField
from custom_inference.steps.cvq_truncated import CvqTruncated
from custom_inference.steps.lda_cvb0 import LdaCvb0
from custom_inference.steps.lda_dirichlet import LdaDirichlet
from custom_inference.steps.lda_exact import LdaExact
from custom_inference.steps.lda_map import LdaMap
from custom_inference.steps.lda_vb import LdaVB
from custom_inference.steps.logistic_pca import LogisticGaussian, LogisticMap
from custom_inference.steps.logistic_quadrature import LogisticQuadrature
from custom_inference.steps.mixture_of_bernoullis import MixtureOfBernoullisExact
from custom_inference.steps.mixture_of_counts import (
    MixtureOfCategoricalsExact,
    MixtureOfCategoricalsVB,
    MixtureOfMultinomialsExact,
    MixtureOfMultinomialsVB,
    MixtureOfPoissonsExact,
    MixtureOfPoissonsVB,
)
from custom_inference.steps.mmsb_cvb0 import MmsbCvb0
from custom_inference.steps.mmsb_dirichlet import MmsbDirichlet
from custom_inference.steps.mmsb_exact import MmsbExact
from custom_inference.steps.mmsb_vb import MmsbVB
from custom_inference.steps.noca_exact import NocaExact
from custom_inference.steps.noca_factorized import NocaFactorized
from custom_inference.steps.noca_mean_field import NocaMeanField
from custom_inference.steps.noca_truncated import NocaTruncated
from custom_inference.steps.sbm_exact import SbmExact
from custom_inference.steps.sbm_mean_field import SbmMeanField
from custom_inference.steps.sbm_vb import SbmVB
from custom_inference.steps.user_rating_profile import ProfileDirichlet, ProfileExact, ProfileMap, ProfileVB
from ppl_models import (
    CVQ,
    LDA,
    MMSB,
    NOCA,
    PLSA,
    SBM,
    AspectBernoulli,
    CovariateSBM,
    LogisticPCA,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomials,
    MixtureOfPoissons,
    Model,
    PoissonSBM,
    UserRatingProfile,
)

#: The first family after "evidence" is used by default where exact sums are not feasible.
ENGINES: dict[type[Model], dict[str, Callable[[], Steps]]] = {
    AspectBernoulli: {"evidence": AspectExact, "dirichlet": AspectDirichlet, "map": AspectMap},
    CovariateSBM: {"evidence": CovariateExact, "mean_field": CovariateMeanField},
    CVQ: {"evidence": CvqExact, "mean_field": CvqMeanField, "truncated": CvqTruncated},
    LDA: {"evidence": LdaExact, "dirichlet": LdaDirichlet, "vb": LdaVB, "cvb0": LdaCvb0, "map": LdaMap},
    LogisticPCA: {"evidence": LogisticQuadrature, "gaussian": LogisticGaussian, "map": LogisticMap},
    MixtureOfBernoullis: {"evidence": MixtureOfBernoullisExact},
    MixtureOfCategoricals: {"evidence": MixtureOfCategoricalsExact, "vb": MixtureOfCategoricalsVB},
    MixtureOfMultinomials: {"evidence": MixtureOfMultinomialsExact, "vb": MixtureOfMultinomialsVB},
    MixtureOfPoissons: {"evidence": MixtureOfPoissonsExact, "vb": MixtureOfPoissonsVB},
    MMSB: {"evidence": MmsbExact, "dirichlet": MmsbDirichlet, "vb": MmsbVB, "cvb0": MmsbCvb0},
    NOCA: {
        "evidence": NocaExact,
        "truncated": NocaTruncated,
        "factorized": NocaFactorized,
        "mean_field": NocaMeanField,
    },
    PoissonSBM: {"evidence": SbmExact, "mean_field": SbmMeanField, "vb": SbmVB},
    SBM: {"evidence": SbmExact, "mean_field": SbmMeanField, "vb": SbmVB},
    UserRatingProfile: {
        "evidence": ProfileExact,
        "dirichlet": ProfileDirichlet,
        "vb": ProfileVB,
        "map": ProfileMap,
    },
    PLSA: {"evidence": LdaExact, "dirichlet": LdaDirichlet, "map": LdaMap},
}
