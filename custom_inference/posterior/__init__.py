"""Posteriors over the local latents at given globals, in the shapes that the models' latents need."""

from custom_inference.posterior._divergence import kullback_leibler
from custom_inference.posterior._protocol import LocalPosterior
from custom_inference.posterior.codes import BernoulliPosterior, CodePosterior
from custom_inference.posterior.continuous import (
    BetaPosterior,
    ContinuousPosterior,
    DirichletMixture,
    DirichletPosterior,
    GammaPosterior,
    GaussianPosterior,
    PointPosterior,
    SymmetricBetaPosterior,
    SymmetricGammaPosterior,
)
from custom_inference.posterior.draws import DirichletDraws
from custom_inference.posterior.joint_dirichlet import JointDirichletMixture
from custom_inference.posterior.labellings import LabellingPosterior
from custom_inference.posterior.logistic import LogisticPosterior

#: By name: what a saved fit may hold.
POSTERIORS: dict[str, type[LocalPosterior]] = {
    kind.__name__: kind
    for kind in (
        BernoulliPosterior,
        BetaPosterior,
        CodePosterior,
        DirichletDraws,
        DirichletMixture,
        DirichletPosterior,
        GammaPosterior,
        GaussianPosterior,
        JointDirichletMixture,
        LabellingPosterior,
        LogisticPosterior,
        PointPosterior,
        SymmetricBetaPosterior,
        SymmetricGammaPosterior,
    )
}

__all__ = [
    "POSTERIORS",
    "BernoulliPosterior",
    "BetaPosterior",
    "CodePosterior",
    "ContinuousPosterior",
    "DirichletDraws",
    "DirichletMixture",
    "DirichletPosterior",
    "GammaPosterior",
    "GaussianPosterior",
    "JointDirichletMixture",
    "LabellingPosterior",
    "LocalPosterior",
    "LogisticPosterior",
    "PointPosterior",
    "SymmetricBetaPosterior",
    "SymmetricGammaPosterior",
    "kullback_leibler",
]
