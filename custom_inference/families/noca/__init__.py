"""Noisy-or component analysis (source 000): all codes, truncated, factorized and mean-field posteriors; its guide."""

from custom_inference.core.registry import EXACT_EM_UP_TO, Family
from custom_inference.families.noca.exact import NocaExact
from custom_inference.families.noca.factorized import NocaFactorized
from custom_inference.families.noca.guide import FactorizedNoisyOr
from custom_inference.families.noca.mean_field import NocaMeanField
from custom_inference.families.noca.presentation import PRESENTATION
from custom_inference.families.noca.propose import NocaProposals
from custom_inference.families.noca.truncated import NocaTruncated
from ppl_models import NOCA

FAMILIES = (
    Family(
        model=NOCA,
        engines={
            "exact": NocaExact,
            "truncated": NocaTruncated,
            "factorized": NocaFactorized,
            "mean_field": NocaMeanField,
        },
        search=NocaProposals,
        default=lambda model, _: "exact" if model.num_components <= EXACT_EM_UP_TO else "truncated",
        guides={"factorized": FactorizedNoisyOr},
        presentation=PRESENTATION,
    ),
)
