"""Mixtures by summing over the K classes: exact EM of every likelihood (source 002, section 27.2.1).

With r_nk = p(z_n = k | x_n) every M step of a mixture is that of its classes' densities with rows weighted by r_nk, and
pi_k proportional to sum_n r_nk + alpha_k - 1 under Dirichlet(alpha): the maximum of the expected log joint plus log
prior (pi_k proportional to sum_n r_nk + alpha_k, the maximum in the softmax basis, where some alpha is below 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.posteriors import CodePosterior
from custom_inference.core.proposals import Proposals
from custom_inference.families.common.dirichlet import dirichlet_prior, log_prior_density, softmax_or_simplex
from custom_inference.families.mixtures.common import distant_rows, equal_shares, same_classes
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.density import Conjugate, Density
from custom_inference.families.mixtures.merge import merge_classes
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, MethodError, Model

#: Proportions are kept this far from 0.
FLOOR = 1e-6
#: How much of a centre is its row; the rest is the mean row.
_OWN = 0.7
#: Iterations of informed starts with more classes than wanted, before these are merged.
_SETTLE = 8
#: Classes are merged by so many features at most.
_INFORMATIVE = 3000


@dataclass(frozen=True, kw_only=True)
class MixtureExact(Proposals, Engine):
    """The exact E step over the classes, closed-form M step. classes: their density, set by :meth:`for_model`."""

    classes: Density | None = None

    name = "exact"
    additive = True
    accelerate = "squarem"

    @property
    def engine(self) -> MixtureExact:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Itself: its proposals are its own."""
        return self

    def for_model(self, model: Model) -> Self:
        return replace(self, classes=density_of(model))

    @property
    def density(self) -> Density:
        if self.classes is None:
            raise MethodError(f"{type(self).__name__} belongs to one model: use engine_for(model, name) or for_model")
        return self.classes

    def feasible(self, model: Model) -> bool:
        """Always: a row has K classes."""
        return True

    def check(self, model: Model, rows: MixtureRows) -> None:
        """Raises MethodError for priors that are not conjugate, or have no mode."""
        dirichlet_prior(model, "mixing_proportion", rows.like)
        self.density.prior(model, rows.like)
        if self.name == "exact":
            self.density.require_mode(model, rows.like)

    def rows(self, data: Data) -> MixtureRows:
        return self.density.rows(data)

    # ----- E and M step -----------------------------------------------------------------------------------

    def log_joint(self, params: Params, rows: MixtureRows, temperature: float = 1.0) -> Tensor:
        """log p(z_n = k) + temperature log p(x_n | z_n = k), (N, K)."""
        table = rows.table(*self.density.natural(params[self.density.site]))
        return torch.log(params["mixing_proportion"]) + (table if temperature == 1.0 else temperature * table)

    def e_step(
        self,
        params: Params,
        rows: MixtureRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        joint = self.log_joint(params, rows, temperature)
        bound = joint.logsumexp(-1)
        share = (joint - bound.unsqueeze(-1)).exp_()
        found, observed = {"rows": share.sum(0), "counts": rows.collect(share)}, rows.observed(share)
        return EStep(found if observed is None else {**found, "observed": observed}, {}, bound)

    def m_step(self, model: Model, params: Params, step: EStep, rows: MixtureRows) -> Params:
        counts, observed = statistics(step)
        size = step.statistics["rows"]
        concentration = dirichlet_prior(model, "mixing_proportion", size)
        return {
            "mixing_proportion": softmax_or_simplex(size, concentration, floor=FLOOR),
            self.density.site: self.density.mode(self.density.prior(model, counts), counts, observed),
        }

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        proportion, value = params["mixing_proportion"], params[self.density.site]
        prior = log_prior_density(proportion, dirichlet_prior(model, "mixing_proportion", proportion))
        return float(bound.double().sum() + prior + self.density.log_prior(self.density.prior(model, value), value))

    def posterior(self, params: Params, rows: MixtureRows, step: EStep | None = None) -> CodePosterior:
        """The K one-hot codes and the probability of each in every row."""
        joint = self.log_joint(params, rows)
        return CodePosterior(torch.eye(joint.shape[1]).to(joint), torch.log_softmax(joint, -1))

    def log_evidence(self, params: Params, rows: MixtureRows) -> Tensor:
        """log p(x_n | params), (N,)."""
        return self.log_joint(params, rows).logsumexp(-1)

    # ----- starts -----------------------------------------------------------------------------------------

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Ten starts, on rows enough for each class to be seen a hundred times."""
        return 10, max(2000, 100 * model.shapes["mixing_proportion"][0])

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> Params:
        """Random components, equal proportions."""
        size = model.shapes["mixing_proportion"][0]
        return equal_shares(self.density.site, self.density.random(rows, size, generator))

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> Params:
        """Rows as centres of classes; of more than wanted, which are merged after a few iterations, where K centres
        seldom are one in each class."""
        size = model.shapes["mixing_proportion"][0]
        if size == 1 or len(rows) < size:  # too few rows for a centre each
            return self.initial(model, rows, generator)
        many = min(self.density.excess * size, len(rows))
        params = self._centres(rows, many, generator)
        if self.density.excess == 1:
            return params
        prior = self.density.prior(model, rows.like)
        prior = prior if many == size else _mean(prior)
        for settled in range(_SETTLE):
            step = self.e_step(params, rows, temperature=rows.temperature ** (1 - settled / _SETTLE))
            share = step.statistics["rows"].clamp(min=1e-3)
            found = self.density.mode(prior, *statistics(step))
            params = {"mixing_proportion": share / share.sum(), self.density.site: found}
        return self._merged(model, self.e_step(params, rows), size)

    def _merged(self, model: Model, step: EStep, size: int) -> Params:
        counts, observed = statistics(step)
        prior = self.density.prior(model, counts)
        if len(counts) > size:
            columns = self.density.informative(counts, _INFORMATIVE).to(counts.device)
            some = observed if observed.shape[1] == 1 else observed[:, columns]
            marginal = partial(self.density.log_marginal, tuple(part[0, columns] for part in _mean(prior)))
            groups = merge_classes(marginal, counts[:, columns], some, size)
            counts, observed = (torch.stack([v[group].sum(0) for group in groups]) for v in (counts, observed))
        return equal_shares(self.density.site, self.density.mode(prior, counts, observed))

    def _centres(self, rows: MixtureRows, count: int, generator: torch.Generator) -> Params:
        """Rows far from each other (greedy k-means++) as centres, each pulled to the mean row."""
        index = distant_rows(*self.density.distances(rows), count, generator).to(rows.like.device)
        pull, chosen = (1 - _OWN) / _OWN, rows.select(index)
        everywhere = self.density.scaled_mean(rows)
        own = torch.ones_like(everywhere) if chosen.mask is None else chosen.mask.to(everywhere)
        centres = self.density.scaled(chosen) + pull * everywhere
        floor, weight = self.density.floor_of_centres, (own + pull).expand_as(centres)
        value = self.density.mode(self.density.flat(centres), centres, weight, floor=floor)
        return equal_shares(self.density.site, value)

    def same_solution(self, first: Params, second: Params) -> bool:
        """Every class has its counterpart: the classes' differences from the mean row have cosines above .95."""
        return same_classes(*((p[self.density.site], p["mixing_proportion"]) for p in (first, second)))


def statistics(step: EStep) -> tuple[Tensor, Tensor]:
    """S (K, F), and M: where nothing is missing the rows of each class, (K, 1)."""
    found = step.statistics
    return found["counts"], found["observed"] if "observed" in found else found["rows"].unsqueeze(-1)


def _mean(prior: Conjugate) -> Conjugate:
    """A prior for any number of classes, (1, F): the mean of those of the model's."""
    return tuple(part.mean(0, keepdim=True) for part in prior)
