"""Mixtures, whose rows each have one class: exact EM, variational Bayes, collapsed Gibbs, for every likelihood."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from custom_inference.core.presentation import Params, Presentation
from custom_inference.core.registry import Family
from custom_inference.families.mixtures.engines import MixtureExact, MixtureVB
from custom_inference.families.mixtures.gibbs import MixtureSampler
from ppl_models import (
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
)


def _words(params: Params) -> dict[str, Tensor]:
    """The number of words that each topic spreads over: the exponential of its entropy."""
    return {"words": torch.exp(torch.special.entr(params["topic"]).sum(-1))}


def _present(
    value: str, local: str = "P(class | row)", more: Callable[[Params], dict[str, Tensor]] = lambda _: {}
) -> Presentation:
    """Prominence: the proportion of the rows that each class draws."""
    return Presentation(
        value=value,
        local=local,
        prominence=lambda _, params: params["mixing_proportion"],
        columns=lambda _, params: {"proportion": params["mixing_proportion"], **more(params)},
    )


_PRESENTATIONS = {
    MixtureOfBernoullis: _present("P(feature on | class)"),
    MixtureOfCategoricals: _present("P(category | component)"),
    MixtureOfMultinomials: _present("P(word | topic)", "P(topic | document)", _words),
    MixtureOfMultinomialCounts: _present("P(word | topic)", "P(topic | document)", _words),
    MixtureOfPoissons: _present("expected count", more=lambda params: {"counts per row": params["rate"].sum(-1)}),
}

_ENGINES = {"exact": MixtureExact, "vb": MixtureVB}
_STAGES = ("rows as centres of classes, merged", "splits and merges")
#: At the maximum the probability of what a class has not shown is 0, and rows that show it cost much: the posterior
#: means of variational Bayes predict better. Default priors of the others favour such values, or make no difference.
_BY_PROBABILITIES = (MixtureOfBernoullis, MixtureOfCategoricals)
FAMILIES = tuple(
    Family(
        model=model,
        engines=_ENGINES,
        stages=_STAGES,
        default="vb" if model in _BY_PROBABILITIES else "exact",
        sampler=MixtureSampler,
        own_threads=True,
        presentation=presentation,
    )
    for model, presentation in _PRESENTATIONS.items()
)
