"""The public names, by the module that defines them; ``__init__`` reads this list, and so do type checkers."""

from .checks import (
    STATISTICS as STATISTICS,
)
from .checks import (
    LeaveOneOut as LeaveOneOut,
)
from .checks import (
    PredictiveCheck as PredictiveCheck,
)
from .checks import (
    Statistic as Statistic,
)
from .checks import (
    compare_loo as compare_loo,
)
from .checks import (
    loo as loo,
)
from .checks import (
    posterior_predictive_check as posterior_predictive_check,
)
from .checks.calibration import (
    Calibration as Calibration,
)
from .checks.calibration import (
    simulation_based_calibration as simulation_based_calibration,
)
from .checks.compare import Comparison as Comparison
from .checks.compare import compare as compare
from .checks.empirical_bayes import empirical_bayes_log_likelihood as empirical_bayes_log_likelihood
from .core.align import (
    Alignment as Alignment,
)
from .core.align import (
    align as align,
)
from .core.align import (
    match_blocks as match_blocks,
)
from .core.align import (
    match_components as match_components,
)
from .core.draws import posterior_draws as posterior_draws
from .core.evaluate import recovered as recovered
from .core.fit import Fit as Fit
from .core.guide import Guide as Guide
from .core.predictive import reconstruction_error as reconstruction_error
from .documents import (
    CrossValidation as CrossValidation,
)
from .documents import (
    HeldOut as HeldOut,
)
from .documents import (
    coherence as coherence,
)
from .documents import (
    cross_validate as cross_validate,
)
from .documents import (
    held_out as held_out,
)
from .documents import (
    perplexity as perplexity,
)
from .documents import (
    split_tokens as split_tokens,
)
from .documents import (
    to_pyldavis as to_pyldavis,
)
from .documents import (
    topic_table as topic_table,
)
from .em.checkpoint import Checkpoint as Checkpoint
from .em.guides import (
    AllCodes as AllCodes,
)
from .em.guides import (
    CollapsedVariationalBayes as CollapsedVariationalBayes,
)
from .em.guides import (
    DirichletMembership as DirichletMembership,
)
from .em.guides import (
    GaussianScore as GaussianScore,
)
from .em.guides import (
    PointEstimate as PointEstimate,
)
from .em.guides import (
    Truncated as Truncated,
)
from .em.guides import (
    VariationalBayes as VariationalBayes,
)
from .em.method import EM as EM
from .em.method import Search as Search
from .em.method import VariationalEM as VariationalEM
from .exact.method import Exact as Exact
from .faces.pictures import render as render
from .families.aspects.explain import attribute as attribute
from .families.aspects.explain import denoise as denoise
from .families.aspects.explain import expand as expand
from .families.aspects.explain import phantoms as phantoms
from .families.memberships.stochastic import StochasticMMSB as StochasticMMSB
from .families.noca.guide import FactorizedBound as FactorizedBound
from .families.noca.guide import FactorizedNoisyOr as FactorizedNoisyOr
from .families.topics.tempered import TemperedEM as TemperedEM
from .gibbs import CollapsedGibbs as CollapsedGibbs
from .graphs import (
    BlockChoice as BlockChoice,
)
from .graphs import (
    HeldDyads as HeldDyads,
)
from .graphs import (
    best_match_f1 as best_match_f1,
)
from .graphs import (
    block_matrix as block_matrix,
)
from .graphs import (
    choose_num_blocks as choose_num_blocks,
)
from .graphs import (
    communities as communities,
)
from .graphs import (
    hold_out_dyads as hold_out_dyads,
)
from .graphs import (
    icl as icl,
)
from .graphs import (
    integrated_likelihood as integrated_likelihood,
)
from .graphs import (
    integrated_log_likelihood as integrated_log_likelihood,
)
from .graphs import (
    link_prediction as link_prediction,
)
from .graphs import (
    link_probability as link_probability,
)
from .mcmc.nuts import NUTS as NUTS
from .methods import fit as fit
from .methods import methods_for as methods_for
from .svi.guides.amortized import Amortized as Amortized
from .svi.guides.mean_field import MeanField as MeanField
from .svi.method import SVI as SVI
