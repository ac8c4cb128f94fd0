"""What tells the mixtures apart: the densities of their classes, with their conjugate priors.

With r_nk the posterior of the classes, S_kf = sum_n r_nk x_nf and M_kj = sum_n r_nk m_nj,

    multinomial, categorical    b proportional to S + gamma (softmax basis, some gamma < 1) or S + gamma - 1,
                                q(b_k) = Dirichlet(gamma + S_k)
    Poisson                     lambda = (S + a) / (M + b) (basis of log lambda, a < 1) or (S + a - 1) / (M + b),
                                q(lambda_kj) = Gamma(a + S_kj, b + M_kj)
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior, GammaPosterior
from custom_inference.families.common.dirichlet import (
    dirichlet_divergence,
    dirichlet_prior,
    expected_log,
    log_moment,
    log_prior_density,
    normalised,
    softmax_or_simplex,
)
from custom_inference.families.common.gamma import (
    GammaParameters,
    expected_log_gamma,
    gamma_divergence,
    gamma_log_density,
    gamma_log_marginal,
    gamma_mode,
    gamma_prior,
)
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse

#: Word probabilities, responses and rates are kept this far from 0.
FLOOR = 1e-12
#: Classes are merged by so many features at most.
_TELLING = 3000


class Natural(NamedTuple):
    """w (K, F) and r (K, D) of ``MixtureRows.table``: at given components, or expected under their posterior."""

    weight: Tensor
    rate: Tensor | None = None


def _for(prior: Tensor, like: Tensor) -> Tensor:
    """A prior (K, ...) for the classes of ``like``: their mean (1, ...) where it has another number of classes."""
    return prior if len(prior) == len(like) else prior.mean(0, keepdim=True)


class Family(abc.ABC):
    """The class-conditional density of one model.

    ``counts`` and ``observed`` are S (K, F) and M (K, D) above; M is None where a family has no use for it.
    """

    #: The component site.
    site: ClassVar[str]

    @classmethod
    @abc.abstractmethod
    def of(cls, model: Any) -> Family:
        """The family of a model."""

    @abc.abstractmethod
    def rows(self, data: Data) -> MixtureRows:
        """The data as counts."""

    @abc.abstractmethod
    def check(self, model: Model, like: Tensor) -> None:
        """Raises MethodError for priors that are not conjugate."""

    @abc.abstractmethod
    def natural(self, value: Tensor) -> Natural:
        """Of the component site."""

    @abc.abstractmethod
    def estimate(self, counts: Tensor, observed: Tensor | None) -> Tensor:
        """The component site by maximum likelihood."""

    @abc.abstractmethod
    def mode(self, model: Model, counts: Tensor, observed: Tensor | None) -> Tensor:
        """The component site by maximum a posteriori."""

    @abc.abstractmethod
    def log_prior(self, model: Model, value: Tensor) -> Tensor:
        """The log prior density that ``mode`` goes with."""

    @abc.abstractmethod
    def update(self, model: Model, counts: Tensor, observed: Tensor | None) -> Params:
        """The parameters of the posterior of the component site."""

    @abc.abstractmethod
    def log_marginal(
        self, model: Model, columns: Tensor, counts: Tensor, observed: Tensor, *, own: bool = False
    ) -> Tensor:
        """log of the likelihood of rows with these statistics, (..., F) and (..., D), component integrated out; (...).

        columns: which of all features these are. own: of the K classes, each under its own prior, and not of any
            classes under the mean of the priors. Terms that do not depend on the rows' classes are left out.
        """

    def telling(self, counts: Tensor) -> Tensor:
        """The most frequent features, at most ``_TELLING``: enough to tell classes apart by."""
        total = counts.sum(0)
        return torch.arange(len(total)) if len(total) <= _TELLING else torch.topk(total, _TELLING).indices

    @abc.abstractmethod
    def expected(self, params: Params) -> Natural:
        """Of the posterior with these parameters."""

    @abc.abstractmethod
    def divergence(self, model: Model, params: Params) -> Tensor:
        """KL of that posterior from the prior."""

    @abc.abstractmethod
    def posterior(self, params: Params) -> ContinuousPosterior:
        """That posterior."""

    @abc.abstractmethod
    def profile(self, rows: MixtureRows) -> tuple[Tensor, Tensor]:
        """Features (N, F) whose squared distances say how different rows are, and the weights (N,) of the rows."""

    def scaled(self, rows: MixtureRows) -> Tensor:
        """Counts (N, F), dense, of which every row weighs the same."""
        return _sparse.dense(rows.counts)

    def scaled_mean(self, rows: MixtureRows) -> Tensor:
        """The mean row (F,) on that scale."""
        return rows.mean


class _Simplices(Family):
    """Counts of the parts of ``groups`` simplices that lie side by side: words of topics, categories of responses."""

    groups: int = 1

    def _shaped(self, flat: Tensor) -> Tensor:
        """(K, F) in the shape of the site."""
        return flat

    def _prior(self, model: Model, like: Tensor) -> Tensor:
        """The prior's concentration, (K, F)."""
        return _for(dirichlet_prior(model, self.site, like).expand(model.shapes[self.site]).flatten(1), like)

    def check(self, model: Model, like: Tensor) -> None:
        dirichlet_prior(model, self.site, like)

    def natural(self, value: Tensor) -> Natural:
        return Natural(torch.log(value.flatten(1).clamp(min=torch.finfo(value.dtype).tiny)))

    def estimate(self, counts: Tensor, observed: Tensor | None) -> Tensor:
        return self._shaped(normalised(counts.clamp(min=FLOOR), self.groups))

    def mode(self, model: Model, counts: Tensor, observed: Tensor | None) -> Tensor:
        flat = softmax_or_simplex(counts, self._prior(model, counts), floor=FLOOR, groups=self.groups)
        return self._shaped(flat)

    def log_prior(self, model: Model, value: Tensor) -> Tensor:
        flat = value.flatten(1)
        return log_prior_density(flat, self._prior(model, flat), groups=self.groups)

    def update(self, model: Model, counts: Tensor, observed: Tensor | None) -> Params:
        return {self.site: counts + self._prior(model, counts)}

    def log_marginal(
        self, model: Model, columns: Tensor, counts: Tensor, observed: Tensor, *, own: bool = False
    ) -> Tensor:
        every = self._prior(model, counts if own else counts.new_empty(0))
        prior = every[:, columns] if own else every[0, columns]
        return log_moment(counts, prior, self.groups)

    def expected(self, params: Params) -> Natural:
        return Natural(expected_log(params[self.site], self.groups))

    def divergence(self, model: Model, params: Params) -> Tensor:
        concentration = params[self.site]
        return dirichlet_divergence(concentration, self._prior(model, concentration), self.groups).sum()

    def posterior(self, params: Params) -> DirichletPosterior:
        return DirichletPosterior(self._shaped(params[self.site]))


@dataclass(frozen=True)
class Topics(_Simplices):
    """Words of documents. coefficient: whether the multinomial coefficient belongs to the density."""

    coefficient: bool = False
    site: ClassVar[str] = "topic"

    @classmethod
    def of(cls, model: Any) -> Topics:
        return cls(coefficient=model.coefficient)

    def rows(self, data: Data) -> MixtureRows:
        return MixtureRows.of_tokens(data, coefficient=self.coefficient)

    def profile(self, rows: MixtureRows) -> tuple[Tensor, Tensor]:
        """Square roots of the shares of the words (Hellinger's distance), a document weighing as much as its tokens."""
        length = rows.lengths.clamp(min=1)
        return rows.mapped(lambda row, values: torch.sqrt(values / length[row])), rows.lengths

    def scaled(self, rows: MixtureRows) -> Tensor:
        """Shares of the words."""
        return _sparse.dense(rows.counts) / rows.lengths.clamp(min=1).unsqueeze(-1)

    def scaled_mean(self, rows: MixtureRows) -> Tensor:
        return rows.mean / rows.mean.sum().clamp(min=FLOOR)


@dataclass(frozen=True)
class Responses(_Simplices):
    """Categories of R responses, C each."""

    groups: int = 1
    num_categories: int = 2
    site: ClassVar[str] = "response"

    @classmethod
    def of(cls, model: Any) -> Responses:
        return cls(groups=model.num_features, num_categories=model.num_categories)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.groups, self.num_categories))

    def rows(self, data: Data) -> MixtureRows:
        return MixtureRows.of_categories(data, self.num_categories)

    def profile(self, rows: MixtureRows) -> tuple[Tensor, Tensor]:
        """The indicators themselves: the distance counts the responses that differ."""
        return rows.counts, torch.ones_like(rows.base)


@dataclass(frozen=True)
class Rates(Family):
    """Poisson counts of events."""

    site: ClassVar[str] = "rate"

    @classmethod
    def of(cls, model: Any) -> Rates:
        return cls()

    def rows(self, data: Data) -> MixtureRows:
        return MixtureRows.of_events(data)

    def _prior(self, model: Model, like: Tensor) -> GammaParameters:
        """The prior's shape and rate, (K, D) each."""
        shape, rate = gamma_prior(model, self.site, like)
        size = model.shapes[self.site]
        return _for(shape.expand(size), like), _for(rate.expand(size), like)

    def check(self, model: Model, like: Tensor) -> None:
        gamma_prior(model, self.site, like)

    def natural(self, value: Tensor) -> Natural:
        return Natural(torch.log(value.clamp(min=torch.finfo(value.dtype).tiny)), value)

    def estimate(self, counts: Tensor, observed: Tensor | None) -> Tensor:
        assert observed is not None
        return (counts / observed.clamp(min=FLOOR)).clamp(min=FLOOR)

    def mode(self, model: Model, counts: Tensor, observed: Tensor | None) -> Tensor:
        assert observed is not None
        return gamma_mode(counts, observed, self._prior(model, counts), floor=FLOOR)

    def log_prior(self, model: Model, value: Tensor) -> Tensor:
        return gamma_log_density(value, self._prior(model, value))

    def update(self, model: Model, counts: Tensor, observed: Tensor | None) -> Params:
        assert observed is not None
        shape, rate = self._prior(model, counts)
        return {"shape": counts + shape, "rate": (observed + rate).expand_as(counts).clone()}

    def log_marginal(
        self, model: Model, columns: Tensor, counts: Tensor, observed: Tensor, *, own: bool = False
    ) -> Tensor:
        every = self._prior(model, counts if own else counts.new_empty(0))
        shape, rate = (part[:, columns] if own else part[0, columns] for part in every)
        return gamma_log_marginal(counts, observed, (shape, rate)).sum(-1)

    def expected(self, params: Params) -> Natural:
        return Natural(expected_log_gamma(params["shape"], params["rate"]), params["shape"] / params["rate"])

    def divergence(self, model: Model, params: Params) -> Tensor:
        return gamma_divergence((params["shape"], params["rate"]), self._prior(model, params["shape"])).sum()

    def posterior(self, params: Params) -> GammaPosterior:
        return GammaPosterior(params["shape"], params["rate"])

    def profile(self, rows: MixtureRows) -> tuple[Tensor, Tensor]:
        """Square roots of the counts, which have about the same variance; missing entries at their column's mean."""
        if rows.mask is None:
            return rows.mapped(lambda row, values: torch.sqrt(values)), torch.ones_like(rows.base)
        return torch.sqrt(torch.where(rows.mask, _sparse.dense(rows.counts), rows.mean)), torch.ones_like(rows.base)
