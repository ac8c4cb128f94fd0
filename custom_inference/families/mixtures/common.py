"""What fits of mixtures start with, rows far from each other, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.engine import Params
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models.data import sparse as _sparse

#: Candidates among which each centre of an informed start is chosen (greedy k-means++).
_CANDIDATES = 4


def same_classes(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    """Of components (K, ...) with their proportions (K,)."""
    if len(first[0]) == 1:
        return True
    apart = [value.flatten(1) - share @ value.flatten(1) for value, share in (first, second)]
    return bool((match_components(*apart).similarity > 0.95).all())


def equal_shares(site: str, value: Tensor) -> Params:
    """Components with equal proportions."""
    size = len(value)
    return {"mixing_proportion": torch.full((size,), 1 / size).to(value), site: value}


def distant_rows(
    distance: Callable[[Tensor], Tensor], weight: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """``count`` rows, each drawn with probability proportional to the distance from the nearest one chosen before.

    Of ``_CANDIDATES`` such draws the one is kept that leaves the smallest sum of distances (greedy k-means++).

    distance: squared, (N, C) of all rows from the rows of an index (C,). weight: (N,), how much each row counts.
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


class SquaredDistances:
    """|f_n - f_c|^2 between all rows of features (N, F), dense or CSR, and the rows of an index."""

    def __init__(self, features: Tensor):
        self.features = features
        values = features.values() if _sparse.is_sparse(features) else features
        if _sparse.is_sparse(features):
            row = _sparse.triplets(features)[0]
            self.norm = torch.zeros(features.shape[0]).to(values).index_add(0, row, values.square())
        else:
            self.norm = values.square().sum(-1)

    def __call__(self, index: Tensor) -> Tensor:
        index = index.to(self.norm.device)
        some = _sparse.dense(_sparse.select_rows(self.features, index))
        product = self.features @ some.T.contiguous()
        return (self.norm.unsqueeze(-1) + self.norm[index] - 2 * product).clamp(min=0)


def common_distances(rows: MixtureRows) -> Callable[[Tensor], Tensor]:
    """Mean squared difference of the entries observed in both, between all rows and those of an index, (N, C).

    1/2, the distance of independent fair coins, where no entry was.
    """
    x, seen = _sparse.dense(rows.counts), rows.observed_entries
    assert seen is not None

    def distances(index: Tensor) -> Tensor:
        index = index.to(x.device)
        some, also = x[index], seen[index]
        apart = x.square() @ also.T + seen @ some.square().T - 2 * x @ some.T
        both = seen @ also.T
        return torch.where(both > 0, apart / both.clamp(min=1), 0.5)

    return distances
