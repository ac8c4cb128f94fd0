"""Topics that change over time: Gaussian walks of their words' logits, by bounds and by Laplace's method."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.presentation import Params, Presentation
from custom_inference.core.registry import Family
from custom_inference.em.method import VariationalEM
from custom_inference.em.search import Search
from custom_inference.families.dynamics.cvb0 import DynamicCvb0, DynamicProposals
from custom_inference.families.dynamics.gaussian import DynamicGaussian
from custom_inference.families.topics.tokens import token_filter
from ppl_models import DTM, Data


def _mean_topics(model: DTM, params: Params) -> Tensor:
    """The mean of a topic's word probabilities over the slices, (K, V)."""
    return model.topics(params).mean(-3)


def _share(model: DTM, params: Params, data: Data, mean: Tensor) -> Tensor:
    """The documents' mean proportions, each by its tokens."""
    tokens = model.given(data)["num_tokens"].to(mean)
    return (tokens @ mean) / tokens.sum().clamp(min=1)


def _columns(model: DTM, params: Params) -> dict[str, Tensor]:
    """How many words a topic spreads over, and the total variation between its first and last slice."""
    mean, topics = _mean_topics(model, params), torch.softmax(params["topic_logit"], -1)
    changed = (topics[-1] - topics[0]).abs().sum(-1) / 2
    return {"words": torch.exp(-torch.xlogy(mean, mean).sum(-1)), "change": changed}


def _words(model: DTM, features: Sequence[Any]) -> list[Any]:
    del model
    return list(features)


OF_DYNAMIC_TOPICS = Presentation(
    value="P(word | topic)", local="topic proportion", matrix=_mean_topics, labels=_words, share=_share,
    prominence=lambda model, params: _mean_topics(model, params).sum(-1), columns=_columns,
)  # fmt: skip

FAMILIES = (
    Family(
        model=DTM,
        engines={"gaussian": DynamicGaussian, "cvb0": DynamicCvb0},
        search=DynamicProposals,
        stages=("static topics by EM",),
        default="cvb0",
        # The estimate of the evidence rises slowly for long after topics and drift have settled.
        methods={
            "cvb0": partial(
                VariationalEM, guide="cvb0", max_iterations=20, tolerance=2e-3, search=Search(settle=4, climb=100)
            )
        },
        estimator=token_filter,
        presentation=OF_DYNAMIC_TOPICS,
    ),
)
