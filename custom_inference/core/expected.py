"""Expected entries: E[x_n] given what is known of row n, by sums and integrals where there are such, else by draws.

With f(s) the mean of the program's observed site at latents s, and q the posterior of a row's latents,

    E[f(s)] = f(E[s])                                                   f affine: topics, factors, memberships
            = exp(b) prod_k E[exp(a_k s_k)]                             log f = b + a's, so also of 1 - f: noisy-or
            = E[sigmoid(e)],   e ~ N(b + a'm, a'Ca)                     logit f = b + a's, q = N(m, C)
            = sum_c q(c) f(c)                                           few values, or nodes of a rule of integration

Which of these holds is seen from f itself, at a few latents, to rounding. Where none does, it is the mean over draws,
and its standard error is told beside it. Fits that hold draws of the globals are averaged over these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.core import predictive
from custom_inference.core.draws import PosteriorDraws, chains_and_draws, has_draws, num_independent
from custom_inference.core.latent_values import is_own_of_rows, latent_values
from custom_inference.core.local_inference import is_feasible, solve_local
from custom_inference.core.over_draws import posteriors_along
from custom_inference.core.posteriors import BernoulliPosterior, GaussianPosterior, LocalPosterior
from custom_inference.core.posteriors.protocol import WeightedValues
from custom_inference.core.programs.checked import check_program
from custom_inference.core.result import Result
from custom_inference.core.states import Params
from ppl_models import Data, MethodError, Model
from ppl_models.core.likelihood import hermite
from ppl_models.data.adapt import adapt
from ppl_models.data.containers import axis_labels

#: Draws of latents that are averaged over where nothing better is at hand, at most and at least.
_DRAWS, _FEWEST = 2000, 100
#: Draws of the globals that are averaged over, at most: where the latents given each are exact, and elsewhere.
_GLOBALS, _SLOW = 400, 20
#: So many numbers of x, and of latents, are held at once; and computed for a mean over draws.
_NUMBERS, _PRODUCTS = 2**22, 2**28
#: How far apart values are that rounding alone sets apart, in units of the last place.
_ROUNDING = 2**12
#: Nodes of the rule that sigmoids of a normal are integrated by.
_NODES = 100

#: Rows and values (N, ...) of their latents -> what is expected at these, (N, D).
Means = Callable[[Data, Tensor], Tensor]


class Expectation(NamedTuple):
    """E[x] (N, D) and the standard errors of it as an estimate, 0 where it is none."""

    mean: Tensor
    standard_error: Tensor


def expect_entries(
    fit: Result, data: Data, read: Callable[[Any], Tensor] | None = None, bound: str | None = None
) -> Expectation:
    """Return what a fit expects of the entries of rows that were read as its own.

    read: what is expected, of the observed site's distribution; by default its mean. bound: the family of the latents'
    posteriors, as for :meth:`custom_inference.Fit.local_posterior`.
    """
    if fit.model.is_graph and read is None:
        return _of_graph(fit)
    with torch.no_grad():
        found = [
            _expect(fit.model, partial(_read_site, fit.model, params, read), posterior, data, fit.seed)
            for params, posterior in _posteriors(fit, data, bound)
        ]
    if len(found) == 1:
        return found[0]
    each = torch.stack([one.mean for one in found])
    within = torch.stack([one.standard_error for one in found]).square().mean(0) / len(found)
    between = each.var(0) / min(len(found), num_independent(fit))
    return Expectation(each.mean(0), (within + between).sqrt())


def _of_graph(fit: Result) -> Expectation:
    """Return what is expected of every dyad: sums over the blocks of its two nodes."""
    from custom_inference.graphs.links import expect_dyads  # which the shell and the figures need as well

    model: Any = fit.model
    size = len(fit.data)
    every = torch.ones(size, size, dtype=torch.bool, device=fit.data.x.device)
    every = every if model.self_loops else every.fill_diagonal_(False)
    i, j = (every if model.directed else every.triu()).nonzero().T
    tables = []
    for one in expect_dyads(fit, i, j):
        table = one.new_zeros(size, size)
        table[i, j] = one
        tables.append(table if model.directed else table + table.triu(1).T)
    return Expectation(*tables)


def _posteriors(fit: Result, data: Data, bound: str | None) -> Iterator[tuple[Params, LocalPosterior]]:
    """Give globals, draws where the fit has them, and the posterior of the rows' latents at each."""
    if not has_draws(fit):
        posterior = fit.posterior_of(data, bound=bound)
        predictive.require_copies(fit.model, fit.globals, posterior.mode, data)
        yield fit.globals, posterior
        return
    exact = bound is None and is_feasible(fit.model, data)
    number = min(_GLOBALS if exact else _SLOW, int(np.prod(chains_and_draws(fit))))
    values = [
        {site: value.to(data.x.device) for site, value in one.items()}
        for one in PosteriorDraws(fit, number, fit.seed).globals_alone()
    ]
    if exact:
        found: Any = posteriors_along(fit.model, values, data, seed=fit.seed)
    else:
        settings: dict[str, Any] = {"bound": bound, "fallback": fit.solver, "seed": fit.seed, "evidence": False}
        found = (solve_local(fit.model, params, data, **settings).posterior for params in values)
    yield from zip(values, found, strict=True)


def _read_site(model: Model, params: Params, read: Callable[[Any], Tensor] | None, data: Data, local: Tensor) -> Tensor:
    if read is None:
        return predictive.feature_mean(model, params, local, like=data)
    return read(predictive.observed_site(model, params, local, like=data)["fn"])


def _expect(model: Model, means: Means, posterior: LocalPosterior, data: Data, seed: int) -> Expectation:
    """Return E[means] under a posterior, in blocks of rows."""
    plain = replace(data, coords={}) if data.coords else data
    width = max(data.x[0].numel(), posterior.mean[0].numel()) if len(data) else 1
    rows = max(1, _NUMBERS // (width * (1 + posterior.mean[0].numel())))
    found = []
    for start in range(0, len(data), rows):
        some = slice(start, start + rows)
        block = plain if rows >= len(data) else plain.rows(some)
        found.append(_expect_rows(model, means, posterior.rows(some), block, seed))
    return Expectation(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _expect_rows(model: Model, means: Means, posterior: LocalPosterior, data: Data, seed: int) -> Expectation:
    # The codes of a program's latents may hold whole numbers among others, between which there is nothing.
    exact = _by_affine(means, posterior, data) if posterior.continuous and not is_own_of_rows(model) else None
    if exact is None and type(posterior) in (GaussianPosterior, BernoulliPosterior):
        exact = _by_link(means, posterior, data)
    if exact is not None:
        return Expectation(exact, torch.zeros_like(exact))
    number = max(_FEWEST, min(_DRAWS, _PRODUCTS // max(1, data.x.numel())))
    return _average(means, data, posterior.weigh_values(number, seed=seed))


def _by_affine(means: Means, posterior: LocalPosterior, data: Data) -> Tensor | None:
    """Return the means at the mean of the latents; None where they are no affine function of these."""
    one, other, third = posterior.sample(3, seed=1)
    ends = [means(data, place) for place in (one, other, third)]
    for a, b in ((0, 1), (1, 2)):
        middle = means(data, ((one, other, third)[a] + (one, other, third)[b]) / 2)
        if not _is_same(middle, (ends[a] + ends[b]) / 2):
            return None
    return means(data, posterior.mean)


def _is_same(one: Tensor, other: Tensor, least: float = 1e-6) -> bool:
    """Whether values are the same but for rounding, that of values of at least this size."""
    limit = _ROUNDING * torch.finfo(one.dtype).eps * torch.maximum(one.abs(), other.abs()).clamp_min(least)
    return one.shape == other.shape and bool(((one - other).abs() <= limit).all())


#: What may be affine in the latents, and its inverse.
_LINKS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "log": (torch.log, torch.exp),
    "log of the complement": (lambda mean: torch.log1p(-mean), lambda value: -torch.expm1(value)),
    "logit": (torch.logit, torch.sigmoid),
}


def _by_link(means: Means, posterior: LocalPosterior, data: Data) -> Tensor | None:
    """Return the exact mean of entries a link of which is affine in the latents; None where none is."""
    of_bits = not posterior.continuous
    if posterior.mean.ndim != 2:
        return None
    base = torch.zeros_like(posterior.mean) if of_bits else posterior.mean
    scale = torch.ones_like(base) if of_bits else posterior.variance.sqrt()
    at_base, size = means(data, base), base.shape[1]
    if at_base.ndim != 2 or bool((at_base <= 0).any()):
        return None
    # Draws of bits may all be ones that the steps see themselves.
    bits = torch.stack([torch.arange(size) % 2, (torch.arange(size) < 2).long(), torch.ones(size).long()]).to(base)
    places = bits.unsqueeze(1).expand(-1, *base.shape) if of_bits else posterior.sample(2, seed=1)
    checks = [(one, means(data, one)) for one in places]
    moved: list[Tensor] = []
    for name, (link, inverse) in _LINKS.items():
        if (name != "log" and bool((at_base >= 1).any())) or (of_bits and name == "logit"):
            continue
        moved = moved or [means(data, base + step * scale) for step in torch.eye(size).to(base)]
        start = link(at_base)
        slope = torch.stack([(link(one) - start) / s.unsqueeze(1) for one, s in zip(moved, scale.T, strict=True)], -1)
        said = (inverse(start + torch.einsum("ndk,nk->nd", slope, place - base)) for place, _ in checks)
        if all(
            _is_same(found, one, 0.0 if name == "log" else 1.0) for (_, found), one in zip(checks, said, strict=True)
        ):
            return _integrate(name, posterior, start, slope)
    return None


def _integrate(name: str, posterior: LocalPosterior, start: Tensor, slope: Tensor) -> Tensor:
    """Return the means of entries whose link is start (N, D) at the base, and has these slopes (N, D, K)."""
    if not isinstance(posterior, GaussianPosterior):
        log_moment = start + torch.log1p(posterior.mean.unsqueeze(1) * torch.expm1(slope)).sum(-1)
        return log_moment.exp() if name == "log" else -torch.expm1(log_moment)
    variance = (slope @ torch.linalg.cholesky(posterior.covariance)).square().sum(-1)
    if name != "logit":
        log_moment = start + variance / 2
        return log_moment.exp() if name == "log" else -torch.expm1(log_moment)
    node, weight = (one.to(start) for one in hermite(_NODES))
    spread, total = variance.sqrt(), torch.zeros_like(start)
    for place, share in zip(node, weight, strict=True):
        total += share * torch.sigmoid(start + place * spread)
    return total


def _average(means: Means, data: Data, values: WeightedValues) -> Expectation:
    """Average over values of the latents, copies of the rows at once."""
    value, weight = values.value, values.weight
    if value.ndim == weight.ndim and len(data) > 1 and not values.drawn:
        table = _common_table(means, data, value)
        if table is not None:
            mean = (weight @ table.flatten(1)).reshape(len(data), *table.shape[1:])
            return Expectation(mean, torch.zeros_like(mean))
    total, square, squares, products = None, weight.square().sum(1), 0.0, 0.0
    for rows, local, own in spread_values(data, values):
        mean = means(rows, local)
        mean = mean.reshape(*own.shape, *mean.shape[1:])
        share = own.reshape(*own.shape, *[1] * (mean.ndim - 2))
        mean = torch.where(share > 0, mean, 0.0)
        total = (share * mean).sum(1) + (0.0 if total is None else total)
        if values.drawn:
            squares, products = squares + (share * mean).square().sum(1), products + (share**2 * mean).sum(1)
    assert total is not None
    if not values.drawn:
        return Expectation(total, torch.zeros_like(total))
    square = square.reshape(len(total), *[1] * (total.ndim - 1))
    return Expectation(total, (squares - 2 * total * products + total**2 * square).clamp_min(0).sqrt())


def spread_values(data: Data, values: WeightedValues) -> Iterator[tuple[Data, Tensor, Tensor]]:
    """Give blocks of the values of the latents: copies of the rows (N C), a value for each (N C, ...), and the values'
    weights (N, C)."""
    value, weight = values.value, values.weight
    size, number = weight.shape
    every, step = torch.arange(size, device=weight.device), max(1, _NUMBERS // max(1, data.x.numel()))
    for start in range(0, number, step):
        some = slice(start, min(start + step, number))
        count = some.stop - start
        local = value[some].expand(size, count, *value.shape[1:]) if value.ndim == weight.ndim else value[:, some]
        rows = data if count == 1 else data.rows(every.repeat_interleave(count))
        yield rows, local.flatten(0, 1), weight[:, some]


def _common_table(means: Means, data: Data, value: Tensor) -> Tensor | None:
    """Return what is expected at each value (C, ...) of the latents, where that is the same in all rows."""
    first = data.rows(torch.zeros(len(data), dtype=torch.long, device=value.device))
    for place in (value[0], value[-1]):
        local = place.expand(len(data), *place.shape)
        if not torch.equal(means(data, local), means(first, local)):
            return None
    step = max(1, _NUMBERS // max(1, data.x[0].numel()))
    parts = []
    for some in value.split(step):
        parts.append(means(data.rows(torch.zeros(len(some), dtype=torch.long, device=value.device)), some))
    return torch.cat(parts)


def predict_given(fit: Result, given: Mapping[str, Any]) -> Tensor:
    """Return E[x_n | what row n is given, and observed with beside x] at the fit's globals, (N, ...); where nothing is
    given, for the rows of the fit.

    Exact where latents are summed or integrated out, with nothing known of x; else the mean over draws of them by the
    fit's seed.

    Raises DataError for what is lacking or does not suit the model; ModelError for a program in which missing entries
    count, or with factors that draws leave out; MethodError where x has no mean.
    """
    model, params, data = fit.model, fit.globals, _without_x(fit, given)
    check_program(model, data)
    seeds = itertools.count(fit.seed)  # blocks of what the program draws are different ones

    def expect_at(rows: Data, local: Tensor) -> Tensor:
        values = latent_values(model, params, rows, local) if local.shape[1:].numel() else {}
        return predictive.expect_generated(model, {**params, **values}, rows, seed=next(seeds))

    with torch.no_grad():
        if is_feasible(model, data) or len(model.sites_of("observed")) > 1:
            posterior = solve_local(model, params, data, seed=fit.seed).posterior
            predictive.require_copies(model, params, posterior.mode, data)
            mean = _expect(model, expect_at, posterior, data, fit.seed).mean
        else:
            predictive.refuse_draws(model, params, data)
            weight = data.x.new_full((len(data), _DRAWS), 1 / _DRAWS)
            drawn = WeightedValues(weight.new_empty(_DRAWS, 0), weight, True)
            mean = _average(expect_at, replace(data, coords={}), drawn).mean
    if not bool(torch.isfinite(mean).all()):
        raise MethodError(
            f"no prediction of '{model.observed_site}' of {type(model).__name__}: its distribution has no finite mean"
        )
    return mean


def _without_x(fit: Result, given: Mapping[str, Any]) -> Data:
    """The rows with what they are given, and nothing known of x."""
    own = fit.data.dense()
    if not given:
        return replace(own, mask=torch.zeros_like(own.x, dtype=torch.bool))
    sizes = fit.model.rows_of({site: torch.empty(len(value)) for site, value in given.items() if np.ndim(value)})
    x = torch.full((sizes.get("num_rows", 1), *own.x.shape[1:]), torch.nan, dtype=own.x.dtype)
    labels = next((rows for value in given.values() if (rows := axis_labels(adapt(value))[0]) is not None), None)
    return fit.read(Data(x=x, coords={} if labels is None else {"row": labels}), **given)
