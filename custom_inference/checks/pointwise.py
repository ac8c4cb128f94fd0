"""log p(x_n | draw) of every observation and draw, and log p(draw, x) - log q(draw) of approximate posteriors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from custom_inference.core.counted import are_counts
from custom_inference.core.draws import PosteriorDraws, chains_and_draws
from custom_inference.core.evaluate import score
from custom_inference.core.fit import Fit
from custom_inference.core.isolation import default_dtype, isolated, own_store
from custom_inference.core.local_inference import solve_local
from custom_inference.core.posteriors import PointPosterior, log_density_of
from custom_inference.core.progress import Progress
from custom_inference.faces.arviz import list_observed_dyads
from custom_inference.faces.arviz_groups import Array
from custom_inference.methods import methods_for
from custom_inference.svi.guides.of_globals import DirichletGlobals
from custom_inference.svi.guides.protocol import LocalGuide
from ppl_models import CapacityError, GraphData, MethodError

Params = dict[str, Tensor]

#: Scores of all draws together take at most about so many products of entries and components where locals are
#: continuous, each a fit of these; and at most so many terms (draw, dyad) of a graph.
_PRODUCTS, _TERMS = 1e9, 1e9
#: Draws that the tail of the weights is fitted to: at least so many.
FEWEST = 25
#: Draws of a guide at a time.
_TOGETHER = 50


@dataclass(frozen=True)
class Pointwise:
    """log_likelihood (chain, draw, n); log_ratio (draw,), log p(draw, x) - log q(draw), or None of draws of a chain.

    bound: "exact", or the name of the bound or estimate that stands in for log p(x_n | globals). unit: what n counts.
    """

    log_likelihood: Array
    log_ratio: Array | None
    bound: str
    source: str
    unit: str
    labels: list[str]


def pointwise(fit: Fit, num_draws: int, seed: int, progress: bool) -> Pointwise:
    """Scores of every observation at draws from the fit's posterior of the globals (of graphs of the locals too).

    Rows with whole weights are as many observations. Raises MethodError for other weights, and where the globals are
    points, or their approximate posterior has no density at hand;
    CapacityError where it would take too long.
    """
    if fit.weights is not None and not are_counts(fit.weights):
        raise MethodError(
            "leave-one-out of rows whose weights are no whole numbers: what the posterior without a row is, these do "
            "not say; expected whole weights (numbers of equal rows), or fit.bic(), which takes any"
        )
    draws, chains = PosteriorDraws(fit, num_draws, seed), 1
    if draws.markov:
        chains, length = chains_and_draws(fit)
        draws = PosteriorDraws(fit, chains * max(1, min(length, num_draws // chains)), seed)
        if len(draws) < FEWEST:
            raise MethodError(f"{len(draws)} draws by {fit.method_name}, expected at least {FEWEST}, to fit a tail to")
    pairs, source = _weigh_draws(fit, draws)
    _check_size(fit, len(draws))
    scored, ratios, bound = [], [], "exact"
    with Progress(len(draws), "leave-one-out", enabled=progress) as bar:
        for params, local, log_q in pairs:
            each, bound, log_joint = _score_draw(fit, params, local)
            scored.append(each)
            ratios.append(log_joint - log_q)
            bar.advance()
    values, unit, labels = _observations(fit, scored)
    values = values.reshape(chains, -1, values.shape[-1])
    return Pointwise(values, None if draws.markov else np.array(ratios), bound, source, unit, labels)


def _pairs(fit: Fit, draws: PosteriorDraws) -> Iterator[tuple[Params, Tensor | None]]:
    """Globals, and of graphs the nodes' latents; of rows these are summed out."""
    yield from ((params, None) for params in draws.globals_alone()) if fit.model.rows_are_independent else draws


def _score_draw(fit: Fit, params: Params, local: Tensor | None) -> tuple[Array, str, float]:
    """log p of every observation, what stands in for it, and log p(draw, x) up to constants of flat priors."""
    prior = float(fit.model.log_prior(params))
    if local is None:
        each, bound = score(fit, params)
        if fit.weights is not None:  # a row that counts several times is as many observations
            each = each.repeat_interleave(fit.weights.to(each.device).long())
        return each.cpu().numpy(), bound, prior + float(each.sum())
    model, data = fit.model, fit.model.as_read(fit.data)
    with own_store():
        program = pyro.condition(model, data={**params, model.local_site: local})
        trace = poutine.trace(program).get_trace(data.x, **data.arguments)
        trace.compute_log_prob()
    nodes: Any = trace.nodes
    each = nodes[model.observed_site]["log_prob"]  # of every dyad, 0 of a hidden one
    total = each.sum() + nodes[model.local_site]["log_prob"].sum()
    return each.cpu().numpy(), "exact", prior + float(total)


def _observations(fit: Fit, values: list[Array]) -> tuple[Array, str, list[str]]:
    """(draw, n) values of what was observed; what an observation is, and the labels of all of them."""
    table = np.stack(values)
    if not fit.model.is_graph:
        axis = fit.model.row_axis
        names = [str(name) for name in fit.coords.get(axis, range(len(fit.data)))]
        often = [1] * len(names) if fit.weights is None else fit.weights.long().tolist()
        return table, axis, [name for name, times in zip(names, often, strict=True) for _ in range(times)]
    observed, names = list_observed_dyads(fit.model, cast(GraphData, fit.data))
    return table[:, observed.cpu().numpy()], "dyad", names


def _weigh_draws(fit: Fit, draws: PosteriorDraws) -> tuple[Iterator[tuple[Params, Tensor | None, float]], str]:
    """(globals, locals of a graph or None, log q of both, 0 of states of a chain), and where they come from."""
    source = draws.source.split(";")[0] if fit.model.rows_are_independent else draws.source
    if draws.markov:
        return ((params, local, 0.0) for params, local in _pairs(fit, draws)), source
    if fit.guide is not None:
        inner: Any = fit.guide.globals_guide if isinstance(fit.guide, LocalGuide) else fit.guide
        if isinstance(inner, AutoNormal | DirichletGlobals):
            return _of_guide(fit, inner, draws), f"globals: {draws.num_samples} draws of the guide of {fit.method_name}"
    missing = ""
    if not fit.global_posterior:
        missing = "estimated the globals as a point; leave-one-out needs their posterior"
        if fit.draws is not None:  # custom guides do not tell their density, and none is saved with a fit
            missing = "draws by a guide whose density is not known (a custom one, or one that is not saved with a fit)"
    elif not fit.model.rows_are_independent and isinstance(fit.posterior, PointPosterior):
        missing = "estimated the locals as points, which have no density"
    if missing:
        able = {"vb": 'VariationalEM(guide="vb")', "gibbs": "CollapsedGibbs()", "nuts": "NUTS()"}
        able["svi_normal"] = 'SVI(guide="normal")'
        known = methods_for(fit.model)
        use = ", ".join(text for name, text in able.items() if name in known)
        raise MethodError(f"{fit.method_name} {missing}. Use {use}; or score rows that were held out")
    return _of_posterior(fit, draws), source


def _of_posterior(fit: Fit, draws: PosteriorDraws) -> Iterator[tuple[Params, Tensor | None, float]]:
    for params, local in _pairs(fit, draws):
        log_q = log_density_of(fit.global_posterior, params)
        if local is not None:
            nodes = local
            if not local.is_floating_point():  # blocks, as the unit vectors that posteriors give
                nodes = torch.nn.functional.one_hot(local, fit.model.local_shape[0]).to(fit.data.x.dtype)
            log_q += float(fit.posterior.log_prob(nodes).sum())
        yield params, local, log_q


def _of_guide(
    fit: Fit, inner: AutoNormal | DirichletGlobals, draws: PosteriorDraws
) -> Iterator[tuple[Params, Tensor | None, float]]:
    """Draws of a Pyro guide; its other sites (locals drawn beside the globals) are independent of these."""
    summed = inner is fit.guide  # a guide of the globals alone
    for number, (params, log_q) in enumerate(_guide_draws(fit, inner, draws)):
        local = None
        if not fit.model.rows_are_independent:
            posterior = solve_local(fit.model, params, fit.data, seed=fit.seed).posterior if summed else fit.posterior
            one = posterior.sample(1, seed=draws.seed_of(fit.model.local_site, number))[0]
            local, log_q = fit.model.local_value(one), log_q + float(posterior.log_prob(one).sum())
        yield params, local, log_q


def _guide_draws(
    fit: Fit, inner: AutoNormal | DirichletGlobals, draws: PosteriorDraws
) -> Iterator[tuple[Params, float]]:
    """(globals, log q), some at a time: to isolate each by itself takes longer than to draw it."""
    for start in range(0, draws.num_samples, _TOGETHER):
        found = []
        with torch.no_grad(), isolated(draws.seed_of("guide of the globals", start)), default_dtype(fit.data.x.dtype):
            for _ in range(min(_TOGETHER, draws.num_samples - start)):
                trace = poutine.trace(inner).get_trace(fit.data.x, mask=fit.data.mask)
                trace.compute_log_prob()
                nodes: Any = trace.nodes
                params = {site: nodes[site]["value"].detach() for site in fit.model.global_sites}
                # Automatic guides sample unconstrained values, and add the transformation's volume to the site.
                own = [name for site in params for name in (site, f"{site}_unconstrained") if name in nodes]
                found.append((params, sum(float(nodes[name]["log_prob"].sum()) for name in own)))
        yield from found


def _check_size(fit: Fit, num_draws: int) -> None:
    entries = fit.data.x.values().numel() if fit.data.is_sparse else fit.data.x.numel()
    model: Any = fit.model
    work, most, what = 0.0, 1.0, ""
    if model.is_graph:
        work, most, what = 1.0 * num_draws * model.num_dyads(len(fit.data)), _TERMS, "dyads"
    elif model.has_continuous_locals:
        work, most, what = 1.0 * num_draws * entries * model.local_shape[0], _PRODUCTS, "entries and components"
    if work > most:
        raise CapacityError(
            f"leave-one-out at {num_draws} draws takes {work:.2g} products of draws, {what}; about {most:.0g} are "
            f"allowed: lower num_draws to {max(1, int(num_draws * most / work))}, or hold out rows or dyads",
            needed_bytes=8 * work,
            allowed_bytes=8 * most,
        )
