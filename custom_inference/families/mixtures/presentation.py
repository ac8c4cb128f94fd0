"""What figures and reports say of mixtures."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from custom_inference.core.presentation import Presentation
from ppl_models import (
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
)


def _words(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The number of words that each topic spreads over: the exponential of its entropy."""
    return {"words": torch.exp(-torch.xlogy(params["topic"], params["topic"]).sum(-1))}


def _of_rows(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"counts per row": params["rate"].sum(-1)}


def _presented(value: str, local: str, more: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> Presentation:
    """Classes by the share of the rows that each draws."""
    return Presentation(
        value=value,
        local=local,
        prominence=lambda _, params: params["mixing_proportion"],
        columns=lambda _, params: {"proportion": params["mixing_proportion"], **more(params)},
    )


PRESENTATIONS = {
    MixtureOfBernoullis: _presented("P(feature on | class)", "P(class | row)", lambda _: {}),
    MixtureOfCategoricals: _presented("P(category | component)", "P(class | row)", lambda _: {}),
    MixtureOfMultinomials: _presented("P(word | topic)", "P(topic | document)", _words),
    MixtureOfMultinomialCounts: _presented("P(word | topic)", "P(topic | document)", _words),
    MixtureOfPoissons: _presented("expected count", "P(class | row)", _of_rows),
}
