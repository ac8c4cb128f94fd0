"""Brute-force references for latent Dirichlet allocation (source 002, section 27.3). No project code.

    params["topic"] = b (K, V), the local is pi (N, K); see ``_topics`` for the notation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from tests.references import _topics
from tests.references._shared import Params, Prior, log_priors


def log_joint(
    params: Params,
    x: ArrayLike,
    local: ArrayLike,
    mask: ArrayLike | None = None,
    priors: Mapping[str, Prior] | None = None,
) -> float:
    """log p(b) + sum_i log p(pi_i) + sum_il log sum_k pi_ik b_{k y_il} (eqs. 27.18, 27.20 and 27.22), with the topics
    of the tokens summed out; a site that ``priors`` leaves out adds 0."""
    densities = log_priors({**params, "topic_proportion": np.asarray(local)}, priors)
    return float(_topics.log_likelihood(params["topic"], x, local, mask).sum()) + densities
