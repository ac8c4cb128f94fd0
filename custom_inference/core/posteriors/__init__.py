"""Posteriors over the local latents at given globals, in the shapes that the models' latents need."""

from dataclasses import is_dataclass

from custom_inference.core.posteriors.continuous import (
    BetaPosterior,
    GammaPosterior,
    GaussianMixturePosterior,
    GaussianPosterior,
    KnownPosterior,
    PointPosterior,
    SymmetricBetaPosterior,
    SymmetricGammaPosterior,
)
from custom_inference.core.posteriors.dirichlet import (
    DirichletDraws,
    DirichletMixture,
    DirichletPosterior,
    JointDirichletMixture,
    SticksPosterior,
)
from custom_inference.core.posteriors.entries import (
    GridPosterior,
    JointLogitNormalPosterior,
    JointLogNormalPosterior,
    JointNormalPosterior,
    LogitNormalPosterior,
    LogNormalPosterior,
    NormalPosterior,
    log_density_of,
)
from custom_inference.core.posteriors.finite import (
    BernoulliPosterior,
    CodePosterior,
    LabellingPosterior,
    TablePosterior,
    kullback_leibler,
)
from custom_inference.core.posteriors.gamma import GammaMixture, GammaTerms
from custom_inference.core.posteriors.logistic_normal import LogisticNormalPosterior
from custom_inference.core.posteriors.mixed import MixedPosterior
from custom_inference.core.posteriors.protocol import ContinuousPosterior, LocalPosterior
from custom_inference.core.posteriors.scores import LogisticPosterior, ScorePosterior
from custom_inference.core.posteriors.walk import WalkPosterior

__all__ = [
    "POSTERIORS",
    "BernoulliPosterior",
    "BetaPosterior",
    "CodePosterior",
    "ContinuousPosterior",
    "DirichletDraws",
    "DirichletMixture",
    "DirichletPosterior",
    "GammaMixture",
    "GammaPosterior",
    "GammaTerms",
    "GaussianMixturePosterior",
    "GaussianPosterior",
    "GridPosterior",
    "JointDirichletMixture",
    "JointLogNormalPosterior",
    "JointLogitNormalPosterior",
    "JointNormalPosterior",
    "KnownPosterior",
    "LabellingPosterior",
    "LocalPosterior",
    "LogNormalPosterior",
    "LogisticNormalPosterior",
    "LogisticPosterior",
    "LogitNormalPosterior",
    "MixedPosterior",
    "NormalPosterior",
    "PointPosterior",
    "ScorePosterior",
    "SticksPosterior",
    "SymmetricBetaPosterior",
    "SymmetricGammaPosterior",
    "TablePosterior",
    "WalkPosterior",
    "kullback_leibler",
    "log_density_of",
]

#: By name: what a saved fit may hold.
POSTERIORS: dict[str, type[LocalPosterior]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, LocalPosterior) and is_dataclass(kind)
}
