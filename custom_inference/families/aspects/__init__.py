"""Aspect Bernoulli (Bingham et al. 2007): memberships integrated out, by Dirichlets, or as points; what explains
zeros."""

from custom_inference.core.presentation import Presentation, mean_membership
from custom_inference.core.registry import Family
from custom_inference.families.aspects.engines import AspectDirichlet, AspectExact, AspectLaplace
from custom_inference.families.aspects.map import AspectMap
from custom_inference.families.aspects.propose import AspectPointProposals, AspectProposals
from ppl_models import AspectBernoulli

#: Points are the default, as their paper has them and phantoms need.
_STAGES = ("least squares from random aspects",)
FAMILIES = (
    Family(
        model=AspectBernoulli,
        otherwise=Family(
            model=AspectBernoulli,
            engines={"laplace": AspectLaplace},
            search=AspectProposals,
            stages=_STAGES,
            default="laplace",
        ),
        engines={"exact": AspectExact, "dirichlet": AspectDirichlet, "map": AspectMap},
        search={"exact": AspectProposals, "dirichlet": AspectProposals, "map": AspectPointProposals},
        stages=_STAGES,
        default="map",
        presentation=Presentation(
            value="P(entry = 1 | aspect)",
            local="membership",
            share=mean_membership,
            columns=lambda model, params: {"features on": params["aspect_probability"].sum(-1)},
        ),
    ),
)
