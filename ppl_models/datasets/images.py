"""Image problems: sources that are pictures, mixed by a noisy OR (in the spirit of Singliar & Hauskrecht (2006), Fig.
4), or real-valued ones, added up, and noise (Diab 2020, CVQ's experiments in kind)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppl_models.core import displays
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
    def of(cls, x: Tensor, truth: dict[str, Any], coords: Labels | None = None, **settings: Any) -> Generated:
        """The data have the labels of all axes but the component's."""
        kept = {axis: labels for axis, labels in (coords or {}).items() if axis != "component"}
        values = {site: torch.as_tensor(value).to(x.dtype) for site, value in truth.items()}
        return cls(data=Data(x=x, coords=kept), truth=values, coords=coords or {}, **settings)

    @property
    def x(self) -> Tensor:
        return self.data.x

    def _repr_html_(self) -> str:
        return displays.with_truth("Generated", self.truth, self.data._repr_html_())


def pixels(height: int, width: int) -> list[str]:
    """Labels of the features of an image."""
    return [f"r{i}c{j}" for i in range(height) for j in range(width)]


def patterns() -> tuple[Tensor, Labels]:
    """The drawn patterns (8, 64) of 0 and 1, and what they and their pixels are called."""
    coords = {"component": list(_PATTERNS), "feature": pixels(8, 8)}
    return torch.stack([_picture(text) for text in _PATTERNS.values()]), coords


def _picture(text: str) -> Tensor:
    return torch.tensor([[c == "#" for c in line] for line in text.split()], dtype=torch.get_default_dtype()).flatten()


def _sources(prior: Tensor, num_rows: int, seed: int) -> tuple[Tensor, torch.Generator]:
    """Binary codes (N, K), and what draws the rest."""
    if num_rows < 1:
        raise ModelError(f"num_rows = {num_rows}, expected at least 1")
    generator = torch.Generator().manual_seed(seed)
    return torch.bernoulli(prior.expand(num_rows, -1), generator=generator), generator


def sample_noca(
    truth: dict[str, Tensor],
    num_rows: int,
    *,
    seed: int = 0,
    coords: Labels | None = None,
    image_shape: tuple[int, int] | None = None,
) -> Generated:
    """Draw rows from a noisy-or component model with the given source_prior, loading and leak."""
    source, generator = _sources(truth["source_prior"], num_rows, seed)
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
    """Images of 8x8 pixels, each the noisy OR of eight drawn patterns, in the spirit of Singliar & Hauskrecht (2006),
    Fig. 4.

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


def sample_cvq(
    truth: dict[str, Tensor], num_rows: int, *, seed: int = 0, image_shape: tuple[int, int] | None = None
) -> Generated:
    """Draw rows from a cooperative vector quantizer with the given source_prior, weight and scale."""
    source, generator = _sources(truth["source_prior"], num_rows, seed)
    weight = truth["weight"]
    noise = torch.randn(num_rows, weight.shape[1], generator=generator, dtype=weight.dtype)
    x = source @ weight + truth["scale"] * noise
    coords = None if image_shape is None else {"feature": pixels(*image_shape)}
    return Generated.of(x, {**truth, "source": source}, coords, image_shape=image_shape)


def bars(
    n: int = 2000,
    seed: int = 0,
    *,
    side: int = 8,
    source_prior: float | None = None,
    amplitude: float = 1.0,
    scale: float = 0.5,
) -> Generated:
    """The bars problem: images of ``side`` x ``side`` pixels, each the sum of some of its rows and columns, and noise.

    There are 2 * side bars, the horizontal ones first. Two facts make the problem harder than it looks: the horizontal
    bars add up to the same picture as the vertical ones, and bars of one orientation never overlap.

    source_prior: probability of each bar; by default 1 / side, so that an image shows two on average.
    amplitude: what a bar adds to its pixels. scale: standard deviation of the Gaussian noise.
    """
    if side < 2 or not amplitude > 0 or not scale > 0:
        raise ModelError(f"side = {side}, amplitude = {amplitude}, scale = {scale}; expected >= 2, > 0 and > 0")
    horizontal = torch.eye(side, dtype=torch.get_default_dtype())[:, :, None].expand(-1, -1, side)
    pictures = torch.cat([horizontal, horizontal.transpose(1, 2)]).reshape(2 * side, -1)
    truth = {
        "source_prior": torch.full((2 * side,), 1 / side if source_prior is None else source_prior).to(pictures),
        "weight": amplitude * pictures,
        "scale": torch.tensor(scale).to(pictures),
    }
    return sample_cvq(truth, n, seed=seed, image_shape=(side, side))


def mixed_images(
    n: int = 400, seed: int = 0, *, side: int = 24, source_prior: float = 0.4, scale: float = 0.5
) -> Generated:
    """Image separation (Diab 2020, "Variational EM, results" in kind): six shaded drawings, added up at random, and
    noise.

    The drawings have grey levels between 0 and 1 and overlap: a ball, a ring, a cross, a wave, a triangle, a checker.
    """
    if side < 8:
        raise ModelError(f"side = {side}, expected at least 8")
    drawings = _drawings(side)
    truth = {
        "source_prior": torch.full((len(drawings),), source_prior).to(drawings),
        "weight": drawings.flatten(1),
        "scale": torch.tensor(scale).to(drawings),
    }
    return sample_cvq(truth, n, seed=seed, image_shape=(side, side))


def _drawings(side: int) -> Tensor:
    """(6, side, side), values in [0, 1]."""
    line = torch.linspace(-1, 1, side, dtype=torch.get_default_dtype())
    down, across = torch.meshgrid(line, line, indexing="ij")
    radius = (down.square() + across.square()).sqrt()
    ball = (1 - (down + 0.25).square() - (across + 0.25).square()).clamp(min=0)
    ring = torch.exp(-((radius - 0.7) / 0.12).square())
    cross = torch.maximum(torch.exp(-((down - across) / 0.18).square()), torch.exp(-((down + across) / 0.18).square()))
    wave = 0.5 + 0.5 * torch.sin(2 * math.pi * across + 1.5 * down)
    triangle = ((down + 0.8) / 1.6).clamp(0, 1) * ((down > -0.8) & (down < 0.8) & (2 * across.abs() < down + 0.8))
    row, column = (torch.floor(1.999 * (axis + 1)) for axis in (down, across))
    checker = 0.8 * ((row + column) % 2)
    return torch.stack([ball, ring, cross, wave, triangle, checker])
