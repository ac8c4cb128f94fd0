"""Predicted responses: E[y | words] of new documents, whose topics are inferred from their words alone.

With n the numbers of a document's tokens of each topic, and eta = W n / L,

    p(y | words) = E_globals sum_n p(n | words) p(y | eta)
    p(n | words) proportional to c(n) prod_k Gamma(alpha_k + n_k) / Gamma(alpha_k)

c(n) summing prod_l b_{z_l w_l} over the topics z with these numbers. The sum is exact for short texts; else n is drawn
by Gibbs sampling, the proportions integrated out. The globals are the draws of the fit, or its point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from custom_inference.core.draws import draw_globals
from custom_inference.core.isolation import torch_seeded
from custom_inference.core.predicted import Mixture
from custom_inference.core.result import Result
from custom_inference.core.states import Params
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.responses.constrained import OBJECTIVE
from custom_inference.families.responses.searches import fold_in_documents, shares
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.admixture import read_admixture
from custom_inference.families.topics.laplace import LdaLaplace
from custom_inference.families.topics.numbers import Shares, TopicShares
from ppl_models import Data, SupervisedLDA
from ppl_models.distributions.tokens import Cells
from ppl_models.distributions.topic_means import draw_means, law_of, tokens_share

#: Draws of responses that intervals are told by.
_RESPONSES = 1000
#: Draws of proportions under priors that are no Dirichlet.
_PROPORTIONS = 512


def predict_response(fit: Result, data: Data, *, uncertainty: bool = False) -> Any:
    """Predict E[y | words], (N,) or (N, R), of classes their probabilities, (N, C): the mean over draws of the globals,
    where the fit has them or a posterior of them, and over the topics of the tokens given the words.

    uncertainty: give a ``Prediction`` instead of the means.
    """
    model: Any = fit.model
    data = replace(data.to(device="cpu"), others={}, between=())
    with torch.no_grad(), torch_seeded(fit.seed):
        values = list(draw_globals(fit))
        found = Mixture(-(-_RESPONSES // len(values)) if uncertainty else 0)
        for params, parts in zip(values, _share_topics(fit, values, data), strict=True):
            weight, scale = params["response_weight"], params.get("response_scale")
            centre = model.scale_of_columns(weight)[0] if model.response == "real" else weight.new_zeros(1)
            centre = centre if weight.ndim > 1 else centre.squeeze(0)
            about = (weight - centre.unsqueeze(-1)).movedim(-1, 0)
            law = partial(law_of, model.response, scale=scale)
            found.add(law, [(places, chance, share @ about + centre) for places, chance, share in parts])
    return found.result(fit.globals["topic"])


def _share_topics(fit: Result, values: list[Params], data: Data) -> Iterator[list[Shares]]:
    """Give, for each of the globals, what the topics of the documents' tokens may be."""
    model: Any = fit.model
    if fit.bound_name == OBJECTIVE:  # as that training optimises: the proportions, folded in as in training
        alpha = Dirichlet.of(model, "topic_proportion", torch.zeros(())).concentration.expand(model.num_topics)
        rows, every = DocumentRows.of(data), torch.arange(len(data))
        for params in values:
            share = shares(fold_in_documents(rows, params["topic"].cpu(), alpha)).unsqueeze(1)
            yield [(every, share.new_ones(len(rows), 1), share)]
        return
    topics = TopicShares(len(values) > 1, fit.seed)
    for params in values:
        said = read_admixture(model, params, data)
        yield [_weigh_proportions(model, params, data, fit.seed)] if said is None else topics.infer(said)


def _weigh_proportions(model: SupervisedLDA, params: Params, data: Data, seed: int) -> Shares:
    """Return topics of the tokens drawn at draws of the proportions under a prior that is no Dirichlet, by importance:
    from Laplace's approximation of their posterior."""
    engine = LdaLaplace()
    rows = engine.rows(model, data)
    cells = Cells.of(rows.counts)
    posterior = engine.posterior(model, params, rows, engine.e_step(model, params, rows))
    drawn, prior = posterior.sample(_PROPORTIONS, seed=seed), model.prior("topic_proportion", like=params["topic"])
    weight, share = [], []
    for one in drawn:
        mixture = (one[cells.row] * params["topic"].T[cells.word]).sum(-1)
        score = cells.sum_by_document(cells.count * mixture.log()) + prior.log_prob(one)
        weight.append(score - posterior.log_prob(one))
        share.append(draw_means(tokens_share(one, params["topic"], cells), cells))
    return torch.arange(len(data)), torch.softmax(torch.stack(weight, 1), 1), torch.stack(share, 1)
