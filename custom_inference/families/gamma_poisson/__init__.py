"""Gamma-Poisson factor analysis and nonnegative matrix factorisation: auxiliary counts, points, collapsed Gibbs."""

from __future__ import annotations

from torch import Tensor

from custom_inference.core.presentation import Params, Presentation
from custom_inference.core.registry import Family
from custom_inference.families.gamma_poisson.engines import GapGamma, GapVB
from custom_inference.families.gamma_poisson.exact import GapExact
from custom_inference.families.gamma_poisson.gibbs import GapSampler
from custom_inference.families.gamma_poisson.map import GapMap, NmfMap
from custom_inference.families.gamma_poisson.propose import GapProposals, NmfProposals
from custom_inference.families.gamma_poisson.spike import SpikeExact, SpikeGap, SpikeVB
from ppl_models import NMF, Data, GammaPoisson, SpikeGammaPoisson


def _share_of_events(model: GammaPoisson, params: Params, data: Data, mean: Tensor) -> Tensor:
    """The expected events of each component among all."""
    events = mean.sum(0) * params["loading"].sum(-1)
    return events / events.sum()


_PRESENTATION = Presentation(value="expected count", local="activation", share=_share_of_events)

FAMILIES = (
    Family(
        model=GammaPoisson,
        engines={"exact": GapExact, "gamma": GapGamma, "vb": GapVB, "map": GapMap},
        default="vb",
        search=GapProposals,
        stages=("sampled components",),
        sampler=GapSampler,
        presentation=_PRESENTATION,
    ),
    Family(
        model=SpikeGammaPoisson,
        engines={"exact": SpikeExact, "gamma": SpikeGap, "vb": SpikeVB},
        default="vb",
        search=GapProposals,
        stages=("sampled components",),
        sampler=GapSampler,
        presentation=_PRESENTATION,
    ),
    Family(
        model=NMF,
        engines={"exact": GapExact, "gamma": GapGamma, "map": NmfMap},  # flat priors have density 1
        default="map",
        search=NmfProposals,
        stages=("singular vectors, random and sampled components",),
        presentation=_PRESENTATION,
    ),
)
