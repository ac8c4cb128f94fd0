"""Predicted links of documents from their text, and words of documents from their links."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import scipy.sparse
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.predicted import Mixture
from custom_inference.core.result import Result
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.topics.admixture import read_admixture
from custom_inference.families.topics.numbers import Shares, TopicShares
from ppl_models import RTM, CapacityError, Data, DataError, MethodError
from ppl_models.core.errors import about
from ppl_models.data import sparse as _sparse
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.held import Source
from ppl_models.data.labels import places_of
from ppl_models.distributions.tokens import Cells
from ppl_models.distributions.topic_means import draw_means, tokens_share

#: Updates of the proportions of documents whose words are unknown; draws of shares from posteriors of points; draws of
#: links, and of all of them together at most.
_STEPS, _SHARES, _DRAWS, _MOST = 200, 50, 1000, 2**25


#: Two documents, or two of equally many each.
Pair = tuple[ArrayLike, ArrayLike]


class _Reading(NamedTuple):
    """What a draw, the means of a chain, or a fit of points say: topics (K, V), weights (K,), bias (), and what links
    are on, share (N, K): that of the tokens, or the proportions."""

    topic: Tensor
    weight: Tensor
    bias: Tensor
    share: Tensor

    def score(self, left: Tensor, right: Tensor) -> Tensor:
        """Return s_ij of documents with these shares."""
        return (left * self.weight * right).sum(-1) + self.bias

    def scores(self, left: Tensor) -> Tensor:
        """Return the scores (..., N) of documents with shares (..., K) and those that were fitted."""
        return (left * self.weight) @ self.share.T + self.bias


def readings(fit: Result, *, spread: bool = False, draws: bool = True) -> list[_Reading]:
    """What every draw of every chain says, whatever mode it is in; where these are many numbers, or without ``draws``,
    the means of each chain. Of fits without chains what the fit does; where links are no linear function of the shares,
    or ``spread`` is asked for, at draws of these from its posterior."""
    model: Any = fit.model
    stats, like = fit.sample_stats, fit.params["topic"].double().cpu()
    if "each_share" in stats:
        topic, weight, bias, share = (
            stats[f"each_{n}"].to(like) for n in ("topic", "link_weight", "link_bias", "share")
        )
        number = share.shape[:-2].numel()
        topic = topic.repeat_interleave(number // len(topic), 0)
        each = (_share_of_links(model, fit.data, one) for one in share.reshape(number, *share.shape[-2:]))
        return [_Reading(*one) for one in zip(topic, weight.reshape(number, -1), bias.flatten(), each, strict=True)]
    own = like, fit.params["link_weight"].to(like), fit.params["link_bias"].to(like)
    if not draws or (model.link == "additive" and not spread):
        return [_Reading(*own, _share_of_links(model, fit.data, fit.transform().to(like)))]
    drawn = fit.posterior.sample(_SHARES, seed=fit.seed).to(like)
    if model.link_on == "tokens":
        cells = Cells.of(fit.data.observed_x.to(like))
        with torch_seeded(fit.seed):
            drawn = torch.stack([draw_means(tokens_share(one, like, cells), cells) for one in drawn])
    return [_Reading(*own, one) for one in drawn]


def _share_of_links(model: RTM, data: Data, share: Tensor) -> Tensor:
    """Return what links are on, (N, K), from mean proportions (a + E[c]) / (A + L): of tokens E[c] / L."""
    if model.link_on != "tokens":
        return share
    alpha = Dirichlet.of(model, "topic_proportion", share).concentration.expand(model.num_topics)
    length = _sparse.row_sums(data.observed_x).to(share).unsqueeze(-1)
    return ((share * (alpha.sum() + length) - alpha) / length.clamp(min=1)).clamp(min=0)


def predict_links(
    fit: Any, x: Any = None, *, links: Any = None, positions: Any = None, uncertainty: bool = False, **given: Any
) -> Any:
    """The expected links (of the sigmoid link their probability): the mean over draws of the fit, and over the topics
    that the tokens of new documents may have.

    x: a pair (i, j) of documents that were fitted, (M,) labels each, their numbers where they have none: (M,). None: of
        all of them, (N, N). New documents in the form that ``fit`` takes: (M, N), their links to those of the fit.
    positions: a pair (i, j) of documents that were fitted by their numbers, whatever their labels.
    links: (M, N), links of new documents to those that were fitted, of which nothing else is known: then the
        probabilities of their words, (M, V).
    uncertainty: give a ``Prediction`` instead of the means. Raises CapacityError for more links than draws of all have
        room for.
    """
    model, size = fit.model, len(fit.data)
    if links is not None:
        if x is not None or uncertainty:
            raise MethodError("links= of new documents beside others; expected fit.predict(x), or links= alone")
        known, each = _read_links(fit, links).double().cpu(), readings(fit, draws=False)
        found = torch.stack([proportions_of_links(model, one, known) @ one.topic for one in each])
        return found.mean(0).to(fit.params["topic"])
    pair = _read_pair(fit, x, positions)
    data = None if pair is not None or x is None else fit.read(x, **given).to(dtype=torch.float64, device="cpu")
    number = len(pair[0]) if pair is not None else size * (size if data is None else len(data))
    if uncertainty and number * _DRAWS > _MOST:
        problem = f"uncertainty=True of {number} links, of each of which {_DRAWS} are drawn"
        raise CapacityError(f"{problem}; expected at most {_MOST // _DRAWS}: pairs, or fewer new documents")
    each, drawing = readings(fit, spread=uncertainty), uncertainty or model.link != "additive"
    topics, found = TopicShares(len(each) > 1, fit.seed), Mixture(-(-_DRAWS // len(each)) if uncertainty else 0)
    with torch.no_grad(), torch_seeded(fit.seed):
        for one in each:
            if data is not None:
                parts = _share_new(fit, one, replace(data, others={}, between=()), topics, drawing)
                found.add(model.link_law, [(places, weight, one.scores(share)) for places, weight, share in parts])
                continue
            score = one.scores(one.share) if pair is None else one.score(one.share[pair[0]], one.share[pair[1]])
            every = torch.arange(len(score)), score.new_ones(len(score), 1), score.unsqueeze(1)
            found.add(model.link_law, [every])
    return found.result(fit.params["topic"])


def _read_pair(fit: Result, x: Pair | Source | None, positions: Pair | None) -> tuple[Tensor, Tensor] | None:
    """Return the numbers (M,) each of pairs of documents that were fitted, if these are asked for."""
    if type(x) is not tuple and positions is None:
        return None
    pair: Any = x if positions is None else positions
    if x is not None and positions is not None:
        raise MethodError("both documents and positions; expected fit.predict((i, j)) or positions=(i, j)")
    labels, size = fit.data.coords.get("row") if positions is None else None, len(fit.data)
    with about("links"):
        i, j = (torch.as_tensor(places_of(part, labels, size, "document")) for part in pair)
    if i.shape != j.shape:
        found = f"pairs of shapes {tuple(i.shape)} and {tuple(j.shape)}"
        raise DataError(found, site="links", expected=f"two of {size} documents each")
    return i, j


def _share_new(fit: Result, at: _Reading, data: Data, topics: TopicShares, drawing: bool) -> list[Shares]:
    """Return what links of new documents are on, given their words; proportions given the topics are ``drawing``, or at
    their mean, which is enough for what is linear in them."""
    model: Any = fit.model
    globals_ = {**fit.globals, "topic": at.topic, "link_weight": at.weight, "link_bias": at.bias}
    said = read_admixture(model, globals_, data)
    if said is None:
        raise MethodError(
            f"links of new documents of {type(model).__name__}, whose proportions have no Dirichlet prior"
        )
    parts = topics.infer(said)
    if model.link_on == "tokens":
        return parts
    length = said.rows.lengths.unsqueeze(-1).unsqueeze(-1)
    found = []
    for places, weight, share in parts:
        mass = share * length[places] + said.alpha[places].unsqueeze(1)
        drawn = torch.distributions.Dirichlet(mass).sample() if drawing else mass / mass.sum(-1, keepdim=True)
        found.append((places, weight, drawn))
    return found


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
