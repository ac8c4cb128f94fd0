"""Harmoniums by exact sums over their smaller layer (Murphy 2012, section 27.7): the evidence, EM, and the climb of log
p(x).

As EM: the E step's statistics are S = sum_n E[(h t', t, h) | x_n]; the M step maximises <theta, S> - sum_n log Z_n +
log p(theta), which is concave where the log prior is: a run of L-BFGS from where it is, taken back if it lowers it.
EM alone is slow here; the search's start is a maximum of log p(x) + log p(theta) already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.core.posteriors import BernoulliPosterior, CodePosterior, GaussianPosterior, LocalPosterior
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.common import SITES, HarmoniumRows
from custom_inference.families.boltzmann.priors import log_prior_of
from custom_inference.families.boltzmann.search import random_starts
from ppl_models import CapacityError, Data, MethodError
from ppl_models.distributions import Energy
from ppl_models.rbm import HarmoniumModel

#: Units of the smaller layer (with missing entries, and of documents: hidden ones) that are summed over.
MOST_UNITS = 20
#: Iterations of L-BFGS of an M step.
_M_STEP = 40


def energy_of_shapes(model: HarmoniumModel) -> Energy:
    """An exponent of the model's sizes, whose values do not matter, of a row whose units are all there."""
    zeros = {site: torch.zeros(1).expand(model.shapes[site]) for site in SITES}
    return model.energy_of_rows(zeros, torch.ones(1, 1) if model.sites[model.observed_site].sparse else None)


@dataclass(frozen=True, kw_only=True)
class ExactHarmonium(ExactEngine):
    """The exact posterior of the hidden units: independent given a whole row, a table of codes where entries miss.

    The posterior of whole rows needs no log Z: at sizes at which that is out of reach there is one, without a bound,
    and with missing entries the means of a Gibbs sampler over these and the hidden units.
    """

    reads_off = True

    def rows(self, model: HarmoniumModel, data: Data) -> HarmoniumRows:
        return HarmoniumRows.of(model, data)

    def feasible(self, model: HarmoniumModel) -> bool:
        energy = energy_of_shapes(model)
        return energy.closed_form or min(energy.bits) <= MOST_UNITS

    def check(self, model: HarmoniumModel, rows: HarmoniumRows) -> None:
        """Raises CapacityError where a sum over the smaller layer is too large."""
        energy = energy_of_shapes(model)
        if rows.times is not None or rows.missing is not None:
            if not energy.closed_form and energy.hidden.kind != "binary":
                what = "missing entries beside gaussian hidden units: the posterior is a mixture over all their values"
                raise MethodError(f"{what}; leave such rows out, or fit with missing='absent' by CD")
            there = torch.ones(1, model.shapes["visible_bias"][0] if rows.times is None else rows.times.shape[1])
            energy = energy.of_rows(torch.zeros(1, model.sizes["component"]), there)
        energy.require_feasible(MOST_UNITS, len(rows))

    def within_reach(self, model: HarmoniumModel, rows: HarmoniumRows) -> bool:
        """Whether the sums can be made."""
        with contextlib.suppress(CapacityError, MethodError):
            self.check(model, rows)
            return True
        return False

    def initial(self, model: HarmoniumModel, rows: HarmoniumRows, generator: torch.Generator) -> Params:
        """Random weights; the visible biases are the natural parameters of the columns' means."""
        return {site: value[0] for site, value in random_starts(model, rows, generator, 1).items()}

    def e_step(
        self,
        model: HarmoniumModel,
        params: Params,
        rows: HarmoniumRows,
        warm: Warm = None,
        *,
        temperature=1.0,
        generator=None,
    ) -> EStep:
        if rows.missing is not None and not self.within_reach(model, rows):
            return EStep({}, {}, torch.full_like(rows.base, torch.nan))
        with torch.enable_grad():
            # The slope of -F is the expectation of what the parameters multiply.
            at = {site: params[site].detach().clone().requires_grad_() for site in SITES}
            score = common.negative_free_energy(common.free_energy_of(model, at, rows), rows)
            sums = torch.autograd.grad(score.sum(), list(at.values()))
        bound = torch.full_like(rows.base, torch.nan)
        if self.within_reach(model, rows):
            bound = score.detach() - common.log_partition_of(model, params, rows)
        statistics = dict(zip(SITES, sums, strict=True)) | {"rows": bound.new_tensor(float(len(rows)))}
        return EStep({name: temperature * value for name, value in statistics.items()}, {}, bound)

    def m_step(self, model: HarmoniumModel, params: Params, step: EStep, rows: HarmoniumRows) -> Params:
        counts, prior = step.statistics, log_prior_of(model, rows.like)

        def objective(at: Params) -> Tensor:
            linear = sum((counts[site].to(at[site]) * at[site]).sum() for site in SITES)
            found = linear - self.total_log_partition(model, at, counts, rows) + prior(at)
            return found / float(counts["rows"])

        return maximise(objective, params, _M_STEP)[0]

    def total_log_partition(self, model: HarmoniumModel, at: Params, counts: Params, rows: HarmoniumRows) -> Tensor:
        """sum_n log Z_n."""
        return counts["rows"].to(at["weight"]) * model.energy(at).log_partition()

    def posterior(
        self, model: HarmoniumModel, params: Params, rows: HarmoniumRows, step: EStep | None
    ) -> LocalPosterior:
        energy = common.free_energy_of(model, params, rows)
        binary = energy.hidden.kind == "binary"
        if rows.missing is None:
            mean = energy.hidden_mean(rows.statistic)
            if binary:
                return BernoulliPosterior(mean)
            return GaussianPosterior(mean, torch.eye(mean.shape[1]).to(mean).expand(*mean.shape, -1))
        if not self.within_reach(model, rows):
            return sample_posterior(model, params, rows)
        energy = common.clamp_to_rows(energy, rows)
        if binary:
            return CodePosterior(energy.codes, torch.log_softmax(energy.log_weights(energy.codes), -1))
        _, mean, factor = energy.gaussian()
        return GaussianPosterior(mean, torch.cholesky_inverse(factor))

    def log_evidence(self, model: HarmoniumModel, params: Params, rows: HarmoniumRows) -> Tensor:
        self.check(model, rows)
        return common.log_likelihood(model, params, rows)


class ExactOfRows(ExactHarmonium):
    """The exact engine where every row has units, and so a Z, of its own: documents, and rows with absent units."""

    additive = False
    one_process = True

    def total_log_partition(self, model: HarmoniumModel, at: Params, counts: Params, rows: HarmoniumRows) -> Tensor:
        return common.log_partition_of(model, at, rows.to(at["weight"].dtype)).sum()


def sample_posterior(model: HarmoniumModel, params: Params, rows: HarmoniumRows, sweeps: int = 200) -> LocalPosterior:
    """Infer the hidden units of rows with missing entries by the means of a Gibbs sampler."""
    found = [mean for _, mean in completions(model, params, rows, sweeps, torch.Generator().manual_seed(0))]
    means = torch.stack(found[sweeps // 5 :])
    mean = means.mean(0)
    if model.code_bits is not None:
        return BernoulliPosterior(mean)
    return GaussianPosterior(mean, torch.diag_embed(means.var(0) + 1))


def completions(
    model: HarmoniumModel,
    params: Params,
    rows: HarmoniumRows,
    sweeps: int,
    generator: torch.Generator,
    start: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Sweeps of Gibbs sampling of the missing units and the hidden ones: the statistics of all units (N, M), and
    E[h | them] (N, K), after each."""
    free = model.energy(params)
    assert rows.missing is not None
    hole = replace(free, hidden_bias=free.hidden_bias.expand(len(rows), -1), times=rows.missing)
    statistic = start
    if statistic is None:
        statistic = rows.statistic + hole.draw_statistic(free.visible_bias.expand_as(rows.statistic), generator)
    for _ in range(sweeps):
        hidden = free.draw_hidden(statistic, generator)
        statistic = rows.statistic + hole.draw_visible(hidden, generator)
        yield statistic, free.hidden_mean(statistic)
