"""Mixtures, whose rows each have one class: exact EM, variational Bayes, collapsed Gibbs, for every likelihood."""

from custom_inference.core.registry import Family
from custom_inference.families.mixtures.exact import MixtureExact
from custom_inference.families.mixtures.gibbs import MixtureSampler
from custom_inference.families.mixtures.presentation import PRESENTATIONS
from custom_inference.families.mixtures.vb import MixtureVB

FAMILIES = tuple(
    Family(
        model=model,
        engines={"exact": MixtureExact, "vb": MixtureVB},
        default="exact",
        sampler=MixtureSampler,
        presentation=presentation,
    )
    for model, presentation in PRESENTATIONS.items()
)
