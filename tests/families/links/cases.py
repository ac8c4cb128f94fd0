"""A toy with links of which everything can be summed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ppl_models import RTM

#: Three documents of two or three tokens over three words: 2^8 topics of all tokens.
X = np.array([[2.0, 1, 0], [0, 2, 1], [1, 0, 1]])
PARAMS = {"topic": np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]]), "link_weight": np.array([2.0, 1.2])}
ALPHA, GAMMA = 0.7, 0.5


def toy(kind, directed=False, unknown=False, copies=1, **priors):
    """A model with known weights, its data and links (N, N)."""
    bias = 0.3 if kind == "additive" else -1.0
    links = np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
    if directed:
        links[0, 1], links[2, 0] = 0, 1
    if kind != "sigmoid":
        links[1, 2] *= 2
        links[2, 1] = links[2, 1] if directed else links[1, 2]
    if unknown:
        links[0, 2] = np.nan
        links[2, 0] = links[2, 0] if directed else np.nan
    settings: dict[str, Any] = {"link": kind, "directed": directed, "link_copies": copies, "link_on": "tokens"}
    model = RTM(num_topics=2, vocabulary_size=3, **settings)
    known = {"link_weight": torch.tensor(PARAMS["link_weight"]), "link_bias": torch.tensor(bias, dtype=torch.float64)}
    model = model.with_concentration(alpha=ALPHA, gamma=GAMMA).with_priors(**{**known, **priors})
    settings = {"kind": kind, "directed": directed, "copies": copies}
    return model, model.prepare(X, links=links, dtype=torch.float64), links, {**PARAMS, "link_bias": bias}, settings
