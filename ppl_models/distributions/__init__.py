"""Distributions that Pyro lacks: binary codes, noisy ORs, flat priors, labellings of nodes, tokens, weights.

Imports ``ppl_models.core.errors``, ``ppl_models.data.sparse`` and ``ppl_models.likelihoods`` alone;
everybody may import the names of ``__all__``.
"""

import inspect

from ppl_models.distributions.basic import (
    MAX_ENUMERABLE_BITS,
    BernoulliVector,
    Flat,
    NoisyOr,
    all_codes,
    log1mexp,
    theta_of,
)
from ppl_models.distributions.energy import Energy
from ppl_models.distributions.hidden_layers import Harmonium, SigmoidBelief
from ppl_models.distributions.labellings import EndBlocks, Labelling, Symmetric, all_labelings
from ppl_models.distributions.normals import GaussianRandomWalk, ScaledNormal
from ppl_models.distributions.padded import PaddedDirichlet, PaddedSimplex
from ppl_models.distributions.partitions import ChineseRestaurant, RelationCells
from ppl_models.distributions.positive_definite import InverseWishart, ScaledCorrelation
from ppl_models.distributions.rated import InverseRootGamma, OrderedRating, SideBySide, SparseRatings, VaryingRatings
from ppl_models.distributions.simplex import FaceDirichlet, PointMass, StickBreaking
from ppl_models.distributions.spike import SpikeGamma, nonnegative_with_atom
from ppl_models.distributions.tokens import Tokens, TopicMeanBernoulli
from ppl_models.distributions.weights import Hurdle, Signs

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in vars().items() if not (name.startswith("_") or inspect.ismodule(value))
)
