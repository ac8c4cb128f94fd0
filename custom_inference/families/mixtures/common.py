"""Mixtures by summing over the K classes: what the exact steps of all of them share.

With r_nk = p(z_n = k | x_n) every M step of a mixture is that of its classes' densities with rows weighted by r_nk, and
pi_k proportional to sum_n r_nk + alpha_k - 1 under Dirichlet(alpha): the maximum of the expected log joint plus log
prior (pi_k proportional to sum_n r_nk + alpha_k, the maximum in the softmax basis, where some alpha is below 1).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.capabilities import Accelerated, Checked, Exact, PriorTerm
from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import CodePosterior
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import values_of
from custom_inference.families.common.dirichlet import dirichlet_prior, log_prior_density, softmax_or_simplex
from ppl_models import Model

#: Proportions are kept this far from 0.
FLOOR = 1e-6
#: Candidates among which each centre of an informed start is chosen (greedy k-means++).
_CANDIDATES = 4
#: How much of a centre is its row; the rest is the mean row.
OWN = 0.7


@dataclass(frozen=True, kw_only=True)
class MixtureEngine(Proposals, Accelerated, PriorTerm, Checked, Exact):
    """The E step over the classes, and the M step of their proportions; subclasses give the densities."""

    accelerate = "squarem"

    @property
    def engine(self) -> MixtureEngine:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Itself: its proposals are its own."""
        return self

    @property
    @abc.abstractmethod
    def site(self) -> str:
        """The component site."""

    @abc.abstractmethod
    def table(self, model: Any, params: Params, rows: Any) -> Tensor:
        """log p(x_n | z_n = k), (N, K)."""

    @abc.abstractmethod
    def collect(self, share: Tensor, rows: Any) -> dict[str, Tensor]:
        """What the M step of the densities needs of rows weighted by ``share`` (N, K); additive over rows."""

    @abc.abstractmethod
    def components(self, model: Model, params: Params, counts: dict[str, Tensor], rows: Any) -> Tensor:
        """The component site from what was collected, with ``rows`` sum_n r_nk among it."""

    @abc.abstractmethod
    def component_log_prior(self, model: Model, params: Params) -> Tensor:
        """The log prior density that the M step climbs."""

    def feasible(self, model: Model) -> bool:
        """Always: a row has K classes."""
        return True

    def check(self, model: Model, rows: Any) -> None:
        """Raises MethodError for a prior of the proportions other than Dirichlet."""
        dirichlet_prior(model, "mixing_proportion", rows.like)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Ten starts, on rows enough for each class to be seen a hundred times."""
        return 10, max(2000, 100 * model.shapes["mixing_proportion"][0])

    def log_joint(self, model: Any, params: Params, rows: Any, temperature: float = 1.0) -> Tensor:
        """log p(z_n = k) + temperature log p(x_n | z_n = k), (N, K)."""
        table = self.table(model, params, rows)
        return torch.log(params["mixing_proportion"]) + (table if temperature == 1.0 else temperature * table)

    def e_step(
        self,
        model: Model,
        params: Params,
        rows: Any,
        warm: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        joint = self.log_joint(model, params, rows, temperature)
        bound = joint.logsumexp(-1)
        share = (joint - bound.unsqueeze(-1)).exp_()
        return EStep({"rows": share.sum(0), **self.collect(share, rows)}, {}, bound)

    def m_step(self, model: Model, params: Params, step: EStep, rows: Any) -> Params:
        counts = step.statistics
        concentration = dirichlet_prior(model, "mixing_proportion", counts["rows"])
        return {
            "mixing_proportion": softmax_or_simplex(counts["rows"], concentration, floor=FLOOR),
            self.site: self.components(model, params, counts, rows),
        }

    def prior_term(self, model: Model, params: Params) -> Tensor | float:
        proportion = params["mixing_proportion"]
        prior = log_prior_density(proportion, dirichlet_prior(model, "mixing_proportion", proportion))
        return prior + self.component_log_prior(model, params)

    def posterior(self, model: Model, params: Params, rows: Any, step: EStep | None = None) -> CodePosterior:
        """The K one-hot codes and the probability of each in every row."""
        joint = self.log_joint(model, params, rows)
        return CodePosterior(torch.eye(joint.shape[1]).to(joint), torch.log_softmax(joint, -1))

    def log_evidence(self, model: Model, params: Params, rows: Any) -> Tensor:
        """log p(x_n | params), (N,)."""
        return self.log_joint(model, params, rows).logsumexp(-1)

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Every class has its counterpart: the classes' differences from the mean row have cosines above .95."""
        found = (values_of(model, one) for one in (first, second))
        return same_classes(*((p[self.site], p["mixing_proportion"]) for p in found))


def same_classes(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    """Of components (K, ...) with their proportions (K,)."""
    if len(first[0]) == 1:
        return True
    apart = [value.flatten(1) - share @ value.flatten(1) for value, share in (first, second)]
    return bool((match_components(*apart).similarity > 0.95).all())


def equal_shares(site: str, value: Tensor) -> Params:
    """Components with equal proportions."""
    size = len(value)
    return {"mixing_proportion": torch.full((size,), 1 / size).to(value), site: value}


def distant_rows(
    distance: Callable[[Tensor], Tensor], weight: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """``count`` rows, each drawn with probability proportional to the distance from the nearest one chosen before.

    Of ``_CANDIDATES`` such draws the one is kept that leaves the smallest sum of distances (greedy k-means++).

    distance: squared, (N, C) of all rows from the rows of an index (C,). weight: (N,), how much each row counts.
    """
    heavy = weight.to(torch.float64).cpu()
    heavy = heavy if float(heavy.sum()) > 0 else torch.ones_like(heavy)
    chosen = torch.multinomial(heavy, 1, generator=generator)
    nearest = distance(chosen)[:, 0]
    while len(chosen) < count:
        odds = nearest.to(torch.float64).cpu() * heavy
        # Fewer different rows than classes: any row will do.
        odds = odds if float(odds.sum()) > 0 else torch.ones_like(odds)
        candidates = torch.multinomial(odds, min(_CANDIDATES, int((odds > 0).sum())), generator=generator)
        reached = torch.minimum(nearest[:, None], distance(candidates))
        best = int((reached * weight.unsqueeze(-1)).sum(0).argmin())
        chosen, nearest = torch.cat([chosen, candidates[best : best + 1]]), reached[:, best]
    return chosen
