"""CVQ by enumeration: the exact posterior over the 2^K codes of every row.

By the quadratic form of ``common`` the log joint of all codes is two matrix products, h (N, K) with the codes'
bits and, where entries are missing, the rows' couplings (N, K(K-1)/2) with the codes' pairs of bits (they are shared
by the rows otherwise). The posterior table R (N, 2^K) enters the M step through R C and through the expected pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.common.enumerated import Enumerated, codes_of, exponentiated
from custom_inference.families.common.rows import RealRows
from custom_inference.families.cvq.common import CvqEngine, added, moments, quadratics
from ppl_models import Model


@dataclass(frozen=True, kw_only=True)
class CvqExact(CvqEngine, Enumerated):
    """Exact E step over all codes; closed-form M step."""

    def tables(self, params: Params, rows: RealRows, temperature: float = 1.0) -> _Tables:
        return _Tables(params, codes_of(len(params["source_prior"]), rows.x.dtype, rows.x.device), temperature)

    def e_step(
        self, model: Model, params: Params, rows: RealRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        tables = self.tables(params, rows, temperature)
        statistics: dict[str, Tensor] = {}
        bounds = []
        for part in self.blocks(params, rows):
            weight, scale, evidence = exponentiated(tables.joint(part))
            bounds.append(evidence)
            statistics = added(statistics, self._moments(part, tables.codes, weight, scale))
        return EStep(statistics, {}, torch.cat(bounds))

    def _moments(self, rows: RealRows, codes: Tensor, weight: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """weight (B, C) times scale (B,) are the posteriors."""
        mean = (weight @ codes) * scale[:, None]
        num_bits = codes.shape[1]
        if rows.observed is None:
            return moments(rows, mean, (codes * (scale @ weight)[:, None]).T @ codes)
        first, second = torch.triu_indices(num_bits, num_bits, 1, device=codes.device)
        together = (weight @ _pairs(num_bits, codes.dtype, codes.device)) * scale[:, None]
        full = together.new_zeros(len(rows), num_bits, num_bits)
        full[:, first, second] = full[:, second, first] = together
        return moments(rows, mean, full)


class _Tables(NamedTuple):
    """The parameters with all codes (C, K)."""

    params: Params
    codes: Tensor
    temperature: float

    def joint(self, rows: RealRows) -> Tensor:
        """log p(x_n, c) (N, C)."""
        found = []
        for _, _, form in quadratics(self.params, rows, self.temperature):
            if form.coupling.ndim == 2:
                shared = -0.5 * (self.codes @ form.coupling * self.codes).sum(-1)
                joint = torch.addmm(shared, form.linear, self.codes.T)
            else:
                num_bits = self.codes.shape[1]
                first, second = torch.triu_indices(num_bits, num_bits, 1, device=self.codes.device)
                pairs = _pairs(num_bits, self.codes.dtype, self.codes.device)
                joint = form.linear @ self.codes.T
                joint.addmm_(form.coupling[:, first, second], pairs.T, alpha=-1)
            found.append(joint.add_(form.constant[:, None]))
        return found[0] if len(found) == 1 else torch.cat(found)


@lru_cache(maxsize=4)
def _pairs(num_bits: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """s_i s_j of every code for i < j, (C, K(K-1)/2); never written to."""
    codes = codes_of(num_bits, dtype, device)
    first, second = torch.triu_indices(num_bits, num_bits, 1, device=device)
    return codes[:, first] * codes[:, second]
