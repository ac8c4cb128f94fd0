"""Fits as ArviZ knows them: InferenceData for ArviZ 0.x, a DataTree for ArviZ 1.x, with named dims and coords."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any, cast

import torch
import xarray as xr
from torch import Tensor

from custom_inference.core.draws import PosteriorDraws, chains_and_draws, has_draws, num_values
from custom_inference.core.evaluate import score
from custom_inference.core.latent_values import is_own_of_rows, split_draws
from custom_inference.core.local_inference import is_feasible
from custom_inference.core.predictive import observed_log_prob
from custom_inference.core.registry import engines_of
from custom_inference.core.result import Result
from custom_inference.faces.arviz_groups import (
    DENSE_UP_TO,
    Labels,
    attributes_of,
    data_groups,
    dataset,
    distinct,
    draw_groups,
    with_answers,
)
from custom_inference.faces.arviz_library import arviz
from ppl_models import DataWarning, GraphData, MethodError

#: What ArviZ cannot know of an approximation.
_APART = (
    "those of an approximation, which arviz.loo and arviz.compare would take for the posterior's without a warning; "
    "use custom_inference.loo and custom_inference.compare_loo, which correct for the difference"
)
#: Rows are scored at every draw of the globals where locals are continuous if that takes at most so many products.
_SCORES = 4e8
#: The same of draws that are made for the conversion alone.
_SCORES_OF_APPROXIMATION = 1e7
#: The same where they are summed out, in products of entries and their values.
_PRODUCTS = 2e10
#: The dyads of a graph are scored at every draw of its nodes' latents up to so many pairs of nodes and draws.
_DYADS = 2_000_000


def to_arviz(
    fit: Result,
    *,
    num_draws: int = 500,
    locals_: bool = True,
    max_rows: int = 200,
    num_copies: int = 100,
    log_likelihood: bool | None = None,
) -> Any:
    """ArviZ InferenceData (ArviZ 0.x) or DataTree (1.x) of a fit.

    num_draws: draws to make of posteriors (one chain); ignored where the fit has draws of its own.
    locals_: whether to draw the local latents of the first ``max_rows`` rows. Where the fit has draws of the
        globals there is one draw of the locals for each, given it, and none where that is too expensive.
    num_copies: draws in the groups of predictions and of the prior, at most; 0 for none of these groups.
    log_likelihood: whether there is that group; by default of draws by a sampler alone. Draws of an approximation
        (variational Bayes, guides) count as the posterior's in ``arviz.loo`` and ``arviz.compare``, which then show no
        warning where :func:`custom_inference.loo`, which corrects for the difference, says that they are not to be
        relied on. True attaches them all the same, warns (UserWarning), and says so in the attribute
        ``approximation`` of the group; MethodError where there are none to attach.

    What is left out for its size or cost is named in the attributes of the group "posterior", with the reason. Names
    with "/", which neither trees nor netCDF files can have, have "." there; ``long_name`` has them as they were.

    Groups
    ------
    posterior: draws of globals (chain, draw, ...) and locals (chain, draw, row, component), of the fit or of its
        ``global_posterior``; the attribute ``globals`` says which.
    point_estimates: what has one value, as one draw, without deviation or effective size in ArviZ (``az.summary(data,
        group="point_estimates")``); means of posteriors whose draws would be too large. It is ``posterior``,
        too, where nothing is drawn.
    sample_stats: the sampler's own, if it has any: of NUTS ``lp``, ``energy``, ``diverging``, ``tree_depth``,
        ``n_steps``, ``acceptance_rate``, ``step_size``.
    log_likelihood: ``x`` (chain, draw, row), log p(x_n | globals) with the local latents summed out, at every draw of
        the globals; attribute ``bound`` names what stands in for it where the sum is not feasible. Of graphs, which
        are one observation, (chain, draw, dyad): log p(x_ij | globals, locals) of the observed dyads at each draw of
        both; attribute ``given`` names the locals. Left out where the globals are points, at which it does not vary:
        leave-one-out would take them to be known; and of approximations, see ``log_likelihood`` above.
    posterior_predictive: copies of the data (chain, draw, row, feature) at draws of globals and locals.
    prior, prior_predictive: draws of the globals from their priors, and data of as many rows at each.
    observed_data: ``x`` (row, feature), NaN where missing, and what else was observed; x is left out where it is
        sparse and too large to be made dense.
    constant_data: what the program is given (covariates, lengths), known globals, and ``mask``, True where observed.
    """
    if num_draws < 1 or max_rows < 1 or num_copies < 0:
        found = f"num_draws = {num_draws}, max_rows = {max_rows}, num_copies = {num_copies}"
        raise MethodError(f"{found}; expected at least 1, 1 and 0")
    labels = {axis: distinct(values) for axis, values in fit.coords.items()}
    groups = _posterior(fit, num_draws, _count_rows(fit, num_draws, max_rows) if locals_ else 0, labels)
    if stats := {name: value for name, value in fit.sample_stats.items() if not name.startswith("each_")}:
        groups["sample_stats"] = dataset(stats, {}, {})
    groups |= _scores(fit, num_draws, log_likelihood, groups["posterior"], labels)
    if num_copies:
        drawn, why = draw_groups(fit, num_copies, labels)
        groups |= drawn
        groups["posterior"].attrs |= why
    groups = {name: with_answers(group, fit) for name, group in (groups | data_groups(fit, labels)).items()}
    attributes = attributes_of(fit)
    groups["posterior"].attrs |= attributes
    return arviz().container(groups, attributes)


def _scores(
    fit: Result, num_draws: int, log_likelihood: bool | None, posterior: xr.Dataset, labels: dict[str, list[Any]]
) -> dict[str, xr.Dataset]:
    """Return the group "log_likelihood", or say in the attributes of the posterior why there is none."""
    missing = _missing_scores(fit, num_draws, posterior, log_likelihood)
    if missing and log_likelihood:
        raise MethodError(f"to_arviz(log_likelihood=True): {missing}")
    if missing:
        posterior.attrs["log_likelihood"] = f"left out: {missing}"
        return {}
    if fit.model.is_graph:
        found = _dyad_scores(fit, cast(GraphData, fit.data), posterior)
    else:
        found = _log_likelihood(fit, num_draws, labels)
    if not from_sampler(fit):
        found.attrs["approximation"] = _APART
        warnings.warn(f"log_likelihood is at draws by {fit.method_name}, {_APART}", DataWarning, stacklevel=4)
    return {"log_likelihood": found}


def _posterior(fit: Result, num_draws: int, num_rows: int, labels: Labels) -> dict[str, xr.Dataset]:
    """Return the groups "posterior", of what there are draws of, and "point_estimates", of what has one value."""
    source, points, known = _draws_of(fit, num_draws, num_rows), fit.point_estimates, fit.model.known
    large = [s for s in fit.global_posterior if fit.draws is None and s not in points and not _is_drawn(source, s)]
    one = {s: fit.globals[s][None, None] for s in (*points, *large)}
    if fit.draws is None:
        apart = [s for s in fit.global_posterior if s not in one and s not in known]
        drawn = {s: torch.stack(list(source.of_site(s)))[None] for s in apart}
        kind = "approximate posterior" if fit.global_posterior else "point estimate"
    else:
        drawn = {s: v for s, v in fit.draws.items() if s not in (*fit.model.row_latents, *one, *known)}
        kind = "draws" if from_sampler(fit) else "draws of an approximate posterior"
    locals_ = _draw_locals(fit, source, num_rows) if num_rows else {}
    if fit.draws is None and fit.posterior.is_point:
        one |= {name: value[:, :1] for name, value in locals_.items()}
    else:
        drawn |= locals_
    groups = {"posterior": dataset(drawn or one, fit.model.dims, labels)}
    if one:
        groups["point_estimates"] = found = dataset(one, fit.model.dims, labels)
        found.attrs |= dict.fromkeys(large, "the mean of a posterior, draws of which would be too large")
        groups["posterior"].attrs["point_estimates"] = ", ".join(one)
    groups["posterior"].attrs["globals"] = kind
    return groups


def _count_rows(fit: Result, num_draws: int, most: int) -> int:
    """Return how many rows have draws of their latents: as many as globals have a value of, where these go by rows."""
    model, size = fit.model, len(fit.data)
    if not any(model.row_axis in model.dims[site] for site in model.global_sites):
        return most
    number = num_draws if fit.draws is None else math.prod(chains_and_draws(fit))
    return size if number * size * math.prod(model.local_shape) <= DENSE_UP_TO else 0


def _draw_locals(fit: Result, source: PosteriorDraws, num_rows: int) -> dict[str, Tensor]:
    """Return draws of the latents of the first rows, (chain, draw, ...): one for each of the fit's draws of the
    globals, where it has such, and nothing where that is too expensive."""
    latents, split = fit.model.row_latents, partial(split_draws, fit.model, fit.globals, fit.data)
    if fit.draws is None:
        return split(torch.stack(list(source.locals_apart()))[None])
    if fit.model.local_site in fit.draws:
        return {s: fit.draws[s][:, :, :num_rows] for s in latents if s in fit.draws}
    if not source.infers_locals:
        return {}
    drawn = torch.stack([local for _, local in source])
    return split(drawn.reshape(*chains_and_draws(fit), *drawn.shape[1:]))


def _draws_of(fit: Result, num_draws: int, num_rows: int = 0) -> PosteriorDraws:
    """The draws of the fit, all of them, or so many of its posterior; locals of these rows alone, to save memory."""
    number = math.prod(chains_and_draws(fit)) if fit.draws is not None else num_draws
    return PosteriorDraws(fit, number, fit.seed, num_rows)


def _is_drawn(source: PosteriorDraws, site: str) -> bool:
    """Whether all draws of a site fit into memory."""
    return len(source) * source.fit.globals[site].numel() <= DENSE_UP_TO


def from_sampler(fit: Result) -> bool:
    """Whether the globals are draws by a chain, which are the posterior's but for what its diagnostics say."""
    return PosteriorDraws(fit, 1).markov


def _missing_scores(fit: Result, num_draws: int, posterior: xr.Dataset, asked: bool | None) -> str | None:
    """Why there is no log-likelihood at every draw of the globals, or None where there is."""
    if asked is False:
        return "not asked for"
    if not has_draws(fit) and not fit.global_posterior:
        return "the globals are a point estimate"
    if not (asked or from_sampler(fit)):
        return f"draws by {fit.method_name} are {_APART}, or ask for to_arviz(log_likelihood=True)"
    if fit.model.has_continuous_locals and not engines_of(fit.model) and not is_feasible(fit.model, fit.data):
        return "log p(x_n) given the globals has no closed form"
    source = _draws_of(fit, num_draws)
    if fit.model.is_graph:
        sizes, nodes = posterior.sizes, len(fit.data)
        drawn = fit.model.local_site in posterior and sizes["node"] == nodes
        cheap = drawn and sizes["chain"] * sizes["draw"] * nodes**2 <= _DYADS
        return None if cheap else "too many dyads for every draw"
    entries = fit.data.x.values().numel() if fit.data.is_sparse else fit.data.x.numel()
    continuous = fit.model.has_continuous_locals
    own = is_own_of_rows(fit.model) or not continuous
    products = len(source) * entries * (num_values(fit.model, fit.data) if own else fit.model.local_shape[0])
    most = (_SCORES if has_draws(fit) else _SCORES_OF_APPROXIMATION) if continuous else _PRODUCTS
    drawn = all(_is_drawn(source, site) for site in fit.global_posterior)
    if not drawn or products > most or len(source) * len(fit.data) > DENSE_UP_TO:
        return f"too expensive at {len(source)} draws of the globals: ask for fewer, or for custom_inference.loo"
    return None


def _log_likelihood(fit: Result, num_draws: int, labels: Labels) -> xr.Dataset:
    site, source = fit.model.observed_site, _draws_of(fit, num_draws)
    scored = [score(fit, params) for params in source.globals_alone()]
    shape = chains_and_draws(fit) if has_draws(fit) else (1, len(source))
    values = torch.stack([row for row, _ in scored]).reshape(*shape, -1)
    found = dataset({site: values}, {**fit.model.dims, site: (fit.model.row_axis,)}, labels)
    found.attrs["bound"] = scored[0][1]
    return found


def _dyad_scores(fit: Result, graph: GraphData, posterior: xr.Dataset) -> xr.Dataset:
    """log p(x_ij | globals, locals) of every observed dyad at every draw."""
    model, site = fit.model, fit.model.observed_site
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    sites = [*model.global_sites, model.local_site]
    draws = {s: torch.tensor(posterior[s].values).to(graph.x.device).flatten(0, 1) for s in sites if s in posterior}
    fixed = {s: fit.globals[s] for s in model.global_sites if s not in draws}
    observed, names = list_observed_dyads(model, graph)
    each = [
        observed_log_prob(model, fixed | {name: value[i] for name, value in draws.items()}, graph)[observed]
        for i in range(math.prod(shape))
    ]
    values = torch.stack(each).reshape(*shape, -1)
    found = dataset({site: values}, {site: ("dyad",)}, {"dyad": distinct(names)})
    found.attrs["given"] = model.local_site
    return found


def list_observed_dyads(model: Any, graph: GraphData) -> tuple[Tensor, list[str]]:
    """Which of the model's dyads were observed, (E,) bool, and the names of these, such as "a -> b"."""
    i, j = model.dyads(torch.arange(model.num_dyads(len(graph)), device=graph.x.device), len(graph))
    observed, arrow = graph.is_observed(i, j), "->" if graph.directed else "--"
    ends = zip(i[observed].tolist(), j[observed].tolist(), strict=True)
    return observed, [f"{graph.nodes[a]} {arrow} {graph.nodes[b]}" for a, b in ends]
