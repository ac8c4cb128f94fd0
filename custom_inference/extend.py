"""What own engines, guides, samplers and methods are made of: an author imports from here, and from nowhere deeper.

Programs need ``ppl_models`` alone (``Model``, ``RowModel``, ``ComponentModel``, ``Site``, ...), and perhaps
``ppl_models.likelihoods`` and ``ppl_models.distributions``.
"""

from custom_inference.core.engine import Engine, EStep, ExactEngine
from custom_inference.core.guide import Guide
from custom_inference.core.method import Method
from custom_inference.core.posterior_bounds import bound_of
from custom_inference.core.posteriors import (
    BernoulliPosterior,
    BetaPosterior,
    CodePosterior,
    ContinuousPosterior,
    DirichletPosterior,
    GammaPosterior,
    GaussianPosterior,
    LocalPosterior,
    PointPosterior,
)
from custom_inference.core.proposals import Proposals
from custom_inference.core.registry import Family, register
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.rows.counts import CountRows
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.rows.graph import GraphRows
from custom_inference.families.rows.matrix import BinaryRows, MatrixRows, RealRows
from custom_inference.gibbs.protocol import Chain, Sampler

__all__ = [
    "BernoulliPosterior",
    "Beta",
    "BetaPosterior",
    "BinaryRows",
    "Chain",
    "CodePosterior",
    "ContinuousPosterior",
    "CountRows",
    "Dirichlet",
    "DirichletPosterior",
    "DocumentRows",
    "EStep",
    "Engine",
    "ExactEngine",
    "Family",
    "Gamma",
    "GammaPosterior",
    "GaussianPosterior",
    "GraphRows",
    "Guide",
    "LocalPosterior",
    "MatrixRows",
    "Method",
    "Normal",
    "PointPosterior",
    "Proposals",
    "RealRows",
    "Sampler",
    "bound_of",
    "register",
]
