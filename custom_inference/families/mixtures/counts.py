"""Mixtures of multinomials, Poissons and categoricals: exact EM, and variational Bayes.

EM (source 002, section 27.2.1) sums over the class of every row. Variational Bayes (Attias, UAI 1999) has besides

    q(z) = prod_n Cat(r_n),   q(pi) = Dirichlet(a),   q(b_k) Dirichlets or q(lambda_kj) Gammas,
    r_nk proportional to exp(E[log pi_k] + E[log p(x_n | class k)])

and climbs sum_n log sum_k exp(E[log pi_k] + E[log p(x_n | class k)]) - KL(q(pi) || p) - KL(q(components) || p), which
is a lower bound on log p(x) with everything integrated out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.families.common.dirichlet import dirichlet_divergence, dirichlet_prior, expected_log
from custom_inference.families.mixtures.classes import Family, Rates, Responses, Topics
from custom_inference.families.mixtures.common import OWN, MixtureSteps, distant_rows, equal_shares, same_classes
from custom_inference.families.mixtures.merge import merge_classes
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, MethodError, Model
from ppl_models.data import sparse as _sparse

#: Random starts draw the classes' counts around the mean row's: as Gamma variables of this shape.
_SHAPE = 3.0
#: How many times as many classes informed starts begin with, and their iterations before these are merged.
_OVER = 3
_SETTLE = 8
#: Iterations of EM before variational Bayes.
_EXACT_FIRST = 15


@dataclass(frozen=True, kw_only=True)
class CountMixtureExact(MixtureSteps):
    """The exact E step over the classes, closed-form M step. family: set by :meth:`for_model`."""

    family: Family | None = None
    kind: ClassVar[type[Family]]

    def for_model(self, model: Model) -> Self:
        return replace(self, family=self.kind.of(model))

    @property
    def density(self) -> Family:
        if self.family is None:
            raise MethodError(f"{type(self).__name__} belongs to one model: use engine_for(model, name) or for_model")
        return self.family

    @property
    def site(self) -> str:
        return self.kind.site

    def rows(self, data: Data) -> MixtureRows:
        return self.density.rows(data)

    def check(self, model: Model, rows: MixtureRows) -> None:
        """Raises MethodError for priors that are not conjugate."""
        super().check(model, rows)
        self.density.check(model, rows.like)

    def table(self, params: Params, rows: MixtureRows) -> Tensor:
        return rows.table(*self.density.natural(params[self.site]))

    def collect(self, share: Tensor, rows: MixtureRows) -> dict[str, Tensor]:
        counts, observed = {"counts": rows.collect(share)}, rows.observed(share)
        return counts if observed is None else {**counts, "observed": observed}

    def components(self, model: Model, params: Params, counts: dict[str, Tensor], rows: MixtureRows) -> Tensor:
        return self.density.mode(model, counts["counts"], _observed(counts))

    def component_log_prior(self, model: Model, params: Params) -> Tensor:
        return self.density.log_prior(model, params[self.site])

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> Params:
        """The mean row, every entry of every class scaled at random; equal proportions."""
        num_components, features = model.shapes["mixing_proportion"][0], rows.counts.shape[1]
        concentration = torch.full((num_components, features), _SHAPE, dtype=torch.float64)
        noise = (torch._standard_gamma(concentration, generator=generator) / _SHAPE).to(rows.like)
        return equal_shares(self.site, self.density.estimate(rows.mean * noise, torch.ones_like(noise)))

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> Params:
        """An over-complete start whose classes are merged, after a few iterations, to as many as wanted."""
        size = model.shapes["mixing_proportion"][0]
        if size == 1 or len(rows) < size:  # too few rows for a centre each
            return self.initial(model, rows, generator)
        params = self._centres(rows, min(_OVER * size, len(rows)), generator)
        for settled in range(_SETTLE):
            step = self.e_step(params, rows, temperature=rows.temperature ** (1 - settled / _SETTLE))
            found = self.density.mode(model, *_statistics(step))
            share = step.statistics["rows"].clamp(min=1e-3)
            params = {"mixing_proportion": share / share.sum(), self.site: found}
        return self._merged(model, self.e_step(params, rows), size)

    def _merged(self, model: Model, step: EStep, size: int) -> Params:
        counts, observed = _statistics(step)
        if len(counts) > size:
            columns = self.density.telling(counts).to(counts.device)
            some = observed if observed.shape[1] == 1 else observed[:, columns]
            marginal = partial(self.density.log_marginal, model, columns)
            groups = merge_classes(marginal, counts[:, columns], some, size)
            counts, observed = (torch.stack([v[group].sum(0) for group in groups]) for v in (counts, observed))
        return equal_shares(self.site, self.density.mode(model, counts, observed))

    def _centres(self, rows: MixtureRows, count: int, generator: torch.Generator) -> Params:
        """Rows far from each other (greedy k-means++) as centres, each pulled to the mean row."""
        profile, weight = self.density.profile(rows)
        distances = _SquaredDistances(profile)
        index = distant_rows(distances, weight, count, generator).to(rows.like.device)
        pull, chosen = (1 - OWN) / OWN, rows.select(index)
        everywhere = self.density.scaled_mean(rows)
        own = torch.ones_like(everywhere) if chosen.mask is None else chosen.mask.to(everywhere)
        centres = self.density.scaled(chosen) + pull * everywhere
        return equal_shares(self.site, self.density.estimate(centres, (own + pull).expand_as(centres)))


class _SquaredDistances:
    """|f_n - f_c|^2 between all rows of features (N, F), dense or CSR, and the rows of an index."""

    def __init__(self, features: Tensor):
        self.features = features
        values = features.values() if _sparse.is_sparse(features) else features
        if _sparse.is_sparse(features):
            row = _sparse.triplets(features)[0]
            self.norm = torch.zeros(features.shape[0]).to(values).index_add(0, row, values.square())
        else:
            self.norm = values.square().sum(-1)

    def __call__(self, index: Tensor) -> Tensor:
        index = index.to(self.norm.device)
        some = _sparse.dense(_sparse.select_rows(self.features, index))
        product = self.features @ some.T.contiguous()
        return (self.norm.unsqueeze(-1) + self.norm[index] - 2 * product).clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class CountMixtureVB(CountMixtureExact):
    """Posteriors of proportions and components too. ``params`` holds their parameters, not values of the globals."""

    name = "vb"
    accelerate = None
    integrates_globals = True
    #: The exact steps at given values of the globals.
    exact: ClassVar[type[CountMixtureExact]]

    def local(self) -> CountMixtureExact:
        return self.exact(family=self.family)

    def log_joint(self, params: Params, rows: MixtureRows, temperature: float = 1.0) -> Tensor:
        """E[log p(z_n = k)] + temperature E[log p(x_n | z_n = k)], (N, K)."""
        expected = self.density.expected(params)
        return expected_log(params["mixing_proportion"]) + temperature * rows.table(*expected)

    def m_step(self, model: Model, params: Params, step: EStep, rows: MixtureRows) -> Params:
        counts = step.statistics
        concentration = dirichlet_prior(model, "mixing_proportion", counts["rows"])
        components = self.density.update(model, counts["counts"], _observed(counts))
        return {"mixing_proportion": counts["rows"] + concentration, **components}

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        proportion = params["mixing_proportion"]
        apart = dirichlet_divergence(proportion, dirichlet_prior(model, "mixing_proportion", proportion))
        return float(bound.double().sum() - apart - self.density.divergence(model, params))

    def starting(self, model: Model, params: Params, rows: MixtureRows) -> Params:
        """The posteriors of the globals after one exact E step at their given values."""
        return self.m_step(model, params, self.looked(params, rows), rows)

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> Params:
        return self.starting(model, super().initial(model, rows, generator), rows)

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> Params:
        """Where some iterations of the exact steps lead from their start.

        The expected logarithms of what a class has not yet seen are so low that variational Bayes moves few rows.
        """
        exact = self.local()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(params, rows), rows)
        return self.starting(model, params, rows)

    def reported(self, model: Model, params: Params) -> tuple[Params, Mapping[str, ContinuousPosterior]]:
        """The posterior means, and the posteriors."""
        found = self._posteriors(params)
        return {site: posterior.mean for site, posterior in found.items()}, found

    def same_solution(self, first: Params, second: Params) -> bool:
        means = [{site: q.mean for site, q in self._posteriors(p).items()} for p in (first, second)]
        return same_classes(*((m[self.site], m["mixing_proportion"]) for m in means))

    def _posteriors(self, params: Params) -> dict[str, ContinuousPosterior]:
        proportion = DirichletPosterior(params["mixing_proportion"])
        return {"mixing_proportion": proportion, self.site: self.density.posterior(params)}


def _statistics(step: EStep) -> tuple[Tensor, Tensor]:
    return step.statistics["counts"], _observed(step.statistics)


def _observed(counts: dict[str, Tensor]) -> Tensor:
    """sum_n r_nk m_nj: where nothing is missing the rows of each class, (K, 1)."""
    return counts["observed"] if "observed" in counts else counts["rows"].unsqueeze(-1)


class MixtureOfMultinomialsExact(CountMixtureExact):
    """Exact EM of :class:`ppl_models.MixtureOfMultinomials`."""

    kind = Topics


class MixtureOfMultinomialsVB(CountMixtureVB):
    """Variational Bayes of :class:`ppl_models.MixtureOfMultinomials`."""

    kind, exact = Topics, MixtureOfMultinomialsExact


class MixtureOfPoissonsExact(CountMixtureExact):
    """Exact EM of :class:`ppl_models.MixtureOfPoissons`."""

    kind = Rates


class MixtureOfPoissonsVB(CountMixtureVB):
    """Variational Bayes of :class:`ppl_models.MixtureOfPoissons`."""

    kind, exact = Rates, MixtureOfPoissonsExact


class MixtureOfCategoricalsExact(CountMixtureExact):
    """Exact EM of :class:`ppl_models.MixtureOfCategoricals`."""

    kind = Responses


class MixtureOfCategoricalsVB(CountMixtureVB):
    """Variational Bayes of :class:`ppl_models.MixtureOfCategoricals`."""

    kind, exact = Responses, MixtureOfCategoricalsExact
