"""How far a given posterior of the locals is below the evidence: its ELBO, exact where that is a sum, else by draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from custom_inference.core.dyads import estimate_bound, log_joint_of_draws
from custom_inference.core.engine import Params
from custom_inference.core.isolation import own_store
from custom_inference.core.latent_values import is_own_of_rows, latent_values
from custom_inference.core.local_inference import Local, enumerate_local
from custom_inference.core.posteriors import BernoulliPosterior, LocalPosterior
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import enumerate_table
from custom_inference.core.registry import engine_for, engines_of
from ppl_models import Data, Model
from ppl_models.core.errors import own_errors

#: Draws that the ELBO of a continuous posterior is estimated by: of sparse data and graphs so many that they take at
#: most about _ELBO_PRODUCTS products of entries and components, but no fewer than the first number.
_ELBO_DRAWS = (10, 200)
_ELBO_PRODUCTS = 2**27
#: Terms (dyad, values of its ends) that the bound of a graph is evaluated by.
_GRAPH_TERMS = 2**23
#: The same for posteriors whose bound is the mean over draws anyway.
_DRAWN_TERMS = 2**20


def row_log_joint(model: Model, params: Mapping[str, Tensor], data: Data, local: Tensor) -> Tensor:
    """log p(x_n, s_n | params), (N,), of any program at given values (N, ...) of the local site; of a graph (1,). What
    is stated of pairs of rows is shared evenly among the rows."""
    with own_errors(), own_store():
        values = latent_values(model, params, data, local) if is_own_of_rows(model) else {model.local_site: local}
        program = pyro.condition(model.summed_out, data={**params, **values})
        trace = poutine.trace(program).get_trace(data.x, **data.arguments)
        trace.compute_log_prob()
    nodes: Any = trace.nodes
    sites = (*model.sites_of("latent"), *model.sites_of("observed"))
    parts = [nodes[site]["log_prob"] for site in sites if site in nodes]
    if not model.rows_are_independent:
        return sum((part.sum() for part in parts), torch.zeros(())).unsqueeze(0)
    of_rows, of_pairs = ([part for part in parts if (len(part) == len(local)) == own] for own in (True, False))
    return torch.stack(of_rows).sum(0) + sum(part.sum() for part in of_pairs) / len(local)


def bound_of(model: Model, params: Params, data: Data, posterior: LocalPosterior) -> Tensor:
    """The ELBO of a given posterior over the locals, per row (N,): a lower bound on the evidence.

    Of a continuous posterior an unbiased estimate by at most 200 draws; NaN for a point, which has no ELBO.
    """
    return evaluate_posterior(model, params, data, posterior).bound


def evaluate_posterior(model: Model, params: Params, data: Data, posterior: LocalPosterior, family: str = "") -> Local:
    """A given posterior over the locals with its ELBO (``bound_of``), and the standard error where that is an estimate.

    Of large graphs the dyads are sampled too; their variance is part of the standard error.
    """
    with torch.no_grad():
        if posterior.is_point:
            none = torch.full_like(posterior.mean[: None if model.rows_are_independent else 1, 0], torch.nan)
            return Local(posterior, none, what="point", family=family)
        if model.is_graph:
            bound, error = _graph_bound(model, params, data, posterior)
        elif is_own_of_rows(model):
            bound, error = _program_bound(model, params, data, posterior)
        elif posterior.continuous:
            products = data.x.values().numel() * posterior.mean.shape[-1] if data.is_sparse else 0
            draws = posterior.sample(_num_draws(products))
            gains = [row_log_joint(model, params, data, one) - posterior.log_prob(one) for one in draws]
            bound, variance = _mean(gains)
            error = variance.sqrt()
        else:
            bound, error = _finite_bound(model, params, data, posterior), None
    return Local(posterior, bound, error, "variational", family)


def _program_bound(model: Model, params: Params, data: Data, posterior: LocalPosterior) -> tuple[Tensor, Tensor | None]:
    """Score a posterior of a program without engines: sum over all values of finite latents, else average draws; those
    of an exact posterior all have the same difference."""
    density = RowDensity.of(model, params, data)
    if posterior.continuous or not posterior.tabulated:
        draws, log_q = posterior.sample_with_density(_ELBO_DRAWS[1])
        joint = density(draws)
        gains = joint - log_q if log_q.shape == joint.shape else joint.sum(-1, keepdim=True) - log_q
        return gains.mean(0), (gains.var(0) / len(gains)).sqrt()
    table = enumerate_table(density)
    log_q = torch.stack([posterior.log_prob(code.expand(len(data), -1)) for code in table.codes], -1)
    gain = torch.where(log_q > -torch.inf, table.log_joint - log_q, torch.zeros_like(log_q))
    return (log_q.exp() * gain).sum(-1), None


def _mean(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the mean of independent draws, and the variance of that mean."""
    every = torch.stack(values)
    return every.mean(0), every.var(0) / len(every)


def _finite_bound(model: Model, params: Params, data: Data, posterior: LocalPosterior) -> Tensor:
    """Compute the ELBO of rows with finite locals: of independent bits as mean field has it where there is such an
    engine; of codes of each row's own by the sum over these; of what has no table by draws; else by the sum over all
    values."""
    if isinstance(posterior, BernoulliPosterior) and "mean_field" in engines_of(model):
        engine: Any = engine_for(model, "mean_field")
        return engine.bound(model, params, engine.rows(model, data), posterior.mean)
    own_codes = "codes" in posterior.layout() and not posterior.shared
    if own_codes or not posterior.tabulated:  # of an exact posterior every draw has the same difference
        return posterior.expect(lambda code: row_log_joint(model, params, data, code) - posterior.log_prob(code))
    (_, log_q), exact = posterior.table(), enumerate_local(model, params, data)
    log_p = exact.posterior.table()[1] + exact.bound[:, None]
    return (log_q.exp() * torch.where(log_q > -torch.inf, log_p - log_q, torch.zeros_like(log_q))).sum(-1)


def _graph_bound(model: Any, params: Params, data: Data, posterior: LocalPosterior) -> tuple[Tensor, Tensor | None]:
    """(1,), and its standard error where it is an estimate.

    Of large graphs by ``_GRAPH_TERMS`` terms of dyads, edges and others drawn apart.
    """
    blocks = model.num_blocks
    if not posterior.continuous:
        size = max(1, _GRAPH_TERMS // blocks**2)
        bound, variance = estimate_bound(model, params, data, posterior.mean, batch_size=size)
        return bound, None if variance is None else variance.sqrt()
    dyads = min(_DRAWN_TERMS // blocks, model.num_dyads(len(data)))
    draws = posterior.sample(_num_draws(4 * dyads * blocks))
    joint, by_dyads = log_joint_of_draws(model, params, data, draws, batch_size=dyads)
    gains = [p - posterior.log_prob(one).sum() for p, one in zip(joint, draws, strict=True)]
    bound, variance = _mean(gains)
    return bound[None], (variance + by_dyads).sqrt()[None]


def _num_draws(products: int) -> int:
    fewest, most = _ELBO_DRAWS
    return min(most, max(fewest, _ELBO_PRODUCTS // max(products, 1)))
