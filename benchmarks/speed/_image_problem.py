"""The IMG problem: 2000 rows of 8x8 images, each the noisy OR of eight patterns; and how a fit of it is judged."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from custom_inference.core.local_inference import log_likelihood
from ppl_models import NOCA
from ppl_models.datasets import image_patterns
from ppl_models.distributions import NoisyOr

NUM_ROWS, NUM_FEATURES, NUM_SOURCES = 2000, 64, 8
PRIOR, LOADING, LEAK = 0.25, 0.9, 0.01


def true_parameters() -> tuple[dict[str, Tensor], str]:
    """pi = .25, p = .9 on the pattern, leak = .01, and where the pattern is from.

    From noisyor_bench/IMG.npz (the paper's own image set) where PPL_DATA is set, else this suite's drawings.
    """
    folder = os.environ.get("PPL_DATA")
    if folder:
        with np.load(Path(folder) / "noisyor_bench" / "IMG.npz") as archive:
            pattern, origin = torch.tensor(archive["failure"] < 0.5), "IMG.npz"
    else:
        pattern, origin = image_patterns(1).truth["loading"] > 0, "image_patterns"
    truth = {
        "source_prior": torch.full((NUM_SOURCES,), PRIOR, dtype=torch.float64),
        "loading": pattern.to(torch.float64) * LOADING,
        "leak": torch.full((NUM_FEATURES,), LEAK, dtype=torch.float64),
    }
    return truth, origin


def draw(truth: dict[str, Tensor], seed: int) -> Tensor:
    """A fresh data set, (2000, 64), float64."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.bernoulli(truth["source_prior"].expand(NUM_ROWS, -1), generator=generator)
    return torch.bernoulli(NoisyOr(source, truth["loading"], truth["leak"]).probs, generator=generator)


def exact_log_likelihood(params: dict[str, Tensor], x: Tensor) -> float:
    """Mean over the rows of log p(x_n), by enumeration, for parameters from any program."""
    safe = {name: value.to(torch.float64).clamp(1e-7, 1 - 1e-7) for name, value in params.items()}
    model = NOCA(num_components=len(safe["source_prior"]), num_features=x.shape[1])
    return float(log_likelihood(model, safe, model.prepare(x, dtype=torch.float64), bound="exact").mean())


def matched(truth: dict[str, Tensor], found: dict[str, Tensor]) -> int:
    """Sources found, by both criteria at once, of the best one-to-one matching.

    |delta log failure| <= 1 in every feature with a prior above .02 (the criterion of Buhai et al. 2020), and a cosine
    above .95 between the loadings.
    """
    loading = found["loading"].to(torch.float64)
    failure, true_failure = (1 - p.clamp(0, 1 - 1e-7) for p in (loading, truth["loading"]))
    distance = (failure.log()[None] - true_failure.log()[:, None]).abs().amax(-1)
    unit = torch.nn.functional.normalize
    cosine = unit(truth["loading"], dim=-1) @ unit(loading, dim=-1).T
    good = (distance <= 1) & (cosine > 0.95) & (found["source_prior"] > 0.02)
    left, right = linear_sum_assignment(-good.numpy().astype(float))
    return int(good.numpy()[left, right].sum())
