"""CVQ under a mean-field posterior (003, "Variational EM"): q(s) = prod_i Bernoulli(lambda_i).

With the quadratic form of ``common``,

    F_n = c + sum_i lambda_i h_i - 1/2 sum_{i != j} lambda_i lambda_j G_ij + H(lambda),
    H = -sum_i [lambda_i log lambda_i + (1 - lambda_i) log(1 - lambda_i)]      (the slides print the opposite sign)

and dF/dlambda_i = 0 where lambda_i = sigmoid(h_i - sum_{j != i} G_ij lambda_j), the slides' fixed point. F is concave
in each lambda_i, so the update of one source at a time, the others held, never lowers F; all at once could.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import BernoulliPosterior, LocalPosterior
from custom_inference.families.common.rows import RealRows
from custom_inference.families.cvq.common import CvqEngine, Quadratic, added, moments, quadratics
from custom_inference.families.cvq.truncated import likely_codes
from ppl_models import Model


@dataclass(frozen=True, kw_only=True)
class CvqMeanField(CvqEngine):
    """E step: ``sweeps`` coordinate sweeps over the sources; closed-form M step."""

    sweeps: int = 2
    name: ClassVar[str] = "mean_field"

    def e_step(
        self, model: Model, params: Params, rows: RealRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        # Coordinate ascent stays in the mode it starts in: begin at each row's likely codes.
        start = warm["mean"] if warm else likely_codes(model, params, rows)
        statistics: dict[str, Tensor] = {}
        means, bounds = [], []
        for block, part, form in quadratics(params, rows, temperature):
            mean = swept(form, start[block], self.sweeps)
            means.append(mean)
            bounds.append(free_energy(form, mean))
            statistics = added(statistics, moments(part, mean))
        return EStep(statistics, {"mean": torch.cat(means)}, torch.cat(bounds))

    def bound(self, model: Model, params: Params, rows: RealRows, mean: Tensor) -> Tensor:
        """F_n of the module's docstring for any lambda = ``mean`` (N, K), per row (N,)."""
        return torch.cat([free_energy(form, mean[block]) for block, _, form in quadratics(params, rows)])

    def posterior(self, model: Model, params: Params, rows: RealRows, step: EStep) -> LocalPosterior:
        return BernoulliPosterior(step.locals["mean"])


def statistics_of(params: Params, rows: RealRows, mean: Tensor) -> dict[str, Tensor]:
    """The statistics of an E step that ended at lambda = ``mean`` (N, K)."""
    statistics: dict[str, Tensor] = {}
    for block, part, _ in quadratics(params, rows):
        statistics = added(statistics, moments(part, mean[block]))
    return statistics


def swept(form: Quadratic, start: Tensor, sweeps: int) -> Tensor:
    """lambda (B, K) after ``sweeps`` passes over the sources."""
    # Sources are rows here: each update reads and writes contiguous memory.
    mean, linear = start.T.clone(memory_format=torch.contiguous_format), form.linear.T.contiguous()
    shared = form.coupling.ndim == 2
    coupling = form.coupling if shared else form.coupling.permute(1, 2, 0).contiguous()
    for _ in range(sweeps):
        for i in range(len(mean)):
            pull = coupling[i] @ mean if shared else (coupling[i] * mean).sum(0)
            torch.sigmoid(linear[i] - pull, out=mean[i])
    return mean.T.contiguous()


def free_energy(form: Quadratic, mean: Tensor) -> Tensor:
    """F_n (B,)."""
    entropy = (torch.special.entr(mean) + torch.special.entr(1 - mean)).sum(-1)
    return form.constant + (mean * (form.linear - 0.5 * form.pull(mean))).sum(-1) + entropy
