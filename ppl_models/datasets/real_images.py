"""Real-valued image problems: pictures that add up, and noise (003, CVQ's experiments in kind)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ppl_models.core.errors import ModelError
from ppl_models.datasets.images import Generated, pixels


def sample_cvq(
    truth: dict[str, Tensor], num_rows: int, *, seed: int = 0, image_shape: tuple[int, int] | None = None
) -> Generated:
    """Draw rows from a cooperative vector quantizer with the given source_prior, weight and scale."""
    if num_rows < 1:
        raise ModelError(f"num_rows = {num_rows}, expected at least 1")
    generator = torch.Generator().manual_seed(seed)
    weight = truth["weight"]
    source = torch.bernoulli(truth["source_prior"].expand(num_rows, -1), generator=generator)
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
    """Image separation (003, "Variational EM, results" in kind): six shaded drawings, added up at random, and noise.

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
