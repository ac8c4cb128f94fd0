"""NOCA with truncated posteriors: the exact posterior restricted to a cube of likely codes per row (``common.cubes``).

log p(x, s) = sum_{x_j=1} log(1 - e^{-a_j(s)}) - sum_{x_j=0} a_j(s) + log p(s). All K flips of a base code are scored at
once, for the ones only (the zeros are linear in s). Cost per row: (number of ones) x (K + 2^H), whatever 2^K is. A
processor takes a row after the other, whatever the zeros are (``cube_kernels``); other devices take blocks of rows by
dense products.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.threads import count_shards, cut_evenly, map_in_threads
from custom_inference.families.common.cubes import CubeEngine, CubeModel, Cubes
from custom_inference.families.conjugate.beta import FLOOR, interior
from custom_inference.families.noca.common import NocaEngine, thetas, transmission_statistics
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Model

#: Activation of the padding column of a block of ones: P(x = 1) = 1 there, so it adds nothing.
_ALWAYS_ON = 60.0
#: Products of a part that is worth a thread of its own.
_LEAST = 2**17


class _SourceTable(NamedTuple):
    """Log joints (B, 2^H) up to a row constant, P(x_j = 1 | s) of the ones (B, M, 2^H), the base without free."""

    joint: Tensor
    on: Tensor
    fixed: Tensor

    def where(self, keep: Tensor, other: _SourceTable) -> _SourceTable:
        row = keep[:, None]
        on = torch.where(row[..., None], self.on, other.on)
        return _SourceTable(torch.where(row, self.joint, other.joint), on, torch.where(row, self.fixed, other.fixed))


class _SourceScores(NamedTuple):
    """A block of rows: columns of their ones (B, M), and the log joint per source beside the ones (B, K).

    theta (D + 1, K), theta_0 (D + 1,): with the neutral padding feature last.
    """

    theta: Tensor
    theta0: Tensor
    ones: Tensor
    linear: Tensor

    def activation(self, codes: Tensor) -> Tensor:
        """Compute a_j of the rows' ones (B, M) under codes (B, K): all features by one product, which beats gathering
        theta."""
        return torch.addmm(self.theta0, codes, self.theta.T).gather(1, self.ones)

    def cube(self, base: Tensor, free: Tensor, subsets: Tensor) -> _SourceTable:
        fixed = base.scatter(1, free, 0.0)
        index = (self.ones * self.theta.shape[1])[..., None] + free[:, None, :]
        part = self.theta.view(-1).index_select(0, index.view(-1)).view(index.shape)
        silent = torch.matmul(part, -subsets.T).sub_(self.activation(fixed)[..., None])  # log P(x_j = 0 | s)
        on = silent.expm1_().neg_()
        linear = (self.linear * fixed).sum(1, keepdim=True) + torch.gather(self.linear, 1, free) @ subsets.T
        return _SourceTable(on.log().sum(1) + linear, on, fixed)

    def cheapest_flips(self, base: Tensor, number: int) -> Tensor:
        sign = 1 - 2 * base
        theta = self.theta.index_select(0, self.ones.view(-1)).view(*self.ones.shape, -1)
        flipped = torch.addcmul(self.activation(base)[..., None], theta, sign[:, None, :]).clamp_min_(FLOOR)
        score = flipped.neg_().expm1_().neg_().log_().sum(1) + sign * self.linear
        return score.topk(number, 1).indices


class Transmission(CubeModel):
    """The noisy-or on cubes, counting transmissions; forbid (N,): a source held off in each row."""

    def __init__(self, params: Params, rows: BinaryRows, forbid: Tensor | None = None):
        (theta, theta0), prior = thetas(params), interior(params["source_prior"])
        self.params, self.rows = params, rows
        self.theta = torch.cat([theta.T, theta.new_zeros(1, len(theta))])
        self.theta0 = torch.cat([theta0, theta0.new_full((1,), _ALWAYS_ON)])
        self.linear = torch.logit(prior) - rows.zeros @ theta.T
        if forbid is not None:
            self.linear = self.linear.scatter(1, forbid[:, None], -1e4)
        self.constant = torch.log1p(-prior).sum() - rows.zeros @ theta0
        self.sent, self.sent_leak = theta.new_zeros(self.theta.numel()), torch.zeros_like(self.theta0)

    def blocks(self) -> Iterator[tuple[Tensor, _SourceScores]]:
        for block, ones in self.rows.blocks:
            yield block, _SourceScores(self.theta, self.theta0, ones, self.linear[block])

    def count(
        self, scores: _SourceScores, table: _SourceTable, weight: Tensor, free: Tensor, subsets: Tensor, mean: Tensor
    ) -> None:
        ones, num_bits = scores.ones, mean.shape[1]
        share = weight[:, None, :] / table.on
        position = (ones[..., None] * num_bits + free[:, None, :]).flatten()
        self.sent.index_add_(0, position, (share @ subsets).flatten())
        total = weight.new_zeros(len(ones), len(self.sent_leak)).scatter_add_(1, ones, share.sum(2))
        self.sent.view(-1, num_bits).addmm_(total.T, table.fixed)
        self.sent_leak += total.sum(0)

    def statistics(self, mean: Tensor) -> dict[str, Tensor]:
        sent, sent_leak = self.sent.view(-1, mean.shape[1])[:-1].T, self.sent_leak[:-1]
        return transmission_statistics(self.params, self.rows, mean, sent, sent_leak)


@dataclass(frozen=True)
class Chosen:
    """Rows of the data that are inferred, each with a source that is held off: place (R,), forbid (R,)."""

    place: Tensor
    forbid: Tensor


@dataclass(frozen=True, kw_only=True)
class NocaTruncated(NocaEngine, CubeEngine):
    """E step on cubes of 2^H codes (see :class:`CubeEngine` for the settings); M step: cause transmission."""

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self.infer(params, rows, warm, temperature)

    def infer(
        self, params: Params, rows: BinaryRows, warm: Warm = None, temperature: float = 1.0,
        chosen: Chosen | None = None,
    ) -> EStep:  # fmt: skip
        """Make the E step of all rows; or of those chosen, whose statistics are not counted on a processor."""
        if rows.ones.device.type == "cpu":
            return infer_compiled(self, params, rows, warm, temperature, chosen)
        part = rows if chosen is None else rows.select(chosen.place)
        scored = Transmission(params, part, forbid=None if chosen is None else chosen.forbid)
        return self.cube_step(scored, params, part, warm, temperature)


def infer_compiled(
    engine: NocaTruncated, params: Params, rows: BinaryRows, warm: Warm, temperature: float, chosen: Chosen | None
) -> EStep:
    """Make the E step on a processor, in double precision, the rows in parts that threads share."""
    from custom_inference.families.noca.cube_kernels import infer_cubes

    like, number = rows.like, len(params["source_prior"])
    size, total = min(engine.free, number), len(rows) if chosen is None else len(chosen.place)
    place = torch.arange(total) if chosen is None else chosen.place
    cubes = Cubes(*(warm[f] for f in Cubes._fields)) if warm else Cubes.at(like.new_zeros(total, number))
    refresh, old = int(cubes.age[0]) % engine.refresh_every == 0, cubes.free.shape[1] == size
    base, mean = torch.empty(total, number, dtype=torch.float64), torch.empty(total, number, dtype=torch.float64)
    weight, bound = base.new_empty(total, 2**size), base.new_empty(total)
    free = torch.empty(total, size, dtype=torch.long)
    given = (cubes.base.double(), cubes.free if old else free)
    forbid = torch.full_like(place, -1) if chosen is None else chosen.forbid
    start, middle, column = rows.entries
    which = (place.numpy(), forbid.numpy(), start, middle, column)
    tables, (before, found) = tabulate(params), (tuple(part.numpy() for part in parts) for parts in (
        given, (bound, base, free, weight, mean)))  # fmt: skip
    settings = (refresh or not old, old, engine.guard, float(temperature))
    shape = (like.shape[1], number) if chosen is None else (0, 0)

    def infer(span: tuple[int, int]) -> tuple[Tensor, Tensor]:
        sent, sent_leak = base.new_zeros(shape), base.new_zeros(shape[0])
        infer_cubes(span, which, tables, before, settings, found, (sent.numpy(), sent_leak.numpy()))
        return sent, sent_leak

    length = (middle - start[:-1])[which[0]]
    work = (int(length.sum()) + total) * (number + 2**size)
    spans = cut_evenly(np.concatenate([[0], np.cumsum(length + 1)]), count_shards(work, 4 * shape[0] * number, _LEAST))
    counted = map_in_threads(infer, spans)
    step = Cubes(base.to(like), free, mean.to(like), cubes.age + 1)._asdict() | {"log_weight": weight.to(like)}
    if chosen is not None:
        return EStep({}, step, bound.to(like))
    sent, sent_leak = base.new_zeros(shape), base.new_zeros(shape[0])
    for part, part_leak in counted:
        sent, sent_leak = sent + part, sent_leak + part_leak
    statistics = transmission_statistics(params, rows, step["mean"], sent.T.to(like), sent_leak.to(like))
    return EStep(statistics, step, bound.to(like))


def tabulate(params: Params) -> tuple[NDArray[np.float64], ...]:
    """Return what ``infer_cubes`` reads of the globals."""
    # A p of 1 is as far from it as in the program (``theta_of``), in the precision that it has.
    most = 1 - torch.finfo(params["loading"].dtype).eps
    chance, leak = (params[site].clamp(max=most).double() for site in ("loading", "leak"))
    prior, chance, theta0 = interior(params["source_prior"]).double(), chance.T.contiguous(), -torch.log1p(-leak)
    odds = torch.logit(prior)
    level = odds + torch.log1p(-chance).sum(0)
    silent = (torch.log1p(-prior).sum() - theta0.sum())[None]
    return tuple(part.numpy() for part in (chance, leak, theta0, odds, level, silent))


#: Finds the means that other families begin with, in four E steps.
QUICK = NocaTruncated(free=4, refresh_every=1)
