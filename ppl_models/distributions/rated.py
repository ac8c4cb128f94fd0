"""The ratings of a user as one distribution, of sparse values; ratings on an ordered scale; priors side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all

from ppl_models.data import sparse as _sparse
from ppl_models.distributions.basic import Law, Shape


class SparseRatings(Law):
    """The ratings x (I,) that users gave: a product over the stored entries of a torch CSR tensor (U, I).

    predictor: (user (M,), item (M,)) -> (..., M), the linear predictors of ratings.
    entry: linear predictors -> the distribution of ratings.
    batch_shape: (..., U); num_items: I.
    """

    support: ClassVar[Any] = constraints.independent(constraints.real, 1)

    def __init__(self, predictor: Callable[[Tensor, Tensor], Tensor], entry: Callable[[Tensor], Any], shape: Shape):
        self.predictor, self.entry = predictor, entry
        super().__init__(torch.Size(shape[:-1]), torch.Size(shape[-1:]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        user, item, rating = _sparse.triplets(value)
        terms = self.entry(self.predictor(user, item)).log_prob(rating)
        return terms.new_zeros(*terms.shape[:-1], value.shape[0]).index_add(-1, user, terms)


class VaryingRatings(Law):
    """The ratings x (I,) that a user gave, Normal(eta_j, 1 / (a lambda_j)) with one a ~ Gamma(s, s), integrated out:

        log p = s log s - log Gamma(s) + log Gamma(s + J/2) + 1/2 sum_j log(lambda_j / 2 pi)
                - (s + J/2) log(s + 1/2 sum_j lambda_j (x_j - eta_j)^2),    J ratings: a multivariate t

    predictor: eta (..., U, I), with ``mask`` (U, I), True where x was observed; or of a torch CSR tensor, whose stored
    entries are the ratings, (user (M,), item (M,)) -> (..., M), with ``shape`` (..., U, I). precision: lambda (..., I).
    """

    support: ClassVar[Any] = constraints.independent(constraints.real, 1)

    def __init__(
        self, predictor: Any, precision: Tensor, size: float, mask: Tensor | None = None, shape: Shape | None = None
    ):
        self.predictor, self.precision, self.size, self.seen = predictor, precision, size, mask
        shape = torch.Size(predictor.shape if shape is None else shape)
        super().__init__(shape[:-1], shape[-1:], validate_args=False)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        shape = (*batch_shape, *self.event_shape)
        eta = self.predictor.expand(shape) if isinstance(self.predictor, Tensor) else self.predictor
        return type(self)(eta, self.precision, self.size, self.seen, shape)

    @property
    def mean(self) -> Tensor:
        return self.predictor

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            gamma = torch.distributions.Gamma(torch.tensor(self.size).to(self.predictor), self.size)
            spread = (gamma.sample(shape[:-1]).unsqueeze(-1) * self.precision.expand(shape[-1:])).rsqrt()
            return self.predictor + spread * torch.randn(shape).to(self.predictor)

    def log_prob(self, value: Tensor) -> Tensor:
        if _sparse.is_sparse(value):
            user, item, rating = _sparse.triplets(value)
            each = self.precision[..., item]
            error, logs = each * (rating - self.predictor(user, item)).square(), torch.log(each / (2 * math.pi))
            zero = error.new_zeros(*error.shape[:-1], value.shape[0])
            total, log = zero.index_add(-1, user, error), zero.index_add(-1, user, logs.expand(error.shape))
            count = value.crow_indices().diff().to(zero)
        else:
            error = self.precision * (value - self.predictor).square()
            seen = torch.ones_like(error) if self.seen is None else self.seen.to(error).expand(error.shape)
            total = torch.where(seen > 0, error, torch.zeros_like(error)).sum(-1)
            log, count = (seen * torch.log(self.precision / (2 * math.pi))).sum(-1), seen.sum(-1)
        size = torch.as_tensor(self.size).to(total)
        found = torch.xlogy(size, size) - torch.lgamma(size) + torch.lgamma(size + count / 2) + log / 2
        return found - (size + count / 2) * torch.log(size + total / 2)


class OrderedRating(Law):
    """One of the levels lowest, lowest + 1, ..., highest, by a logistic variable that is rounded to them:

        P(r <= c) = sigmoid((c + 1/2 - location) / scale),   c < highest

    The cumulative logit of McCullagh, *Regression models for ordinal data* (1980), with equidistant cuts.
    """

    arg_constraints: ClassVar[Any] = {"location": constraints.real, "scale": constraints.positive}
    own_axes: ClassVar[Mapping[str, int]] = {"location": 0, "scale": 0}

    def __init__(self, location: Tensor, scale: Tensor, lowest: int, highest: int, validate_args: bool | None = None):
        self.location, self.scale = torch.broadcast_tensors(location, scale)
        self.lowest, self.highest = lowest, highest
        super().__init__(self.location.shape, validate_args=False)

    @property
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return constraints.integer_interval(self.lowest, self.highest)

    def log_prob(self, value: Tensor) -> Tensor:
        """log(sigmoid(b) - sigmoid(a)) = log sigmoid(b) + log sigmoid(-a) + log(1 - e^(a - b)): no cancellation."""
        above, below = (value + 0.5 - self.location) / self.scale, (value - 0.5 - self.location) / self.scale
        top, bottom, log = value >= self.highest, value <= self.lowest, torch.nn.functional.logsigmoid
        zero = torch.zeros_like(above)
        inside = torch.log(-torch.expm1(-1 / self.scale))
        found = torch.where(top, zero, log(above)) + torch.where(bottom, zero, log(-below))
        return found + torch.where(top | bottom, zero, inside)

    @property
    def probs(self) -> Tensor:
        """The probability of every level, (..., C)."""
        levels = torch.arange(self.lowest, self.highest + 1).to(self.location)
        spread = OrderedRating(self.location.unsqueeze(-1), self.scale.unsqueeze(-1), self.lowest, self.highest)
        return spread.log_prob(levels).exp()

    @property
    def mean(self) -> Tensor:
        return self.probs @ torch.arange(self.lowest, self.highest + 1).to(self.location)

    @property
    def variance(self) -> Tensor:
        return self.probs @ torch.arange(self.lowest, self.highest + 1).to(self.location).square() - self.mean.square()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            drawn = torch.distributions.Categorical(probs=self.probs).sample(torch.Size(sample_shape))
            return drawn.to(self.location) + self.lowest


class SideBySide(Law):
    """A vector whose first entries have one distribution and whose last another, independently; both vectors."""

    def __init__(self, first: Distribution, last: Distribution):
        self.first, self.last = first, last
        batch = torch.Size(np.broadcast_shapes(first.batch_shape, last.batch_shape))
        size = torch.Size([first.event_shape[0] + last.event_shape[0]])
        super().__init__(batch, size, validate_args=False)

    @property
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        lengths = [self.first.event_shape[0], self.last.event_shape[0]]
        parts = [getattr(one.support, "base_constraint", one.support) for one in (self.first, self.last)]
        return constraints.real_vector if set(parts) == {constraints.real} else constraints.cat(parts, -1, lengths)

    @property
    def has_rsample(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.first.has_rsample and self.last.has_rsample

    @property
    def mean(self) -> Tensor:
        parts = [one.mean.expand(*self.batch_shape, -1) for one in (self.first, self.last)]
        return torch.cat(parts, -1)

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        return type(self)(self.first.expand(batch_shape), self.last.expand(batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        at = self.first.event_shape[0]
        return self.first.log_prob(value[..., :at]) + self.last.log_prob(value[..., at:])

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return torch.cat([one.expand(self.batch_shape).sample(sample_shape) for one in (self.first, self.last)], -1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return torch.cat([one.expand(self.batch_shape).rsample(sample_shape) for one in (self.first, self.last)], -1)


class InverseRootGamma(Law):
    """A standard deviation s whose precision s^-2 is Gamma(concentration, rate): conjugate to Gaussian noise."""

    arg_constraints: ClassVar[Any] = {"concentration": constraints.positive, "rate": constraints.positive}
    support: ClassVar[Any] = constraints.positive
    own_axes: ClassVar[Mapping[str, int]] = {"concentration": 0, "rate": 0}
    has_rsample = True

    def __init__(self, concentration: float | Tensor, rate: float | Tensor, validate_args: bool | None = None):
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """sqrt(rate) Gamma(a - 1/2) / Gamma(a); infinite for a up to 1/2."""
        found = (torch.lgamma(self.concentration - 0.5) - torch.lgamma(self.concentration)).exp() * self.rate.sqrt()
        return torch.where(self.concentration > 0.5, found, torch.inf)

    def _precision(self) -> torch.distributions.Gamma:
        return torch.distributions.Gamma(self.concentration, self.rate, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._precision().log_prob(value.pow(-2)) + math.log(2.0) - 3 * torch.log(value)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._precision().rsample(torch.Size(sample_shape)).rsqrt()
