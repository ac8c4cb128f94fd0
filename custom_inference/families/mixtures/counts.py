"""Mixtures of multinomials, Poissons and categoricals: exact EM, and variational Bayes.

EM (source 002, section 27.2.1) sums over the class of every row. Variational Bayes (Attias, UAI 1999) has besides

    q(z) = prod_n Cat(r_n),   q(pi) = Dirichlet(a),   q(b_k) Dirichlets or q(lambda_kj) Gammas,
    r_nk proportional to exp(E[log pi_k] + E[log p(x_n | class k)])

and climbs sum_n log sum_k exp(E[log pi_k] + E[log p(x_n | class k)]) - KL(q(pi) || p) - KL(q(components) || p), which
is a lower bound on log p(x) with everything integrated out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.capabilities import GlobalPosterior, LocalEngine, Looks, from_point
from custom_inference.core.engine import EStep, Objective, Params
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.common.dirichlet import dirichlet_divergence, dirichlet_prior, expected_log
from custom_inference.families.mixtures.classes import Family, Rates, Responses, Topics
from custom_inference.families.mixtures.common import OWN, MixtureEngine, distant_rows, equal_shares
from custom_inference.families.mixtures.merge import merge_classes
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse

#: Random starts draw the classes' counts around the mean row's: as Gamma variables of this shape.
_SHAPE = 3.0
#: How many times as many classes informed starts begin with, and their iterations before these are merged.
_OVER = 3
_SETTLE = 8
#: Iterations of EM before variational Bayes.
_EXACT_FIRST = 15


@dataclass(frozen=True, kw_only=True)
class CountMixtureExact(MixtureEngine):
    """The exact E step over the classes, closed-form M step."""

    kind: ClassVar[type[Family]]

    def density(self, model: Model) -> Family:
        return self.kind.of(model)

    @property
    def site(self) -> str:
        return self.kind.site

    def rows(self, model: Model, data: Data) -> MixtureRows:
        return self.density(model).rows(data)

    def check(self, model: Model, rows: MixtureRows) -> None:
        """Raises MethodError for priors that are not conjugate."""
        super().check(model, rows)
        self.density(model).check(model, rows.like)

    def table(self, model: Model, params: Params, rows: MixtureRows) -> Tensor:
        return rows.table(*self.density(model).natural(params[self.site]))

    def collect(self, share: Tensor, rows: MixtureRows) -> dict[str, Tensor]:
        counts, observed = {"counts": rows.collect(share)}, rows.observed(share)
        return counts if observed is None else {**counts, "observed": observed}

    def components(self, model: Model, params: Params, counts: dict[str, Tensor], rows: MixtureRows) -> Tensor:
        return self.density(model).mode(model, counts["counts"], _observed(counts))

    def component_log_prior(self, model: Model, params: Params) -> Tensor:
        return self.density(model).log_prior(model, params[self.site])

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> Params:
        """The mean row, every entry of every class scaled at random; equal proportions."""
        num_components, features = model.shapes["mixing_proportion"][0], rows.counts.shape[1]
        concentration = torch.full((num_components, features), _SHAPE, dtype=torch.float64)
        noise = (torch._standard_gamma(concentration, generator=generator) / _SHAPE).to(rows.like)
        return equal_shares(self.site, self.density(model).estimate(rows.mean * noise, torch.ones_like(noise)))

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> Params:
        """An over-complete start whose classes are merged, after a few iterations, to as many as wanted."""
        size = model.shapes["mixing_proportion"][0]
        if size == 1 or len(rows) < size:  # too few rows for a centre each
            return self.initial(model, rows, generator)
        params = self._centres(model, rows, min(_OVER * size, len(rows)), generator)
        for settled in range(_SETTLE):
            step = self.e_step(model, params, rows, temperature=rows.temperature ** (1 - settled / _SETTLE))
            found = self.density(model).mode(model, *_statistics(step))
            share = step.statistics["rows"].clamp(min=1e-3)
            params = {"mixing_proportion": share / share.sum(), self.site: found}
        return self._merged(model, self.e_step(model, params, rows), size)

    def _merged(self, model: Model, step: EStep, size: int) -> Params:
        counts, observed = _statistics(step)
        if len(counts) > size:
            columns = self.density(model).telling(counts).to(counts.device)
            some = observed if observed.shape[1] == 1 else observed[:, columns]
            marginal = partial(self.density(model).log_marginal, model, columns)
            groups = merge_classes(marginal, counts[:, columns], some, size)
            counts, observed = (torch.stack([v[group].sum(0) for group in groups]) for v in (counts, observed))
        return equal_shares(self.site, self.density(model).mode(model, counts, observed))

    def _centres(self, model: Model, rows: MixtureRows, count: int, generator: torch.Generator) -> Params:
        """Rows far from each other (greedy k-means++) as centres, each pulled to the mean row."""
        profile, weight = self.density(model).profile(rows)
        distances = _SquaredDistances(profile)
        index = distant_rows(distances, weight, count, generator).to(rows.like.device)
        pull, chosen = (1 - OWN) / OWN, rows.select(index)
        everywhere = self.density(model).scaled_mean(rows)
        own = torch.ones_like(everywhere) if chosen.mask is None else chosen.mask.to(everywhere)
        centres = self.density(model).scaled(chosen) + pull * everywhere
        return equal_shares(self.site, self.density(model).estimate(centres, (own + pull).expand_as(centres)))


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


@dataclass(frozen=True)
class MixturePosteriors(State):
    """Of proportions and components: parameters, by the names that the density gives them."""

    kind: ClassVar[type[Family]]
    parameters: Params

    def values(self, model: Model) -> Params:
        """The posterior means."""
        return {site: posterior.mean for site, posterior in self.posteriors(model).items()}

    def posteriors(self, model: Model) -> dict[str, ContinuousPosterior]:
        proportion = DirichletPosterior(self.parameters["mixing_proportion"])
        return {"mixing_proportion": proportion, self.kind.site: self.kind.of(model).posterior(self.parameters)}


@dataclass(frozen=True, kw_only=True)
class CountMixtureVB(LocalEngine, GlobalPosterior, CountMixtureExact):
    """Posteriors of proportions and components too."""

    name = "vb"
    objective: ClassVar[Objective] = "bound"
    accelerate = None
    #: The exact engine at given values of the globals.
    exact: ClassVar[type[CountMixtureExact]]

    def local(self) -> CountMixtureExact:
        return self.exact()

    def log_joint(
        self, model: Model, state: MixturePosteriors, rows: MixtureRows, temperature: float = 1.0
    ) -> Tensor:
        """E[log p(z_n = k)] + temperature E[log p(x_n | z_n = k)], (N, K)."""
        expected = self.density(model).expected(state.parameters)
        return expected_log(state.parameters["mixing_proportion"]) + temperature * rows.table(*expected)

    def m_step(self, model: Model, state: object, step: EStep, rows: MixtureRows) -> MixturePosteriors:
        counts = step.statistics
        concentration = dirichlet_prior(model, "mixing_proportion", counts["rows"])
        components = self.density(model).update(model, counts["counts"], _observed(counts))
        kind: Any = self.state
        return kind({"mixing_proportion": counts["rows"] + concentration, **components})

    def prior_term(self, model: Model, state: MixturePosteriors) -> Tensor:
        proportion = state.parameters["mixing_proportion"]
        apart = dirichlet_divergence(proportion, dirichlet_prior(model, "mixing_proportion", proportion))
        return -apart - self.density(model).divergence(model, state.parameters)

    def from_point(self, model: Model, params: Params, rows: MixtureRows, e_step: Looks) -> MixturePosteriors:
        """The posteriors of the globals after one exact E step at their given values."""
        return self.m_step(model, None, e_step(), rows)

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> MixturePosteriors:
        return from_point(self, model, super().initial(model, rows, generator), rows)

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> MixturePosteriors:
        """Where some iterations of the exact engine lead from their start.

        The expected logarithms of what a class has not yet seen are so low that variational Bayes moves few rows.
        """
        exact = self.local()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(model, params, rows), rows)
        return from_point(self, model, params, rows)


def _statistics(step: EStep) -> tuple[Tensor, Tensor]:
    return step.statistics["counts"], _observed(step.statistics)


def _observed(counts: dict[str, Tensor]) -> Tensor:
    """sum_n r_nk m_nj: where nothing is missing the rows of each class, (K, 1)."""
    return counts["observed"] if "observed" in counts else counts["rows"].unsqueeze(-1)


class TopicsPosteriors(MixturePosteriors):
    kind = Topics


class RatesPosteriors(MixturePosteriors):
    kind = Rates


class ResponsesPosteriors(MixturePosteriors):
    kind = Responses


class MixtureOfMultinomialsExact(CountMixtureExact):
    """Exact EM of :class:`ppl_models.MixtureOfMultinomials`."""

    kind = Topics


class MixtureOfMultinomialsVB(CountMixtureVB):
    """Variational Bayes of :class:`ppl_models.MixtureOfMultinomials`."""

    kind, exact = Topics, MixtureOfMultinomialsExact
    state = TopicsPosteriors


class MixtureOfPoissonsExact(CountMixtureExact):
    """Exact EM of :class:`ppl_models.MixtureOfPoissons`."""

    kind = Rates


class MixtureOfPoissonsVB(CountMixtureVB):
    """Variational Bayes of :class:`ppl_models.MixtureOfPoissons`."""

    kind, exact = Rates, MixtureOfPoissonsExact
    state = RatesPosteriors


class MixtureOfCategoricalsExact(CountMixtureExact):
    """Exact EM of :class:`ppl_models.MixtureOfCategoricals`."""

    kind = Responses


class MixtureOfCategoricalsVB(CountMixtureVB):
    """Variational Bayes of :class:`ppl_models.MixtureOfCategoricals`."""

    kind, exact = Responses, MixtureOfCategoricalsExact
    state = ResponsesPosteriors
