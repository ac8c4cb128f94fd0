"""NOCA by enumeration: the exact posterior over the 2^K codes of every row.

With A = theta_0 + C theta (2^K, D) for the codes C, log p(x_n | c) is two matrix products with
L1 = log(1 - e^{-A}) and L0 = -A. The posterior table R (N, 2^K) enters the M step only through the expected counts
R' ones, R' zeros and R' 1, which are additive over rows; given them, further inner M steps cost nothing in N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference._capacity import allowed_bytes, code_table_bytes, largest_enumerable, require
from custom_inference.posterior import CodePosterior, LocalPosterior
from custom_inference.steps._protocol import EStep, Params
from custom_inference.steps._rows import BinaryRows
from custom_inference.steps.noca_common import prior_mode, thetas, transmission_priors, transmission_update
from custom_inference.steps.noca_propose import InformedStarts
from ppl_models import Data, Model
from ppl_models.distributions import BernoulliVector, all_codes, log1mexp

#: Entries of the (rows, codes) table per block, and the fewest rows (the code tables are read once a block).
_BLOCK_ENTRIES, _LEAST_ROWS = 2**20, 128
#: Tables below this are made without asking for the free memory.
_NEGLIGIBLE_BYTES = 2**26


@dataclass(frozen=True, kw_only=True)
class NocaExact(InformedStarts):
    """Exact E step over all codes, cause-transmission M step.

    inner_steps: transmission updates per M step (each raises the expected log joint; the counts are reused).
    max_bytes: memory allowed for the tables; half of what is free by default.
    """

    inner_steps: int = 4
    max_bytes: float | None = None
    bound_name: ClassVar[str] = "evidence"

    def rows(self, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises CapacityError, with an estimate, where the codes do not fit into memory; see also InformedStarts."""
        super().check(model, rows)
        num_bits, num_features = model.shapes["loading"]
        self.require_memory(num_bits, num_features, self._block_rows(num_bits, num_features, len(rows)))

    def require_memory(self, num_bits: int, num_features: int, block: int) -> None:
        needed = code_table_bytes(num_bits, num_features, block)
        if self.max_bytes is None and needed <= _NEGLIGIBLE_BYTES:
            return  # not worth asking how much memory is free
        allowed = allowed_bytes(self.max_bytes)
        fits = largest_enumerable(num_features, allowed=allowed, block_rows=block)
        what = f"enumerating the 2^{num_bits} codes of {num_bits} sources over {num_features} features"
        require(what, needed, allowed=allowed, fits=f"up to {fits} sources would fit; use a bound instead")

    def log_joint(self, params: Params, rows: BinaryRows, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Codes (C, K) and log p(x_n, c | params) (N, C)."""
        tables = _Tables.of(params, rows, temperature)
        return tables.codes, tables.joint(rows)

    def e_step(
        self,
        params: Params,
        rows: BinaryRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        tables = _Tables.of(params, rows, temperature)
        total: dict[str, Tensor] = {}
        bounds = []
        for part in self._parts(params, rows):
            weight, scale, evidence = _exponentiated(tables.joint(part))
            bounds.append(evidence)
            # Scaling the rows of the small factor spares a pass over the (N, C) table; and with the table as the
            # right factor the product is up to twice as fast as with its transpose as the left one.
            counts = {"code": scale @ weight, "code_ones": (part.ones * scale[:, None]).T @ weight}
            if part.mask is not None:
                counts["code_observed"] = (part.mask * scale[:, None]).T @ weight
            total = {k: total[k].add_(v) if k in total else v for k, v in counts.items()}
        return EStep({k: v.T.contiguous() if v.ndim > 1 else v for k, v in total.items()}, {}, torch.cat(bounds))

    def _parts(self, params: Params, rows: BinaryRows) -> list[BinaryRows]:
        """The rows in blocks, after a check that one fits."""
        num_bits, num_features = params["loading"].shape
        block = self._block_rows(num_bits, num_features, len(rows))
        self.require_memory(num_bits, num_features, block)
        if block >= len(rows):
            return [rows]
        return [rows.select(slice(start, start + block)) for start in range(0, len(rows), block)]

    def _block_rows(self, num_bits: int, num_features: int, num_rows: int) -> int:
        """Rows a block: its table stays in cache, where six passes over it cost less than one over main memory."""
        return min(num_rows, max(_LEAST_ROWS, _BLOCK_ENTRIES // 2**num_bits))

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        code, ones = step.statistics["code"], step.statistics["code_ones"]
        codes = _codes(len(params["source_prior"]), code.dtype, code.device)
        observed = step.statistics.get("code_observed")
        present = (code @ codes)[:, None].expand_as(params["loading"]) if observed is None else codes.T @ observed
        leak_count = code.sum().expand_as(params["leak"]) if observed is None else observed.sum(0)
        new = {**params, "source_prior": prior_mode(model, params, code @ codes, round(float(code.sum())))}
        priors = transmission_priors(model, params)
        for _ in range(self.inner_steps):
            theta, theta0 = thetas(new)
            # ones / P(x_j = 1 | c), (C, D): where no row has the code and the feature, 0 / small stays 0.
            ratio = ones / (-torch.expm1(-(codes @ theta + theta0))).clamp(min=torch.finfo(code.dtype).tiny)
            sent, sent_leak = new["loading"] * (codes.T @ ratio), new["leak"] * ratio.sum(0)
            new |= transmission_update(
                priors, sent=sent, sent_leak=sent_leak, present=present, observed=leak_count
            )
        return new

    def posterior(self, params: Params, rows: BinaryRows, step: EStep | None = None) -> LocalPosterior:
        """The full table of every row's posterior."""
        num_bits, num_features = params["loading"].shape
        self.require_memory(num_bits, num_features, len(rows))
        codes, joint = self.log_joint(params, rows)
        return CodePosterior(codes, torch.log_softmax(joint, -1))

    def log_evidence(self, params: Params, rows: BinaryRows) -> Tensor:
        """log p(x_n | params), (N,)."""
        tables = _Tables.of(params, rows)
        return torch.cat([tables.joint(part).logsumexp(-1) for part in self._parts(params, rows)])


class _Tables(NamedTuple):
    """What the log joint of every code needs: codes (C, K), L1 - L0 and -L0 (C, D), the rest (C,)."""

    codes: Tensor
    lift: Tensor
    activation: Tensor
    constant: Tensor

    @classmethod
    def of(cls, params: Params, rows: BinaryRows, temperature: float = 1.0) -> _Tables:
        codes = _codes(len(params["source_prior"]), rows.ones.dtype, rows.ones.device)
        theta, theta0 = thetas(params)
        activation = codes @ theta + theta0
        lift = log1mexp(activation) + activation
        prior = BernoulliVector(params["source_prior"], validate_args=False).log_prob(codes)
        if temperature != 1.0:
            lift, activation = temperature * lift, temperature * activation
        return cls(codes, lift, activation, prior if rows.mask is not None else prior - activation.sum(-1))

    def joint(self, rows: BinaryRows) -> Tensor:
        """log p(x_n, c) (N, C): an observed entry costs activation, an observed one lifts that."""
        lifted = torch.addmm(self.constant, rows.ones, self.lift.T)
        return lifted if rows.mask is None else lifted.addmm_(rows.mask.to(lifted), self.activation.T, alpha=-1)


@lru_cache(maxsize=16)
def _codes(num_bits: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """All codes, kept between steps; never written to."""
    return all_codes(num_bits, dtype=dtype, device=device)


def _exponentiated(joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, C) log joints -> weights, in place, the scale (N,) that normalises each row's, and logsumexp (N,).

    Exponents are held above log(tiny) / 2: denormal numbers make what follows several times slower, and a weight of
    e^-43 (float32) or e^-354 (float64) is nothing.
    """
    top = joint.amax(-1, keepdim=True)
    weight = joint.sub_(top).clamp_(min=math.log(torch.finfo(joint.dtype).tiny) / 2).exp_()
    total = weight.sum(-1)
    return weight, total.reciprocal(), top.squeeze(-1) + total.log()
