"""Posteriors over the local latents at given globals, in the shapes that the models' latents need."""

from custom_inference.core.posteriors.codes import BernoulliPosterior, CodePosterior
from custom_inference.core.posteriors.continuous import (
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
from custom_inference.core.posteriors.divergence import kullback_leibler
from custom_inference.core.posteriors.draws import DirichletDraws
from custom_inference.core.posteriors.joint_dirichlet import JointDirichletMixture
from custom_inference.core.posteriors.labellings import LabellingPosterior
from custom_inference.core.posteriors.logistic import LogisticPosterior
from custom_inference.core.posteriors.protocol import LocalPosterior

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
