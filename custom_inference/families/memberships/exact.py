"""MMSB with the memberships integrated out exactly at given globals: evidence, joint posterior and EM, of tiny graphs.

With w_ij,ab = p(x_ij | a, b) of every observed dyad (Murphy, eqs. 27.78-27.79) the probability of the graph given the
memberships, the indicators summed out, is a polynomial in them,

    p(x | pi) = prod_ij sum_ab pi_ia w_ij,ab pi_jb = sum_c beta(c) prod_ik pi_ik^{c_ik},

c_ik being how often node i takes block k. Multiplied out dyad by dyad, equal counts merged as they arise, it has
prod_i C(n_i + K - 1, K - 1) terms for nodes with n_i ends of dyads, instead of the K^2E values of the indicators. A
Dirichlet moment integrates each term:

    p(x) = sum_c beta(c) prod_i E[prod_k pi_ik^{c_ik}],
    p(pi | x) = sum_c [... / p(x)] prod_i Dirichlet(pi_i; alpha + c_i).

The derivative of log p(x) by log w_ij,ab is the posterior probability of (s_ij, r_ij) = (a, b): the E step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import JointDirichletMixture
from custom_inference.core.posteriors.continuous import mirror
from custom_inference.families.conjugate.beta import Beta, interior
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.memberships.common import membership_prior, modes
from custom_inference.families.memberships.dyads import either_order, list_observed_dyads
from custom_inference.families.rows.graph import GraphRows
from ppl_models import MMSB, Data

#: Up to so many terms exact posteriors are the default.
_LITTLE = 2**14


@dataclass(frozen=True, kw_only=True)
class MmsbExact(ExactEngine):
    """max_bytes: memory allowed; half of what is free by default."""

    one_process = True

    max_bytes: float | None = None

    accelerate = "squarem"

    def rows(self, model: MMSB, data: Data) -> GraphRows:
        return GraphRows.of(model, data)

    def feasible(self, model: MMSB) -> bool:
        return _most_terms(model, model.num_nodes) <= _LITTLE

    def check(self, model: MMSB, rows: GraphRows) -> None:
        """Raises MethodError for priors without closed-form updates, CapacityError where the terms do not fit."""
        for site in model.shapes:
            Beta.with_mode(model, site, rows.like)
        membership_prior(model, rows.like)
        self._require(model, rows)

    def _require(self, model: MMSB, rows: GraphRows) -> None:
        i, j, _ = list_observed_dyads(rows)
        size = model.num_blocks
        ends = np.bincount(np.concatenate([i, j]), minlength=len(rows))
        allowed = memory_limit(self.max_bytes)
        fitting = [n for n in range(1, 12) if _bytes(_most_terms(model, n), size) <= allowed]
        fits = f'complete graphs of up to {max(fitting, default=0)} nodes would fit; use a bound instead, "dirichlet"'
        needed = _bytes(math.prod(math.comb(int(n) + size - 1, size - 1) for n in ends), size)
        # The terms are numbered by whole numbers of 64 bits.
        if sum((size - 1) * math.log2(n + 1) for n in ends) >= 62:
            needed = math.inf
        require(f"summing {size} blocks out of {len(i)} dyads", needed, allowed=allowed, fits=fits)

    def tables(self, model: MMSB, params: Params, rows: GraphRows) -> tuple[Tensor, Tensor, Tensor]:
        """Compute w (E, K, K), the part of it that dyads bring that are not background, and x (E,)."""
        value = torch.as_tensor(list_observed_dyads(rows)[2]).to(rows.like)
        rho, eta = model.rho(params), interior(params["edge_probability"])
        inside = (1 - rho) * torch.where(value[:, None, None] > 0, eta, 1 - eta)
        return inside + (1 - value[:, None, None]) * rho, inside, value

    def _weigh_counts(self, model: MMSB, rows: GraphRows, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log [beta(c) prod_i E[..]] (M,), and c (M, N, K)."""
        self._require(model, rows)
        i, j, _ = list_observed_dyads(rows)
        places, counts = _terms(tuple(i.tolist()), tuple(j.tolist()), len(rows), tables.shape[-1])
        coefficient = tables.new_ones(1)
        for place, table in zip(places, tables, strict=True):
            product = table.flatten()[:, None] * coefficient
            size = int(place.max()) + 1
            coefficient = tables.new_zeros(size).index_add(0, place.flatten().to(tables.device), product.flatten())
        counts = counts.to(tables)
        return coefficient.log() + Dirichlet(membership_prior(model, tables)).log_marginal(counts).sum(-1), counts

    def log_evidence(self, model: MMSB, params: Params, rows: GraphRows) -> Tensor:
        """Compute log p(x | eta, rho, alpha), (1,); differentiable in eta and rho."""
        return self._weigh_counts(model, rows, self.tables(model, params, rows)[0])[0].logsumexp(0, keepdim=True)

    def e_step(
        self, model: MMSB, params: Params, rows: GraphRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        tables, inside, value = (one.detach() for one in self.tables(model, params, rows))
        with torch.enable_grad():
            log_table = tables.log().requires_grad_()
            bound = self._weigh_counts(model, rows, (temperature * log_table).exp())[0].logsumexp(0, keepdim=True)
            # The derivative is by the logarithm of the powered table over the temperature.
            share = torch.autograd.grad(bound.sum(), log_table)[0] / temperature if len(value) else tables
        seen, linked = share * inside / tables, value[:, None, None]
        split = torch.stack([(share - seen).sum(), seen.sum()])
        links, gaps = (either_order((seen * part).sum(0), model.directed) for part in (linked, 1 - linked))
        return EStep({"links": links, "gaps": gaps, "background": split}, {}, bound.detach())

    def posterior(
        self, model: MMSB, params: Params, rows: GraphRows, step: EStep | None = None
    ) -> JointDirichletMixture:
        """Return the exact joint posterior of all memberships."""
        log_weight, counts = self._weigh_counts(model, rows, self.tables(model, params, rows)[0])
        return JointDirichletMixture(torch.log_softmax(log_weight, 0), counts + membership_prior(model, counts))

    def initial(self, model: MMSB, rows: GraphRows, generator: torch.Generator) -> Params:
        """Start with edge probabilities around a half."""
        shape = model.shapes["edge_probability"]
        eta = 0.2 + 0.6 * torch.rand(shape, generator=generator, dtype=torch.float64)
        params = {"edge_probability": (eta if model.directed else mirror(eta)).to(rows.like)}
        return {**params, "sparsity": rows.like.new_tensor(0.1)} if "sparsity" in model.shapes else params

    def m_step(self, model: MMSB, params: Params, step: EStep, rows: GraphRows) -> Params:
        """Set the globals to the mode of Beta(g + m, h + e), and of rho's posterior."""
        return modes(model, rows.like, **step.statistics)


def _most_terms(model: MMSB, num_nodes: int) -> int:
    """Count the terms where every dyad of so many nodes is observed."""
    ends = (num_nodes - 1) * (2 if model.directed else 1) + 2 * model.self_loops
    return math.comb(ends + model.num_blocks - 1, model.num_blocks - 1) ** num_nodes


def _bytes(terms: float, size: int) -> float:
    """K^2 products of each, their places, and what sorting them takes; all dyads together cost about twice the last."""
    return 64.0 * size**2 * terms


@lru_cache(maxsize=8)
def _terms(i: tuple[int, ...], j: tuple[int, ...], num_nodes: int, size: int) -> tuple[list[Tensor], Tensor]:
    """Per dyad where the K^2 products (a, b) of every term so far go, (K^2, M), and the counts c (M, N, K) of the last.

    A term is numbered by its counts, those of the last block left out: they follow from the dyads that are done.
    """
    ends = np.bincount(np.array(i + j, dtype=int), minlength=num_nodes)
    bases = torch.as_tensor(ends + 1).repeat_interleave(size - 1)
    unit = torch.cat([bases.new_ones(1), bases.cumprod(0)])[: max(len(bases), 1)]
    step = torch.zeros(num_nodes, size, dtype=torch.long)
    if size > 1:
        step[:, :-1] = unit.reshape(num_nodes, size - 1)
    keys, places = torch.zeros(1, dtype=torch.long), []
    for s, r in zip(i, j, strict=True):
        moved = keys + (step[s][:, None] + step[r]).reshape(-1, 1)
        keys, place = torch.unique(moved, return_inverse=True)
        places.append(place)
    counts = torch.zeros(len(keys), num_nodes, size, dtype=torch.long)
    if size > 1:
        counts[..., :-1] = (keys[:, None] // unit % bases).reshape(len(keys), num_nodes, size - 1)
    counts[..., -1] = torch.as_tensor(ends) - counts.sum(-1)
    return places, counts
