"""Brute-force references for PLSA (source 004, slides "Probabilistic Latent Semantic Analysis"). No project code.

    P(w | d) = sum_z P(w | z) P(z | d)     params["topic"] = P(w | z) (K, V), the local P(z | d) (N, K)
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
    """sum_d sum_w n(d, w) log P(w | d) + log priors; a site that ``priors`` leaves out is flat and adds 0."""
    densities = log_priors({**params, "topic_proportion": np.asarray(local)}, priors)
    return float(_topics.log_likelihood(params["topic"], x, local, mask).sum()) + densities
