"""Mixture of Bernoullis by summing over the K classes: exact EM.

With r_nk = p(z_n = k | x_n) the M step is pi_k = (sum_n r_nk + alpha_k - 1) / (N + sum alpha - K) and
p_kt = (sum_n r_nk x_nt + a - 1) / (sum_n r_nk m_nt + a + b - 2), m_nt = 1 where x_nt is observed, under priors
Dirichlet(alpha) and Beta(a, b). Both are the maximum of the expected log joint plus log prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.align import match_components
from custom_inference.posterior import CodePosterior
from custom_inference.steps._beta import beta_mode, beta_parameters, interior
from custom_inference.steps._dirichlet import dirichlet_concentration, dirichlet_mode
from custom_inference.steps._protocol import EStep, Params, Steps
from custom_inference.steps._rows import BinaryRows
from ppl_models import Data, Model

#: Probabilities are kept this far from 0 and 1, proportions from 0.
FLOOR = 1e-6
#: Candidates among which each centre of an informed start is chosen (greedy k-means++).
_CANDIDATES = 4
#: How much of a centre is its row; the rest is the mean row.
_OWN = 0.7


@dataclass(frozen=True, kw_only=True)
class MixtureOfBernoullisExact(Steps):
    """The exact E step over the classes, closed-form M step."""

    bound_name = "evidence"
    additive = True
    accelerate = "squarem"

    def rows(self, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def feasible(self, model: Model) -> bool:
        """Always: a row has K classes."""
        return True

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises MethodError for priors other than Dirichlet and Beta, and for those without a mode."""
        beta_parameters(model, "probability", rows.ones)
        dirichlet_concentration(model, "mixing_proportion", rows.ones)

    def initial(self, model: Model, rows: BinaryRows, generator: torch.Generator) -> Params:
        """Probabilities drawn from [1/4, 3/4], equal proportions."""
        noise = torch.rand(model.shapes["probability"], generator=generator, dtype=torch.float64)
        return _equal_shares((0.25 + 0.5 * noise).to(rows.ones))

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        """Rows far from each other (greedy k-means++, Hamming distance) as centres, each pulled to the mean row."""
        num_components = model.shapes["mixing_proportion"][0]
        mean = (rows.ones.sum(0) / rows.observed_count.clamp(min=1)).clamp(0.02, 0.98)
        index = _distant_rows(rows, num_components, generator)
        chosen = rows.select(index.to(rows.ones.device))
        own = torch.where(chosen.ones + chosen.zeros > 0, chosen.ones, mean)
        return _equal_shares((_OWN * own + (1 - _OWN) * mean).clamp(0.02, 0.98))

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Ten starts, on rows enough for each class to be seen a hundred times."""
        return 10, max(2000, 100 * model.shapes["mixing_proportion"][0])

    def log_joint(self, params: Params, rows: BinaryRows, temperature: float = 1.0) -> Tensor:
        """log p(z_n = k) + temperature log p(x_n | z_n = k), (N, K)."""
        probability = interior(params["probability"])
        off = temperature * torch.log1p(-probability)
        lift = temperature * torch.log(probability) - off
        prior = torch.log(params["mixing_proportion"])
        if rows.mask is None:
            return torch.addmm(prior + off.sum(-1), rows.ones, lift.T)
        return torch.addmm(prior, rows.ones, lift.T).addmm_(rows.mask.to(off), off.T)

    def e_step(
        self,
        params: Params,
        rows: BinaryRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        joint = self.log_joint(params, rows, temperature)
        share = torch.softmax(joint, -1)
        counts = {"rows": share.sum(0), "ones": share.T @ rows.ones}
        if rows.mask is not None:
            counts["observed"] = rows.observed_sum(share)
        return EStep(counts, {}, joint.logsumexp(-1))

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        counts, like = step.statistics, params["probability"]
        observed = counts.get("observed", counts["rows"][:, None].expand_as(like))
        concentration = dirichlet_concentration(model, "mixing_proportion", like)
        return {
            "mixing_proportion": dirichlet_mode(counts["rows"], concentration, floor=FLOOR),
            "probability": beta_mode(
                counts["ones"], observed, beta_parameters(model, "probability", like), floor=FLOOR
            ),
        }

    def posterior(self, params: Params, rows: BinaryRows, step: EStep | None = None) -> CodePosterior:
        """The K one-hot codes and the probability of each in every row."""
        codes = torch.eye(len(params["mixing_proportion"])).to(rows.ones)
        return CodePosterior(codes, torch.log_softmax(self.log_joint(params, rows), -1))

    def log_evidence(self, params: Params, rows: BinaryRows) -> Tensor:
        """log p(x_n | params), (N,)."""
        return self.log_joint(params, rows).logsumexp(-1)

    def same_solution(self, first: Params, second: Params) -> bool:
        """Every class has its counterpart: the classes' differences from the mean row have cosines above .95."""
        if len(first["probability"]) == 1:
            return True
        apart = [p["probability"] - p["mixing_proportion"] @ p["probability"] for p in (first, second)]
        return bool((match_components(*apart).similarity > 0.95).all())


def _equal_shares(probability: Tensor) -> Params:
    return {"mixing_proportion": torch.full_like(probability[:, 0], 1 / len(probability)), "probability": probability}


def _distant_rows(rows: BinaryRows, count: int, generator: torch.Generator) -> Tensor:
    """``count`` rows, each drawn with probability proportional to the distance from the nearest one chosen before.

    Of ``_CANDIDATES`` such draws the one is kept that leaves the smallest sum of distances. The Hamming distance is per
    entry that both rows have observed (it is the squared distance of k-means++ for binary rows).
    """
    chosen = torch.randint(len(rows), (1,), generator=generator)
    nearest = _hamming(rows, chosen)[:, 0]
    while len(chosen) < count:
        weight = nearest.to(torch.float64).cpu()
        # Fewer different rows than classes: any row will do.
        weight = weight if float(weight.sum()) > 0 else torch.ones_like(weight)
        candidates = torch.multinomial(weight, min(_CANDIDATES, int((weight > 0).sum())), generator=generator)
        distance = torch.minimum(nearest[:, None], _hamming(rows, candidates))
        best = int(distance.sum(0).argmin())
        chosen, nearest = torch.cat([chosen, candidates[best : best + 1]]), distance[:, best]
    return chosen


def _hamming(rows: BinaryRows, index: Tensor) -> Tensor:
    """Share of the entries observed in both that differ, between every row and the chosen ones, (N, C)."""
    some = rows.select(index.to(rows.ones.device))
    differ = rows.ones @ some.zeros.T + rows.zeros @ some.ones.T
    if rows.mask is None:
        return differ / rows.ones.shape[1]
    both = (rows.ones + rows.zeros) @ (some.ones + some.zeros).T
    return torch.where(both > 0, differ / both.clamp(min=1), torch.full_like(differ, 0.5))
