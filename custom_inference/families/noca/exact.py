"""NOCA by enumeration: the exact posterior over the 2^K codes of every row.

With A = theta_0 + C theta (2^K, D) for the codes C, log p(x_n | c) is two matrix products with
L1 = log(1 - e^{-A}) and L0 = -A. The posterior table R (N, 2^K) enters the M step only through the expected counts
R' ones, R' zeros and R' 1, which are additive over rows; given them, further inner M steps cost nothing in N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.common.enumerated import Enumerated, codes_of, exponentiate
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.noca.common import NocaEngine, prior_mode, thetas, transmission_update
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Model
from ppl_models.distributions import BernoulliVector, log1mexp


@dataclass(frozen=True, kw_only=True)
class NocaExact(NocaEngine, Enumerated):
    """Exact E step over all codes, cause-transmission M step.

    inner_steps: transmission updates per M step (each raises the expected log joint; the counts are reused).
    """

    inner_steps: int = 4

    def tables(self, params: Params, rows: BinaryRows, temperature: float = 1.0) -> _SourceTables:
        codes = codes_of(len(params["source_prior"]), rows.ones.dtype, rows.ones.device)
        theta, theta0 = thetas(params)
        activation = codes @ theta + theta0
        lift = log1mexp(activation) + activation
        prior = BernoulliVector(params["source_prior"], validate_args=False).log_prob(codes)
        if temperature != 1.0:
            lift, activation = temperature * lift, temperature * activation
        return _SourceTables(codes, lift, activation, prior if rows.mask is not None else prior - activation.sum(-1))

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        tables = self.tables(params, rows, temperature)
        total: dict[str, Tensor] = {}
        bounds = []
        for part in self.blocks(params, rows):
            weight, scale, evidence = exponentiate(tables.joint(part))
            bounds.append(evidence)
            # Scaling the rows of the small factor spares a pass over the (N, C) table; and with the table as the
            # right factor the product is up to twice as fast as with its transpose as the left one.
            counts = {"code": scale @ weight, "code_ones": (part.ones * scale[:, None]).T @ weight}
            if part.mask is not None:
                counts["code_observed"] = (part.mask * scale[:, None]).T @ weight
            total = {k: total[k].add_(v) if k in total else v for k, v in counts.items()}
        return EStep({k: v.T.contiguous() if v.ndim > 1 else v for k, v in total.items()}, {}, torch.cat(bounds))

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        code, ones = step.statistics["code"], step.statistics["code_ones"]
        codes = codes_of(len(params["source_prior"]), code.dtype, code.device)
        observed = step.statistics.get("code_observed")
        present = (code @ codes)[:, None].expand_as(params["loading"]) if observed is None else codes.T @ observed
        leak_count = code.sum().expand_as(params["leak"]) if observed is None else observed.sum(0)
        new = {**params, "source_prior": prior_mode(model, params, code @ codes, round(float(code.sum())))}
        priors = [Beta.with_mode(model, site, params[site]) for site in ("loading", "leak")]
        for _ in range(self.inner_steps):
            theta, theta0 = thetas(new)
            # ones / P(x_j = 1 | c), (C, D): where no row has the code and the feature, 0 / small stays 0.
            ratio = ones / (-torch.expm1(-(codes @ theta + theta0))).clamp(min=torch.finfo(code.dtype).tiny)
            sent, sent_leak = new["loading"] * (codes.T @ ratio), new["leak"] * ratio.sum(0)
            new |= transmission_update(priors, sent=sent, sent_leak=sent_leak, present=present, observed=leak_count)
        return new


class _SourceTables(NamedTuple):
    """What the log joint of every code needs: codes (C, K), L1 - L0 and -L0 (C, D), the rest (C,)."""

    codes: Tensor
    lift: Tensor
    activation: Tensor
    constant: Tensor

    def joint(self, rows: BinaryRows) -> Tensor:
        """Compute log p(x_n, c) (N, C): minus the activation for every observed entry, and the lift for every one."""
        lifted = torch.addmm(self.constant, rows.ones, self.lift.T)
        return lifted if rows.mask is None else lifted.addmm_(rows.mask.to(lifted), self.activation.T, alpha=-1)
