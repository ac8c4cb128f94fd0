"""Mixtures by summing over the K classes, of every likelihood (Murphy 2012, section 27.2.1): exact EM, and variational
Bayes.

With r_nk = p(z_n = k | x_n) every M step of a mixture is that of its classes' densities with rows weighted by r_nk, and
pi_k proportional to sum_n r_nk + alpha_k - 1 under Dirichlet(alpha): the maximum of the expected log joint plus log
prior (pi_k proportional to sum_n r_nk + alpha_k, the maximum in the softmax basis, where some alpha is below 1).

Variational Bayes (Attias, UAI 1999), with the conjugate priors:

    q(z) = prod_n Cat(r_n),   q(pi) = Dirichlet(a),   q(b_k) Dirichlets, q(p_kj) Betas or q(lambda_kj) Gammas,
    r_nk proportional to exp(E[log pi_k] + E[log p(x_n | class k)])

climbs sum_n log sum_k exp(E[log pi_k] + E[log p(x_n | class k)]) - KL(q(pi) || p) - KL(q(components) || p), which is a
lower bound on log p(x) with everything integrated out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, ExactEngine, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import CodePosterior, ContinuousPosterior, DirichletPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import State, values_of
from custom_inference.core.threads import map_in_threads
from custom_inference.families.common.distances import distant_rows
from custom_inference.families.common.tables import without_padding
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.mixtures.common import Density, Natural, merge_classes, of_classes, same_classes
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.moves import continue_em, split_and_merge
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model
from ppl_models.core.likelihood import softmax_and_log_sum

#: Proportions are kept this far from 0.
FLOOR = 1e-6
#: Iterations of informed starts with more classes than wanted, before these are merged.
_SETTLE = 8
#: Iterations of EM before variational Bayes.
_EXACT_FIRST = 15


@dataclass(frozen=True, kw_only=True)
class MixtureExact(Proposals, ExactEngine):
    """The exact E step over the classes, closed-form M step."""

    weighs_rows = True

    accelerate = "squarem"
    random_rows = 1200

    #: Itself: its proposals are its own.
    engine = property(lambda self: self)  # pyright: ignore[reportIncompatibleVariableOverride]

    def feasible(self, model: Model) -> bool:
        """Tell that the exact engine always serves: a row has K classes."""
        return True

    def check(self, model: Model, rows: MixtureRows) -> None:
        """Raises MethodError for priors that are not conjugate, or have no mode."""
        density = density_of(model)
        Dirichlet.of(model, "mixing_proportion", rows.like)
        density.prior(model, rows.like)
        if self.name == "exact":
            density.require_mode(model, rows.like)

    def rows(self, model: Model, data: Data) -> MixtureRows:
        return density_of(model).rows(data)

    def log_joint(self, model: Model, state: Any, rows: MixtureRows, temperature: float = 1.0) -> Tensor:
        """Compute log p(z_n = k) + temperature log p(x_n | z_n = k), (N, K)."""
        return _log_joint(*self.log_weights(model, state), rows, temperature)

    def log_weights(self, model: Model, state: Any) -> tuple[Tensor, Natural]:
        """Return log p(z = k), (K,), and the classes' natural parameters."""
        density = density_of(model)
        return torch.log(state["mixing_proportion"]), density.natural(state[density.site])

    def e_step(
        self, model: Model, state: Any, rows: MixtureRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self._sum_parts(model, state, rows.parts, [None] * len(rows.parts), temperature)

    def _sum_parts(
        self,
        model: Model,
        state: Params | MixturePosteriors,
        parts: list[MixtureRows],
        weights: Sequence[Tensor | None],
        temperature: float,
    ) -> EStep:
        """Take the E step in every part of the rows, and sum over them."""
        log_weight, natural = self.log_weights(model, state)

        def solve(part: tuple[MixtureRows, Tensor | None]) -> tuple[dict[str, Tensor], Tensor]:
            own, weight = part
            responsibility, bound = softmax_and_log_sum(_log_joint(log_weight, natural, own, temperature))
            share = responsibility if weight is None else weight.unsqueeze(-1) * responsibility
            return own.statistics(share), bound

        found = map_in_threads(solve, zip(parts, weights, strict=True))
        total = dict(found[0][0])
        for statistics, _ in found[1:]:
            total = {name: value + statistics[name] for name, value in total.items()}
        return EStep(total, {}, torch.cat([bound for _, bound in found]))

    def e_step_weighted(
        self, model: Any, state: Any, rows: Any, weights: Tensor, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self._sum_parts(model, state, rows.parts, weights.split([*map(len, rows.parts)]), temperature)

    def m_step(self, model: Model, state: Any, step: EStep, rows: MixtureRows) -> Any:
        density, size, (counts, observed) = density_of(model), step.statistics["rows"], of_classes(step.statistics)
        concentration = Dirichlet.of(model, "mixing_proportion", size).concentration
        return {
            "mixing_proportion": Dirichlet(concentration).mode(size, floor=FLOOR),
            density.site: density.mode(density.prior(model, counts), counts, observed),
        }

    def prior_term(self, model: Model, state: Any) -> Tensor:
        density = density_of(model)
        proportion, value = state["mixing_proportion"], state[density.site]
        prior = Dirichlet.of(model, "mixing_proportion", proportion).log_density(proportion)
        return prior + density.log_prior(density.prior(model, value), value)

    def posterior(self, model: Model, state: Any, rows: MixtureRows, step: EStep | None = None) -> CodePosterior:
        """Return the K one-hot codes and the probability of each in every row."""
        found = map_in_threads(lambda part: torch.log_softmax(self.log_joint(model, state, part), -1), rows.parts)
        chance = torch.cat(found)
        return CodePosterior(torch.eye(chance.shape[1]).to(chance), chance)

    def log_evidence(self, model: Model, params: Params, rows: MixtureRows) -> Tensor:
        return self.log_joint(model, params, rows).logsumexp(-1)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return ten starts, on rows enough for each class to be seen a hundred times."""
        return 10, max(2000, 100 * model.shapes["mixing_proportion"][0])

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> Any:
        """Start with random components and equal proportions."""
        density, size = density_of(model), model.shapes["mixing_proportion"][0]
        return _equal_proportions(density, density.random(rows, size, generator))

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> Any:
        """Start with rows as centres of classes; with more than wanted, which are merged after a few iterations, where
        K centres seldom are one in each class."""
        density, size = density_of(model), model.shapes["mixing_proportion"][0]
        if size == 1 or len(rows) < size:  # too few rows for a centre each
            return self.initial(model, rows, generator)
        many = min(density.excess * size, len(rows))
        # Rows far from each other (greedy k-means++) as centres, each pulled to the mean row.
        index = distant_rows(*density.distances(rows), many, generator).to(rows.like.device)
        params = _equal_proportions(density, density.centres(rows, index))
        if density.excess == 1:
            return params
        own = density.prior(model, rows.like)
        prior = own if many == size else _mean(own)
        for settled in range(_SETTLE):
            step = self.e_step(model, params, rows, temperature=rows.temperature ** (1 - settled / _SETTLE))
            proportion = step.statistics["rows"].clamp(min=1e-3)
            found = density.mode(prior, *of_classes(step.statistics))
            params = {"mixing_proportion": proportion / proportion.sum(), density.site: found}
        counts, observed = of_classes(self.e_step(model, params, rows).statistics)
        if len(counts) > size:
            groups = merge_classes(*density.marginal(_mean(own), counts, observed), size)
            counts, observed = (torch.stack([v[group].sum(0) for group in groups]) for v in (counts, observed))
        return _equal_proportions(density, density.mode(own, counts, observed))

    def refine(self, model: Model, rows: MixtureRows, params: Any, generator: torch.Generator, agreed: bool) -> Any:
        """Split and merge classes, less often where starts agreed; on some rows where these are many, then on all."""
        size, some = model.shapes["mixing_proportion"][0], self.search_size(model, len(rows))[1]
        if size < 3 or len(rows) < 3:
            return params
        patience = -(-size // 2) if agreed else 2 * size
        density = density_of(model)
        moves = partial(
            split_and_merge, self, model, _mean(density.prior(model, rows.like)), density, patience, generator
        )
        if len(rows) < 2 * some:
            return moves(rows, params)
        chosen = torch.randperm(len(rows), generator=generator)[:some]
        found = continue_em(self, model, rows, moves(rows.select(chosen.to(rows.like.device)), params))
        before = self.objective_at(model, params, self.e_step(model, params, rows).bound)
        return found.state if found.objective > float(before) else params

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Tell whether every class has its counterpart: the classes' differences from the mean row have cosines above
        .95."""
        site, found = density_of(model).site, (values_of(model, one) for one in (first, second))
        return same_classes(*((p[site], p["mixing_proportion"]) for p in found))


@dataclass(frozen=True)
class MixturePosteriors(State):
    """Posterior of the globals: the concentration (K,) of the proportions, and the parameters of the components that
    the density names."""

    proportion: Tensor
    components: Params

    def posteriors(self, model: Model) -> dict[str, ContinuousPosterior]:
        density = density_of(model)
        components = density.posterior(self.parameters(density))
        return {"mixing_proportion": DirichletPosterior(self.proportion), density.site: components}

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, Any]) -> Self:
        proportion = posteriors["mixing_proportion"].concentration
        (components,) = (one for site, one in posteriors.items() if site != "mixing_proportion")
        return cls(proportion, {n: without_padding(getattr(components, n).flatten(1)) for n in components.layout()})

    def parameters(self, density: Density) -> Any:
        return density.pair_of(*(self.components[name] for name in density.names))


@dataclass(frozen=True, kw_only=True)
class MixtureVB(MixtureExact):
    """Variational Bayes: posteriors of proportions and components too."""

    integrates_globals = True

    name = "vb"
    objective: ClassVar[Objective] = "bound"
    accelerate = None
    state: ClassVar[type[State]] = MixturePosteriors

    def local(self) -> MixtureExact:
        """Return the exact engine at given values of the globals."""
        return MixtureExact()

    def log_weights(self, model: Model, state: MixturePosteriors) -> tuple[Tensor, Natural]:
        """Return E[log p(z = k)], (K,), and the classes' expected natural parameters."""
        density = density_of(model)
        return Dirichlet(state.proportion).expected(), density.mean_natural(state.parameters(density))

    def m_step(self, model: Model, state: Any, step: EStep, rows: MixtureRows) -> MixturePosteriors:
        density, size, (counts, observed) = density_of(model), step.statistics["rows"], of_classes(step.statistics)
        components = density.update(density.prior(model, counts), counts, observed)
        proportion = size + Dirichlet.of(model, "mixing_proportion", size).concentration
        return MixturePosteriors(proportion, components.parameters)

    def prior_term(self, model: Model, state: MixturePosteriors) -> Tensor:
        density = density_of(model)
        components = state.parameters(density)
        apart = Dirichlet(state.proportion).kl(Dirichlet.of(model, "mixing_proportion", state.proportion))
        return -apart - components.kl(density.prior(model, state.proportion)).sum()

    def from_point(self, model: Model, params: Params, rows: MixtureRows, e_step: InitialStep) -> MixturePosteriors:
        """Return the posteriors of the globals after one exact E step at their given values."""
        return self.m_step(model, None, e_step(), rows)

    def initial(self, model: Model, rows: MixtureRows, generator: torch.Generator) -> MixturePosteriors:
        return self.start_from(model, super().initial(model, rows, generator), rows)

    def propose(self, model: Model, rows: MixtureRows, generator: torch.Generator, attempt: int) -> MixturePosteriors:
        """Start with some iterations of the exact engine.

        The expected logarithms of what a class has not yet seen are so low that variational Bayes moves few rows.
        """
        exact = self.local()
        params = exact.propose(model, rows, generator, attempt)
        for _ in range(_EXACT_FIRST):
            params = exact.m_step(model, params, exact.e_step(model, params, rows), rows)
        return self.start_from(model, params, rows)


def _log_joint(log_weight: Tensor, natural: Natural, rows: MixtureRows, temperature: float) -> Tensor:
    table = rows.table(*natural)
    return log_weight + (table if temperature == 1.0 else temperature * table)


def _equal_proportions(density: Density, value: Tensor) -> Params:
    return {"mixing_proportion": torch.full((len(value),), 1 / len(value)).to(value), density.site: value}


def _mean(prior: Any) -> Any:
    """Average the model's priors of classes into a prior for any number of them, (1, F)."""
    return prior.map(lambda part: part.mean(0, keepdim=True))
