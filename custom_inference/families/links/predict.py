"""Predicted links of documents from their text, and words of documents from their links."""

from __future__ import annotations

from typing import Any, NamedTuple

import scipy.sparse
import torch
from torch import Tensor

from custom_inference.core.result import Result
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.topics.dirichlet import LdaDirichlet
from ppl_models import RTM, Data, DataError, MethodError
from ppl_models.core.errors import about
from ppl_models.data import sparse as _sparse
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.labels import places_of

#: Updates of the proportions of documents whose words are unknown.
_STEPS = 200


class _Reading(NamedTuple):
    """What one chain, or a fit of points, says: topics (K, V), weights (K,), bias () and proportions (N, K)."""

    topic: Tensor
    weight: Tensor
    bias: Tensor
    share: Tensor

    def score(self, left: Tensor, right: Tensor) -> Tensor:
        """Return s_ij of documents with these proportions."""
        return (left * self.weight * right).sum(-1) + self.bias


def readings(fit: Result) -> list[_Reading]:
    """What every chain says, whatever mode it is in; of fits without chains, what the fit does."""
    stats, like = fit.sample_stats, fit.params["topic"]
    if "each_share" in stats:
        parts = (stats[f"each_{name}"].to(like) for name in ("topic", "link_weight", "link_bias", "share"))
        return [_Reading(*one) for one in zip(*parts, strict=True)]
    return [_Reading(like, fit.params["link_weight"], fit.params["link_bias"], fit.transform())]


def predict_links(fit: Any, x: Any = None, *, links: Any = None, positions: Any = None, **given: Any) -> Tensor:
    """The expected links (of the sigmoid link their probability), by the posterior means of the proportions; of several
    chains the mean of what each expects.

    x: a pair (i, j) of documents that were fitted, (M,) labels each, their numbers where they have none: (M,). None: of
        all of them, (N, N). New documents in the form that ``fit`` takes: (M, N), their links to those of the fit.
    positions: a pair (i, j) of documents that were fitted by their numbers, whatever their labels.
    links: (M, N), links of new documents to those that were fitted, of which nothing else is known: then the
        probabilities of their words, (M, V).
    """
    model, each, size = fit.model, readings(fit), len(fit.data)
    if links is not None:
        if x is not None:
            raise MethodError("both words and links of new documents; expected fit.predict(x), or links= alone")
        known = _read_links(fit, links)
        return _mean([proportions_of_links(model, one, known) @ one.topic for one in each])
    if isinstance(x, tuple) or positions is not None:
        if x is not None and positions is not None:
            raise MethodError("both documents and positions; expected fit.predict((i, j)) or positions=(i, j)")
        labels = fit.data.coords.get("row") if positions is None else None
        pair: Any = x if positions is None else positions
        with about("links"):
            i, j = (torch.as_tensor(places_of(part, labels, size, "document")) for part in pair)
        if i.shape != j.shape:
            found = f"pairs of shapes {tuple(i.shape)} and {tuple(j.shape)}"
            raise DataError(found, site="links", expected=f"two of {size} documents each")
        return _mean([model.expected_links(one.score(one.share[i], one.share[j])) for one in each])
    data = None if x is None else fit.read(x, **given)
    found = []
    for one in each:
        new = one.share if data is None else _fold_in(fit, one, data)
        found.append(model.expected_links((new * one.weight) @ one.share.T + one.bias))
    return _mean(found)


def _mean(found: list[Tensor]) -> Tensor:
    return torch.stack(found).mean(0) if len(found) > 1 else found[0]


def _fold_in(fit: Result, at: _Reading, data: Data) -> Tensor:
    """The proportions (M, K) of new documents, from their words."""
    engine = LdaDirichlet()
    model: Any = fit.model
    step = engine.e_step(model, {**fit.params, "topic": at.topic}, engine.rows(model, data))
    concentration = step.locals["concentration"]
    return concentration / concentration.sum(-1, keepdim=True)


def _read_links(fit: Result, links: Any) -> Tensor:
    """Links (M, N) of new documents, 0 where unknown."""
    like, size = fit.params["topic"], len(fit.data)
    if isinstance(links, Tensor):
        known = _sparse.dense(links)
    else:
        known = as_tensor(links.toarray() if scipy.sparse.issparse(links) else unpack(links)[0], like.dtype)
    if known.ndim != 2 or known.shape[1] != size:
        raise DataError(f"shape {tuple(known.shape)}", site="links", expected=f"(M, {size})")
    return known.to(like).nan_to_num().clamp(min=0)


def proportions_of_links(model: RTM, at: _Reading, known: Tensor) -> Tensor:
    """The proportions (M, K) of documents of which only links (M, N) to the fitted ones are known, each of which has a
    topic with probability ~ pi_k w_k theta_jk: EM's fixed point under the prior; of the additive link that is the
    posterior given the links that there are."""
    rate = at.share * (at.weight if model.link == "additive" else (at.weight - at.weight.max()).exp())
    alpha = Dirichlet.of(model, "topic_proportion", rate).concentration.expand(model.num_topics)
    g = alpha + known.sum(1, keepdim=True) / len(alpha)
    for _ in range(_STEPS):
        mean = g / g.sum(1, keepdim=True)
        expected = mean @ rate.T
        g = alpha + mean * ((known / expected.clamp(min=1e-30)) @ rate)
    return g / g.sum(1, keepdim=True)
