"""Belief propagation for block models; with point estimates of the globals it is EM (Decelle, Krzakala, Moore &
Zdeborova, *Asymptotic analysis of the stochastic block model for modular networks and its algorithmic applications*,
Phys. Rev. E 84, 2011).

Beliefs b_ij of the pairs of nodes with an edge, and psi_i of nodes; nodes apart are taken to be independent. With A and
B of ``likelihoods``, W_ij(a, b) = exp(x_ij A_ab + w_ij B_ab), a fixed point of the messages is stationary in

    log Z = sum over pairs with an edge of E_b[log W_ij] + sum over the others of E_psi[w_ij B] + sum_i E_psi[log pi]
            + sum_i H(psi_i) - sum over pairs with an edge of KL(b_ij from psi_i psi_j)
          = sum_i log Z_i - sum over pairs with an edge of log Z_ij - sum over the others of E_psi[w_ij B],

Z_i and Z_ij the normalisers of psi_i and b_ij (eq. 31; Yedidia, Freeman & Weiss, IEEE Trans. Inf. Theory 51, 2005). It
is an estimate of log p(x | globals), not a bound: exact where the observed dyads form a forest and have edges. Under
degree correction W_ij = exp(x_ij A_ab), and exposures count by psi_i psi_j for all pairs (Yan et al., J. Stat. Mech.
P05007, 2014), so that the estimate may lie several nats above the truth on small or dense graphs.

The M step maximises log Z at given beliefs: it is that of mean field, with b_ij in place of psi_i psi_j. Iterations
need not raise log Z.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from custom_inference.core.engine import EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.states import PointsWithLocals
from custom_inference.families.blocks.mean_field import RESPONSIBILITY, SbmMeanField, division_of
from custom_inference.families.blocks.pairs import PART, Beliefs, BetheFactors, make_in_parts
from custom_inference.families.blocks.rows import BlockCounts, Floats, SbmRows
from custom_inference.families.blocks.sweep import BlockExpectations, cold_start
from ppl_models.block_models import BlockModel

#: The name of the messages among the locals.
MESSAGE = "message"
#: Sweeps of a cold start, and the change of beliefs at which sweeps end.
_COLD, _TOLERANCE = 100, 1e-9
#: Of one kind of pair no value of blocks is taken for less likely than another by more than this factor.
_LEAST = 1e-60
#: How far from alike random messages are.
_NOISE = 0.1
#: Edges and K N nodes, times K, up to which a cold start tries divisions of the nodes too.
_SEARCHED = 10**5
#: Belief propagation is the default of undirected graphs of so many nodes and more, and at most so many blocks.
_LARGE, _FEW_BLOCKS = 300, 16


def propagates(model: BlockModel) -> bool:
    """Tell whether belief propagation is the default: on large graphs, where near the limit of what can be found mean
    field is too sure of the nodes."""
    return model.num_nodes >= _LARGE and 1 < model.num_blocks <= _FEW_BLOCKS and not model.directed


class Propagated(NamedTuple):
    """log Z, and the counts that the M step goes by."""

    log_z: float
    counts: BlockCounts


def factors_of(at: BlockExpectations, rows: SbmRows, temperature: float = 1.0) -> BetheFactors:
    """Compute the factors of the graph from the expectations of the globals (their values, at points)."""
    whole, lift, base = at.likelihood == "degree_corrected", temperature * at.lift, temperature * at.base
    counts, seen = rows.pairs.counts[:, :, None, None], rows.pairs.seen[:, :, None, None] * (not whole)
    log = counts[:, 0] * lift + seen[:, 0] * base + (counts[:, 1] * lift + seen[:, 1] * base).transpose(0, 2, 1)
    shift = log.max((1, 2)) if len(log) else np.zeros(0)
    table = np.exp(np.maximum(log - shift[:, None, None], np.log(_LEAST))).transpose(0, 2, 1)
    own = at.log_proportion + np.outer(rows.loops, lift.diagonal())
    own = own + np.outer(rows.loop_seen * at.weights.own, base.diagonal())
    bases = np.stack([base.T, base][: 1 + rows.directed])
    return BetheFactors(np.ascontiguousarray(table), shift, own, np.ascontiguousarray(bases), whole)


def propagate_beliefs(
    at: BlockExpectations,
    rows: SbmRows,
    beliefs: Beliefs,
    sweeps: int,
    temperature: float = 1.0,
    tolerance: float = _TOLERANCE,
) -> Propagated:
    """Sweeps until no belief changes by more than ``tolerance``, ``beliefs`` in place."""
    from custom_inference.families.blocks.bethe_sweeps import run_sweeps, sum_pairs

    made, weights = factors_of(at, rows, temperature), at.weights
    pairs, links = rows.pairs, rows.links
    if made.whole:  # then pairs with an edge have hidden dyads too
        pairs = pairs._replace(hidden_start=links.hidden_start, hidden_node=links.hidden_node)
    ends = np.ascontiguousarray(weights.ends)
    nodes = run_sweeps(pairs, made, ends, beliefs, sweeps, tolerance)
    belief = beliefs.belief
    edges, ahead, behind = sum_pairs(pairs, made, beliefs)
    joint, apart = ahead.transpose(0, 2, 1), behind.transpose(0, 2, 1)
    number = joint.sum((1, 2))
    met = _between(rows, pairs.counts, joint) + np.diag(rows.loops @ belief)
    exposure = others = rows.exposures(belief, weights)
    if not made.whole:
        others = others - _between(rows, pairs.seen, apart)
        exposure = others + _between(rows, pairs.seen, joint)
    counts = BlockCounts(met, exposure, belief.sum(0))
    others = others - np.diag((rows.loop_seen * weights.own) @ belief)
    once = others if rows.directed else np.triu(others)
    value = nodes - edges + float(number @ made.shift) - temperature * float((once * at.base).sum())
    constant = weights.log_power - (0.0 if at.likelihood == "bernoulli" else rows.log_factorials)
    return Propagated(value + temperature * constant, counts)


def _between(rows: SbmRows, weight: Floats, sums: Floats) -> Floats:
    """sum over the kinds of pairs, (K, K) as in ``BlockCounts``; weight (T, 2) of both directions, sums (T, K, K)."""
    found = np.einsum("t,tab->ab", weight[:, 0], sums) + np.einsum("t,tab->ba", weight[:, 1], sums)
    return found if rows.directed else (found + found.T) * (1 - 0.5 * np.eye(len(found)))


@dataclass(frozen=True, kw_only=True)
class SbmBethe(SbmMeanField):
    """One sweep of messages an E step. The state is the globals, with beliefs and messages where these are known.

    sweeps: of an E step, at most.
    """

    name = "bethe"
    objective: ClassVar[Objective] = "estimate"
    #: Part of the solution.
    extrapolated = (RESPONSIBILITY, MESSAGE)

    sweeps: int = 1

    def e_step(
        self, model: BlockModel, state: PointsWithLocals | Params, rows: SbmRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Sweeps from where the messages are; from those that the state's division suggests; from the better one of
        random ones and some divisions."""
        at = self.compute_expectations(model, state, rows)
        beliefs = previous_beliefs(state, rows, warm) or _cold(at, rows, generator)
        return self.sweep(at, rows, beliefs, temperature)

    def sweep(self, at: BlockExpectations, rows: SbmRows, beliefs: Beliefs, temperature: float = 1.0) -> EStep:
        """Sweep, and return the E step, whose messages are those of ``beliefs``, changed in place."""
        found = propagate_beliefs(at, rows, beliefs, self.sweeps, temperature)
        statistics = {name: torch.as_tensor(value) for name, value in found.counts._asdict().items()}
        # Messages stay in double precision, that of the sweeps: of large graphs a copy costs much of a sweep.
        kept = {
            RESPONSIBILITY: torch.as_tensor(beliefs.belief).to(rows.like), MESSAGE: torch.as_tensor(beliefs.message)
        }  # fmt: skip
        return EStep(statistics, kept, torch.tensor([found.log_z], dtype=torch.float64))

    def m_step(self, model: BlockModel, state: PointsWithLocals | Params, step: EStep, rows: SbmRows) -> Any:
        best = super().m_step(model, state, step, rows)
        return PointsWithLocals(best.sites, {**best.locals, MESSAGE: step.locals[MESSAGE]})

    def from_point(self, model: BlockModel, params: Params, rows: SbmRows, e_step: InitialStep) -> Any:
        """The given values with the beliefs that suit them."""
        return PointsWithLocals(params, e_step().locals)


def previous_beliefs(state: PointsWithLocals | Params, rows: SbmRows, warm: Warm = None) -> Beliefs | None:
    """Return a copy of the beliefs and messages of a state; None where it has not even a division of the nodes."""
    locals_ = warm or PointsWithLocals.from_any(state).locals
    if MESSAGE in locals_:
        last, belief = (locals_[name].double().numpy() for name in (MESSAGE, RESPONSIBILITY))
        # Rows sum to one, which those in single precision do not; log Z does not depend on the messages' sums.
        message = make_in_parts(last.shape, lambda part: last[part])
        return Beliefs(message, belief / belief.sum(1, keepdims=True))
    division = division_of(state)
    return None if division is None else Beliefs.of(rows.pairs, division.double().numpy())


def random_beliefs(rows: SbmRows, blocks: int, rng: np.random.Generator, noise: float = _NOISE) -> Beliefs:
    """Draw beliefs that are nearly alike everywhere."""

    def draw(size: int) -> Floats:
        each = rng.spawn(-(-size // PART)) if size > PART else [rng]

        def draw_part(part: slice) -> Floats:
            found = 1 + noise * each[part.start // PART].random((part.stop - part.start, blocks))
            return found / found.sum(1, keepdims=True)

        return make_in_parts((size, blocks), draw_part)

    return Beliefs(draw(len(rows.pairs.node)), draw(len(rows)))


def _cold(at: BlockExpectations, rows: SbmRows, generator: torch.Generator | None) -> Beliefs:
    """The best of random messages and, on small graphs, of divisions found without the globals."""
    blocks = len(at.log_proportion)
    seed = 0 if generator is None else int(torch.randint(2**31, (), generator=generator))
    starts = [random_beliefs(rows, blocks, np.random.default_rng(seed))]
    if (rows.edges.nnz + len(rows) * blocks) * blocks <= _SEARCHED:
        starts.append(Beliefs.of(rows.pairs, cold_start(at, rows, generator)))
    if len(starts) == 1:
        propagate_beliefs(at, rows, starts[0], _COLD)
        return starts[0]
    return max(starts, key=lambda one: propagate_beliefs(at, rows, one, _COLD).log_z)
