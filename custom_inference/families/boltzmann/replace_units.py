"""Search for the highest maximum from machines that chains have led near one, by replacing hidden units one at a time.

The unit that log p(x) loses least by is removed, or one that it loses little by. Without unit k, off or on for good,

    log Z' = log Z + log p(h_k = 0)     or     log Z + log p(h_k = 1) - c_k,  with b' = b + w_k

by the table of the hidden states. A new unit of small weights w raises log p(x) of a row, to the second order, by
w' (Cov_rows[v] - Cov_model[v]) w / 8: w is along an eigenvector of one of the largest eigenvalues, and its biases keep
all means where they are. Then the whole machine climbs, and is kept where it ends higher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear as affine
from torch.nn.functional import softplus

from custom_inference.core.engine import Params
from custom_inference.families.boltzmann.ascent import Ascent
from custom_inference.families.boltzmann.common import SITES
from custom_inference.families.boltzmann.table import Table

#: Iterations of every machine and of the best of them, and moves from that and their iterations.
_EACH, _BEST, _MOVES, _OF_MOVE = 40, 120, 8, 100
#: Norm of the weights of new units, and the means of the ranks of what is removed and of the eigenvector.
_NORM, _RANK, _DIRECTION = 2.0, 2.0, 1.0


def maximum(
    ascent: Ascent, machines: Sequence[Params], generator: torch.Generator, moves: int = _MOVES
) -> tuple[Params, bool]:
    """The best that the machines with finite weights lead to, in double precision, and whether the search came to its
    end: Ctrl-C leaves the best so far."""
    best, value = machines[0], -math.inf
    each = [{site: part.cpu().double() for site, part in one.items()} for one in machines]
    each = [one for one in each if all(bool(torch.isfinite(part).all()) for part in one.values())]
    if not each:
        return best, True
    try:
        for one in each:
            at, found = ascent.maximise(one, _EACH)
            best, value = (at, found) if found > value else (best, value)
        best, value = ascent.maximise(best, _BEST)
        for _ in range(moves):
            at, found = ascent.maximise(with_new_unit(ascent, best, generator), _OF_MOVE)
            best, value = (at, found) if found > value else (best, value)
        return ascent.maximise(best, _BEST)[0], True
    except KeyboardInterrupt:
        return best, False


def with_new_unit(ascent: Ascent, at: Params, generator: torch.Generator) -> Params:
    """One unit replaced."""
    loss, on = losses(ascent, at)
    lost = int(loss.argsort()[_rank(_RANK, len(loss), generator)])
    others = torch.arange(len(loss)) != lost
    visible = at["visible_bias"] + at["weight"][lost] * bool(on[lost])
    weight, hidden = at["weight"][others], at["hidden_bias"][others]
    residual = ascent.covariance - torch.from_numpy(Table.of(weight, visible, hidden).visible_covariance()).double()
    directions = torch.linalg.eigh(residual).eigenvectors.flip(-1)
    sign = 1 - 2 * int(torch.randint(2, (), generator=generator))
    new = sign * _NORM * directions[:, _rank(_DIRECTION, directions.shape[1], generator)]
    return {
        "weight": torch.cat([weight, new.unsqueeze(0)]),
        "visible_bias": visible - 0.5 * new,
        "hidden_bias": torch.cat([hidden, -(new @ ascent.mean).unsqueeze(0)]),
    }


def losses(ascent: Ascent, at: Params) -> tuple[Tensor, Tensor]:
    """What log p of a row loses without each unit, (K,), and whether less so with the unit always on."""
    weight, visible, hidden = (at[site].float() for site in SITES)
    chance = torch.from_numpy(Table.of(weight, visible, hidden).hidden_mean).double().clamp(1e-7, 1 - 1e-7)
    gained = softplus(affine(ascent.rows, weight, hidden)).mean(0, dtype=torch.float64)
    off = gained + torch.log1p(-chance)
    on = gained - at["weight"] @ ascent.mean - at["hidden_bias"] + chance.log()
    return torch.minimum(off, on), on < off


def _rank(mean: float, most: int, generator: torch.Generator) -> int:
    drawn = torch.empty(()).exponential_(1 / mean, generator=generator)
    return min(int(drawn), most - 1)
