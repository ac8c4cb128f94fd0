"""Mixture of Bernoullis by summing over the K classes: exact EM.

With r_nk = p(z_n = k | x_n) the M step is pi_k = (sum_n r_nk + alpha_k - 1) / (N + sum alpha - K) and
p_kt = (sum_n r_nk x_nt + a - 1) / (sum_n r_nk m_nt + a + b - 2), m_nt = 1 where x_nt is observed, under priors
Dirichlet(alpha) and Beta(a, b). Both are the maximum of the expected log joint plus log prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.families.common.beta import beta_mode, beta_parameters, interior
from custom_inference.families.common.dirichlet import dirichlet_concentration
from custom_inference.families.common.rows import BinaryRows
from custom_inference.families.mixtures.common import FLOOR, OWN, MixtureEngine, distant_rows, equal_shares
from ppl_models import Data, Model
from ppl_models.core.priors import is_flat


@dataclass(frozen=True, kw_only=True)
class MixtureOfBernoullisExact(MixtureEngine):
    """The exact E step over the classes, closed-form M step."""

    @property
    def site(self) -> str:
        return "probability"

    def rows(self, model: Model, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises MethodError for priors other than Dirichlet and Beta, and for those without a mode."""
        beta_parameters(model, "probability", rows.ones)
        dirichlet_concentration(model, "mixing_proportion", rows.ones)

    def initial(self, model: Model, rows: BinaryRows, generator: torch.Generator) -> Params:
        """Probabilities drawn from [1/4, 3/4], equal proportions."""
        noise = torch.rand(model.shapes["probability"], generator=generator, dtype=torch.float64)
        return equal_shares("probability", (0.25 + 0.5 * noise).to(rows.ones))

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        """Rows far from each other (greedy k-means++, Hamming distance) as centres, each pulled to the mean row."""
        num_components = model.shapes["mixing_proportion"][0]
        mean = (rows.ones.sum(0) / rows.observed_count.clamp(min=1)).clamp(0.02, 0.98)
        alike = torch.ones(len(rows)).to(rows.ones)
        index = distant_rows(lambda some: _hamming(rows, some), alike, num_components, generator)
        chosen = rows.select(index.to(rows.ones.device))
        own = torch.where(chosen.ones + chosen.zeros > 0, chosen.ones, mean)
        return equal_shares("probability", (OWN * own + (1 - OWN) * mean).clamp(0.02, 0.98))

    def table(self, model: Model, params: Params, rows: BinaryRows) -> Tensor:
        probability = interior(params["probability"])
        off = torch.log1p(-probability)
        lift = torch.log(probability) - off
        if rows.mask is None:
            return torch.addmm(off.sum(-1), rows.ones, lift.T)
        return (rows.ones @ lift.T).addmm_(rows.mask.to(off), off.T)

    def collect(self, share: Tensor, rows: BinaryRows) -> dict[str, Tensor]:
        counts = {"ones": share.T @ rows.ones}
        return counts if rows.mask is None else {**counts, "observed": rows.observed_sum(share)}

    def components(self, model: Model, params: Params, counts: dict[str, Tensor], rows: BinaryRows) -> Tensor:
        like = params["probability"]
        observed = counts.get("observed", counts["rows"][:, None].expand_as(like))
        return beta_mode(counts["ones"], observed, beta_parameters(model, "probability", like), floor=FLOOR)

    def component_log_prior(self, model: Model, params: Params) -> Tensor:
        if is_flat(model.priors["probability"]):
            return torch.zeros((), dtype=torch.float64)
        return model.prior("probability", like=params["probability"]).log_prob(params["probability"])


def _hamming(rows: BinaryRows, index: Tensor) -> Tensor:
    """Share of the entries observed in both that differ, between every row and the chosen ones, (N, C).

    It is the squared distance of k-means++ for binary rows.
    """
    some = rows.select(index.to(rows.ones.device))
    differ = rows.ones @ some.zeros.T + rows.zeros @ some.ones.T
    if rows.mask is None:
        return differ / rows.ones.shape[1]
    both = (rows.ones + rows.zeros) @ (some.ones + some.zeros).T
    return torch.where(both > 0, differ / both.clamp(min=1), torch.full_like(differ, 0.5))
