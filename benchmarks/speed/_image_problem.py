"""The IMG problem: 2000 rows of 8x8 images, each the noisy OR of eight patterns."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
