"""Predicted responses: E[y | words] of new documents, whose topics are inferred from their words alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.result import Result
from custom_inference.core.states import Params
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.responses.constrained import OBJECTIVE
from custom_inference.families.responses.searches import fold_in_documents, shares
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.laplace import LdaLaplace
from ppl_models import Data, SupervisedLDA
from ppl_models.distributions.tokens import Cells
from ppl_models.distributions.topic_means import draw_means, mean_response, tokens_share

#: Draws of the tokens' topics that the probabilities of classes are the mean over; draws of a document's proportions.
_DRAWS, _PROPORTIONS = 64, 64
#: Draws of the globals, at most, that a prediction is the mean over.
_GLOBALS = 20


def predict_response(fit: Result, data: Data) -> Tensor:
    """Predict E[y | words], (N,) or (N, R); of classes their probabilities, (N, C). Of fits that hold draws of the
    globals the mean over draws, else at the point; tokens' topics are summed out (of classes: drawn)."""
    engine, rows = LdaDirichlet(), DocumentRows.of(data)
    model: Any = fit.model
    if fit.bound_name == OBJECTIVE:
        return _predict_constrained(fit, rows)
    made = [_at(engine, model, one, rows, fit.seed) for one in draws_of(fit)]
    return torch.stack(made).mean(0)


def _predict_constrained(fit: Result, rows: DocumentRows) -> Tensor:
    """Predict as prediction-constrained training optimises: the mean at the proportions, folded in as in training;
    averaged over the states that the fit holds."""
    model: Any = fit.model
    alpha = Dirichlet.of(model, "topic_proportion", torch.zeros(())).concentration.expand(model.num_topics)
    total = []
    for params in draws_of(fit):
        weight = params["response_weight"]
        q = shares(fold_in_documents(rows, params["topic"].cpu(), alpha)).to(weight)
        total.append(model.response_likelihood.mean(q @ weight.reshape(-1, weight.shape[-1]).T))
    mean = torch.stack(total).mean(0)
    return mean.squeeze(1) if model.response != "categorical" and model.num_responses == 1 else mean


def draws_of(fit: Result) -> list[Params]:
    """Values of the globals: draws, evenly spaced, where the fit has them, else the point."""
    sites = fit.model.global_sites
    if fit.draws is None or not set(sites) <= set(fit.draws):
        return [fit.globals]
    flat = {site: fit.draws[site].flatten(0, 1) for site in sites}
    number = len(flat[sites[0]])
    chosen = torch.linspace(0, number - 1, min(number, _GLOBALS)).round().long().tolist()
    return [{site: value[at].to(fit.globals[site]) for site, value in flat.items()} for at in chosen]


def _at(engine: LdaDirichlet, model: SupervisedLDA, params: Params, rows: DocumentRows, seed: int) -> Tensor:
    step = engine.e_step(model, params, rows)
    share = (step.locals["concentration"].digamma()).softmax(-1)
    cells = Cells.of(rows.counts)
    return expected_response(model, params, tokens_share(share, params["topic"], cells), cells, seed)


def expected_response(model: SupervisedLDA, params: Params, phi: Tensor, cells: Cells, seed: int) -> Tensor:
    """Compute E[y] given the tokens' shares phi (M, K)."""
    weight = params["response_weight"]
    if model.response == "real":  # of documents without tokens the centre
        centre = model.scale_of_columns(weight)[0] if weight.ndim > 1 else model.scale_of_columns(weight)[0].squeeze(0)
        return centre + mean_response("real", weight - centre.unsqueeze(-1), phi, cells)
    if model.response != "categorical":
        return mean_response(model.response, weight, phi, cells)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = [draw_means(phi, cells) @ weight.T for _ in range(_DRAWS)]
    return torch.softmax(torch.stack(drawn), -1).mean(0)


def response_by_draws(fit: Result, data: Data) -> Tensor:
    """Predict the response under any prior of the proportions: the mean over draws of these, inferred from the words
    alone."""
    engine, params = LdaLaplace(), fit.globals
    model: Any = fit.model
    rows = engine.rows(model, replace(data, others={}))
    cells = Cells.of(rows.counts)
    draws = engine.posterior(model, params, rows, engine.e_step(model, params, rows)).sample(_PROPORTIONS)
    shares = (tokens_share(one, params["topic"], cells) for one in draws)
    return torch.stack([expected_response(model, params, phi, cells, fit.seed) for phi in shares]).mean(0)
