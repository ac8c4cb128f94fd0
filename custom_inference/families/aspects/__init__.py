"""Aspect Bernoulli (source 001): memberships integrated out, by Dirichlets, or as points; what explains zeros."""

from custom_inference.core.registry import Family
from custom_inference.families.aspects.dirichlet import AspectDirichlet
from custom_inference.families.aspects.exact import AspectExact
from custom_inference.families.aspects.map import AspectMap
from custom_inference.families.aspects.presentation import PRESENTATION
from custom_inference.families.aspects.propose import AspectPointProposals, AspectProposals
from ppl_models import AspectBernoulli

#: Points are the default, as their paper has them and phantoms need.
FAMILIES = (
    Family(
        model=AspectBernoulli,
        engines={"exact": AspectExact, "dirichlet": AspectDirichlet, "map": AspectMap},
        search={"exact": AspectProposals, "dirichlet": AspectProposals, "map": AspectPointProposals},
        default="map",
        presentation=PRESENTATION,
    ),
)
