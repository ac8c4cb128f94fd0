"""Image problems: sources that are pictures, mixed by a noisy OR (in the spirit of 000, Fig. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppl_models.core.errors import ModelError
from ppl_models.data.matrix import Data
from ppl_models.distributions import NoisyOr

# Drawn for this suite: eight patterns of 8x8 that overlap pairwise, and the leak's faint corners.
_PATTERNS = {
    "cross": "...##... ...##... ...##... ######## ######## ...##... ...##... ...##...",
    "frame": "######## #......# #......# #......# #......# #......# #......# ########",
    "diagonal": "##...... ###..... .###.... ..###... ...###.. ....###. .....### ......##",
    "stripes": "######## ........ ........ ######## ........ ........ ######## ........",
    "box": "........ ........ ..####.. ..####.. ..####.. ..####.. ........ ........",
    "left": "###..... ###..... ###..... ###..... ###..... ###..... ###..... ###.....",
    "triangle": ".......# ......## .....### ....#### ...##### ..###### .####### ########",
    "dots": "........ .##..##. .##..##. ........ ........ .##..##. .##..##. ........",
}
_LEAK = "#......# ........ ........ ........ ........ ........ ........ #......#"

Labels = dict[str, list[Any]]


@dataclass(frozen=True)
class Generated:
    """Data with the parameters and the sources they were drawn from, and labels for the axes."""

    data: Data
    truth: dict[str, Tensor]
    coords: Labels
    image_shape: tuple[int, int] | None = None

    @classmethod
    def of(cls, x: Tensor, truth: dict[str, Tensor], coords: Labels | None = None, **settings: Any) -> Generated:
        """The data have the labels of all axes but the component's."""
        kept = {axis: labels for axis, labels in (coords or {}).items() if axis != "component"}
        return cls(data=Data(x=x, coords=kept), truth=truth, coords=coords or {}, **settings)

    @property
    def x(self) -> Tensor:
        return self.data.x


def pixels(height: int, width: int) -> list[str]:
    """Labels of the features of an image."""
    return [f"r{i}c{j}" for i in range(height) for j in range(width)]


def patterns() -> tuple[Tensor, Labels]:
    """The drawn patterns (8, 64) of 0 and 1, and what they and their pixels are called."""
    coords = {"component": list(_PATTERNS), "feature": pixels(8, 8)}
    return torch.stack([_picture(text) for text in _PATTERNS.values()]), coords


def _picture(text: str) -> Tensor:
    return torch.tensor([[c == "#" for c in line] for line in text.split()], dtype=torch.get_default_dtype()).flatten()


def sample_noca(
    truth: dict[str, Tensor],
    num_rows: int,
    *,
    seed: int = 0,
    coords: Labels | None = None,
    image_shape: tuple[int, int] | None = None,
) -> Generated:
    """Draw rows from a noisy-or component model with the given source_prior, loading and leak."""
    if num_rows < 1:
        raise ModelError(f"num_rows = {num_rows}, expected at least 1")
    generator = torch.Generator().manual_seed(seed)
    prior = truth["source_prior"]
    source = torch.bernoulli(prior.expand(num_rows, -1), generator=generator)
    x = torch.bernoulli(NoisyOr(source, truth["loading"], truth["leak"]).probs, generator=generator)
    return Generated.of(x, {**truth, "source": source}, coords, image_shape=image_shape)


def image_patterns(
    n: int = 1000,
    seed: int = 0,
    *,
    source_prior: float = 0.25,
    loading: float = 0.9,
    leak: float = 0.01,
    corner_leak: float = 0.1,
) -> Generated:
    """Images of 8x8 pixels, each the noisy OR of eight drawn patterns, in the spirit of 000, Fig. 4.

    source_prior: probability of each pattern in an image. loading: probability that a pixel of a present
    pattern is on. leak: probability that any pixel is on by itself; corner_leak: the same for the four corners,
    the leak's own pattern (the ninth picture of Fig. 4).
    """
    drawn, coords = patterns()
    truth = {
        "source_prior": torch.full((len(drawn),), source_prior),
        "loading": drawn * loading,
        "leak": leak + (corner_leak - leak) * _picture(_LEAK),
    }
    return sample_noca(truth, n, seed=seed, coords=coords, image_shape=(8, 8))


def overlapping_boxes(
    n: int = 5000,
    seed: int = 0,
    *,
    num_sources: int = 32,
    side: int = 16,
    mean_active: float = 2.5,
    loading: float = 0.9,
    leak: float = 0.01,
) -> Generated:
    """A problem beyond enumeration: random boxes and frames of 3 to 6 pixels a side on a ``side`` x ``side`` grid."""
    generator = torch.Generator().manual_seed(seed)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    pictures: list[Tensor] = []
    while len(pictures) < num_sources:
        height, width = between(3, 7), between(3, 7)
        top, left = between(0, side - height + 1), between(0, side - width + 1)
        picture = torch.zeros(side, side)
        picture[top : top + height, left : left + width] = 1
        if between(0, 2):
            picture[top + 1 : top + height - 1, left + 1 : left + width - 1] = 0
        if not any(torch.equal(picture.flatten(), other) for other in pictures):
            pictures.append(picture.flatten())
    truth = {
        "source_prior": torch.full((num_sources,), mean_active / num_sources),
        "loading": torch.stack(pictures) * loading,
        "leak": torch.full((side * side,), leak),
    }
    return sample_noca(truth, n, seed=seed, coords={"feature": pixels(side, side)}, image_shape=(side, side))
