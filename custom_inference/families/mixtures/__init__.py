"""Mixtures, whose rows each have one class: exact EM, variational Bayes, collapsed Gibbs."""

from custom_inference.core.registry import Family
from custom_inference.families.mixtures.bernoullis import MixtureOfBernoullisExact
from custom_inference.families.mixtures.counts import (
    MixtureOfCategoricalsExact,
    MixtureOfCategoricalsVB,
    MixtureOfMultinomialsExact,
    MixtureOfMultinomialsVB,
    MixtureOfPoissonsExact,
    MixtureOfPoissonsVB,
)
from custom_inference.families.mixtures.gibbs import MixtureSampler
from custom_inference.families.mixtures.presentation import PRESENTATIONS
from ppl_models import (
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
)

_COUNTS = {
    MixtureOfCategoricals: {"exact": MixtureOfCategoricalsExact, "vb": MixtureOfCategoricalsVB},
    MixtureOfMultinomials: {"exact": MixtureOfMultinomialsExact, "vb": MixtureOfMultinomialsVB},
    MixtureOfMultinomialCounts: {"exact": MixtureOfMultinomialsExact, "vb": MixtureOfMultinomialsVB},
    MixtureOfPoissons: {"exact": MixtureOfPoissonsExact, "vb": MixtureOfPoissonsVB},
}

FAMILIES = (
    Family(
        model=MixtureOfBernoullis,
        engines={"exact": MixtureOfBernoullisExact},
        default="exact",
        presentation=PRESENTATIONS[MixtureOfBernoullis],
    ),
    *(
        Family(
            model=model, engines=found, default="exact", sampler=MixtureSampler, presentation=PRESENTATIONS[model]
        )
        for model, found in _COUNTS.items()
    ),
)
