"""Inference: how the models of ``ppl_models`` are learned, and how far an approximation is from the truth."""

from custom_inference._checkpoint import Checkpoint
from custom_inference._methods import methods_for
from custom_inference.align import Alignment, align, match_blocks, match_components
from custom_inference.aspects import attribute, denoise, expand, phantoms
from custom_inference.calibration import Calibration, simulation_based_calibration
from custom_inference.checks import (
    STATISTICS,
    LeaveOneOut,
    PredictiveCheck,
    Statistic,
    compare_loo,
    loo,
    posterior_predictive_check,
)
from custom_inference.compare import Comparison, compare
from custom_inference.default import fit
from custom_inference.documents import (
    CrossValidation,
    HeldOut,
    coherence,
    cross_validate,
    held_out,
    perplexity,
    split_tokens,
    to_pyldavis,
    topic_table,
)
from custom_inference.draws import posterior_draws
from custom_inference.empirical_bayes import empirical_bayes_log_likelihood
from custom_inference.evaluate import recovered
from custom_inference.exact import Exact
from custom_inference.fit import Fit
from custom_inference.gibbs import CollapsedGibbs
from custom_inference.graphs import (
    BlockChoice,
    HeldDyads,
    best_match_f1,
    block_matrix,
    choose_num_blocks,
    communities,
    hold_out_dyads,
    icl,
    integrated_likelihood,
    integrated_log_likelihood,
    link_prediction,
    link_probability,
)
from custom_inference.guides import (
    AllCodes,
    Amortized,
    CollapsedVariationalBayes,
    DirichletMembership,
    FactorizedBound,
    FactorizedNoisyOr,
    GaussianScore,
    Guide,
    MeanField,
    PointEstimate,
    Truncated,
    VariationalBayes,
)
from custom_inference.mcmc import NUTS
from custom_inference.pictures import render
from custom_inference.predictive import reconstruction_error
from custom_inference.stochastic_mmsb import StochasticMMSB
from custom_inference.svi import SVI
from custom_inference.tempered import TemperedEM
from custom_inference.vem import EM, Search, VariationalEM

__all__ = [
    "EM",
    "NUTS",
    "STATISTICS",
    "SVI",
    "Alignment",
    "AllCodes",
    "Amortized",
    "BlockChoice",
    "Calibration",
    "Checkpoint",
    "CollapsedGibbs",
    "CollapsedVariationalBayes",
    "Comparison",
    "CrossValidation",
    "DirichletMembership",
    "Exact",
    "FactorizedBound",
    "FactorizedNoisyOr",
    "Fit",
    "GaussianScore",
    "Guide",
    "HeldDyads",
    "HeldOut",
    "LeaveOneOut",
    "MeanField",
    "PointEstimate",
    "PredictiveCheck",
    "Search",
    "Statistic",
    "StochasticMMSB",
    "TemperedEM",
    "Truncated",
    "VariationalBayes",
    "VariationalEM",
    "align",
    "attribute",
    "best_match_f1",
    "block_matrix",
    "choose_num_blocks",
    "coherence",
    "communities",
    "compare",
    "compare_loo",
    "cross_validate",
    "denoise",
    "empirical_bayes_log_likelihood",
    "expand",
    "fit",
    "held_out",
    "hold_out_dyads",
    "icl",
    "integrated_likelihood",
    "integrated_log_likelihood",
    "link_prediction",
    "link_probability",
    "loo",
    "match_blocks",
    "match_components",
    "methods_for",
    "perplexity",
    "phantoms",
    "posterior_draws",
    "posterior_predictive_check",
    "reconstruction_error",
    "recovered",
    "render",
    "simulation_based_calibration",
    "split_tokens",
    "to_pyldavis",
    "topic_table",
]
