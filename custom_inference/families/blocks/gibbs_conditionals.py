"""Compiled Gibbs steps of block models at given values: labels at given globals, propensities at given rates.

The propensities theta of the degree-corrected model cannot be integrated out together with the rates eta. Given either
of them and the labels the other is conjugate, so a sweep of the sampler is

    z | theta, x                    eta integrated out: exposures are sums of theta_i theta_j (``gibbs_kernels``)
    eta_ab | z, theta, x            ~ Gamma(a + m_ab, b + t_ab)
    theta_i | rest                  ~ Gamma(a_i + d_i, b_i + sum_j theta_j eta_(z_i z_j)),   j over the observed dyads
    theta of a block times c        eta integrated out, Metropolis: rates and propensities trade their scale slowly

Where the prior of theta is no Gamma, theta_i and the scales of blocks move by Metropolis steps whose proposals do not
depend on the others, so that the prior's part of their ratios is known beforehand.

An undirected self loop has exposure theta_i^2: there theta_i is proposed from the Gamma without it and accepted by
what it adds, exp(-eta_aa (theta'^2 - theta^2)).

The labels of many chains at given globals are swept and scored, with A and B of ``likelihoods`` and w the weights of
the nodes, by

    log p(x, z) = sum_i log pi_(z_i) + sum over dyads [x_ij A_(z_i z_j) + w_i w'_j B_(z_i z_j)] + constant,

at a cost of the edges, the hidden dyads and K^2; where every dyad has features of its own, of all N^2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from custom_inference.families.blocks.gibbs_kernels import cell_score, count_node, gather
from custom_inference.families.common.compiled import Ints, Reals, Words, bare, entry, inner
from custom_inference.families.common.intrinsics import allocate
from custom_inference.families.common.random import draw_class, draw_next

if TYPE_CHECKING:
    from custom_inference.families.blocks.rows import Graph, PartitionState


@inner
def draw_label(graph: Graph, state: PartitionState, i: int, field: Reals, lift: Reals, base: Reals):
    """Draw a new label for node i at given globals: p(z_i = r | rest) ~ exp(field_r) prod_c exp(k_c A_rc + e_c B_rc)

    Only labels and the sums of blocks are kept up to date; ``state.probability`` are these probabilities.
    """
    blocks, links, last = state.size.shape[0], graph.links, graph.weight.shape[0] - 1
    if state.label[i] >= 0:
        count_node(graph, state, i, state.label[i], -1.0)
    state.label[i] = -1
    gather(graph, state, i)
    own = links.own_exposure[i] * graph.weight[0, i] * graph.weight[last, i]
    for r in range(blocks):
        score = field[r] + links.own[i] * lift[r, r] + own * base[r, r]
        for c in range(blocks):
            for side in range(last + 1):
                at = (r, c) if side == 0 else (c, r)
                score += state.near_edges[side, c] * lift[at] + state.near_exposure[side, c] * base[at]
        state.score[r] = score
    new, state.rng[0] = draw_class(state.score, state.probability, blocks, state.rng[0])  # pyright: ignore
    count_node(graph, state, i, new, 1.0)
    state.label[i] = new


@bare
def sweep_given(graph: Graph, state: PartitionState, log_proportion: Reals, lift: Reals, base: Reals, share: Reals):
    """Draw a new label for every node at given globals, see :func:`draw_label`.

    log_proportion: log pi (K,). lift A, base B (K, K): see ``likelihoods``. share (N, K): the probabilities of the
    labels are added to it.
    """
    for i in range(state.label.shape[0]):
        draw_label(graph, state, i, log_proportion, lift, base)
        for r in range(state.size.shape[0]):  # a loop: to add arrays compiles for longer than all the rest
            share[i, r] += state.probability[r]


@inner
def _pull(graph: Graph, state: PartitionState, rate: Reals, side: int, i: int):
    """Compute sum_j theta_j eta_(z_i z_j) over a node's observed dyads with others."""
    label, links, other = state.label, graph.links, graph.weight.shape[0] - 1 - side
    found, a = 0.0, label[i]
    for c in range(rate.shape[1]):
        found += rate[a, c] * state.weight[other, c]
    found -= rate[a, a] * graph.weight[other, i]
    for e in range(links.hidden_start[side, i], links.hidden_start[side, i + 1]):
        j = links.hidden_node[side, e]
        found -= rate[a, label[j]] * graph.weight[other, j]
    return found


@entry
def draw_propensities(
    graph: Graph, state: PartitionState, rate: Reals, drawn: Reals, prior_rate: Reals, uniform: Reals
):
    """Draw theta given all else, in place in ``graph``'s weights, one node after the other.

    rate: eta (K, K). drawn (S, N): from Gamma(a_i + d_i, 1). prior_rate: b (S, N). uniform (N,): in [0, 1).
    """
    sides, weight = graph.weight.shape[0], graph.weight
    for side in range(sides):
        toward = rate.copy() if side == 0 else rate.T.copy()
        for i in range(state.label.shape[0]):
            a = state.label[i]
            here = rate[a, a] * graph.links.own_exposure[i]
            pull = _pull(graph, state, toward, side, i)
            if sides == 2:
                pull += here * weight[1 - side, i]
            old, new = weight[side, i], drawn[side, i] / (prior_rate[side, i] + pull)
            if sides == 1 and math.log(1 - uniform[i]) >= -here * (new * new - old * old):
                continue
            state.weight[side, a] += new - old
            weight[side, i] = new


@inner
def _rescale_cell(graph: Graph, state: PartitionState, side: int, a: int, c: int, factor: float):
    """Return the cell of block a with c on that side, its exposure after a's propensities are multiplied by ``factor``,
    and its f there."""
    at = (a, c) if side == 0 else (c, a)
    exposure = state.exposure[at] * (factor * factor if c == a and graph.weight.shape[0] == 1 else factor)
    return at, exposure, cell_score(graph.kind, graph.first[at], graph.second[at], state.edges[at], exposure)


@entry
def scale_propensities(graph: Graph, state: PartitionState, shape: Reals, prior_rate: Reals, step: float):
    """Take Metropolis steps on the scale of every block's propensities; ``state`` must be up to date, and afterwards
    only its labels are. shape, prior_rate (S, N). step: of log c, in standard deviations under the prior."""
    sides, blocks = graph.weight.shape[0], state.size.shape[0]
    jump, gain, height = allocate((sides, blocks)), allocate((sides, blocks)), allocate((sides, blocks))
    for side in range(sides):
        for a in range(blocks):
            inside = state.label == a
            mass, held = shape[side][inside].sum(), (prior_rate[side] * graph.weight[side])[inside].sum()
            jump[side, a] = step * (2 * draw_next(state.rng) - 1) / math.sqrt(mass + 1)
            gain[side, a] = (mass + state.degree[side, a]) * jump[side, a] - held * (math.exp(jump[side, a]) - 1)
            height[side, a] = math.log(1 - draw_next(state.rng))
    walk_scales(graph, state, jump, gain, height)


@entry
def walk_propensities(graph: Graph, state: PartitionState, rate: Reals, proposed: Reals, gain: Reals, height: Reals):
    """Take Metropolis steps on theta, in place in ``graph``'s weights, one node after the other.

    proposed (S, N): values. gain (S, N): log of the ratio but for the exposures. height (S, N): logarithms of uniforms.
    """
    sides, weight = graph.weight.shape[0], graph.weight
    for side in range(sides):
        toward = rate.copy() if side == 0 else rate.T.copy()
        for i in range(state.label.shape[0]):
            a = state.label[i]
            here = rate[a, a] * graph.links.own_exposure[i]
            pull = _pull(graph, state, toward, side, i)
            old, new = weight[side, i], proposed[side, i]
            pull += here * (weight[1 - side, i] if sides == 2 else new + old)
            if height[side, i] < gain[side, i] - pull * (new - old):
                state.weight[side, a] += new - old
                weight[side, i] = new


@entry
def walk_scales(graph: Graph, state: PartitionState, jump: Reals, gain: Reals, height: Reals):
    """Make the moves of :func:`scale_propensities` with steps that are given: log c of every block is ``jump`` (S, K),
    the part of the log ratio that is the prior's and the degrees' ``gain`` (S, K); height (S, K) as above."""
    sides = graph.weight.shape[0]
    for side in range(sides):
        for a in range(state.size.shape[0]):
            factor, change = math.exp(jump[side, a]), 0.0
            for c in range(state.size.shape[0]):
                at, _, cell = _rescale_cell(graph, state, side, a, c, factor)
                change += cell - state.cell[at]
            if height[side, a] >= gain[side, a] + change:
                continue
            for i in np.flatnonzero(state.label == a):
                graph.weight[side][i] *= factor
            for c in range(state.size.shape[0]):
                at, exposure, cell = _rescale_cell(graph, state, side, a, c, factor)
                state.exposure[at], state.cell[at] = exposure, cell
                if sides == 1:
                    state.exposure[c, a], state.cell[c, a] = exposure, cell


@bare
def sweep_chains(graph: Graph, state: PartitionState, labels: Ints, field: Reals, lift: Reals, base: Reals):
    """Draw new labels for every node of every chain, in place, in proportion to exp(field_ir) and the dyads' terms.

    labels (M, N). field (N, K). lift, base: A and B (K, K), raised to the power of the likelihood. state: room.
    """
    for m in range(labels.shape[0]):
        for r in range(state.size.shape[0]):
            state.size[r] = 0.0
            for side in range(graph.weight.shape[0]):
                state.weight[side, r], state.degree[side, r] = 0.0, 0.0
        for i in range(labels.shape[1]):
            state.label[i] = labels[m, i]
            count_node(graph, state, i, labels[m, i], 1.0)
        for i in range(labels.shape[1]):
            draw_label(graph, state, i, field[i], lift, base)
            labels[m, i] = state.label[i]


@bare
def score_chains(graph: Graph, state: PartitionState, labels: Ints, lift: Reals, base: Reals, score: Reals):
    """Set ``score`` (M,): the sum of the dyads' terms."""
    links, weight, last = graph.links, graph.weight, graph.weight.shape[0] - 1
    for m in range(labels.shape[0]):
        label, apart, own = labels[m], 0.0, 0.0
        state.weight[:, :] = 0.0
        for i in range(label.shape[0]):
            a, both = label[i], weight[0, i] * weight[last, i]
            for side in range(last + 1):
                state.weight[side, a] += weight[side, i]
            own += links.own[i] * lift[a, a] + links.own_exposure[i] * both * base[a, a]
            apart -= both * base[a, a]
            for e in range(links.start[0, i], links.start[0, i + 1]):
                apart += links.count[0, e] * lift[a, label[links.node[0, e]]]
            for e in range(links.hidden_start[0, i], links.hidden_start[0, i + 1]):
                j = links.hidden_node[0, e]
                apart -= weight[0, i] * weight[last, j] * base[a, label[j]]
        for a in range(lift.shape[0]):
            for b in range(lift.shape[0]):
                apart += state.weight[0, a] * state.weight[last, b] * base[a, b]
        score[m] = own + (apart if last == 1 else 0.5 * apart)  # undirected: met from both ends


@bare
def sweep_dense_chains(
    exposure: Reals, labels: Ints, field: Reals, power: float, score: Reals, share: Reals, rng: Words
):  # fmt: skip
    """Draw new labels for every node of every chain, in place, at

        p(z_i = r | rest) ~ exp(field_ir + power sum_j exposure_ijr(z_j)).

    exposure (N, N, K, K): the terms of both directions of a pair, by the block of j and by that of i. score, share
    (K,): room.
    """
    blocks = field.shape[1]
    for m in range(labels.shape[0]):
        label = labels[m]
        for i in range(label.shape[0]):
            for r in range(blocks):
                score[r] = 0.0
            for j in range(label.shape[0]):
                for r in range(blocks):
                    score[r] += exposure[i, j, label[j], r]
            for r in range(blocks):
                score[r] = field[i, r] + power * score[r]
            label[i], rng[0] = draw_class(score, share, blocks, rng[0])  # pyright: ignore


@bare
def score_dense_chains(exposure: Reals, labels: Ints, score: Reals):
    """Set ``score`` (M,): the sum of the dyads' terms, each pair of nodes once."""
    for m in range(labels.shape[0]):
        label, total = labels[m], 0.0
        for i in range(label.shape[0]):
            for j in range(i):
                total += exposure[i, j, label[j], label[i]]
        score[m] = total
