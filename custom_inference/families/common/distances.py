"""Rows far from each other, by distances between features: what searches take as centres."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ppl_models.data import sparse as _sparse

#: Squared distances (N, C) of all rows from those of an index (C,).
Distances = Callable[[Tensor], Tensor]
#: Candidates among which each centre of an informed start is chosen (greedy k-means++).
_CANDIDATES = 4


def distant_rows(distance: Distances, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Choose ``count`` rows, each drawn with probability proportional to the distance from the nearest one chosen
    before.

    Of ``_CANDIDATES`` such draws the one is kept that leaves the smallest sum of distances (greedy k-means++).
    weight: (N,), how much each row counts.
    """
    heavy = weight.to(torch.float64).cpu()
    heavy = heavy if float(heavy.sum()) > 0 else torch.ones_like(heavy)
    chosen = torch.multinomial(heavy, 1, generator=generator)
    nearest = distance(chosen)[:, 0]
    while len(chosen) < count:
        odds = nearest.to(torch.float64).cpu() * heavy
        # Fewer different rows than classes: any row will do.
        odds = odds if float(odds.sum()) > 0 else torch.ones_like(odds)
        candidates = torch.multinomial(odds, min(_CANDIDATES, int((odds > 0).sum())), generator=generator)
        reached = torch.minimum(nearest[:, None], distance(candidates))
        best = int((reached * weight.unsqueeze(-1)).sum(0).argmin())
        chosen, nearest = torch.cat([chosen, candidates[best : best + 1]]), reached[:, best]
    return chosen


def squared_distances(features: Tensor) -> Distances:
    """Return a function of the distances |f_n - f_c|^2 between features (N, F), dense or CSR."""
    if _sparse.is_sparse(features):
        row, _, values = _sparse.triplets(features)
        norm = values.new_zeros(features.shape[0]).index_add(0, row, values.square())
    else:
        norm = features.square().sum(-1)

    def distances(index: Tensor) -> Tensor:
        index = index.to(norm.device)
        some = _sparse.dense(_sparse.select_rows(features, index))
        return (norm.unsqueeze(-1) + norm[index] - 2 * (features @ some.T.contiguous())).clamp(min=0)

    return distances
