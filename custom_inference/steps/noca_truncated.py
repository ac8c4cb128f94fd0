"""NOCA with truncated posteriors: the exact posterior restricted to a *cube* of likely codes per row.

Row n keeps a base code and H free sources; its codes are the base with the free sources taking all 2^H values. They
are distinct by construction, so with log p(x, s) = sum_{x_j=1} log(1 - e^{-a_j(s)}) - sum_{x_j=0} a_j(s) + log p(s)

    B_n = log sum_{s in cube_n} p(x_n, s)  <=  log p(x_n),

with equality when the cube holds every code (H = K), and q_n in proportion to p(x_n, s) on the cube. The free sources
are those whose flip costs the base code least: all K flips are scored at once, for the ones only (the zeros are linear
in s). The base then moves to the best code of the cube. A new cube replaces the old one where it has more mass, so
that B never falls. Cost per row: (number of ones) x (K + 2^H), whatever 2^K is.

Truncated posteriors: Luecke & Eggert, JMLR 11 (2010). M step: cause transmission, E_q[s_i p_ij / P(x_j = 1 | s)].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.posterior import CodePosterior, LocalPosterior
from custom_inference.steps._beta import FLOOR, prior_mode
from custom_inference.steps._protocol import EStep, Params
from custom_inference.steps._rows import BinaryRows
from custom_inference.steps.noca_common import thetas, transmission_priors, transmission_update
from custom_inference.steps.noca_propose import InformedStarts
from ppl_models import Data, Model
from ppl_models.distributions import all_codes

#: Activation of the padding column of a block of ones: P(x = 1) = 1 there, so it adds nothing.
_ALWAYS_ON = 60.0


class Cubes(NamedTuple):
    """base (N, K) codes, free (N, H) indices of the free sources, mean (N, K) marginals, age (N,) in E steps."""

    base: Tensor
    free: Tensor
    mean: Tensor
    age: Tensor

    @classmethod
    def empty(cls, rows: BinaryRows, num_bits: int) -> Cubes:
        return cls.at(rows.ones.new_zeros(len(rows), num_bits))

    @classmethod
    def at(cls, base: Tensor, mean: Tensor | None = None) -> Cubes:
        """Base codes whose free sources have yet to be chosen."""
        empty = torch.zeros(len(base), 0, dtype=torch.long, device=base.device)
        age = torch.zeros(len(base), dtype=torch.long, device=base.device)
        return cls(base, empty, base if mean is None else mean, age)


class _Table(NamedTuple):
    """Log joints (B, 2^H) up to a row constant, P(x_j = 1 | s) of the ones (B, M, 2^H), the base without free."""

    joint: Tensor
    on: Tensor
    fixed: Tensor

    def where(self, keep: Tensor, other: _Table) -> _Table:
        return _Table(
            torch.where(keep[:, None], self.joint, other.joint),
            torch.where(keep[:, None, None], self.on, other.on),
            torch.where(keep[:, None], self.fixed, other.fixed),
        )


class _Padded(NamedTuple):
    """theta (D + 1, K) and theta_0 (D + 1,), with the neutral padding feature last."""

    theta: Tensor
    theta0: Tensor

    @classmethod
    def of(cls, theta: Tensor, theta0: Tensor) -> _Padded:
        return cls(
            torch.cat([theta.T, theta.new_zeros(1, theta.shape[0])]),
            torch.cat([theta0, theta0.new_full((1,), _ALWAYS_ON)]),
        )

    def activation(self, codes: Tensor, ones: Tensor) -> Tensor:
        """a_j of the rows' ones (B, M) under codes (B, K): all features by one product, which beats gathering theta."""
        return torch.addmm(self.theta0, codes, self.theta.T).gather(1, ones)

    def cube(self, ones: Tensor, base: Tensor, free: Tensor, linear: Tensor, subsets: Tensor) -> _Table:
        """linear (B, K): log joint per source beside the ones."""
        fixed = base.scatter(1, free, 0.0)
        index = (ones * self.theta.shape[1])[..., None] + free[:, None, :]
        part = self.theta.view(-1).index_select(0, index.view(-1)).view(index.shape)
        silent = torch.matmul(part, -subsets.T).sub_(self.activation(fixed, ones)[..., None])  # log P(x_j = 0 | s)
        on = silent.expm1_().neg_()
        joint = on.log().sum(1) + (linear * fixed).sum(1, keepdim=True) + torch.gather(linear, 1, free) @ subsets.T
        return _Table(joint, on, fixed)

    def cheapest_flips(self, ones: Tensor, base: Tensor, linear: Tensor, number: int) -> Tensor:
        """The sources whose flip, alone, leaves the base code's log joint highest, (B, number)."""
        sign = 1 - 2 * base
        theta = self.theta.index_select(0, ones.view(-1)).view(*ones.shape, -1)
        flipped = torch.addcmul(self.activation(base, ones)[..., None], theta, sign[:, None, :]).clamp_min_(FLOOR)
        score = flipped.neg_().expm1_().neg_().log_().sum(1) + sign * linear
        return score.topk(number, 1).indices


@dataclass(frozen=True, kw_only=True)
class NocaTruncated(InformedStarts):
    """free: H, free sources per row (2^H codes). guard: keep the old cube where it has more mass.

    refresh_every: choose cubes anew at every so many E steps; in between the old ones are used, at a third of the cost.
    """

    free: int = 6
    guard: bool = True
    refresh_every: int = 3
    bound_name: ClassVar[str] = "truncated"

    @property
    def patience(self) -> int:
        """Between two choices of cubes the bound stands still without being settled."""
        return self.refresh_every

    def rows(self, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def e_step(
        self,
        params: Params,
        rows: BinaryRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        forbid: Tensor | None = None,
    ) -> EStep:
        """forbid (N,): a source held off in each row."""
        theta, theta0 = thetas(params)
        num_bits, num_features = theta.shape
        size = min(self.free, num_bits)
        cubes = Cubes.empty(rows, num_bits) if not locals_ else Cubes(*(locals_[f] for f in Cubes._fields))
        refresh = int(cubes.age[0]) % self.refresh_every == 0
        linear = torch.logit(params["source_prior"]) - rows.zeros @ theta.T
        if forbid is not None:
            linear = linear.scatter(1, forbid[:, None], -1e4)
        bound = torch.log1p(-params["source_prior"]).sum() - rows.zeros @ theta0
        base, mean, free = torch.empty_like(linear), torch.empty_like(linear), cubes.free.new_empty(len(rows), size)
        weights = linear.new_empty(len(rows), 2**size)
        sent = theta.new_zeros((num_features + 1) * num_bits)
        sent_leak = theta.new_zeros(num_features + 1)
        padded = _Padded.of(theta, theta0)
        subsets = all_codes(size, dtype=theta.dtype, device=theta.device)
        for block, ones in rows.blocks:
            chosen, table = self._choose(padded, ones, linear[block], cubes, block, subsets, refresh)
            bound[block] += table.joint.logsumexp(1)
            base[block] = table.fixed.scatter(1, chosen, subsets[table.joint.argmax(1)])
            r = torch.softmax(table.joint * temperature, 1)
            free[block], weights[block] = chosen, torch.log_softmax(table.joint, 1)
            mean[block] = table.fixed.scatter(1, chosen, r @ subsets)
            share = r[:, None, :] / table.on
            position = (ones[..., None] * num_bits + chosen[:, None, :]).flatten()
            sent.index_add_(0, position, (share @ subsets).flatten())
            total = theta.new_zeros(len(block), num_features + 1).scatter_add_(1, ones, share.sum(2))
            sent.view(-1, num_bits).addmm_(total.T, table.fixed)
            sent_leak += total.sum(0)
        statistics = {
            "sent": sent.view(-1, num_bits)[:num_features].T * params["loading"],
            "sent_leak": sent_leak[:num_features] * params["leak"],
            "present": rows.observed_sum(mean),
            "observed": rows.observed_count,
            "source": mean.sum(0),
            "rows": mean.new_tensor(len(rows)),
        }
        locals_ = Cubes(base, free, mean, cubes.age + 1)._asdict() | {"log_weight": weights}
        return EStep(statistics, locals_, bound)

    def _choose(
        self,
        padded: _Padded,
        ones: Tensor,
        linear: Tensor,
        cubes: Cubes,
        block: Tensor,
        subsets: Tensor,
        refresh: bool,
    ) -> tuple[Tensor, _Table]:
        """The cube of each row of the block: new, old, or (guarded) the one with more mass."""
        base, free = cubes.base[block], cubes.free[block]
        has_old = free.shape[1] == subsets.shape[1]
        if has_old and not refresh:
            return free, padded.cube(ones, base, free, linear, subsets)
        new = padded.cheapest_flips(ones, base, linear, subsets.shape[1])
        table = padded.cube(ones, base, new, linear, subsets)
        if not (has_old and self.guard):
            return new, table
        old = padded.cube(ones, base, free, linear, subsets)
        keep = old.joint.logsumexp(1) >= table.joint.logsumexp(1)
        return torch.where(keep[:, None], free, new), old.where(keep, table)

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        s = step.statistics
        counts = {name: s[name] for name in ("sent", "sent_leak", "present", "observed")}
        update = transmission_update(transmission_priors(model, params), **counts)
        prior = prior_mode(model, params, s["source"], round(float(s["rows"])))
        return {**params, **update, "source_prior": prior}

    def posterior(self, params: Params, rows: BinaryRows, step: EStep) -> LocalPosterior:
        """The codes of every row's cube, (N, 2^H, K), and their weights."""
        free, base = step.locals["free"], step.locals["base"]
        subsets = all_codes(free.shape[1], dtype=base.dtype, device=base.device)
        codes = base[:, None, :].expand(-1, len(subsets), -1).clone()
        codes.scatter_(2, free[:, None, :].expand(-1, len(subsets), -1), subsets.expand(len(base), -1, -1))
        return CodePosterior(codes.to(torch.uint8), step.locals["log_weight"])


def likely_codes(params: Params, rows: BinaryRows, *, free: int = 4, steps: int = 4) -> Tensor:
    """Marginals of a few quick truncated E steps from the empty code, (N, K): a start for other families."""
    engine, locals_ = NocaTruncated(free=free, refresh_every=1), None
    for _ in range(steps):
        locals_ = engine.e_step(params, rows, locals_).locals
    assert locals_ is not None
    return locals_["mean"]
