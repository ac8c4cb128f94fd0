"""Entries that are held out of data of every kind, and the log probability that a fit gives to one of them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.expected import spread_values
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import is_feasible
from custom_inference.core.predictive import conditional_log_likelihood
from custom_inference.documents import split_tokens
from custom_inference.graphs.links import HeldDyads, hold_out_dyads, link_prediction
from ppl_models import Data, DataError, GraphData, Ratings
from ppl_models.data import sparse

#: Draws of the local posterior that held-out entries are averaged over, where it is no sum.
_DRAWS = 400
_Train = TypeVar("_Train", bound=Data)
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Held(abc.ABC, Generic[_Train, _Part]):
    """Data without what was held out, that part, and the mean log probability of its entries without components."""

    train: _Train
    held: _Part
    baseline: float

    @abc.abstractmethod
    def score(self, fit: Fit) -> float:
        """The mean log probability that a fit to the others gives to what was held out."""


class HeldRows(Held[Data, Data]):
    """Entries of rows: train has them masked, held masks all others."""

    def score(self, fit: Fit) -> float:
        """log p(held-out entries of the row | the others), an entry: log p(all) - log p(the others) where that is
        exact, else log sum_m w_m p(held-out entries | latents m), by the values that the posterior is a sum over."""
        seen, hidden = self.train.mask, self.held.mask
        assert seen is not None and hidden is not None
        whole = replace(self.train, mask=seen | hidden)
        if is_feasible(fit.model, whole):
            row = fit.log_likelihood(whole) - fit.log_likelihood(self.train)
        else:
            row = _log_chance(fit, self.train, self.held)
        return float(row.sum() / hidden.sum())


def _log_chance(fit: Fit, train: Data, held: Data) -> Tensor:
    """log p(held-out entries of each row | the others), (N,), copies of the rows at once."""
    found = []
    for rows, local, weight in spread_values(held, fit.posterior_of(train).weigh_values(_DRAWS, seed=fit.seed)):
        each = conditional_log_likelihood(fit.model, fit.globals, rows, local).reshape(weight.shape)
        found.append((each + weight.log()).logsumexp(1))
    return torch.stack(found).logsumexp(0)


def hold_out_entries(
    data: Data, share: float, seed: int, baseline: Callable[[Tensor, Tensor, Tensor], float]
) -> HeldRows:
    """A share of the entries of all rows; at least one of every row is left, and of every column too."""
    data = data.dense()
    observed = torch.ones(data.x.shape, dtype=torch.bool) if data.mask is None else data.mask
    drawn = torch.rand(data.x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hidden = observed & (drawn < share)
    for axis in (0, 1):  # the least likely to be hidden stays
        kept = torch.where(observed, drawn, -1.0).argmax(axis, keepdim=True)
        hidden.scatter_(axis, kept, value=False)
    if not bool(hidden.any()):
        raise DataError(f"no entry would be held out of {int(observed.sum())}", expected="more entries")
    train, held = (replace(data, mask=mask) for mask in (observed & ~hidden, hidden))
    return HeldRows(train, held, baseline(train.x, observed & ~hidden, hidden) / int(hidden.sum()))


def binary_baseline(x: Tensor, seen: Tensor, hidden: Tensor) -> float:
    """Columns that are independent: the posterior mean of a uniform prior."""
    p = ((x * seen).sum(0) + 1) / (seen.sum(0) + 2)
    return float(torch.where(hidden, torch.where(x > 0, p.log(), (-p).log1p()), 0.0).sum())


def counts_baseline(x: Tensor, seen: Tensor, hidden: Tensor) -> float:
    """Poisson columns that are independent."""
    rate = ((x * seen).sum(0) + 0.5) / (seen.sum(0) + 0.5)
    return float(torch.where(hidden, torch.distributions.Poisson(rate).log_prob(x * hidden), 0.0).sum())


def real_baseline(x: Tensor, seen: Tensor, hidden: Tensor) -> float:
    """Normal columns that are independent."""
    count = seen.sum(0)
    mean = (x * seen).sum(0) / count
    variance = (((x - mean) * seen).square().sum(0) / count.sub(1).clamp(min=1)).clamp(min=1e-12)
    return float(torch.where(hidden, torch.distributions.Normal(mean, variance.sqrt()).log_prob(x * hidden), 0.0).sum())


def categories_baseline(x: Tensor, seen: Tensor, hidden: Tensor) -> float:
    """Categorical columns that are independent, each of the categories up to the largest that occurs."""
    codes = (x * (seen | hidden)).long()
    one_hot = torch.nn.functional.one_hot(codes)
    p = ((one_hot * seen[..., None]).sum(0) + 1.0) / (seen.sum(0) + codes.amax(0) + 1)[:, None]
    each = p.log().expand(*codes.shape, -1).gather(-1, codes[..., None])[..., 0]
    return float(each[hidden].sum())


#: Kind of rows -> the log probability of what is hidden, without components.
BASELINES = {
    "binary": binary_baseline,
    "categories": categories_baseline,
    "counts": counts_baseline,
    "real": real_baseline,
}


class HeldTokens(Held[Data, Data]):
    """Tokens of documents."""

    def score(self, fit: Fit) -> float:
        """log of the share of the word in what the fit expects of the document, a token."""
        mean = fit.reconstruct(how="mean")
        row, word, count = sparse.triplets(self.held.x)
        chance = mean / mean.sum(-1, keepdim=True)
        return float((count * chance[row, word].log()).sum() / count.sum())


def hold_out_tokens(data: Data, share: float, seed: int) -> HeldTokens:
    """A share of the tokens of every document, but for one that it keeps: of a document without tokens nothing is
    expected. The baseline is the frequency of the word."""
    train, held = split_tokens(data, share=1 - share, seed=seed)
    bare = sparse.row_sums(train.x) == 0
    if bool(bare.any()):
        own = sparse.row_sums(held.x)
        both: Any = [sparse.to_scipy(one.x).tolil() for one in (train, held)]
        whole, parts = both
        for row in (bare & (own > 0)).nonzero().flatten().tolist():
            first = parts.rows[row][0]
            whole[row, first] = 1
            parts[row, first] -= 1
        made = (sparse.from_scipy(one.tocsr(), dtype=data.x.dtype, device=data.x.device) for one in both)
        train, held = (replace(one, x=x) for one, x in zip((train, held), made, strict=True))
    if not float(sparse.row_sums(held.x).sum()):
        raise DataError("no token would be held out: no document has two", axis="document", expected="longer ones")
    total = sparse.column_sums(train.x) + 0.5
    _, word, count = sparse.triplets(held.x)
    return HeldTokens(train, held, float((count * (total / total.sum()).log()[word]).sum() / count.sum()))


class HeldPairs(Held[GraphData, HeldDyads]):
    """Pairs of nodes."""

    def score(self, fit: Fit) -> float:
        """log P(linked or not), a pair."""
        return -float(link_prediction(fit, self.held).loc["model", "log_loss"])


def hold_out_pairs(data: GraphData, share: float, seed: int) -> HeldPairs:
    """A share of the edges, and of the pairs without one. The baseline is the density."""
    train, held = hold_out_dyads(data, share, seed)
    linked, density = float((held.value > 0).double().mean()), train.num_edges / train.num_dyads
    return HeldPairs(train, held, linked * math.log(density) + (1 - linked) * math.log1p(-density))


class HeldRatings(Held[Ratings, Ratings]):
    """Ratings of pairs."""

    def score(self, fit: Fit) -> float:
        """log density of a normal distribution around the prediction, of the variance that serves it best."""
        found = fit.predict(self.held)
        return _normal(torch.as_tensor(found).to(self.held.value) - self.held.value)


def hold_out_ratings(data: Ratings, share: float, seed: int) -> HeldRatings:
    """A share of all ratings. The baseline is their mean."""
    order = torch.as_tensor(np.random.default_rng(seed).permutation(data.num_ratings))
    count = round(share * data.num_ratings)
    if not 0 < count < data.num_ratings:
        raise DataError(f"{count} of {data.num_ratings} ratings would be held out", expected="more ratings")
    held, train = data.chosen(order[:count].sort().values), data.chosen(order[count:].sort().values)
    return HeldRatings(train, held, _normal(held.value - train.value.mean()))


def _normal(error: Tensor) -> float:
    return -0.5 * math.log(2 * math.pi * math.e * max(float(error.square().mean()), 1e-12))
