"""NOCA by enumeration: the exact posterior over the 2^K codes of every row.

With A = theta_0 + C theta (2^K, D) for the codes C, log p(x_n | c) is two matrix products with
L1 = log(1 - e^{-A}) and L0 = -A. The posterior table R (N, 2^K) enters the M step only through the expected counts
R' ones, R' zeros and R' 1, which are additive over rows; given them, further inner M steps cost nothing in N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference._capacity import allowed_bytes, code_table_bytes, largest_enumerable, require
from custom_inference.posterior import CodePosterior, LocalPosterior
from custom_inference.steps._protocol import EStep, Params
from custom_inference.steps._rows import BinaryRows
from custom_inference.steps.noca_common import prior_mode, thetas, transmission_update
from custom_inference.steps.noca_propose import InformedStarts
from ppl_models import Data, Model
from ppl_models.distributions import BernoulliVector, all_codes, log1mexp


@dataclass(frozen=True, kw_only=True)
class NocaExact(InformedStarts):
    """Exact E step over all codes, cause-transmission M step.

    inner_steps: transmission updates per M step (each raises the expected log joint; the counts are reused).
    max_bytes: memory allowed for the tables; half of what is free by default.
    """

    inner_steps: int = 4
    max_bytes: float | None = None
    bound_name: str = "evidence"
    additive: bool = True

    def rows(self, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises CapacityError, with an estimate, where the codes do not fit into memory; see also InformedStarts."""
        super().check(model, rows)
        num_bits, num_features = model.shapes["loading"]
        self.require_memory(num_bits, num_features, self._block_rows(num_bits, num_features, len(rows)))

    def require_memory(self, num_bits: int, num_features: int, block: int) -> None:
        allowed = allowed_bytes(self.max_bytes)
        fits = largest_enumerable(num_features, allowed=allowed, block_rows=block)
        what = f"enumerating the 2^{num_bits} codes of {num_bits} sources over {num_features} features"
        needed = code_table_bytes(num_bits, num_features, block)
        require(what, needed, allowed=allowed, fits=f"up to {fits} sources would fit; use a bound instead")

    def log_joint(self, params: Params, rows: BinaryRows, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Codes (C, K) and log p(x_n, c | params) (N, C)."""
        codes = all_codes(len(params["source_prior"]), dtype=rows.ones.dtype, device=rows.ones.device)
        theta, theta0 = thetas(params)
        activation = codes @ theta + theta0
        on = log1mexp(activation)
        if rows.mask is None:
            likelihood = torch.addmm(-activation.sum(-1), rows.ones, (on + activation).T)
        else:
            likelihood = rows.ones @ on.T - rows.zeros @ activation.T
        prior = BernoulliVector(params["source_prior"], validate_args=False).log_prob(codes)
        return codes, torch.add(prior, likelihood, alpha=temperature)

    def e_step(
        self,
        params: Params,
        rows: BinaryRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        num_bits, num_features = params["loading"].shape
        block = self._block_rows(num_bits, num_features, len(rows))
        self.require_memory(num_bits, num_features, block)
        total: dict[str, Tensor] = {}
        bounds = []
        for start in range(0, len(rows), block):
            part = rows if block >= len(rows) else rows.select(slice(start, start + block))
            weight, evidence = _normalised(self.log_joint(params, part, temperature)[1])
            bounds.append(evidence)
            counts = {"code": weight.sum(0), "code_ones": weight.T @ part.ones}
            if part.mask is not None:
                counts["code_observed"] = weight.T @ part.mask.to(weight)
            total = {k: total[k] + v if k in total else v for k, v in counts.items()}
        return EStep(total, {}, torch.cat(bounds))

    def _block_rows(self, num_bits: int, num_features: int, num_rows: int) -> int:
        """Rows a block: as many as fit, at most 2^24 table entries (the products are compute-bound beyond)."""
        return max(1, min(num_rows, 2**24 // 2**num_bits))

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        code, ones = step.statistics["code"], step.statistics["code_ones"]
        codes = all_codes(len(params["source_prior"]), dtype=code.dtype, device=code.device)
        observed = step.statistics.get("code_observed")
        present = (code @ codes)[:, None].expand_as(params["loading"]) if observed is None else codes.T @ observed
        leak_count = code.sum().expand_as(params["leak"]) if observed is None else observed.sum(0)
        new = {**params, "source_prior": prior_mode(model, params, code @ codes, round(float(code.sum())))}
        for _ in range(self.inner_steps):
            theta, theta0 = thetas(new)
            # ones / P(x_j = 1 | c), (C, D): where no row has the code and the feature, 0 / small stays 0.
            ratio = ones / (-torch.expm1(-(codes @ theta + theta0))).clamp(min=torch.finfo(code.dtype).tiny)
            sent, sent_leak = new["loading"] * (codes.T @ ratio), new["leak"] * ratio.sum(0)
            new |= transmission_update(
                model, new, sent=sent, sent_leak=sent_leak, present=present, observed=leak_count
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
        num_bits, num_features = params["loading"].shape
        block = self._block_rows(num_bits, num_features, len(rows))
        self.require_memory(num_bits, num_features, block)
        starts = range(0, len(rows), block)
        return torch.cat(
            [self.log_joint(params, rows.select(slice(s, s + block)))[1].logsumexp(-1) for s in starts]
        )


def _normalised(joint: Tensor) -> tuple[Tensor, Tensor]:
    """softmax and logsumexp of (N, C) log joints, in place.

    Exponents are held above log(tiny) / 2: denormal numbers make what follows several times slower, and a weight of
    e^-43 (float32) or e^-354 (float64) is nothing.
    """
    top = joint.amax(-1, keepdim=True)
    weight = joint.sub_(top).clamp_(min=math.log(torch.finfo(joint.dtype).tiny) / 2).exp_()
    total = weight.sum(-1, keepdim=True)
    return weight.div_(total), (top + total.log()).squeeze(-1)
