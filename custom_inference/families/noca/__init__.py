"""Noisy-or component analysis (Singliar & Hauskrecht 2006): all codes, truncated, factorized and mean-field posteriors;
its guide."""

from __future__ import annotations

from torch import Tensor

from custom_inference.core.presentation import Params, Presentation
from custom_inference.core.registry import EXACT_EM_UP_TO, Family
from custom_inference.families.common.bits import noisy_or_chains
from custom_inference.families.noca.exact import NocaExact, time_rows
from custom_inference.families.noca.factorized import NocaFactorized
from custom_inference.families.noca.guide import FactorizedNoisyOr
from custom_inference.families.noca.mean_field import NocaMeanField
from custom_inference.families.noca.propose import NocaProposals
from custom_inference.families.noca.truncated import NocaTruncated
from custom_inference.families.noca.upper import bound_above
from ppl_models import NOCA


def _shut_off(params: Params, *, prior_below: float = 0.005, links_below: float = 0.1) -> Tensor:
    """Tell which sources are shut off: their prior is below ``prior_below``, or all their links sum to less than
    ``links_below``, the expected number of features that their presence turns on (the paper, sections 3.3 and 4.2)."""
    return (params["source_prior"] < prior_below) | (params["loading"].sum(-1) < links_below)


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
        stages=("growth of sources, or split and prune", "pruning of sources by evidence"),
        default=lambda model, _: "exact" if model.num_components <= EXACT_EM_UP_TO else "truncated",
        guides={"factorized": FactorizedNoisyOr},
        chains=noisy_or_chains,
        above=bound_above,
        reach=time_rows,
        own_threads=("truncated",),
        presentation=Presentation(
            value="P(feature on | source present)",
            local="P(source present | row)",
            baseline="leak",
            # The expected number of features that each source turns on in a row.
            prominence=lambda _, params: params["source_prior"] * params["loading"].sum(-1),
            columns=lambda _, params: {"prior": params["source_prior"], "features on": params["loading"].sum(-1)},
            shut_off=_shut_off,
        ),
    ),
)
