"""From many classes to few: those whose rows are best explained by one class are put together, pair by pair.

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

#: log m of classes with statistics (..., F) and (..., D), (...).
LogMarginal = Callable[[Tensor, Tensor], Tensor]
#: Differences of the log marginal likelihood are computed for so many entries at a time.
_AT_ONCE = 2**22


def merge_classes(log_marginal: LogMarginal, counts: Tensor, observed: Tensor, target: int) -> list[list[int]]:
    """Groups of classes, ``target`` of them: the best pair is merged until so few are left.

    counts (M, F), observed (M, D): the statistics of M classes.
    """
    counts, observed = counts.clone(), observed.clone()
    alone = log_marginal(counts, observed)
    size = len(counts)
    gain = torch.full((size, size), -torch.inf, dtype=alone.dtype, device=alone.device)
    for i in range(size - 1):
        gain[i, i + 1 :] = _gains(log_marginal, counts, observed, alone, i, torch.arange(i + 1, size))
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
            found = _gains(log_marginal, counts, observed, alone, first, others)
            gain[torch.minimum(others, torch.tensor(first)), torch.maximum(others, torch.tensor(first))] = found
    return [group for group in groups if group]


def _gains(
    log_marginal: LogMarginal, counts: Tensor, observed: Tensor, alone: Tensor, one: int, others: Tensor
) -> Tensor:
    """What merging class ``one`` with each of ``others`` gains, (len(others),)."""
    found = []
    for part in others.split(max(1, _AT_ONCE // counts.shape[1])):
        together = log_marginal(counts[one] + counts[part], observed[one] + observed[part])
        found.append(together - alone[one] - alone[part])
    return torch.cat(found)
