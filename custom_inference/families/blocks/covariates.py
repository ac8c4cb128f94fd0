"""Block model with features of the nodes (Murphy 2012, eq. 27.76): variational EM, and exact EM over labelings of small
graphs.

q(z) = prod_i Cat(phi_i). With l_ij(a, b) = log p(x_ij | z_i = a, z_j = b, f_ij) = log sigmoid(+-w_ab' f_ij),

    F = sum_dyads sum_ab phi_ia phi_jb l_ij(a, b) + sum_ia phi_ia log (pi_a / phi_ia) + log p(pi) + log p(w).

E step: phi_i in proportion to pi exp(sum of the expected l of the dyads of i), node after node. M step: pi in closed
form; w by one logistic regression of the dyads for every pair of blocks, dyad ij weighted by phi_ia phi_jb and with a
Normal prior. Neither lowers F. Every dyad has covariates of its own: all N^2 K^2 log-probabilities are needed, however
sparse the graph is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import CodePosterior
from custom_inference.core.states import PointsWithLocals, State, values_of
from custom_inference.families.blocks.exact import AllLabelings, Score
from custom_inference.families.blocks.mean_field import RESPONSIBILITY, code_posterior, safe_log
from custom_inference.families.blocks.weighted_logistic import fit_weighted
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.rows.graph import GraphRows
from ppl_models import CovariateSBM, Data
from ppl_models.core.priors import is_flat

#: Sweeps over the nodes in one E step and in one from a cold start, at most; starts where there is none to go on from.
_SWEEPS, _COLD_SWEEPS, _COLD = 5, 30, 12
#: How much of a node is in its block where a partition is the start.
_CERTAIN = 0.95


@dataclass(frozen=True)
class CovariateGraphRows(GraphRows):
    """A graph with features of its nodes, by its E observed dyads.

    i, j: (E,) their nodes; of undirected graphs i <= j. x: (E,) 0 or 1. combined: (E, F) features f(x_i, x_j), 1 first.
    """

    i: Tensor
    j: Tensor
    x: Tensor
    combined: Tensor

    @classmethod
    def of(cls, model: CovariateSBM, data: Data, *, max_bytes: float | None = None) -> CovariateGraphRows:
        """Read the graph in double precision, which Newton steps and the table of log-probabilities need.

        Raises CapacityError where N^2 K^2 numbers do not fit into memory.
        """
        size, blocks, weights = len(data), model.num_blocks, model.num_weights
        require(
            f"CovariateSBM: log-probabilities of {size}^2 dyads at {blocks}^2 pairs of blocks, each with covariates of "
            "its own,",
            8.0 * size**2 * (4 * blocks**2 + 2 * weights),
            allowed=memory_limit(max_bytes),
            fits="use SVI(batch_size=...), which takes some dyads a step",
        )
        graph, dense = vars(GraphRows.of(model, data)), data.dense()
        i, j = model.dyads(torch.arange(model.num_dyads(size), device=data.x.device), size)
        if dense.mask is not None:
            seen = dense.mask[i, j]
            i, j = i[seen], j[seen]
        return cls(**graph, i=i, j=j, x=dense.x[i, j].double(), combined=model.dyad_features(i, j).double())

    def log_probabilities(self, weight: Tensor) -> Tensor:
        """Compute log p(x_ij | q_i = a, q_j = b), (K, K, E), at weights (K, K, F)."""
        logit = weight.double() @ self.combined.T
        return -torch.nn.functional.softplus(torch.where(self.x > 0.5, -logit, logit))

    def exposures(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log-likelihood of blocks a of i and b of j, (N, K, N, K), and of block a for a self loop, (N, K).

        Both directions of a pair of nodes together: the table is symmetric, and every pair is in it twice.
        """
        log_p, size, blocks = self.log_probabilities(weight).permute(2, 0, 1), len(self), weight.shape[0]
        loop = self.i == self.j
        own = log_p.new_zeros(size, blocks).index_add(0, self.i[loop], log_p[loop].diagonal(dim1=1, dim2=2))
        apart = ~loop
        i, j, each = self.i[apart], self.j[apart], log_p[apart]
        place = torch.cat([i * size + j, j * size + i])
        both = torch.cat([each, each.transpose(1, 2)])
        table = log_p.new_zeros(size * size, blocks, blocks).index_add(0, place, both)
        return table.reshape(size, size, blocks, blocks).transpose(1, 2), own


@dataclass(frozen=True, kw_only=True)
class CovariatePoints(Engine):
    """Point estimates of the globals.

    max_bytes: memory to use at most; by default half of what is free.
    """

    additive = False
    one_process = True

    max_bytes: float | None = None

    def rows(self, model: CovariateSBM, data: Data) -> CovariateGraphRows:
        """Raises CapacityError where N^2 K^2 numbers do not fit."""
        return CovariateGraphRows.of(model, data, max_bytes=self.max_bytes)

    def check(self, model: CovariateSBM, rows: CovariateGraphRows) -> None:
        """Raises MethodError for priors other than Dirichlet and Normal."""
        Dirichlet.of(model, "block_proportion", rows.like)
        self._prior_of_weights(model, rows)

    def _best(
        self, model: CovariateSBM, weight: Tensor, counts: Tensor, pairs: Tensor, rows: CovariateGraphRows
    ) -> Params:
        """Estimate proportions (K,) and weights (K, K, F) from expected counts of nodes (K,) and of dyads (E, K, K)."""
        alpha = Dirichlet.of(model, "block_proportion", counts).concentration
        proportion = Dirichlet(alpha).mode(counts)
        blocks, (mean, precision) = len(counts), self._prior_of_weights(model, rows)
        every = torch.ones(blocks, blocks, device=weight.device)  # pairs that have weights of their own
        a, b = (every if rows.directed else every.triu()).nonzero(as_tuple=True)
        if not rows.directed:  # a dyad between blocks a and b has its ends either way round
            pairs = pairs + pairs.transpose(1, 2) * (1 - torch.eye(blocks).to(pairs))
        unit = model.weight_units(rows.combined)  # steps are those of features in any others
        prior = mean[a, b] * unit, precision[a, b] / unit.square()
        found = fit_weighted(weight[a, b] * unit, rows.x, rows.combined / unit, pairs[:, a, b].T, *prior) / unit
        new = weight.clone()
        new[a, b] = found
        if not rows.directed:
            new[b, a] = found
        return {"block_proportion": proportion.to(rows.like), "weight": new.to(rows.like)}

    def _prior_of_weights(self, model: CovariateSBM, rows: CovariateGraphRows) -> Normal:
        return Normal.of(model, "weight", model.shapes["weight"], rows.combined)

    def _dyad_weights(self, phi: Tensor, rows: CovariateGraphRows) -> Tensor:
        """Return P(z_i = a, z_j = b) of every dyad, (E, K, K)."""
        first, second = phi[rows.i], phi[rows.j]
        both = first[:, :, None] * second[:, None, :]
        loop = rows.i == rows.j
        return torch.where(loop[:, None, None], torch.diag_embed(first), both) if bool(loop.any()) else both

    def prior_term(self, model: CovariateSBM, state: PointsWithLocals | Params) -> Tensor:
        """Compute the density of the proportions' prior in the basis that the M step maximises in."""
        params = values_of(model, state)
        alpha = Dirichlet.of(model, "block_proportion", params["block_proportion"]).concentration
        prior = Dirichlet(alpha.double()).log_density(params["block_proportion"].double())
        if not is_flat(model.priors["weight"]):
            prior = prior + model.prior("weight", like=params["weight"]).log_prob(params["weight"]).double()
        return prior

    def initial(self, model: CovariateSBM, rows: CovariateGraphRows, generator: torch.Generator) -> Any:
        return self.from_labels(model, torch.randint(model.num_blocks, (len(rows),), generator=generator), rows)

    def from_labels(self, model: CovariateSBM, labels: Tensor, rows: CovariateGraphRows) -> Any:
        """Return the state that suits a division of the nodes (N,)."""
        blocks = model.num_blocks
        phi = (_CERTAIN * one_hot(labels, blocks) + (1 - _CERTAIN) / blocks).to(rows.combined)
        flat = phi.new_zeros(model.shapes["weight"])
        best = self._best(model, flat, phi.sum(0), self._dyad_weights(phi, rows), rows)
        return PointsWithLocals(best, {RESPONSIBILITY: phi.to(rows.like)})


@dataclass(frozen=True, kw_only=True)
class CovariateMeanField(CovariatePoints):
    """Mean field: independent nodes. The state is the globals, with a division of the nodes where one is known."""

    name: ClassVar[str] = "mean_field"
    state: ClassVar[type[State]] = PointsWithLocals

    def e_step(
        self, model: CovariateSBM, state: PointsWithLocals | Params, rows: CovariateGraphRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Sweep over the nodes from the present responsibilities; without any, from the best of random ones."""
        from custom_inference.families.blocks.kernel import sweep_dense

        at = PointsWithLocals.from_any(state)
        exposure, own = (temperature * part for part in rows.exposures(at.sites["weight"]))
        log = log_proportion_of(at.sites)
        known = (warm or at.locals).get(RESPONSIBILITY)
        starts = _random_divisions(rows, len(log), generator) if known is None else [known.double()]
        sweeps, found = _COLD_SWEEPS if known is None else _SWEEPS, []
        for start in starts:
            phi = start.cpu().numpy().copy()
            sweep_dense(exposure.flatten(2).cpu().numpy(), (log + own).cpu().numpy(), phi, sweeps, 1e-8)
            found.append(torch.as_tensor(phi).to(log))
        bounds = [_bound(exposure, own, log, phi) for phi in found]
        best = int(torch.stack(bounds).argmax())
        return EStep({}, {RESPONSIBILITY: found[best].to(rows.like)}, bounds[best].reshape(1))

    def bound(self, model: CovariateSBM, params: Params, rows: CovariateGraphRows, phi: Tensor) -> Tensor:
        """Compute the bound at any responsibilities (N, K), (1,)."""
        return _bound(*rows.exposures(params["weight"]), log_proportion_of(params), phi.double()).reshape(1)

    def posterior(self, model: CovariateSBM, params: Params, rows: CovariateGraphRows, step: EStep) -> CodePosterior:
        return code_posterior(step)

    def m_step(
        self, model: CovariateSBM, state: PointsWithLocals | Params, step: EStep, rows: CovariateGraphRows
    ) -> PointsWithLocals:
        found, weight = step.locals[RESPONSIBILITY].double(), values_of(model, state)["weight"].double()
        best = self._best(model, weight, found.sum(0), self._dyad_weights(found, rows), rows)
        return PointsWithLocals(best, {RESPONSIBILITY: step.locals[RESPONSIBILITY]})

    def from_point(
        self, model: CovariateSBM, params: Params, rows: CovariateGraphRows, e_step: InitialStep
    ) -> PointsWithLocals:
        return PointsWithLocals(params)


@dataclass(frozen=True, kw_only=True)
class CovariateExact(AllLabelings, CovariatePoints):
    """The exact posterior over all K^N labelings."""

    def make_score(self, model: CovariateSBM, params: Params, rows: CovariateGraphRows) -> tuple[Tensor, Score]:
        exposure, own = rows.exposures(params["weight"])
        table = exposure.reshape(own.numel(), -1)

        def score(code: Tensor) -> Tensor:
            flat = code.flatten(1)
            return ((flat @ table) * flat).sum(-1) / 2 + flat @ own.flatten()

        return log_proportion_of(params), score

    def m_step(self, model: CovariateSBM, params: Params, step: EStep, rows: CovariateGraphRows) -> Params:
        pairs = step.statistics["pairs"].double()
        every = torch.arange(len(rows), device=pairs.device)
        counts = pairs[every, :, every].diagonal(dim1=1, dim2=2).sum(0)
        return self._best(model, params["weight"].double(), counts, pairs[rows.i, :, rows.j], rows)

    def from_labels(self, model: CovariateSBM, labels: Tensor, rows: CovariateGraphRows) -> Params:
        return super().from_labels(model, labels, rows).sites


def log_proportion_of(params: Params) -> Tensor:
    """Return log pi (K,), normalised in double precision even where a search worked in single."""
    proportion = params["block_proportion"].double()
    return safe_log(proportion / proportion.sum())


def _bound(exposure: Tensor, own: Tensor, log: Tensor, phi: Tensor) -> Tensor:
    """Compute F without the priors; every pair of nodes is in ``exposure`` twice."""
    flat = phi.flatten()
    pairs = flat @ (exposure.reshape(len(flat), -1) @ flat) / 2
    return pairs + (phi * (own + log)).sum() + torch.special.entr(phi).sum()


def _random_divisions(rows: CovariateGraphRows, blocks: int, generator: torch.Generator | None) -> list[Tensor]:
    """Draw random divisions, and nearly even ones."""
    generator = generator or torch.Generator().manual_seed(0)
    label = torch.randint(blocks, (_COLD - 2, len(rows)), generator=generator)
    hard = _CERTAIN * one_hot(label, blocks).to(rows.combined) + (1 - _CERTAIN) / blocks
    soft = torch.rand(2, len(rows), blocks, generator=generator, dtype=torch.float64).to(rows.combined) + 1
    return [*hard, *(soft / soft.sum(-1, keepdim=True))]
