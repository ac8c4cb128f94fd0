"""Mixtures by summing over the K classes: exact EM of every likelihood (source 002, section 27.2.1).

With r_nk = p(z_n = k | x_n) every M step of a mixture is that of its classes' densities with rows weighted by r_nk, and
pi_k proportional to sum_n r_nk + alpha_k - 1 under Dirichlet(alpha): the maximum of the expected log joint plus log
prior (pi_k proportional to sum_n r_nk + alpha_k, the maximum in the softmax basis, where some alpha is below 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.capabilities import Accelerated, Checked, Exact, PriorTerm
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import CodePosterior
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import values_of
from custom_inference.families.common.dirichlet import dirichlet_prior, log_prior_density, softmax_or_simplex
from custom_inference.families.mixtures.common import distant_rows, equal_shares, same_classes
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.density import Conjugate, Density
from custom_inference.families.mixtures.merge import merge_classes
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model

#: Proportions are kept this far from 0.
FLOOR = 1e-6
#: How much of a centre is its row; the rest is the mean row.
_OWN = 0.7
#: Iterations of informed starts with more classes than wanted, before these are merged.
_SETTLE = 8
#: Classes are merged by so many features at most.
_INFORMATIVE = 3000


@dataclass(frozen=True, kw_only=True)
class MixtureExact(Proposals, Accelerated, PriorTerm, Checked, Exact):
    """The exact E step over the classes, closed-form M step."""

    accelerate = "squarem"

    @property
    def engine(self) -> MixtureExact:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Itself: its proposals are its own."""
        return self

    def feasible(self, model: Model) -> bool:
        """Always: a row has K classes."""
        return True

    def check(self, model: Model, rows: MixtureRows) -> None:
        """Raises MethodError for priors that are not conjugate, or have no mode."""
        density = density_of(model)
        dirichlet_prior(model, "mixing_proportion", rows.like)
        density.prior(model, rows.like)
        if self.name == "exact":
            density.require_mode(model, rows.like)

    def rows(self, model: Model, data: Data) -> MixtureRows:
        return density_of(model).rows(data)

    # ----- E and M step -----------------------------------------------------------------------------------

    def log_joint(self, model: Model, state: Any, rows: MixtureRows, temperature: float = 1.0) -> Tensor:
        """log p(z_n = k) + temperature log p(x_n | z_n = k), (N, K)."""
        density, params = density_of(model), state
        table = rows.table(*density.natural(params[density.site]))
        return torch.log(params["mixing_proportion"]) + (table if temperature == 1.0 else temperature * table)

    def e_step(
        self, model: Model, state: Any, rows: MixtureRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        joint = self.log_joint(model, state, rows, temperature)
        bound = joint.logsumexp(-1)
        share = (joint - bound.unsqueeze(-1)).exp_()
        found, observed = {"rows": share.sum(0), "counts": rows.collect(share)}, rows.observed(share)
        return EStep(found if observed is None else {**found, "observed": observed}, {}, bound)

    def m_step(self, model: Model, state: Any, step: EStep, rows: MixtureRows) -> Any:
        density = density_of(model)
        counts, observed = statistics(step)
        size = step.statistics["rows"]
        concentration = dirichlet_prior(model, "mixing_proportion", size)
        return {
            "mixing_proportion": softmax_or_simplex(size, concentration, floor=FLOOR),
            density.site: density.mode(density.prior(model, counts), counts, observed),
        }

    def prior_term(self, model: Model, state: Any) -> Tensor:
        density = density_of(model)
        proportion, value = state["mixing_proportion"], state[density.site]
        prior = log_prior_density(proportion, dirichlet_prior(model, "mixing_proportion", proportion))
        return prior + density.log_prior(density.prior(model, value), value)

    def posterior(self, model: Model, state: Any, rows: MixtureRows, step: EStep | None = None) -> CodePosterior:
        """The K one-hot codes and the probability of each in every row."""
        joint = self.log_joint(model, state, rows)
        return CodePosterior(torch.eye(joint.shape[1]).to(joint), torch.log_softmax(joint, -1))

    def log_evidence(self, model: Model, params: Params, rows: MixtureRows) -> Tensor:
        """log p(x_n | params), (N,)."""
        return self.log_joint(model, params, rows).logsumexp(-1)

    # ----- starts -----------------------------------------------------------------------------------------

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Ten starts, on rows enough for each class to be seen a hundred times."""
        return 10, max(2000, 100 * model.shapes["mixing_proportion"][0])

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> Any:
        """Random components, equal proportions."""
        density, size = density_of(model), model.shapes["mixing_proportion"][0]
        return equal_shares(density.site, density.random(rows, size, generator))

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> Any:
        """Rows as centres of classes; of more than wanted, which are merged after a few iterations, where K centres
        seldom are one in each class."""
        density, size = density_of(model), model.shapes["mixing_proportion"][0]
        if size == 1 or len(rows) < size:  # too few rows for a centre each
            return self.initial(model, rows, generator)
        many = min(density.excess * size, len(rows))
        params = self._centres(density, rows, many, generator)
        if density.excess == 1:
            return params
        prior = density.prior(model, rows.like)
        prior = prior if many == size else _mean(prior)
        for settled in range(_SETTLE):
            step = self.e_step(model, params, rows, temperature=rows.temperature ** (1 - settled / _SETTLE))
            share = step.statistics["rows"].clamp(min=1e-3)
            found = density.mode(prior, *statistics(step))
            params = {"mixing_proportion": share / share.sum(), density.site: found}
        return self._merged(model, self.e_step(model, params, rows), size)

    def _merged(self, model: Model, step: EStep, size: int) -> Params:
        density = density_of(model)
        counts, observed = statistics(step)
        prior = density.prior(model, counts)
        if len(counts) > size:
            columns = density.informative(counts, _INFORMATIVE).to(counts.device)
            some = observed if observed.shape[1] == 1 else observed[:, columns]
            marginal = partial(density.log_marginal, tuple(part[0, columns] for part in _mean(prior)))
            groups = merge_classes(marginal, counts[:, columns], some, size)
            counts, observed = (torch.stack([v[group].sum(0) for group in groups]) for v in (counts, observed))
        return equal_shares(density.site, density.mode(prior, counts, observed))

    def _centres(self, density: Density, rows: MixtureRows, count: int, generator: torch.Generator) -> Params:
        """Rows far from each other (greedy k-means++) as centres, each pulled to the mean row."""
        index = distant_rows(*density.distances(rows), count, generator).to(rows.like.device)
        pull, chosen = (1 - _OWN) / _OWN, rows.select(index)
        everywhere = density.scaled_mean(rows)
        own = torch.ones_like(everywhere) if chosen.mask is None else chosen.mask.to(everywhere)
        centres = density.scaled(chosen) + pull * everywhere
        floor, weight = density.floor_of_centres, (own + pull).expand_as(centres)
        value = density.mode(density.flat(centres), centres, weight, floor=floor)
        return equal_shares(density.site, value)

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Every class has its counterpart: the classes' differences from the mean row have cosines above .95."""
        site, found = density_of(model).site, (values_of(model, one) for one in (first, second))
        return same_classes(*((p[site], p["mixing_proportion"]) for p in found))


def statistics(step: EStep) -> tuple[Tensor, Tensor]:
    """S (K, F), and M: where nothing is missing the rows of each class, (K, 1)."""
    found = step.statistics
    return found["counts"], found["observed"] if "observed" in found else found["rows"].unsqueeze(-1)


def _mean(prior: Conjugate) -> Conjugate:
    """A prior for any number of classes, (1, F): the mean of those of the model's."""
    return tuple(part.mean(0, keepdim=True) for part in prior)
