"""Problems for the aspect Bernoulli model: pictures that mix, and admixed genomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_models.core.errors import ModelError
from ppl_models.datasets.images import Generated, patterns


def sample_aspects(
    aspect_probability: Tensor,
    num_rows: int,
    *,
    concentration: float | Tensor = 1.0,
    total_count: int = 1,
    seed: int = 0,
    coords: dict[str, list[Any]] | None = None,
    image_shape: tuple[int, int] | None = None,
) -> Generated:
    """Draw rows from an aspect Bernoulli model: s_n ~ Dirichlet(concentration), x ~ Binomial(total_count, s_n a)."""
    if num_rows < 1 or total_count < 1:
        raise ModelError(f"num_rows = {num_rows} and total_count = {total_count}, expected at least 1")
    rng, num_components = np.random.default_rng(seed), aspect_probability.shape[0]
    alpha = np.broadcast_to(np.asarray(concentration, dtype=float), (num_components,))
    membership = rng.dirichlet(alpha, num_rows)
    probability = np.clip(membership @ aspect_probability.double().numpy(), 0.0, 1.0)
    x = torch.as_tensor(rng.binomial(total_count, probability), dtype=torch.get_default_dtype())
    truth = {"aspect_probability": aspect_probability.to(x), "membership": torch.as_tensor(membership).to(x)}
    return Generated.of(x, truth, coords, image_shape=image_shape)


def aspect_images(
    n: int = 2000, seed: int = 0, *, concentration: float = 0.3, on: float = 0.9, off: float = 0.03
) -> Generated:
    """Images of 8x8 pixels, every pixel from one of eight drawn patterns in the image's own proportions."""
    drawn, coords = patterns()
    aspect = off + (on - off) * drawn
    return sample_aspects(aspect, n, concentration=concentration, seed=seed, coords=coords, image_shape=(8, 8))


def admixture(
    n: int = 500,
    num_features: int = 9915,
    num_components: int = 5,
    seed: int = 0,
    *,
    fst: float = 0.1,
    concentration: float = 0.2,
) -> Generated:
    """Genotypes (counts of two) of admixed individuals: allele frequencies by Balding and Nichols (Genetica 96, 1995).

    Ancestral frequency p_t ~ Uniform(.05, .95), a_kt ~ Beta(p_t (1 - F) / F, (1 - p_t) (1 - F) / F) with F = ``fst``.
    Every feature varies among the individuals drawn: constant ones are replaced by further draws.
    """
    rng = np.random.default_rng(seed)
    membership = rng.dirichlet(np.full(num_components, concentration), n)
    kept: list[np.ndarray] = []
    aspects: list[np.ndarray] = []
    while sum(x.shape[1] for x in kept) < num_features:
        ancestral = rng.uniform(0.05, 0.95, num_features)
        odds = (1 - fst) / fst
        aspect = rng.beta(ancestral * odds, (1 - ancestral) * odds, (num_components, num_features))
        x = rng.binomial(2, np.clip(membership @ aspect, 0.0, 1.0))
        varies = x.min(0) < x.max(0)
        kept.append(x[:, varies])
        aspects.append(aspect[:, varies])
    dtype = torch.get_default_dtype()
    x = torch.as_tensor(np.concatenate(kept, 1)[:, :num_features], dtype=dtype)
    aspect = torch.as_tensor(np.concatenate(aspects, 1)[:, :num_features], dtype=dtype)
    truth = {"aspect_probability": aspect, "membership": torch.as_tensor(membership, dtype=dtype)}
    return Generated.of(x, truth)
