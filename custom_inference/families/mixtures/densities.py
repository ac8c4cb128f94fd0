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

from custom_inference.core.posteriors import BetaPosterior, DirichletPosterior, GammaPosterior
from custom_inference.families.common.distances import Distances, squared_distances
from custom_inference.families.common.tables import groups_of, in_tables, side_by_side
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet, Groups
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.mixtures.common import Density, Natural
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse
from ppl_models.likelihoods import Bernoulli, Binomial, Categorical, ExponentialFamily, Multinomial, Poisson

#: Counts of categories in groups that lie side by side, as their sampler reads them: rows (N, F) in CSR, the prior's
#: concentration and the classes' counts, (K, F), and the groups.
Cells = tuple[Tensor, Tensor, Tensor, Groups]


@dataclass(frozen=True)
class _Simplices(Density):
    """Counts of the parts of ``groups`` simplices that lie side by side: words of topics, categories of responses."""

    groups: Groups = 1

    pair: ClassVar[type[Any]] = Dirichlet
    kind: ClassVar[type[Any]] = DirichletPosterior

    def _to_site_shape(self, flat: Tensor) -> Tensor:
        """Reshape (K, F) to the shape of the site."""
        return flat

    def in_site_shape(self, parameters: Dirichlet) -> Dirichlet:
        return Dirichlet(self._to_site_shape(parameters.concentration))

    def pair_of(self, *parameters: Tensor) -> Dirichlet:
        return Dirichlet(parameters[0], self.groups)

    def statistics(self, counts: Tensor, observed: Tensor) -> tuple[Tensor, ...]:
        return (counts,)

    def natural(self, value: Tensor) -> Natural:
        """Return log b, whose log-normaliser is 0."""
        return self.likelihood.natural(self.value_of_classes(value)), None

    def mode(self, prior: Dirichlet, counts: Tensor, observed: Tensor, *, floor: float | None = None) -> Tensor:
        return self._to_site_shape(super().mode(prior, counts, observed, floor=floor))

    def mean_natural(self, posterior: Dirichlet) -> Natural:
        return posterior.expected(), None

    def log_marginal(self, prior: Dirichlet, counts: Tensor, observed: Tensor) -> Tensor:
        return prior.log_marginal(counts)

    def cells(self, rows: MixtureRows, prior: Dirichlet, counts: Tensor, observed: Tensor) -> Cells:
        return rows.counts, prior.concentration, counts, self.groups


class MultinomialDensity(_Simplices):
    """Words of documents."""

    likelihood: Multinomial

    def rows(self, data: Data) -> MixtureRows:
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

    def value_of_classes(self, value: Tensor) -> Tensor:
        return side_by_side(value, self.categories)

    def rows(self, data: Data) -> MixtureRows:
        return MixtureRows.of_categories(data, self.categories)

    def informative(self, counts: Tensor, most: int) -> Tensor:
        """Return all features: the groups stay whole."""
        return torch.arange(counts.shape[1])


class BinomialDensity(Density):
    """Entries that are successes of ``likelihood.total`` draws."""

    likelihood: Bernoulli | Binomial

    pair: ClassVar[type[Any]] = Beta
    kind: ClassVar[type[Any]] = BetaPosterior
    flat_at: ClassVar[float] = 1.0
    floor: ClassVar[float] = 1e-6
    floor_of_centres: ClassVar[float] = 0.02
    excess: ClassVar[int] = 1

    def distances(self, rows: MixtureRows) -> tuple[Distances, Tensor]:
        """Return distances over the entries observed in both rows."""
        found = super().distances(rows)
        return found if rows.mask is None else (common_distances(rows), found[1])

    def scale_mean(self, rows: MixtureRows) -> Tensor:
        return rows.mean.clamp(
            self.likelihood.total * self.floor_of_centres, self.likelihood.total * (1 - self.floor_of_centres)
        )

    def statistics(self, counts: Tensor, observed: Tensor) -> tuple[Tensor, ...]:
        return counts, self.likelihood.total * observed

    def random(self, rows: MixtureRows, size: int, generator: torch.Generator) -> Tensor:
        """Draw probabilities from [1/4, 3/4]."""
        noise = torch.rand((size, rows.counts.shape[1]), generator=generator, dtype=torch.float64)
        return (0.25 + 0.5 * noise).to(rows.like)

    def require_mode(self, model: Model, like: Tensor) -> None:
        Beta.with_mode(model, self.site, like)
        Dirichlet.with_mode(model, "mixing_proportion", like)

    def mean_natural(self, posterior: Beta) -> Natural:
        on, off = posterior.expected()
        return on - off, -self.likelihood.total * off

    def cells(self, rows: MixtureRows, prior: Beta, counts: Tensor, observed: Tensor) -> Cells:
        """Return failures and successes, a group of two categories for every entry."""
        x = _sparse.dense(rows.counts)
        draws = self.likelihood.total * (torch.ones_like(x) if rows.mask is None else rows.mask.to(x))
        pairs = [(draws - x, x), (prior.off, prior.on), (self.likelihood.total * observed - counts, counts)]
        both, concentration, table = (torch.stack(pair, -1).flatten(1) for pair in pairs)
        return _sparse.from_dense(both), concentration, table, x.shape[1]


class PoissonDensity(Density):
    """Poisson counts of events."""

    events: ClassVar[bool] = True

    pair: ClassVar[type[Any]] = Gamma
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

    def mean_natural(self, posterior: Gamma) -> Natural:
        return posterior.expected()


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
