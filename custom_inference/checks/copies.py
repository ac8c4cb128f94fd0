"""Copies of the data that a model makes at a draw of its latents, and what it expects there of every entry."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import scipy.sparse
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.latent_values import latent_values
from custom_inference.core.predictive import observed_law
from ppl_models import Data, GraphData, Model
from ppl_models.data import sparse as _sparse
from ppl_models.distributions.tokens import draw_counts

Params = Mapping[str, Tensor]

#: Entries of a block of rows, and dyads of a block, that are worked on at a time.
_ENTRIES, _DYADS = 2**22, 2**20
#: The numbers of the dyads stay from one copy to the next where there are at most so many blocks of them.
_FEW_BLOCKS = 8


@dataclass(frozen=True)
class Law:
    """p(x | locals, globals) of some entries, which are independent: of their values x, all (B, D) or (E,).

    observed: False where an entry is missing; None where none is.
    """

    distribution: Any
    observed: Tensor | None = None

    def total(self, values: Tensor) -> Tensor:
        """The sum over the observed entries."""
        return values.sum() if self.observed is None else torch.where(self.observed, values, 0.0).sum()

    @property
    def mean(self) -> Tensor:
        return self.distribution.mean

    @property
    def variance(self) -> Tensor:
        return self.distribution.variance

    def log_prob(self, x: Tensor) -> Tensor:
        return self.total(self.distribution.log_prob(x))

    def sample(self) -> Tensor:
        x = self.distribution.sample()
        return x if self.observed is None else torch.where(self.observed, x, torch.zeros_like(x))


@dataclass(frozen=True)
class _Words:
    """Word counts of documents of given lengths: what :class:`Law` needs of it."""

    probs: Tensor
    lengths: Tensor

    @property
    def mean(self) -> Tensor:
        return self.lengths.unsqueeze(-1) * self.probs

    @property
    def variance(self) -> Tensor:
        """The denominator of Pearson's chi-square, which counts that add up have: their mean."""
        return self.mean

    def log_prob(self, x: Tensor) -> Tensor:
        return torch.xlogy(x, self.probs)

    def sample(self) -> Tensor:
        return draw_counts(self.probs, self.lengths.long())


class Source(abc.ABC):
    """Data in the form that statistics read, and copies of them in the same form."""

    #: The data.
    x: Any

    @abc.abstractmethod
    def blocks(self, params: Params, local: Tensor) -> Iterator[tuple[Law, Tensor, Any]]:
        """The law of a block of entries, their values in the data, and what :meth:`gather` needs to know of them."""

    @abc.abstractmethod
    def gather(self, drawn: list[tuple[Any, Tensor]]) -> Any:
        """The copy from those of its blocks."""

    def replicate(
        self, params: Params, local: Tensor, sums: Mapping[str, Callable[[Tensor, Law], Tensor]], seed: int
    ) -> tuple[Any, dict[str, tuple[float, float]]]:
        """A copy at these latents, and of discrepancies that add up over entries their sums (of the data, of the copy).

        Leaves torch's random state changed: callers isolate all copies at once.
        """
        totals, drawn = {name: [0.0, 0.0] for name in sums}, []
        # As torch.manual_seed, which takes milliseconds for the devices that there are none of.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        with torch.no_grad():
            for law, x, place in self.blocks(params, local):
                copy = law.sample()
                drawn.append((place, copy))
                for name, function in sums.items():
                    for side, value in enumerate((x, copy)):
                        totals[name][side] += float(function(value, law))
        return self.gather(drawn), {name: (real, made) for name, (real, made) in totals.items()}


class Rows(Source):
    """Dense rows (N, D): an ndarray, or a masked array where entries are missing. Rows that are arrays are laid out."""

    def __init__(self, model: Model, data: Data):
        what = f"a copy of {len(data)} rows of {data.num_features} features"
        needed, fits = 32.0 * len(data) * data.num_features, "check the fit on some of the rows, or of the features"
        require(what, needed, allowed=memory_limit(), fits=fits)
        self.model, self.data = model, data.dense()
        self.x = self._as_read(self.data.x)

    def blocks(self, params: Params, local: Tensor) -> Iterator[tuple[Law, Tensor, Any]]:
        size = max(1, _ENTRIES // self.data.num_features)
        for start in range(0, len(self.data), size):
            part = slice(start, min(start + size, len(self.data)))
            rows = self.data.rows(part)
            values = {**params, **latent_values(self.model, params, rows, local[part])}
            # Without the mask: missing entries are left out of sums, not of the law.
            found = observed_law(self.model, values, replace(rows, mask=None))
            yield Law(self._entries(found, rows), rows.mask), rows.x, part

    def _entries(self, distribution: TorchDistributionMixin, rows: Data) -> Any:
        """The distribution with one entry of the batch for each of x."""
        del rows
        return getattr(distribution, "base_dist", distribution)

    def gather(self, drawn: list[tuple[Any, Tensor]]) -> Any:
        return self._as_read(torch.cat([copy for _, copy in drawn]))

    def _as_read(self, x: Tensor) -> Any:
        values = x.detach().cpu().numpy().reshape(len(self.data), -1)
        if self.data.mask is None:
            return values
        return np.ma.MaskedArray(values, mask=~self.data.mask.cpu().numpy().reshape(values.shape))


class Documents(Rows):
    """Word counts as a sparse array (N, V); what is missing is left out of its document, as the models do."""

    def __init__(self, model: Model, data: Data):
        self.model = model
        self.data = data if data.mask is None else replace(data, x=torch.where(data.mask, data.x, 0.0))
        self.x = scipy.sparse.csr_array(_sparse.to_scipy(self.data.x) if data.is_sparse else self.data.x.cpu().numpy())

    def blocks(self, params: Params, local: Tensor) -> Iterator[tuple[Law, Tensor, Any]]:
        for law, x, part in super().blocks(params, local):
            yield law, _sparse.dense(x), part

    def _entries(self, distribution: Any, rows: Data) -> _Words:
        probs, lengths = distribution.probs, self.model.given(rows)["num_tokens"].to(distribution.probs)
        if rows.mask is not None:
            # Of a word that was not looked at nothing is known: the tokens are those of the others.
            probs = torch.where(rows.mask, probs, 0.0)
        probs = probs.clamp_min(torch.finfo(probs.dtype).tiny)
        return _Words(probs / probs.sum(-1, keepdim=True), lengths)

    def gather(self, drawn: list[tuple[Any, Tensor]]) -> Any:
        return scipy.sparse.vstack([scipy.sparse.csr_array(copy.cpu().numpy()) for _, copy in drawn], format="csr")


class Graph(Source):
    """The adjacency matrix as a sparse array (N, N); hidden dyads are without edges in the copies too."""

    def __init__(self, model: Any, data: GraphData):
        self.model, self.data, self.number = model, data, model.num_dyads(len(data))
        self.x = scipy.sparse.csr_array(_sparse.to_scipy(data.x))
        self.every = list(self._dyads()) if self.number <= _FEW_BLOCKS * _DYADS else []

    def blocks(self, params: Params, local: Tensor) -> Iterator[tuple[Law, Tensor, Any]]:
        for i, j, observed, x in self.every or self._dyads():
            yield Law(self.model.edge_distribution(params, local, i, j), observed), x, (i, j)

    def _dyads(self) -> Iterator[tuple[Tensor, Tensor, Tensor | None, Tensor]]:
        for start in range(0, self.number, _DYADS):
            dyads = torch.arange(start, min(start + _DYADS, self.number), device=self.data.x.device)
            i, j = self.model.dyads(dyads, len(self.data))
            observed = None if self.data.hidden is None else self.data.is_observed(i, j)
            yield i, j, observed, self.data.observed_value(i, j)

    def gather(self, drawn: list[tuple[Any, Tensor]]) -> Any:
        parts = [(i[copy != 0], j[copy != 0], copy[copy != 0]) for (i, j), copy in drawn]
        i, j, value = (torch.cat(one).cpu().numpy() for one in zip(*parts, strict=True))
        if not self.data.directed:
            off = i != j
            i, j, value = np.r_[i, j[off]], np.r_[j, i[off]], np.r_[value, value[off]]
        return scipy.sparse.coo_array((value, (i, j)), shape=(len(self.data),) * 2).tocsr()


def source_of(model: Model, data: Data) -> Source:
    """The copies of the model's kind of data."""
    if model.is_graph:
        return Graph(model, cast(GraphData, data))
    return Documents(model, data) if model.data_kind == "documents" else Rows(model, data)
