"""What the engine and the sampler of mixtures ask of the densities of the classes."""

from __future__ import annotations

import abc
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior
from custom_inference.families.mixtures.common import Distances, squared_distances
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse
from ppl_models.likelihoods import ExponentialFamily

#: Parameters, each (K, F), of the conjugate prior of the component site, and of its posterior, which has the same form.
Conjugate = tuple[Tensor, ...]
#: w (K, F) and r (K, D) of ``MixtureRows.table``: at given components, or expected under their posterior.
Natural = tuple[Tensor, Tensor | None]
#: Random starts draw the classes' counts around the mean row's: as Gamma variables of this shape.
_SHAPE = 3.0


@dataclass(frozen=True)
class Density(abc.ABC):
    """The class-conditional density of one model: x_n | class k, with the component site its means.

    ``counts`` and ``observed`` are S (K, F) and M (K, D) above, M (K, 1) where nothing is missing.
    """

    site: str
    likelihood: ExponentialFamily

    #: The posterior of the component site, with the parameters of ``Conjugate``.
    kind: ClassVar[type[Any]]
    #: All parameters of a prior under which ``mode`` is maximum likelihood.
    flat_at: ClassVar[float] = 0.0
    #: Components are kept this far off their edges; those of informed starts by so much.
    floor: ClassVar[float] = 1e-12
    floor_of_centres: ClassVar[float] = 1e-12
    #: Informed starts begin with so many times as many classes, which are merged.
    excess: ClassVar[int] = 3

    @classmethod
    def of(cls, model: Any) -> Self:
        return cls(model.component_site, model.likelihood)

    @property
    def names(self) -> tuple[str, ...]:
        """What the parameters of the posterior are called."""
        return tuple(one.name for one in fields(self.kind))

    def rows(self, data: Data) -> MixtureRows:
        return MixtureRows.of_entries(data, self.likelihood)

    def distances(self, rows: MixtureRows) -> tuple[Distances, Tensor]:
        """How different rows are; and their weights (N,)."""
        return squared_distances(rows.counts), torch.ones_like(rows.base)

    def scaled(self, rows: MixtureRows) -> Tensor:
        """Counts (N, F), dense, of which every row weighs the same."""
        return _sparse.dense(rows.counts)

    def scaled_mean(self, rows: MixtureRows) -> Tensor:
        """The mean row (F,) on that scale."""
        return rows.mean

    def natural(self, value: Tensor) -> Natural:
        """Natural parameter and log-normaliser."""
        eta = self.likelihood.natural(value)
        return eta, self.likelihood.log_normaliser(eta)

    @abc.abstractmethod
    def mode(self, prior: Conjugate, counts: Tensor, observed: Tensor, *, floor: float | None = None) -> Tensor:
        """The component site by maximum a posteriori."""

    @abc.abstractmethod
    def log_prior(self, prior: Conjugate, value: Tensor) -> Tensor:
        """The log prior density that ``mode`` goes with."""

    def random(self, rows: MixtureRows, size: int, generator: torch.Generator) -> Tensor:
        """A random component site of ``size`` classes: the mean row, every entry scaled at random."""
        concentration = torch.full((size, rows.counts.shape[1]), _SHAPE, dtype=torch.float64)
        noise = (torch._standard_gamma(concentration, generator=generator) / _SHAPE).to(rows.like)
        return self.mode(self.flat(noise), rows.mean * noise, torch.ones_like(noise))

    @abc.abstractmethod
    def prior(self, model: Model, like: Tensor) -> Conjugate:
        """The prior's parameters. Raises MethodError for priors that are not conjugate."""

    def flat(self, like: Tensor) -> Conjugate:
        """A prior under which ``mode`` is maximum likelihood, of the shape of ``like``: one that counts nothing in the
        basis of logarithms, so that small counts are not rounded by what is added and taken off again."""
        return tuple(torch.full_like(like, self.flat_at) for _ in self.names)

    def require_mode(self, model: Model, like: Tensor) -> None:  # noqa: B027 - an empty default is meant
        """Raises MethodError for priors under which ``mode`` is none; by default every prior has one in some basis."""

    @abc.abstractmethod
    def update(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Conjugate:
        """The parameters of the posterior of the component site."""

    @abc.abstractmethod
    def expected(self, posterior: Conjugate) -> Natural:
        """Natural parameter and log-normaliser, expected under the posterior."""

    @abc.abstractmethod
    def divergence(self, posterior: Conjugate, prior: Conjugate) -> Tensor:
        """KL of the posterior from the prior."""

    def posterior(self, parameters: Conjugate) -> ContinuousPosterior:
        return self.kind(*parameters)

    @abc.abstractmethod
    def log_marginal(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Tensor:
        """log of the likelihood of rows with these statistics, (..., F) and (..., D), component integrated out; (...).

        Of all features, or of those of ``informative``. Terms that do not depend on the rows' classes are left out.
        """

    def informative(self, counts: Tensor, most: int) -> Tensor:
        """The most frequent features, at most ``most``: enough to tell classes apart by."""
        total = counts.sum(0)
        return torch.arange(len(total)) if len(total) <= most else torch.topk(total, most).indices
