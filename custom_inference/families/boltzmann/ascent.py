"""Exact ascent of (log p(x) + log p(theta)) / N of machines of binary units with few hidden states, to its maximum.

L-BFGS in coordinates in which the Fisher information of each hidden unit's weights is near the unit matrix, which needs
a third of the iterations: with units centred at the means mu of the rows and m of the hidden units, and with
h_nk = E[h_k | v_n],

    z_k = L_k' (w_k, c_k + w_k'mu),   L_k L_k' = Cov_n[(h_nk - m_k) (v_n - mu, 1)] + prior precision / N + e I
    z_d = s_d (b_d + m'w_d),          s_d^2 = mu_d (1 - mu_d) + prior precision / N + e
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear as affine
from torch.nn.functional import softplus

from custom_inference.core.engine import Params
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.families.boltzmann.common import SITES
from custom_inference.families.boltzmann.priors import GaussianPriors
from custom_inference.families.boltzmann.table import Table

#: e, and how many rows the information is taken from.
_RIDGE, _INFORMING = 1e-4, 2000


@dataclass(frozen=True)
class Ascent:
    """What is climbed. rows: (N, D) of 0 and 1, in single precision. priors: of all weights."""

    rows: Tensor
    priors: GaussianPriors

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the rows, in double precision."""
        return self.rows.mean(0, dtype=torch.float64)

    @cached_property
    def covariance(self) -> Tensor:
        """The covariance of the columns."""
        away = (self.rows - self.mean.float()).double()
        return away.mT @ away / len(away)

    def value(self, at: Params) -> tuple[Tensor, Params]:
        """The objective and its slope, at weights in double precision."""
        weight, visible, hidden = (at[site].float() for site in SITES)
        table, rows = Table.of(weight, visible, hidden), self.rows
        zeta, number = affine(rows, weight, hidden), len(rows)
        log_p = self.mean @ at["visible_bias"] + softplus(zeta).sum(dtype=torch.float64) / number - table.log_z
        on = zeta.sigmoid_()
        seen = on.mT @ rows / number, self.mean, on.mean(0)
        slope = {
            site: of_rows.double() - torch.from_numpy(of_model) + self.priors.slope(site, at[site]) / number
            for site, of_rows, of_model in zip(SITES, seen, table.moments(), strict=True)
        }
        return log_p + self.priors.log_density(at) / number, slope

    def maximise(self, at: Params, iterations: int) -> tuple[Params, float]:
        """Run so many iterations; return the parameters they reach and the objective there, never below that of the
        start."""
        own = Coordinates.near(self, at)

        def value(z: Params) -> tuple[Tensor, Params]:
            found, slope = self.value(own.to_weights(z))
            return found, own.slope(slope)

        z, best = maximise(value, own.of_weights(at), iterations, sloped=True)
        return own.to_weights(z), best


@dataclass(frozen=True)
class Coordinates:
    """mean: mu. level: m. factor, inverse: L_k and its inverse, (K, D + 1, D + 1). scale: s."""

    mean: Tensor
    level: Tensor
    factor: Tensor
    inverse: Tensor
    scale: Tensor

    @classmethod
    def near(cls, ascent: Ascent, at: Params) -> Self:
        rows, mean, number = ascent.rows[:: -(-len(ascent.rows) // _INFORMING)], ascent.mean, len(ascent.rows)
        precision = {site: one.double() / number for site, one in ascent.priors.precisions().items()}
        on = affine(rows, at["weight"].float(), at["hidden_bias"].float()).sigmoid_()
        level = on.mean(0)
        centred = torch.cat([rows - mean.float(), rows.new_ones(len(rows), 1)], 1)
        each = (on - level).mT.unsqueeze(-1) * centred
        middle = each.mean(1, keepdim=True)
        information = (each.mT @ each / len(rows) - middle.mT @ middle).double()
        more = torch.cat([precision["weight"], precision["hidden_bias"].unsqueeze(-1)], 1) + _RIDGE
        factor = torch.linalg.cholesky(information + torch.diag_embed(more))
        inverse = torch.linalg.solve_triangular(factor, torch.eye(factor.shape[-1]).to(factor), upper=False)
        scale = (mean * (1 - mean) + precision["visible_bias"] + _RIDGE).sqrt()
        return cls(mean, level.double(), factor, inverse, scale)

    def of_weights(self, at: Params) -> Params:
        """z of weights."""
        own = torch.cat([at["weight"], (at["hidden_bias"] + at["weight"] @ self.mean).unsqueeze(-1)], 1)
        visible = self.scale * (at["visible_bias"] + self.level @ at["weight"])
        return {"units": (own.unsqueeze(1) @ self.factor).squeeze(1), "visible": visible}

    def to_weights(self, z: Params) -> Params:
        """Weights of z."""
        own = (z["units"].unsqueeze(1) @ self.inverse).squeeze(1)
        weight = own[:, :-1]
        visible = z["visible"] / self.scale - self.level @ weight
        return {"weight": weight, "visible_bias": visible, "hidden_bias": own[:, -1] - weight @ self.mean}

    def slope(self, slope: Params) -> Params:
        """Convert a slope in the weights into a slope in z."""
        hidden, visible = slope["hidden_bias"], slope["visible_bias"]
        weight = slope["weight"] - torch.outer(hidden, self.mean) - torch.outer(self.level, visible)
        own = torch.cat([weight, hidden.unsqueeze(-1)], 1)
        return {"units": (self.inverse @ own.unsqueeze(-1)).squeeze(-1), "visible": visible / self.scale}
