"""What a likelihood of one entry given its natural parameter says of itself: :mod:`ppl_models.likelihoods` has them."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from torch import Tensor

from ppl_models.core.expectations import NODES, hermite


class Likelihood(abc.ABC):
    """p(x | eta) of one entry x, whatever shape tensors of entries have."""

    #: What x holds, as ``Model.data_kind`` says it.
    kind: ClassVar[str]
    #: Whether eta is one number an entry, or a vector, its last axis.
    is_vector: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def refusal(self) -> tuple[str, str]:
        """What is said of entries that are not :meth:`valid` ("5 entries ..."), and what is expected instead."""

    @abc.abstractmethod
    def valid(self, x: Tensor) -> Tensor:
        """Whether entries have positive probability, bool."""

    @abc.abstractmethod
    def distribution(self, eta: Tensor) -> Any:
        """As a Pyro distribution."""

    @abc.abstractmethod
    def mean(self, eta: Tensor) -> Tensor:
        """E[x | eta]; of categories, in place of x, E of its indicators: their probabilities."""

    @abc.abstractmethod
    def log_prob(self, x: Tensor, eta: Tensor) -> Tensor:
        """log p(x | eta)."""

    def expected_log_prob(self, x: Tensor, mean: Tensor, variance: Tensor, *, nodes: int = NODES) -> Tensor:
        """E[log p(x | eta)] under eta ~ N(mean, variance), components independent; by Gauss-Hermite quadrature."""
        node, weight = (part.to(mean) for part in hermite(nodes))
        return self.log_prob(x.unsqueeze(-1), mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * node) @ weight


class ExponentialFamily(Likelihood):
    """log p(x | eta) = (T(x) . eta - A(eta)) / phi + log h(x)."""

    #: phi.
    dispersion: float = 1.0

    def statistic(self, x: Tensor) -> Tensor:
        """T(x): by default x."""
        return x

    @abc.abstractmethod
    def log_base(self, x: Tensor) -> Tensor:
        """log h(x)."""

    @abc.abstractmethod
    def log_normaliser(self, eta: Tensor) -> Tensor:
        """A(eta). Its gradient is ``mean``."""

    @abc.abstractmethod
    def curvature(self, eta: Tensor) -> Tensor:
        """A''(eta), of a vector the Hessian (..., C, C)."""

    @abc.abstractmethod
    def natural(self, mean: Tensor) -> Tensor:
        """eta from what ``mean`` gives: of counts of n draws from the probabilities, their mean over n. Finite at the
        edges, which are moved inwards by rounding."""

    @abc.abstractmethod
    def with_mean(self, mean: Tensor) -> Any:
        """The Pyro distribution of what ``natural`` takes: of a mixture, whose means mix and whose eta do not."""

    def log_prob(self, x: Tensor, eta: Tensor) -> Tensor:
        product = self.statistic(x) * eta
        linear = product.sum(-1) if self.is_vector else product
        return (linear - self.log_normaliser(eta)) / self.dispersion + self.log_base(x)
