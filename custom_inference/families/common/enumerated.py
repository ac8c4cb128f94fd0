"""Exact E steps by enumeration: what the engines that sum over all 2^K codes share."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from custom_inference.core.capacity import code_table_bytes, largest_enumerable, memory_limit, require
from custom_inference.core.engine import EStep, ExactEngine, Params
from custom_inference.core.posteriors import CodePosterior, LocalPosterior
from custom_inference.families.rows.matrix import MatrixRows
from ppl_models import Model
from ppl_models.distributions import all_codes

_Matrix = TypeVar("_Matrix", bound=MatrixRows)
#: Entries of the (rows, codes) table per block, and the fewest rows (the code tables are read once a block).
_BLOCK_ENTRIES, LEAST_ROWS = 2**20, 128
#: Tables below this are made without asking for the free memory.
_NEGLIGIBLE_BYTES = 2**26


@dataclass(frozen=True, kw_only=True)
class Enumerated(ExactEngine[_Matrix, Params]):
    """Posteriors over all 2^K codes, in blocks of rows.

    max_bytes: memory allowed for the tables; half of what is free by default.
    """

    max_bytes: float | None = None

    @abc.abstractmethod
    def tables(self, params: Params, rows: _Matrix, temperature: float = 1.0) -> Any:
        """Return tables of the codes at ``params``: ``codes`` (C, K), and ``joint(rows)``, log p(x_n, c) (N, C)."""

    def check(self, model: Model, rows: _Matrix) -> None:
        """Raises CapacityError, with an estimate, where the codes do not fit into memory."""
        super().check(model, rows)
        num_bits, num_features = model.shapes[model.component_site]
        self.require_memory(num_bits, num_features, self._block_rows(num_bits, len(rows)))

    def require_memory(self, num_bits: int, num_features: int, block: int) -> None:
        needed = code_table_bytes(num_bits, num_features, block)
        if self.max_bytes is None and needed <= _NEGLIGIBLE_BYTES:
            return  # not worth asking how much memory is free
        allowed = memory_limit(self.max_bytes)
        fits = largest_enumerable(num_features, allowed=allowed, block_rows=block)
        what = f"enumerating the 2^{num_bits} codes of {num_bits} sources over {num_features} features"
        require(what, needed, allowed=allowed, fits=f"up to {fits} sources would fit; use a bound instead")

    def log_joint(self, params: Params, rows: _Matrix, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return codes (C, K) and log p(x_n, c | params) (N, C)."""
        tables = self.tables(params, rows, temperature)
        return tables.codes, tables.joint(rows)

    def blocks(self, params: Params, rows: _Matrix) -> list[_Matrix]:
        """Yield the rows in blocks, after a check that one fits."""
        num_bits, num_features = len(params["source_prior"]), rows.like.shape[1]
        block = self._block_rows(num_bits, len(rows))
        self.require_memory(num_bits, num_features, block)
        return [part for _, part in rows.parts(block)]

    def _block_rows(self, num_bits: int, num_rows: int) -> int:
        """Return the rows a block: its table stays in cache, where six passes over it cost less than one over main
        memory."""
        return min(num_rows, max(LEAST_ROWS, _BLOCK_ENTRIES // 2**num_bits))

    def posterior(self, model: Model, params: Params, rows: _Matrix, step: EStep | None = None) -> LocalPosterior:
        self.require_memory(len(params["source_prior"]), rows.like.shape[1], len(rows))
        codes, joint = self.log_joint(params, rows)
        return CodePosterior(codes, torch.log_softmax(joint, -1))

    def log_evidence(self, model: Model, params: Params, rows: _Matrix) -> Tensor:
        tables = self.tables(params, rows)
        return torch.cat([tables.joint(part).logsumexp(-1) for part in self.blocks(params, rows)])


@lru_cache(maxsize=16)
def codes_of(num_bits: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return all codes, kept between steps; never written to."""
    return all_codes(num_bits, dtype=dtype, device=device)


def exponentiate(joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Turn (N, C) log joints into weights, in place; return them, the scale (N,) that normalises each row's, and
    logsumexp (N,).

    Exponents are held above log(tiny) / 2: denormal numbers make what follows several times slower, and a weight of
    e^-43 (float32) or e^-354 (float64) is nothing.
    """
    top = joint.amax(-1, keepdim=True)
    weight = joint.sub_(top).clamp_(min=math.log(torch.finfo(joint.dtype).tiny) / 2).exp_()
    total = weight.sum(-1)
    return weight, total.reciprocal(), top.squeeze(-1) + total.log()
