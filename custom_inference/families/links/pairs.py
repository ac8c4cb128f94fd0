"""Pairs of documents as engines and samplers read them: those that are linked, unknown, or stand for the unlinked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln

from custom_inference.families.rows.documents import DocumentRows
from ppl_models import RTM, CapacityError, Data
from ppl_models.data import sparse as _sparse

#: Pairs that are all read, at most; and unlinked pairs that are drawn are those of this seed.
_MOST_PAIRS, _SEED = 2**24, 0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinkPairs:
    """log p(R) = constant + sum_p [y_p log f(s_p) - e_p g(s_p)] - base sum_{i<j} s_ij, the last of additive links.

    first, second (P,): the documents i < j of a pair; y: its links, of both directions together; e: how many
    observations it stands for: of the additive link beside the ``base`` (1, of directed links 2) that every pair has.
    size: N. unlinked: how many observations no pair stands for (``negatives = 0``), before :meth:`regularise`; mean
    (K,): qbar_i qbar_j of the last entry of y and e after it, which is no pair of these documents.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    y: Array
    e: Array
    base: float
    constant: float
    size: int
    unlinked: float = 0.0
    mean: Array | None = None

    @classmethod
    def of(cls, model: RTM, data: Data) -> LinkPairs:
        """Without pairs where the data have no links among their own documents."""
        links, size = data.others.get("links"), len(data)
        base, additive = (2.0 if model.directed else 1.0), model.link == "additive"
        if links is None or links.shape[0] != links.shape[1]:
            none = np.zeros(0)
            return cls(none.astype(np.int64), none.astype(np.int64), none, none, 0.0, 0.0, size)
        stored = links if _sparse.is_sparse(links) else _sparse.from_dense(links)
        i, j, value = (part.cpu().double().numpy() for part in _sparse.triplets(stored))
        kept = (i != j) if model.directed else (i < j)
        i, j, value = i[kept].astype(np.int64), j[kept].astype(np.int64), value[kept]
        constant = -float(gammaln(np.maximum(value, 0) + 1).sum()) if model.link != "sigmoid" else 0.0
        key, place = np.unique(np.minimum(i, j) * size + np.maximum(i, j), return_inverse=True)
        y = np.bincount(place, np.maximum(value, 0), len(key)).astype(np.float64)
        hidden = np.bincount(place, value < 0, len(key)).astype(np.float64)
        found = cls(key // size, key % size, y, -hidden, base, constant, size)
        return found if additive else found._with_unlinked(key, base - hidden, model.negatives)

    def _with_unlinked(self, key: NDArray[np.int64], known: Array, negatives: int) -> LinkPairs:
        """Add the pairs that are not linked, or a sample that stands for them."""
        unlinked = self.size * (self.size - 1) // 2 - len(key)
        if negatives == 0:
            return replace(self, e=known, base=0.0, unlinked=self.base * unlinked)
        wanted = int(negatives * (self.y > 0).sum())
        if wanted >= unlinked:
            if self.size**2 > 2 * _MOST_PAIRS:
                found = f"{unlinked} pairs without a link, all of them wanted"
                raise CapacityError(f"{found}; fewer negatives need less", needed_bytes=32.0 * unlinked)
            i, j = np.triu_indices(self.size, 1)
            added = np.setdiff1d(i * self.size + j, key, assume_unique=True)
        else:
            generator, added = np.random.default_rng(_SEED), np.zeros(0, np.int64)
            while len(added) < wanted:
                i, j = np.sort(generator.integers(0, self.size, (2, 2 * wanted)), 0)
                drawn = (i * self.size + j)[i < j]
                added = np.union1d(added, drawn[~np.isin(drawn, key)])
            added = np.sort(generator.permutation(added)[:wanted])
        stands = self.base * unlinked / max(len(added), 1)
        every = np.concatenate([key, added])
        y, e = np.concatenate([self.y, np.zeros(len(added))]), np.concatenate([known, np.full(len(added), stands)])
        return replace(self, first=every // self.size, second=every % self.size, y=y, e=e, base=0.0)

    def regularise(self, alpha: Array) -> LinkPairs:
        """Add one pair of documents at their prior means alpha / sum alpha, which stands for all pairs without a link
        (Chang & Blei 2010, section 4.2): these tell nothing of the topics, and keep the weights from growing."""
        if not self.unlinked:
            return self
        y, e, mean = np.append(self.y, 0.0), np.append(self.e, self.unlinked), alpha / alpha.sum()
        return replace(self, y=y, e=e, unlinked=0.0, mean=mean**2)

    def among(self, chosen: NDArray[np.int64]) -> LinkPairs:
        """Select the pairs among the chosen documents, by the places of these."""
        place = np.full(self.size, -1)
        place[chosen] = np.arange(len(chosen))
        i, j = place[self.first], place[self.second]
        kept = (i >= 0) & (j >= 0)
        first, second = np.minimum(i, j)[kept], np.maximum(i, j)[kept]
        y, e = (part[: len(kept)][kept] for part in (self.y, self.e))
        unlinked = self.unlinked * (len(chosen) / self.size) ** 2
        return replace(self, first=first, second=second, y=y, e=e, size=len(chosen), unlinked=unlinked, mean=None)

    def neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """start (N + 1,), other, pair (2 P,): the pairs that every document is in, and who else is."""
        ends = np.concatenate([self.first, self.second])
        order = np.argsort(ends, kind="stable")
        start = np.concatenate([[0], np.bincount(ends, minlength=self.size).cumsum()]).astype(np.int64)
        other, pair = np.concatenate([self.second, self.first]), np.tile(np.arange(len(self.first)), 2)
        return start, other[order].astype(np.int64), pair[order].astype(np.int64)

    def features(self, share: Array) -> Array:
        """qbar_i qbar_j, (P, K), and ``mean`` where there is one."""
        found = share[self.first] * share[self.second]
        return found if self.mean is None else np.vstack([found, self.mean])

    def exposure(self, share: Array) -> tuple[Array, float]:
        """Compute the factors of w (K,) and w_0 in the expected number of links, for the additive link."""
        every = 0.5 * (share.sum(0) ** 2 - (share**2).sum(0))
        total = self.size * (self.size - 1) / 2
        beside = self.e @ self.features(share) if self.e.any() else 0.0
        return self.base * every + beside, float(self.base * total + self.e.sum())

    def log_prob(self, kind: str, share: Array, weight: Array, bias: float) -> float:
        """log p(R | qbar, w, w_0)."""
        score = self.features(share) @ weight + bias
        if kind == "additive":
            linked, (of_weight, of_bias) = self.y > 0, self.exposure(share)
            some = (self.y[linked] * np.log(np.maximum(score[linked], 1e-300))).sum()
            return float(some - of_weight @ weight - of_bias * bias) + self.constant
        normaliser = np.logaddexp(0, score) if kind == "sigmoid" else np.exp(score)
        return float((self.y * score - self.e * normaliser).sum()) + self.constant


@dataclass(frozen=True)
class LinkedRows(DocumentRows):
    """Documents with their links."""

    pairs: LinkPairs = None  # pyright: ignore[reportAssignmentType]

    @classmethod
    def with_links(cls, model: RTM, data: Data) -> Self:
        return cls(DocumentRows.of(data).counts, pairs=LinkPairs.of(model, data))

    def select(self, index: torch.Tensor | slice) -> Self:
        """Select documents with the pairs among them."""
        chosen = torch.arange(len(self), device=self.counts.device)[index].cpu().numpy()
        return replace(super().select(index), pairs=self.pairs.among(chosen))
