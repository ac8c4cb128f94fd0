"""What tells the mixtures apart: the densities of their classes, with their conjugate priors.

With r_nk the posterior of the classes, S_kf = sum_n r_nk x_nf and M_kj = sum_n r_nk m_nj,

    multinomial, categorical    b proportional to S + gamma (softmax basis, some gamma < 1) or S + gamma - 1,
                                q(b_k) = Dirichlet(gamma + S_k)
    Bernoulli, binomial         p = (S + a - 1) / (t M + a + b - 2), t draws an entry, a and b at least 1,
                                q(p_kj) = Beta(a + S_kj, b + t M_kj - S_kj)
    Poisson                     lambda = (S + a) / (M + b) (basis of log lambda, a < 1) or (S + a - 1) / (M + b),
                                q(lambda_kj) = Gamma(a + S_kj, b + M_kj)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.posteriors import BetaPosterior, ContinuousPosterior, DirichletPosterior, GammaPosterior
from custom_inference.families.common import beta, dirichlet, gamma
from custom_inference.families.common.tables import groups_of, in_tables, side_by_side
from custom_inference.families.mixtures.common import Conjugate, Density, Distances, Natural, squared_distances
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse
from ppl_models.likelihoods import Bernoulli, Binomial, Categorical, ExponentialFamily, Multinomial, Poisson

#: Counts of categories in groups that lie side by side, as their sampler reads them: rows (N, F) in CSR, the prior's
#: concentration and the classes' counts, (K, F), and the groups.
Cells = tuple[Tensor, Tensor, Tensor, dirichlet.Groups]


@dataclass(frozen=True)
class _Simplices(Density):
    """Counts of the parts of ``groups`` simplices that lie side by side: words of topics, categories of responses."""

    groups: dirichlet.Groups = 1

    kind: ClassVar[type[Any]] = DirichletPosterior

    def _to_site_shape(self, flat: Tensor) -> Tensor:
        """Reshape (K, F) to the shape of the site."""
        return flat

    def _flat(self, value: Tensor) -> Tensor:
        """Reshape a value of the site to (K, F)."""
        return value

    def natural(self, value: Tensor) -> Natural:
        """Return log b, whose log-normaliser is 0."""
        return self.likelihood.natural(self._flat(value)), None

    def mode(self, prior: Conjugate, counts: Tensor, observed: Tensor, *, floor: float | None = None) -> Tensor:
        flat = dirichlet.softmax_or_simplex(counts, prior[0], floor=floor or self.floor, groups=self.groups)
        return self._to_site_shape(flat)

    def log_prior(self, prior: Conjugate, value: Tensor) -> Tensor:
        return dirichlet.log_prior_density(self._flat(value), prior[0], groups=self.groups)

    def prior(self, model: Model, like: Tensor) -> Conjugate:
        return (self._flat(dirichlet.dirichlet_prior(model, self.site, like).expand(model.shapes[self.site])),)

    def update(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Conjugate:
        return (counts + prior[0],)

    def mean_natural(self, posterior: Conjugate) -> Natural:
        return dirichlet.expected_log(posterior[0], self.groups), None

    def divergence(self, posterior: Conjugate, prior: Conjugate) -> Tensor:
        return dirichlet.dirichlet_divergence(posterior[0], prior[0], self.groups).sum()

    def posterior(self, parameters: Conjugate) -> ContinuousPosterior:
        return DirichletPosterior(self._to_site_shape(*parameters))

    def log_marginal(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Tensor:
        return dirichlet.log_moment(counts, prior[0], self.groups)

    def cells(self, rows: MixtureRows, prior: Conjugate, counts: Tensor, observed: Tensor) -> Cells:
        return rows.counts, prior[0], counts, self.groups


class MultinomialDensity(_Simplices):
    """Words of documents."""

    def rows(self, data: Data) -> MixtureRows:
        assert isinstance(self.likelihood, Multinomial)
        return MixtureRows.of_tokens(data, coefficient=self.likelihood.coefficient)

    def distances(self, rows: MixtureRows) -> tuple[Distances, Tensor]:
        """Return distances of square roots of the shares of the words (Hellinger's), with weights: a document weighs as
        much as its tokens."""
        length = rows.lengths.clamp(min=1)
        return squared_distances(rows.map_counts(lambda row, values: torch.sqrt(values / length[row]))), rows.lengths

    def scale_rows(self, rows: MixtureRows) -> Tensor:
        """Return the shares of the words."""
        return _sparse.dense(rows.counts) / rows.lengths.clamp(min=1).unsqueeze(-1)

    def scale_mean(self, rows: MixtureRows) -> Tensor:
        return rows.mean / rows.mean.sum().clamp(min=1e-12)


@dataclass(frozen=True)
class CategoricalDensity(_Simplices):
    """Categories of R responses, C_r each, side by side; the distance counts the responses that differ.

    categories: C_r of all. Tables (K, R, C) have 0 beyond a response's own.
    """

    categories: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: Any) -> Self:
        return cls(model.component_site, model.likelihood, groups_of(model), model.categories)

    def _to_site_shape(self, flat: Tensor) -> Tensor:
        return in_tables(flat, self.categories)

    def _flat(self, value: Tensor) -> Tensor:
        return side_by_side(value, self.categories)

    def rows(self, data: Data) -> MixtureRows:
        return MixtureRows.of_categories(data, self.categories)

    def informative(self, counts: Tensor, most: int) -> Tensor:
        """Return all features: the groups stay whole."""
        return torch.arange(counts.shape[1])


class BinomialDensity(Density):
    """Entries that are successes of ``likelihood.total`` draws."""

    kind: ClassVar[type[Any]] = BetaPosterior
    flat_at: ClassVar[float] = 1.0
    floor: ClassVar[float] = 1e-6
    floor_of_centres: ClassVar[float] = 0.02
    excess: ClassVar[int] = 1

    @property
    def _total(self) -> int:
        assert isinstance(self.likelihood, Bernoulli | Binomial)
        return self.likelihood.total

    def distances(self, rows: MixtureRows) -> tuple[Distances, Tensor]:
        """Return distances over the entries observed in both rows."""
        found = super().distances(rows)
        return found if rows.mask is None else (common_distances(rows), found[1])

    def scale_mean(self, rows: MixtureRows) -> Tensor:
        return rows.mean.clamp(self._total * self.floor_of_centres, self._total * (1 - self.floor_of_centres))

    def mode(self, prior: Conjugate, counts: Tensor, observed: Tensor, *, floor: float | None = None) -> Tensor:
        return beta.beta_mode(counts, self._total * observed, (prior[0], prior[1]), floor=floor or self.floor)

    def log_prior(self, prior: Conjugate, value: Tensor) -> Tensor:
        return beta.beta_log_density(value, (prior[0], prior[1])).sum()

    def random(self, rows: MixtureRows, size: int, generator: torch.Generator) -> Tensor:
        """Draw probabilities from [1/4, 3/4]."""
        noise = torch.rand((size, rows.counts.shape[1]), generator=generator, dtype=torch.float64)
        return (0.25 + 0.5 * noise).to(rows.like)

    def prior(self, model: Model, like: Tensor) -> Conjugate:
        return tuple(part.expand(model.shapes[self.site]) for part in beta.beta_prior(model, self.site, like))

    def require_mode(self, model: Model, like: Tensor) -> None:
        beta.beta_parameters(model, self.site, like)
        dirichlet.dirichlet_concentration(model, "mixing_proportion", like)

    def update(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Conjugate:
        return prior[0] + counts, prior[1] + (self._total * observed - counts)

    def mean_natural(self, posterior: Conjugate) -> Natural:
        on, off = (torch.digamma(part) for part in posterior)
        return on - off, self._total * (torch.digamma(posterior[0] + posterior[1]) - off)

    def divergence(self, posterior: Conjugate, prior: Conjugate) -> Tensor:
        return beta.beta_divergence((posterior[0], posterior[1]), (prior[0], prior[1])).sum()

    def log_marginal(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Tensor:
        return beta.beta_log_marginal(counts, self._total * observed - counts, (prior[0], prior[1])).sum(-1)

    def cells(self, rows: MixtureRows, prior: Conjugate, counts: Tensor, observed: Tensor) -> Cells:
        """Return failures and successes, a group of two categories for every entry."""
        x = _sparse.dense(rows.counts)
        draws = self._total * (torch.ones_like(x) if rows.mask is None else rows.mask.to(x))
        pairs = [(draws - x, x), (prior[1], prior[0]), (self._total * observed - counts, counts)]
        both, concentration, table = (torch.stack(pair, -1).flatten(1) for pair in pairs)
        return _sparse.from_dense(both), concentration, table, x.shape[1]


class PoissonDensity(Density):
    """Poisson counts of events."""

    kind: ClassVar[type[Any]] = GammaPosterior

    def distances(self, rows: MixtureRows) -> tuple[Distances, Tensor]:
        """Return distances of square roots of the counts, which have about the same variance; missing entries are at
        their column's mean."""
        if rows.mask is None:
            roots = rows.map_counts(lambda row, values: torch.sqrt(values))
        else:
            roots = torch.sqrt(torch.where(rows.mask, _sparse.dense(rows.counts), rows.mean))
        return squared_distances(roots), torch.ones_like(rows.base)

    def natural(self, value: Tensor) -> Natural:
        """Return the logarithms of the rates, and the rates, which are their log-normalisers."""
        return self.likelihood.natural(value), value

    def mode(self, prior: Conjugate, counts: Tensor, observed: Tensor, *, floor: float | None = None) -> Tensor:
        return gamma.gamma_mode(counts, observed, (prior[0], prior[1]), floor=floor or self.floor)

    def log_prior(self, prior: Conjugate, value: Tensor) -> Tensor:
        return gamma.gamma_log_density(value, (prior[0], prior[1]))

    def prior(self, model: Model, like: Tensor) -> Conjugate:
        return tuple(part.expand(model.shapes[self.site]) for part in gamma.gamma_prior(model, self.site, like))

    def update(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Conjugate:
        return counts + prior[0], (observed + prior[1]).expand_as(counts).clone()

    def mean_natural(self, posterior: Conjugate) -> Natural:
        shape, rate = posterior
        return gamma.expected_log_gamma(shape, rate), shape / rate

    def divergence(self, posterior: Conjugate, prior: Conjugate) -> Tensor:
        return gamma.gamma_divergence((posterior[0], posterior[1]), (prior[0], prior[1])).sum()

    def log_marginal(self, prior: Conjugate, counts: Tensor, observed: Tensor) -> Tensor:
        return gamma.gamma_log_marginal(counts, observed, (prior[0], prior[1])).sum(-1)


def common_distances(rows: MixtureRows) -> Distances:
    """Return mean squared differences of the entries observed in both rows; 1/2, that of fair coins, where none was."""
    x, seen = _sparse.dense(rows.counts), rows.observed_entries
    assert seen is not None

    def distances(index: Tensor) -> Tensor:
        index = index.to(x.device)
        some, also = x[index], seen[index]
        apart = x.square() @ also.T + seen @ some.square().T - 2 * x @ some.T
        both = seen @ also.T
        return torch.where(both > 0, apart / both.clamp(min=1), 0.5)

    return distances


_DENSITIES: dict[type[ExponentialFamily], type[Density]] = {
    Bernoulli: BinomialDensity,
    Binomial: BinomialDensity,
    Categorical: CategoricalDensity,
    Multinomial: MultinomialDensity,
    Poisson: PoissonDensity,
}


def density_of(model: Any) -> Density:
    """Return the class density of a mixture, by its likelihood."""
    return _DENSITIES[type(model.likelihood)].of(model)
