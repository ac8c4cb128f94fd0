"""Correlated topic models and what shares their Gaussian logits: variational EM, Laplace, collapsed Gibbs sampling."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.presentation import Params
from custom_inference.core.registry import Family
from custom_inference.families.correlated.chain import CorrelatedSampler
from custom_inference.families.correlated.gaussian import CorrelatedGaussian
from custom_inference.families.correlated.laplace import CorrelatedLaplace
from custom_inference.families.correlated.propose import CorrelatedProposals
from custom_inference.families.rows.documents import ByCells
from custom_inference.families.topics import OF_TOPICS, num_words
from custom_inference.gibbs import CollapsedGibbs
from ppl_models import CTM, RandomEffectsLDA
from ppl_models.ctm import LogisticNormalTopics


def _at_the_mean(model: LogisticNormalTopics, params: Params) -> Tensor:
    """A topic's share of the mean document, softmax(mu) at the mean logits; of random effects at covariates of 1."""
    mean = params["mean"]
    return torch.softmax(mean if mean.ndim == 1 else mean.sum(0), -1)


OF_CORRELATED_TOPICS = replace(
    OF_TOPICS,
    local="topic logit",
    share=None,
    prominence=_at_the_mean,
    columns=lambda model, params: {"share at the mean": _at_the_mean(model, params), "words": num_words(params)},
)
#: One chain, long enough to forget its start: what the default runs.
SAMPLED = partial(CollapsedGibbs, chains=1, warmup=50, num_samples=44, thin=4)

_RECORD: dict[str, Any] = {
    "engines": {"gaussian": CorrelatedGaussian, "laplace": CorrelatedLaplace},
    "search": CorrelatedProposals,
    "stages": ("the best of short runs of EM",),
    "sampler": CorrelatedSampler,
    "methods": {"gibbs": SAMPLED},
    "default": "gibbs",
    "by_size": ByCells("gaussian"),
    "own_threads": True,
    "presentation": OF_CORRELATED_TOPICS,
}
FAMILIES = tuple(Family(model=model, **_RECORD) for model in (CTM, RandomEffectsLDA))
