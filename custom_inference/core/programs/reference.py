"""The best reference that is feasible for the posterior of a row's latents under any program, and what it is called."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.gaussian.structure import gaussian_if_known
from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.compiled.programs import engines_of_program
from custom_inference.compiled.structure import flatten
from custom_inference.core.posteriors import CodePosterior, LocalPosterior, TablePosterior
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import bind_gaussian_rows, bind_rows, enumerate_table, find_width
from custom_inference.core.programs.importance import MOST_CONFIGURATIONS, sample_by_importance
from custom_inference.core.programs.importance import MOST_REALS as MOST_DRAWN
from custom_inference.core.programs.modes import Gaussians
from custom_inference.core.programs.posteriors import IntegratedPosterior, WeightedPosterior
from custom_inference.core.programs.quadrature import MOST_REALS, integrate
from custom_inference.core.programs.ranges import cover
from custom_inference.core.programs.windows import settle
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import warn_caller, warn_of_data

#: How a posterior is found: of Gaussian latents in closed form, by a sum, by quadrature, or estimated by importance
#: sampling; and which of these are exact.
How = Literal["closed form", "enumeration", "quadrature", "estimate"]
EXACTLY = ("closed form", "enumeration", "quadrature")
#: Values of the finite latents beside real numbers at most: each has a grid of its own.
_MOST_BESIDE = 4096
#: Values of finite latents up to which the sum is a default.
_CHEAP = 2.0**14
#: Nodes an axis of the grids of quadrature, and how many of them a row has at most where quadrature is a default.
_NODES, _FEW_NODES = 25, 2.0**18
#: Rows that quadrature is timed on, and seconds above which they are told.
_TIMED, _LONG = 16, 20.0
#: Whole numbers without a bound count as so many values.
_OPEN = 50
#: Errors of log p(x_n) by quadrature, and Pareto k, above which a warning says so.
_WORST_ERROR, _WORST_K = 1e-4, 0.7


@dataclass(frozen=True)
class Reference:
    """posterior: joint, of the codes of all latents. log_evidence (N,), with the standard_error (N,) of an estimate."""

    posterior: LocalPosterior
    log_evidence: Tensor
    standard_error: Tensor | None
    how: How


def count_reals(model: Model) -> int:
    """How many real numbers stand for the continuous latents of a row, as the model declares them."""
    total = 0
    for name in model.row_latents:
        site = model.sites[name]
        if site.choice is None and site.support is not None and not site.support.is_discrete:
            shape = model.mean_shape_of(name)
            simplex = getattr(site.support, "base_constraint", site.support) is constraints.simplex
            total += math.prod(shape[:-1]) * (shape[-1] - 1) if simplex else math.prod(shape)
    return total


def count_configurations(model: Model, *, of_open: int = _OPEN) -> float:
    """How many values the finite latents of a row have together, as the model declares them; of_open: how many a whole
    number without a bound counts as."""
    total = 1.0
    for name in model.row_latents:
        site, shape = model.sites[name], model.mean_shape_of(name)
        if site.choice is not None or site.support is constraints.one_hot:
            total *= float(shape[-1]) ** math.prod(shape[:-1])
        elif site.support is None or site.support.is_discrete:
            low, high = (getattr(site.support, end, None) for end in ("lower_bound", "upper_bound"))
            values = 2 if site.support is constraints.boolean else of_open
            if low is not None and high is not None:
                values = int(torch.as_tensor(high).max()) - int(torch.as_tensor(low).min()) + 1
            total *= float(values) ** math.prod(shape)
    return total


def count_summed(model: Model, data: Data | None = None) -> float:
    """How many values of the finite latents of a row the sum over them goes through at once: along the factors of a
    compiled program, else all together, as the model declares them.

    data: rows on which a program is compiled that was not yet.
    """
    known = find_width(model, data)
    return count_configurations(model) if known is None else known


def best_reference(model: Model) -> How | None:
    """How the posterior of a row's latents can be found, as the model declares them; None where it cannot."""
    reals, values = count_reals(model), count_configurations(model)
    if not reals:
        return "enumeration"
    if gaussian_if_known(model) is not None:
        return "closed form"
    if reals <= MOST_REALS and values <= _MOST_BESIDE:
        return "quadrature"
    return "estimate" if reals <= MOST_DRAWN and values <= MOST_CONFIGURATIONS else None


def is_cheap(model: Model, data: Data | None = None) -> bool:
    """Whether an exact posterior is a default: by quadrature, or by a sum over few values at once."""
    values, reals = count_configurations(model), count_reals(model)
    how = best_reference(model)
    if how not in EXACTLY or how == "closed form":
        return how == "closed form"
    if values > _CHEAP and count_summed(model, data) > _CHEAP:
        return False
    if reals and data is not None and "conjugate" in engines_of_program(model) and how == "quadrature":
        return values * _NODES**reals * data.x.numel() <= _FEW_NODES  # else a bound that is as good takes less
    return not reals or (model.data_kind != "documents" and values * _NODES**reals <= _FEW_NODES)


def describe_reals(model: Model) -> str:
    """Say which continuous latents a row has."""
    named = [
        f"'{name}' ({math.prod(model.mean_shape_of(name))})"
        for name in model.row_latents
        if (support := model.sites[name].support) is not None and not support.is_discrete
    ]
    return ", ".join(named)


def find_reference(
    model: Model, params: Mapping[str, Tensor], data: Data, *, estimates: bool = False, seed: int = 0
) -> Reference:
    """The posterior of every row's latents at given globals: exact where a sum or quadrature gives it.

    estimates: whether importance sampling may stand in where they do not.

    Raises CapacityError where a sum is too large; MethodError where nothing applies, or nothing exact.
    """
    with torch.no_grad():
        density = cover(RowDensity.of(model, params, data))
        if not density.layout.latents:
            raise MethodError(f"{type(model).__name__} has no latents of its rows")
        if not density.layout.num_reals:
            return _by_sum(density)
        rows = bind_gaussian_rows(density)
        if rows is not None:
            flat = flatten(rows, density.params)
            return Reference(rows.posterior(flat), rows.log_evidence(flat), None, "closed form")
        values = density.layout.num_configurations
        if density.layout.num_reals <= MOST_REALS and values <= _MOST_BESIDE:
            if len(data) > 4 * _TIMED and "conjugate" in engines_of_program(model):
                _tell_time(model, params, data)
            return by_quadrature(density)
        possible = density.layout.num_reals <= MOST_DRAWN and values <= MOST_CONFIGURATIONS
        if estimates and possible:
            return _by_importance(density, seed)
    raise MethodError(_explain(density, possible))


def _tell_time(model: Model, params: Mapping[str, Tensor], data: Data) -> None:
    """Warn of quadrature that takes long, by the time of some rows, where a bound is at hand."""
    begin = time.perf_counter()
    integrate(settle(cover(RowDensity.of(model, params, data.rows(torch.arange(_TIMED))))))
    seconds = (time.perf_counter() - begin) * len(data) / _TIMED
    if seconds > _LONG:
        instead = "log_likelihood(bound='conjugate') and transform(bound='conjugate') have a lower bound at once"
        warn_caller(f"quadrature of log p(x_n) takes about {seconds:.0f} seconds for {len(data)} rows; {instead}")


def _explain(density: RowDensity, possible: bool) -> str:
    reals, values = density.layout.num_reals, density.layout.num_configurations
    instead = (
        "log_likelihood and local_posterior give an estimate by importance sampling"
        if possible
        else 'use log_likelihood(bound="ais") or AIS(), which estimate it, or SVI(guide="mean_field"), which bounds it'
    )
    if not possible and (bounds := [name for name in engines_of_program(density.model) if name == "conjugate"]):
        instead = f'use log_likelihood(bound="{bounds[0]}"), which bounds it from below, or log_likelihood(bound="ais")'
    return (
        f"{type(density.model).__name__} has {reals} real numbers a row ({describe_reals(density.model)}) beside "
        f"{values:.0f} values of the finite latents; exact are up to {MOST_REALS} by quadrature, beside {_MOST_BESIDE} "
        f"values: {instead}"
    )


def _by_sum(density: RowDensity) -> Reference:
    """Sum over the values of finite latents: by the factors of the program, where it is compiled, else all together."""
    bound = bind_rows(density)
    if bound is None:
        return _by_table(density)
    flat = flatten(bound, density.params)
    evidence = bound.log_evidence(flat).expand(len(density))
    return Reference(FactorPosterior.of(bound, flat), evidence, None, "enumeration")


def _by_table(density: RowDensity) -> Reference:
    table = enumerate_table(density)
    kind = CodePosterior if table.density.layout.is_boolean else TablePosterior
    evidence = table.log_joint.logsumexp(-1)
    posterior = kind(table.codes, table.log_joint - evidence.unsqueeze(-1))
    return Reference(posterior, evidence, None, "enumeration")


def by_quadrature(density: RowDensity, start: Gaussians | None = None) -> Reference:
    """Integrate over the real numbers, beside finite latents; start: where they were at nearby globals.

    Warns where the estimate of the error is large.
    """
    before, density = density.layout.num_configurations, settle(density)
    if density.layout.num_configurations != before:
        start = None  # of other values of the finite latents
    found = integrate(density, start=start)
    worst = float(found.error.max()) if len(found.error) else 0.0
    if not worst <= _WORST_ERROR:
        poor = int((~(found.error <= _WORST_ERROR)).sum())
        warn_of_data(f"quadrature of log p(x_n) is off by about {worst:.2g} at most in {poor} of {len(density)} rows")
    return Reference(IntegratedPosterior.of(density, found), found.log_evidence, None, "quadrature")


def _by_importance(density: RowDensity, seed: int) -> Reference:
    density = settle(density)
    found = sample_by_importance(density, seed=seed)
    poor = int((found.pareto_k > _WORST_K).sum())
    if poor:
        worst = float(found.pareto_k.max())
        warn_of_data(
            f"importance sampling is not to be relied on in {poor} of {len(density)} rows (Pareto k up to {worst:.2f})"
        )
    return Reference(WeightedPosterior.of(density, found), found.log_evidence, found.standard_error, "estimate")
