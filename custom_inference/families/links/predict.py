"""Predicted links of documents from their text, and words of documents from their links."""

from __future__ import annotations

from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.topics.dirichlet import LdaDirichlet
from ppl_models import DataError, MethodError
from ppl_models.core.errors import about
from ppl_models.data import sparse as _sparse
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.labels import places_of

#: Updates of the proportions of documents whose words are unknown.
_STEPS = 200


def predict_links(fit: Any, x: Any = None, *, links: Any = None, positions: Any = None, **given: Any) -> Tensor:
    """The expected links (of the sigmoid link their probability), by the posterior means of the proportions.

    x: a pair (i, j) of documents that were fitted, (M,) labels each, their numbers where they have none: (M,). None: of
        all of them, (N, N). New documents in the form that ``fit`` takes: (M, N), their links to those of the fit.
    positions: a pair (i, j) of documents that were fitted by their numbers, whatever their labels.
    links: (M, N), links of new documents to those that were fitted, of which nothing else is known: then the
        probabilities of their words, (M, V).
    """
    share, model, weight = fit.transform(), fit.model, fit.params["link_weight"]
    if links is not None:
        if x is not None:
            raise MethodError("both words and links of new documents; expected fit.predict(x), or links= alone")
        return proportions_of_links(fit, links) @ fit.params["topic"]
    if isinstance(x, tuple) or positions is not None:
        if x is not None and positions is not None:
            raise MethodError("both documents and positions; expected fit.predict((i, j)) or positions=(i, j)")
        labels = fit.data.coords.get("row") if positions is None else None
        pair: Any = x if positions is None else positions
        with about("links"):
            i, j = (torch.as_tensor(places_of(part, labels, len(share), "document")).to(share.device) for part in pair)
        if i.shape != j.shape:
            found = f"pairs of shapes {tuple(i.shape)} and {tuple(j.shape)}"
            raise DataError(found, site="links", expected=f"two of {len(share)} documents each")
        return model.expected_links((share[i] * weight * share[j]).sum(-1) + fit.params["link_bias"])
    new = share
    if x is not None:
        data = fit.as_data(x, **given)
        new = LdaDirichlet().e_step(model, fit.params, LdaDirichlet().rows(model, data)).locals["concentration"]
        new = new / new.sum(-1, keepdim=True)
    return model.expected_links((new * weight) @ share.T + fit.params["link_bias"])


def proportions_of_links(fit: Any, links: Any) -> Tensor:
    """The proportions (M, K) of documents of which only links (M, N) to the fitted ones are known, each of which has a
    topic with probability ~ pi_k w_k theta_jk: EM's fixed point under the prior; of the additive link that is the
    posterior given the links that there are."""
    share, weight = fit.transform(), fit.params["link_weight"]
    if isinstance(links, Tensor):
        known = _sparse.dense(links)
    else:
        known = as_tensor(links.toarray() if scipy.sparse.issparse(links) else unpack(links)[0], share.dtype)
    if known.ndim != 2 or known.shape[1] != len(share):
        raise DataError(f"shape {tuple(known.shape)}", site="links", expected=f"(M, {len(share)})")
    known = known.to(share).nan_to_num().clamp(min=0)
    rate = share * (weight if fit.model.link == "additive" else (weight - weight.max()).exp())
    alpha = Dirichlet.of(fit.model, "topic_proportion", share).concentration.expand(fit.model.num_topics)
    g = alpha + known.sum(1, keepdim=True) / len(alpha)
    for _ in range(_STEPS):
        mean = g / g.sum(1, keepdim=True)
        expected = mean @ rate.T
        g = alpha + mean * ((known / expected.clamp(min=1e-30)) @ rate)
    return g / g.sum(1, keepdim=True)
