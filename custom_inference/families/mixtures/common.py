"""What fits of mixtures start with: rows far from each other, of which more than wanted are merged; how starts compare.

An over-complete start has a centre in every class of the data almost surely, which K centres seldom have; what it has
too many of is recognised by the marginal likelihood, components integrated out: merging two classes gains

    log m(S_a + S_b) - log m(S_a) - log m(S_b)

which is positive where the rows of both might well come from one class, whatever their number, and very negative where
not. (Of over-complete starts: Dasgupta & Schulman, J. Machine Learning Research 8, 2007; of the criterion: Heller &
Ghahramani, *Bayesian hierarchical clustering*, ICML 2005.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models.data import sparse as _sparse

#: Squared distances (N, C) of all rows from those of an index (C,).
Distances = Callable[[Tensor], Tensor]
#: log m of classes with statistics (..., F) and (..., D), (...).
LogMarginal = Callable[[Tensor, Tensor], Tensor]
#: Candidates among which each centre of an informed start is chosen (greedy k-means++).
_CANDIDATES = 4
#: Differences of the log marginal likelihood are computed for so many entries at a time.
_AT_ONCE = 2**22


def same_classes(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    """Of components (K, ...) with their proportions (K,)."""
    if len(first[0]) == 1:
        return True
    apart = [value.flatten(1) - proportion @ value.flatten(1) for value, proportion in (first, second)]
    return bool((match_components(*apart).similarity > 0.95).all())


def distant_rows(distance: Distances, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` rows, each drawn with probability proportional to the distance from the nearest one chosen before.

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
    """|f_n - f_c|^2 of features (N, F), dense or CSR."""
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


def common_distances(rows: MixtureRows) -> Distances:
    """Mean squared difference of the entries observed in both; 1/2, that of fair coins, where no entry was."""
    x, seen = _sparse.dense(rows.counts), rows.observed_entries
    assert seen is not None

    def distances(index: Tensor) -> Tensor:
        index = index.to(x.device)
        some, also = x[index], seen[index]
        apart = x.square() @ also.T + seen @ some.square().T - 2 * x @ some.T
        both = seen @ also.T
        return torch.where(both > 0, apart / both.clamp(min=1), 0.5)

    return distances


def merge_classes(log_marginal: LogMarginal, counts: Tensor, observed: Tensor, target: int) -> list[list[int]]:
    """Groups of classes, ``target`` of them: the best pair is merged until so few are left.

    counts (M, F), observed (M, D): the statistics of M classes.
    """
    counts, observed = counts.clone(), observed.clone()
    alone = log_marginal(counts, observed)
    size = len(counts)

    def gains(one: int, others: Tensor) -> Tensor:
        """What merging class ``one`` with each of ``others`` gains, (len(others),)."""
        found = []
        for part in others.split(max(1, _AT_ONCE // counts.shape[1])):
            together = log_marginal(counts[one] + counts[part], observed[one] + observed[part])
            found.append(together - alone[one] - alone[part])
        return torch.cat(found)

    gain = torch.full((size, size), -torch.inf, dtype=alone.dtype, device=alone.device)
    for i in range(size - 1):
        gain[i, i + 1 :] = gains(i, torch.arange(i + 1, size))
    groups = [[i] for i in range(size)]
    for _ in range(size - target):
        first, second = divmod(int(gain.argmax()), size)
        groups[first] += groups[second]
        groups[second] = []
        counts[first] += counts[second]
        observed[first] += observed[second]
        alone[first] = log_marginal(counts[first], observed[first])
        gain[second], gain[:, second] = -torch.inf, -torch.inf
        others = torch.tensor([i for i in range(size) if groups[i] and i != first], dtype=torch.long)
        if len(others):
            gain[others.clamp(max=first), others.clamp(min=first)] = gains(first, others)
    return [group for group in groups if group]
