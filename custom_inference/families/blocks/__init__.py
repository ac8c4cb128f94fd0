"""Stochastic block models: all labelings, mean field, variational Bayes, collapsed Gibbs; partitions to start from."""

from custom_inference.core.registry import Family
from custom_inference.families.blocks.covariates import CovariateExact, CovariateMeanField
from custom_inference.families.blocks.exact import SbmExact
from custom_inference.families.blocks.gibbs import BlockSampler
from custom_inference.families.blocks.mean_field import SbmMeanField
from custom_inference.families.blocks.presentation import PRESENTATIONS
from custom_inference.families.blocks.propose import (
    BlockProposals,
    CovariateLabellingProposals,
    CovariateProposals,
    LabellingProposals,
)
from custom_inference.families.blocks.vb import SbmVB
from ppl_models import SBM, CovariateSBM, DegreeCorrectedSBM, PoissonSBM

FAMILIES = (
    *(
        Family(
            model=model,
            engines={"exact": SbmExact, "mean_field": SbmMeanField, "vb": SbmVB},
            search={"exact": LabellingProposals, "mean_field": BlockProposals, "vb": BlockProposals},
            default="vb",
            sampler=BlockSampler,
            presentation=PRESENTATIONS[model],
        )
        for model in (SBM, PoissonSBM, DegreeCorrectedSBM)
    ),
    Family(
        model=CovariateSBM,
        engines={"exact": CovariateExact, "mean_field": CovariateMeanField},
        search={"exact": CovariateLabellingProposals, "mean_field": CovariateProposals},
        default="mean_field",
        presentation=PRESENTATIONS[CovariateSBM],
    ),
)
