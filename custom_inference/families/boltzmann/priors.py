"""Priors of a harmonium's weights: their density and its slope in closed form where they are Gaussian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.distributions import MultivariateNormal

from custom_inference.core.engine import Params
from custom_inference.families.boltzmann.common import SITES
from custom_inference.families.conjugate.normal import Normal
from ppl_models import PriorError
from ppl_models.rbm import HarmoniumModel


@dataclass(frozen=True)
class GaussianPriors:
    """log p(theta) = -sum over sites (v - m)' P (v - m) / 2, up to a constant.

    mean: m. precision: P of Normal and flat priors, one number a weight. matrix: P of multivariate Normal ones, (D, D)
    or (..., D, D) over the last axis of the site, whose ``precision`` is 0.
    """

    mean: Params
    precision: Params
    matrix: Params

    @classmethod
    def of(cls, model: HarmoniumModel, like: Tensor) -> Self | None:
        """Read the Gaussian priors of a model; None where one is of another kind."""
        mean, precision, matrix = {}, {}, {}
        for site in SITES:
            prior, shape = model.priors[site], model.shapes[site]
            if isinstance(prior, MultivariateNormal):
                mean[site], precision[site] = prior.mean.to(like).expand(shape), like.new_zeros(shape)
                matrix[site] = prior.precision_matrix.to(like)
                continue
            try:
                mean[site], precision[site] = Normal.of(model, site, shape, like)
            except PriorError:
                return None
        return cls(mean, precision, matrix)

    def precisions(self) -> Params:
        """The diagonals of P, in the shapes of the sites."""
        return {site: one + self.matrix[site].diagonal(dim1=-2, dim2=-1) if site in self.matrix else one
                for site, one in self.precision.items()}  # fmt: skip

    def log_density(self, at: Params) -> Tensor:
        """log p(theta) without its constant, of every set of weights."""
        found = []
        for site, mean in self.mean.items():
            away = at[site] - mean.to(at[site])
            found.append((away * self.pull(site, away)).sum(tuple(range(-mean.ndim, 0))))
        return -0.5 * (found[0] + found[1] + found[2])

    def slope(self, site: str, value: Tensor) -> Tensor:
        """Compute the slope of log p(theta) in the weights of a site."""
        return -self.pull(site, value - self.mean[site].to(value))

    def pull(self, site: str, value: Tensor) -> Tensor:
        """P v."""
        if site in self.matrix:
            return multiply_last(self.matrix[site].to(value), value)
        return self.precision[site].to(value) * value


def priors_of(model: HarmoniumModel, weight_decay: float | None, rows: int, like: Tensor) -> GaussianPriors | None:
    """-N l |W|^2 / 2 where there is a weight decay l, else the model's priors; None where one is not Gaussian."""
    if weight_decay is None:
        return GaussianPriors.of(model, like)
    zeros = {site: like.new_zeros(model.shapes[site]) for site in SITES}
    return GaussianPriors(zeros, {**zeros, "weight": zeros["weight"] + rows * weight_decay}, {})


def multiply_last(matrix: Tensor, value: Tensor) -> Tensor:
    """Compute P v over the last axis of v, by one symmetric matrix or by one for each place before it."""
    return value @ matrix if matrix.ndim == 2 else (value.unsqueeze(-2) @ matrix).squeeze(-2)


def log_prior_of(model: HarmoniumModel, like: Tensor) -> Callable[[Params], Tensor]:
    """log p(theta) of every start; of Gaussian priors without its constant, in a tenth of the time."""
    gaussian = GaussianPriors.of(model, like.double())
    return model.log_prior if gaussian is None else gaussian.log_density
