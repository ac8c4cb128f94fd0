"""NOCA's log joint of every one of the 2^K codes.

With A = theta_0 + C theta (2^K, D) for the codes C, log p(x_n | c) is two matrix products with
L1 = log(1 - e^{-A}) and L0 = -A.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.families.common.enumerated import codes_of
from custom_inference.families.noca.common import thetas
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models.distributions import BernoulliVector, log1mexp


class SourceTables(NamedTuple):
    """What the log joint of every code needs: codes (C, K), L1 - L0 and -L0 (C, D), the rest (C,)."""

    codes: Tensor
    lift: Tensor
    activation: Tensor
    constant: Tensor

    @classmethod
    def of(cls, params: Params, rows: BinaryRows, temperature: float = 1.0) -> SourceTables:
        """Tabulate all codes; with a temperature the likelihood is raised to it."""
        codes = codes_of(len(params["source_prior"]), rows.ones.dtype, rows.ones.device)
        theta, theta0 = thetas(params)
        activation = codes @ theta + theta0
        lift = log1mexp(activation) + activation
        prior = BernoulliVector(params["source_prior"], validate_args=False).log_prob(codes)
        if temperature != 1.0:
            lift, activation = temperature * lift, temperature * activation
        return cls(codes, lift, activation, prior if rows.mask is not None else prior - activation.sum(-1))

    def joint(self, rows: BinaryRows) -> Tensor:
        """Compute log p(x_n, c) (N, C): minus the activation for every observed entry, and the lift for every one."""
        lifted = torch.addmm(self.constant, rows.ones, self.lift.T)
        return lifted if rows.mask is None else lifted.addmm_(rows.mask.to(lifted), self.activation.T, alpha=-1)
