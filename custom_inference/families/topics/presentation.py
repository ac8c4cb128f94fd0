"""What figures and reports say of topic models and profiles of users."""

from __future__ import annotations

from dataclasses import replace

import torch

from custom_inference.core.presentation import Presentation, mean_share

_share = mean_share("topic_proportion")

#: The share of each topic, and the number of words it spreads over (the exponential of its entropy).
OF_TOPICS = Presentation(
    value="P(word | topic)",
    local="topic proportion",
    prominence=_share,
    columns=lambda model, params: {
        "share": _share(model, params),
        "words": torch.exp(-torch.xlogy(params["topic"], params["topic"]).sum(-1)),
    },
)
_membership = mean_share("membership")

OF_PROFILES = Presentation(
    value="P(category | component)",
    local="membership",
    prominence=_membership,
    columns=lambda model, params: {"share": _membership(model, params)},
)

#: A topic's share of the mean document, softmax(mu) at the mean logits.
OF_CORRELATED_TOPICS = replace(
    OF_TOPICS,
    local="topic logit",
    prominence=lambda _, params: torch.softmax(params["mean"], -1),
    columns=lambda _, params: {
        "share at the mean": torch.softmax(params["mean"], -1),
        "words": torch.exp(-torch.xlogy(params["topic"], params["topic"]).sum(-1)),
    },
)

OF_SUPERVISED_TOPICS = replace(
    OF_TOPICS, columns=lambda model, params: {"share": _share(model, params), "weight": params["response_weight"]}
)
