"""Harmoniums by exact sums over their smaller layer (002, section 27.7): the evidence, EM, and the climb of log p(x).

As EM: the E step's statistics are S = sum_n E[(h t', t, h) | x_n]; the M step maximises <theta, S> - sum_n log Z_n +
log p(theta), which is concave where the log prior is: a run of L-BFGS from where it is, taken back if it lowers it.
EM alone is slow here; the start that :func:`ascend` gives is a maximum of log p(x) + log p(theta) already.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from custom_inference.core.capabilities import Checked, Exact, NeedsRows, OneProcess
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import BernoulliPosterior, CodePosterior, GaussianPosterior, LocalPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.common import SITES, HarmoniumRows
from custom_inference.families.common.priors import normal_parameters
from ppl_models import CapacityError, Data, MethodError, Model, PriorError
from ppl_models.distributions import Energy
from ppl_models.likelihoods import Bernoulli

#: Units of the smaller layer (with missing entries, and of documents: hidden ones) that are summed over.
MOST_UNITS = 20
#: Starts that climb at once, their steps by Adam in single precision, and the spread of their weights.
_STARTS, _ADAM_STEPS, _SPREAD, _RATE = 6, 400, 0.3, 0.05
#: Iterations of L-BFGS of a start, and of an M step.
_POLISH, _M_STEP = 800, 40


def energy_of_shapes(model: Any) -> Energy:
    """An exponent of the model's sizes, whose values do not matter, of a row whose units are all there."""
    zeros = {site: torch.zeros(1).expand(model.shapes[site]) for site in SITES}
    return model.energy_of_rows(zeros, torch.ones(1, 1) if model.sites[model.observed_site].sparse else None)


@dataclass(frozen=True, kw_only=True)
class ExactHarmonium(Checked, Exact):
    """The exact posterior of the hidden units: independent given a whole row, a table of codes where entries miss.

    The posterior of whole rows needs no log Z: at sizes at which that is out of reach there is one, without a bound,
    and with missing entries the means of a Gibbs sampler over these and the hidden units.
    """

    def rows(self, model: Any, data: Data) -> HarmoniumRows:
        return HarmoniumRows.of(model, data)

    def feasible(self, model: Model) -> bool:
        energy = energy_of_shapes(model)
        return energy.closed_form or min(energy.bits) <= MOST_UNITS

    def check(self, model: Any, rows: HarmoniumRows) -> None:
        """Raises CapacityError where a sum over the smaller layer is too large."""
        energy = energy_of_shapes(model)
        if rows.times is not None or rows.missing is not None:
            if not energy.closed_form and not isinstance(energy.hidden, Bernoulli):
                what = "missing entries beside gaussian hidden units: the posterior is a mixture over all their values"
                raise MethodError(f"{what}; leave such rows out, or fit with missing='absent' by CD")
            there = torch.ones(1, model.num_features if rows.times is None else rows.times.shape[1])
            energy = energy.of_rows(torch.zeros(1, model.sizes["component"]), there)
        energy.require_feasible(MOST_UNITS, len(rows))

    def within_reach(self, model: Any, rows: HarmoniumRows) -> bool:
        """Whether the sums can be made."""
        with contextlib.suppress(CapacityError, MethodError):
            self.check(model, rows)
            return True
        return False

    def initial(self, model: Any, rows: HarmoniumRows, generator: torch.Generator) -> Params:
        """Random weights; the visible biases are the natural parameters of the columns' means."""
        return {site: value[0] for site, value in random_starts(model, rows, generator, 1).items()}

    def e_step(
        self, model: Any, params: Params, rows: HarmoniumRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        if rows.missing is not None and not self.within_reach(model, rows):
            return EStep({}, {}, torch.full_like(rows.base, torch.nan))
        with torch.enable_grad():
            # The slope of -F is the expectation of what the parameters multiply.
            at = {site: params[site].detach().clone().requires_grad_() for site in SITES}
            score = common.unnormalised(common.free_energy_of(model, at, rows), rows)
            sums = torch.autograd.grad(score.sum(), list(at.values()))
        bound = torch.full_like(rows.base, torch.nan)
        if self.within_reach(model, rows):
            bound = score.detach() - common.log_partition_of(model, params, rows)
        statistics = dict(zip(SITES, sums, strict=True)) | {"rows": bound.new_tensor(float(len(rows)))}
        return EStep({name: temperature * value for name, value in statistics.items()}, {}, bound)

    def m_step(self, model: Any, params: Params, step: EStep, rows: HarmoniumRows) -> Params:
        counts = step.statistics

        def objective(at: Params) -> Tensor:
            linear = sum((counts[site].to(at[site]) * at[site]).sum() for site in SITES)
            return linear - self.total_log_partition(model, at, counts, rows) + model.log_prior(at)

        return polished(objective, params, _M_STEP, float(counts["rows"]))

    def total_log_partition(self, model: Any, at: Params, counts: Params, rows: HarmoniumRows) -> Tensor:
        """sum_n log Z_n."""
        return counts["rows"].to(at["weight"]) * model.energy(at).log_partition()

    def posterior(self, model: Any, params: Params, rows: HarmoniumRows, step: EStep | None) -> LocalPosterior:
        energy = common.free_energy_of(model, params, rows)
        binary = isinstance(energy.hidden, Bernoulli)
        if rows.missing is None:
            mean = energy.hidden_mean(rows.statistic)
            if binary:
                return BernoulliPosterior(mean)
            return GaussianPosterior(mean, torch.eye(mean.shape[1]).to(mean).expand(*mean.shape, -1))
        if not self.within_reach(model, rows):
            return sampled_posterior(model, params, rows)
        energy = common.clamped(energy, rows)
        if binary:
            return CodePosterior(energy.codes, torch.log_softmax(energy.log_weights(energy.codes), -1))
        _, mean, factor = energy.gaussian()
        return GaussianPosterior(mean, torch.cholesky_inverse(factor))

    def log_evidence(self, model: Any, params: Params, rows: HarmoniumRows) -> Tensor:
        self.check(model, rows)
        return common.log_likelihood(model, params, rows)


class ExactOfRows(NeedsRows, OneProcess, ExactHarmonium):
    """The same where every row has units, and so a Z, of its own: documents, and rows with absent units."""

    def total_log_partition(self, model: Any, at: Params, counts: Params, rows: HarmoniumRows) -> Tensor:
        return common.log_partition_of(model, at, rows.to(at["weight"].dtype)).sum()


def sampled_posterior(model: Any, params: Params, rows: HarmoniumRows, sweeps: int = 200) -> LocalPosterior:
    """The hidden units of rows with missing entries, by the means of a Gibbs sampler."""
    found = [mean for _, mean in completions(model, params, rows, sweeps, torch.Generator().manual_seed(0))]
    means = torch.stack(found[sweeps // 5 :])
    mean = means.mean(0)
    if model.code_bits is not None:
        return BernoulliPosterior(mean)
    return GaussianPosterior(mean, torch.diag_embed(means.var(0) + 1))


def completions(
    model: Any,
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


class HarmoniumProposals(Proposals):
    """One start: the best of several random ones that climbed log p(x) + log p(theta) side by side."""

    def propose(self, model: Model, rows: HarmoniumRows, generator: torch.Generator, attempt: int) -> Params:
        return ascend(model, rows, random_starts(model, rows, generator, _STARTS))

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """One proposal, which makes its starts itself, on all rows."""
        return 1, num_rows


def column_naturals(model: Any, rows: HarmoniumRows) -> Tensor:
    """Natural parameters of the columns' means, in the shape of the visible biases."""
    kind, shape = model.likelihood, model.shapes["visible_bias"]
    total = rows.statistic.sum(0).view(shape)
    if kind.is_vector:
        share = total + 0.5
        share = share / share.sum(-1, keepdim=True)
        return share.log()
    there = rows.times if rows.missing is None else 1 - rows.missing
    count = torch.full_like(total, len(rows)) if there is None else there.sum(0)
    return torch.logit((total + 0.5) / (count + 1)) if isinstance(kind, Bernoulli) else total / count.clamp(min=1)


def random_starts(model: Any, rows: HarmoniumRows, generator: torch.Generator, starts: int) -> Params:
    shape, like = model.shapes["weight"], rows.like
    noise = torch.randn((starts, *shape), generator=generator, dtype=torch.float64).to(like)
    size = _SPREAD if model.code_bits is not None else min(_SPREAD, 0.3 / (shape[0] ** 0.5 + shape[1] ** 0.5))
    bias = column_naturals(model, rows)
    return {
        "weight": size * noise,
        "visible_bias": bias.expand(starts, *bias.shape).clone(),
        "hidden_bias": like.new_zeros(starts, shape[0]),
    }


def ascend(model: Any, rows: HarmoniumRows, starts: Params) -> Params:
    """Adam on all starts at once, L-BFGS on the best: a maximum of log p(x) + log p(theta)."""
    distinct, prior = rows.distinct, log_prior_of(model, rows.like)
    exact = distinct.to(torch.float64)

    def objective(at: Params, rows: HarmoniumRows) -> Tensor:
        each = common.log_likelihood(model, at, rows)
        return (each.sum(-1) if rows.copies is None else each @ rows.copies) + prior(at)

    at = {site: value.clone().requires_grad_() for site, value in starts.items()}
    adam = torch.optim.Adam(list(at.values()), lr=_RATE, betas=(0.9, 0.99))
    with torch.enable_grad():
        for _ in range(_ADAM_STEPS):
            adam.zero_grad()
            (-objective(at, distinct).sum() / len(rows)).backward()
            adam.step()
    found = {site: value.detach() for site, value in at.items()}
    best = int(objective(found, distinct).nan_to_num(-torch.inf, neginf=-torch.inf).argmax())

    def single(one: Params) -> Tensor:
        return objective({site: value[None] for site, value in one.items()}, exact)[0]

    return polished(single, {site: value[best] for site, value in found.items()}, _POLISH, float(len(rows)))


def log_prior_of(model: Any, like: Tensor) -> Callable[[Params], Tensor]:
    """log p(theta) of every start; of Normal priors without its constant, in a tenth of the time."""
    try:
        normal = {site: normal_parameters(model, site, model.shapes[site], like.double()) for site in SITES}
    except PriorError:
        return model.log_prior

    def log_prior(at: Params) -> Tensor:
        parts = []
        for site, (mean, precision) in normal.items():
            value, axes = at[site], tuple(range(-mean.ndim, 0))
            parts.append(((value - mean.to(value)).square() * precision.to(value)).sum(axes))
        return -0.5 * (parts[0] + parts[1] + parts[2])

    return log_prior


def polished(objective: Callable[[Params], Tensor], start: Params, iterations: int, scale: float) -> Params:
    """L-BFGS up ``objective`` in double precision; the start itself where that is no better."""
    like, shapes = start["weight"], {site: start[site].shape for site in SITES}

    def unpacked(flat: Tensor) -> Params:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        return {site: part.view(shape) for part, (site, shape) in zip(parts, shapes.items(), strict=True)}

    def slope(flat: Any) -> tuple[float, Any]:
        at = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            value = -objective(unpacked(at)) / scale
        if not bool(torch.isfinite(value)):  # two Gaussian layers without a joint density
            return 1e10, np.zeros_like(flat)
        return float(value.detach()), torch.autograd.grad(value, at)[0].numpy()

    first = torch.cat([start[site].detach().flatten() for site in SITES]).cpu().double().numpy()
    found = minimize(slope, first, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20})
    better = np.isfinite(found.fun) and found.fun <= slope(first)[0]
    return {site: value.to(like) for site, value in unpacked(torch.as_tensor(found.x if better else first)).items()}
