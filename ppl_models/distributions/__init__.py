"""Distributions that Pyro lacks: binary codes, noisy ORs, flat priors, labellings of nodes, tokens of documents.

Imports ``ppl_models.core.errors`` and ``ppl_models.data.sparse`` alone; everybody may import the names of ``__all__``.
"""

from ppl_models.distributions.basic import (
    MAX_ENUMERABLE_BITS,
    BernoulliVector,
    Flat,
    Harmonium,
    NoisyOr,
    all_codes,
    log1mexp,
    theta_of,
)
from ppl_models.distributions.labellings import EndBlocks, Labelling, Symmetric, all_labelings
from ppl_models.distributions.positive_definite import InverseWishart
from ppl_models.distributions.rated import OrderedRating, SideBySide, SparseRatings
from ppl_models.distributions.tokens import Tokens, TopicMeanBernoulli

__all__ = [
    "MAX_ENUMERABLE_BITS",
    "BernoulliVector",
    "EndBlocks",
    "Flat",
    "Harmonium",
    "InverseWishart",
    "Labelling",
    "NoisyOr",
    "OrderedRating",
    "SideBySide",
    "SparseRatings",
    "Symmetric",
    "Tokens",
    "TopicMeanBernoulli",
    "all_codes",
    "all_labelings",
    "log1mexp",
    "theta_of",
]
