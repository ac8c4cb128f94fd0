"""The rows of exponential-family PCA as its engines read them, and what they work on at given globals.

See :mod:`custom_inference.families.factors.natural` for the notation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.natural import Normaliser, Separate, Softmax
from custom_inference.families.rows.matrix import MatrixRows
from ppl_models import Data, ExponentialFamilyPCA, Model
from ppl_models.categorical_pca import ABSENT, CategoricalPCA
from ppl_models.core.likelihood import Likelihood
from ppl_models.data import sparse
from ppl_models.likelihoods import Bernoulli, Gaussian, Poisson


class ScoreProblem(NamedTuple):
    """log p(x_n, s_n) of rows at given globals. target (N, G, C), total (N, G), base (N,), offset (N,) or None;
    weight (K, G, C), bias (G, C)."""

    target: Tensor
    total: Tensor
    base: Tensor
    offset: Tensor | None
    weight: Tensor
    bias: Tensor
    prior: Normal
    normaliser: Normaliser

    def eta(self, score: Tensor) -> Tensor:
        """Compute the natural parameters (N, G, C) at scores (N, K)."""
        own = (score @ self.weight.flatten(1)).view(len(score), *self.bias.shape) + self.bias
        return own if self.offset is None else own + self.offset.view(-1, 1, 1)

    def log_likelihood(self, eta: Tensor, normaliser: Tensor) -> Tensor:
        """Compute the log-likelihood (N,) at natural parameters (N, G, C) and values of A (N, G)."""
        return (self.target * eta).sum((1, 2)) - (self.total * normaliser).sum(1) + self.base


def units_of(model: Model) -> tuple[float, float]:
    """Return centre and unit of the entries; 0 and 1 where these are not real numbers."""
    return model.units if isinstance(model, ExponentialFamilyPCA) else (0.0, 1.0)


def in_units(units: tuple[float, float], weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Convert weights and biases of x to those of (x - centre) / unit."""
    centre, unit = units
    return (weight, bias) if units == (0.0, 1.0) else (weight / unit, (bias - centre) / unit)


def categories_of(model: Model) -> tuple[int, ...]:
    """Return how many categories each feature has; () of models of numbers or words."""
    return model.categories if isinstance(model, CategoricalPCA) else ()


def normaliser_of(
    likelihood: Likelihood, categories: tuple[int, ...], num_features: int, device: torch.device
) -> Normaliser:
    """Return A and its derivatives, of a model's likelihood whatever the rows."""
    if likelihood.kind == "documents":
        return Softmax(torch.ones(1, num_features, device=device))
    if categories:
        sizes = torch.tensor(categories, device=device)
        return Softmax((torch.arange(max(categories), device=device) < sizes.unsqueeze(-1)).float())
    kinds = {Poisson: Poisson(), Gaussian: Gaussian()}
    return Separate(kinds.get(type(likelihood), Bernoulli()))


@dataclass(frozen=True)
class FactorRows(MatrixRows):
    """The data as the engines of these models read them. base: log h(x_n), (N,). offset: (N,), None where all are 0.
    likelihood, categories: how x is read: its likelihood, and of categories how many each feature has. units: centre c
    and unit u of real entries, which are (x - c) / u here, as is all that the engines reckon with."""

    base: Any = None
    offset: Tensor | None = None
    likelihood: Any = None
    categories: tuple[int, ...] = ()
    units: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def read(cls, model: Any, data: Data) -> FactorRows:
        categories, likelihood, (centre, unit) = categories_of(model), model.likelihood, units_of(model)
        x = data.x
        if (centre, unit) != (0.0, 1.0):
            x, likelihood = (x - centre) / unit, Gaussian(likelihood.scale / unit)
        x = x if data.mask is None else x.masked_fill(~data.mask, 0.0)
        settings: dict[str, Any] = {"likelihood": likelihood, "categories": categories, "units": (centre, unit)}
        made = cls(x, data.mask, offset=data.others.get("offset"), **settings)
        return replace(made, base=torch.cat([part.log_base() for _, part in made.parts(1024)]))

    @cached_property
    def x(self) -> Tensor:
        """(N, D), dense."""
        return sparse.dense(self.like)

    def log_base(self) -> Tensor:
        """log h(x_n), (N,)."""
        if self.categories:
            return self.x.new_zeros(len(self))
        value = self.likelihood.log_base(self.x) - math.log(self.units[1])
        if self.likelihood.kind == "documents":
            return value
        return (value if self.observed is None else value * self.observed).sum(-1)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return T (N, G, C) and L (N, G)."""
        x, seen = self.x, torch.ones_like(self.x) if self.observed is None else self.observed
        if self.likelihood.kind == "documents":
            return x.unsqueeze(1), x.sum(1, keepdim=True)
        if self.categories:
            return self.likelihood.statistic(x) * seen.unsqueeze(-1), seen
        scale = 1 / self.likelihood.dispersion
        return scale * x.unsqueeze(-1), scale * getattr(self.likelihood, "total", 1) * seen

    @property
    def shape(self) -> tuple[int, int]:
        """G, C."""
        if self.likelihood.kind == "documents":
            return 1, self.like.shape[1]
        return self.like.shape[1], max(self.categories, default=1)

    def normaliser(self) -> Normaliser:
        return normaliser_of(self.likelihood, self.categories, self.like.shape[1], self.like.device)

    def problem(self, model: Model, params: dict[str, Tensor], temperature: float = 1.0) -> ScoreProblem:
        """Return the problem of the scores of these rows, with the likelihood to the power of a temperature."""
        target, total = self.statistics()
        normaliser, (weight, bias) = self.normaliser(), in_units(self.units, params["weight"], params["bias"])
        bias = bias.view(self.shape)
        if self.categories and normaliser.present is not None:
            bias = torch.where(normaliser.present.bool(), bias, torch.full_like(bias, ABSENT))
        target, total, base = (temperature * part for part in (target, total, self.base))
        weight = weight.view(len(weight), *self.shape)
        return ScoreProblem(
            target,
            total,
            base,
            self.offset,
            weight,
            bias,
            Normal.of(model, "score", model.local_shape, weight),
            normaliser,
        )
