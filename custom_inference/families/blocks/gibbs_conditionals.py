"""Compiled Gibbs steps of block models at given values: labels at given globals, propensities at given rates.

The propensities theta of the degree-corrected model cannot be integrated out together with the rates eta. Given either
of them and the labels the other is conjugate, so a sweep of the sampler is

    z | theta, x                    eta integrated out: exposures are sums of theta_i theta_j (``_sbm_kernels``)
    eta_ab | z, theta, x            ~ Gamma(a + m_ab, b + t_ab)
    theta_i | rest                  ~ Gamma(a_i + d_i, b_i + sum_j theta_j eta_(z_i z_j)),   j over the observed dyads
    theta of a block times c        eta integrated out, Metropolis: rates and propensities trade their scale slowly

An undirected self loop has exposure theta_i^2: there theta_i is proposed from the Gamma without it and accepted by
what it adds, exp(-eta_aa (theta'^2 - theta^2)).
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.blocks.gibbs_kernels import _cell, _count, _gather, entry, inner
from custom_inference.families.mixtures.gibbs_kernels import _choose, _uniform


@entry
def sweep_given(graph, state, log_share, per_edge, per_exposure):
    """A new label for every node at given globals: p(z_i = r | rest) ~ pi_r prod_c e^(k_c L_rc + e_c L'_rc) ...

    log_share: log pi (K,). per_edge L, per_exposure L' (K, K): log eta / (1 - eta) and log (1 - eta), or of Poisson
    rates log eta and -eta. Only labels and the sums of blocks are kept up to date.
    """
    blocks = state.size.shape[0]
    for i in range(state.label.shape[0]):
        if state.label[i] >= 0:
            _count(graph, state, i, state.label[i], -1)
        state.label[i] = -1
        _gather(graph, state, i)
        for r in range(blocks):
            own = graph.own_exposure[i] * graph.out_weight[i] * graph.in_weight[i]
            score = log_share[r] + graph.own[i] * per_edge[r, r] + own * per_exposure[r, r]
            for c in range(blocks):
                score += state.out_edges[c] * per_edge[r, c] + state.out_exposure[c] * per_exposure[r, c]
                if graph.directed:
                    score += state.in_edges[c] * per_edge[c, r] + state.in_exposure[c] * per_exposure[c, r]
            state.score[r] = score
        new, state.rng[0] = _choose(state.score, state.share, state.rng[0])  # pyright: ignore
        _count(graph, state, i, new, 1)
        state.label[i] = new


@inner
def _pull(label, rate, weight, own, i, start, node):
    """sum_j theta_j eta_(z_i z_j) over a node's observed dyads with others. own: sums of theta over blocks (K,)."""
    found, a = 0.0, label[i]
    for c in range(rate.shape[1]):
        found += rate[a, c] * own[c]
    found -= rate[a, a] * weight[i]
    for e in range(start[i], start[i + 1]):
        found -= rate[a, label[node[e]]] * weight[node[e]]
    return found


@entry
def draw_propensities(graph, state, rate, drawn, prior_rate, uniform):
    """theta given all else, in place in ``graph``'s weights, one node after the other.

    rate: eta (K, K). drawn (2, N): from Gamma(a_i + d_i, 1), for the out- and the in-propensities; undirected graphs
    use the first. prior_rate: b (2, N). uniform (N,): in [0, 1).
    """
    label, out, into, back = state.label, graph.out_weight, graph.in_weight, rate.T.copy()
    for i in range(label.shape[0]):
        a = label[i]
        here = rate[a, a] * graph.own_exposure[i]
        pull = _pull(label, rate, into, state.in_weight, i, graph.hidden_out_start, graph.hidden_out_node)
        if graph.directed:
            pull += here * into[i]
        new = drawn[0, i] / (prior_rate[0, i] + pull)
        if not graph.directed and math.log(1 - uniform[i]) >= -here * (new * new - out[i] * out[i]):
            new = out[i]
        state.out_weight[a] += new - out[i]
        out[i] = new
        if not graph.directed:
            state.in_weight[a] += new - into[i]
            into[i] = new
    for i in range(label.shape[0] if graph.directed else 0):
        a = label[i]
        pull = _pull(label, back, out, state.out_weight, i, graph.hidden_in_start, graph.hidden_in_node)
        new = drawn[1, i] / (prior_rate[1, i] + pull + rate[a, a] * graph.own_exposure[i] * out[i])
        state.in_weight[a] += new - into[i]
        into[i] = new


@inner
def _scale_gain(graph, state, a, factor, rows):
    """What the cells of block a gain by its propensities times a factor: those of sending (rows), else of receiving."""
    gain = 0.0
    for c in range(state.size.shape[0]):
        r, s = (a, c) if rows else (c, a)
        times = factor * factor if c == a and not graph.directed else factor
        exposure, edges = state.exposure[r, s] * times, state.edges[r, s]
        gain += _cell(graph.kind, graph.first[r, s], graph.second[r, s], edges, exposure) - state.cell[r, s]
    return gain


@entry
def scale_propensities(graph, state, shape, prior_rate, step):
    """Metropolis steps on the scale of every block's propensities; ``state`` must be up to date, and stays so only in
    its labels. shape, prior_rate (2, N). step: of log c, in standard deviations under the prior."""
    label, accepted = state.label, 0
    for side in range(2 if graph.directed else 1):
        weight = graph.out_weight if side == 0 else graph.in_weight
        degree = state.out_degree if side == 0 else state.in_degree
        for a in range(state.size.shape[0]):
            inside = label == a
            mass, held = shape[side][inside].sum(), (prior_rate[side] * weight)[inside].sum()
            uniform, state.rng[0] = _uniform(state.rng[0])  # pyright: ignore[reportGeneralTypeIssues]
            jump = step * (2 * uniform - 1) / math.sqrt(mass + 1)
            factor = math.exp(jump)
            gain = (mass + degree[a]) * jump - held * (factor - 1) + _scale_gain(graph, state, a, factor, side == 0)
            uniform, state.rng[0] = _uniform(state.rng[0])  # pyright: ignore[reportGeneralTypeIssues]
            if math.log(1 - uniform) >= gain:
                continue
            accepted += 1
            for i in np.flatnonzero(inside):
                weight[i] *= factor
                if not graph.directed:
                    graph.in_weight[i] = weight[i]
            _rescale(graph, state, a, factor, side == 0)
    return accepted


@inner
def _rescale(graph, state, a, factor, rows):
    for c in range(state.size.shape[0]):
        r, s = (a, c) if rows else (c, a)
        state.exposure[r, s] *= factor * factor if c == a and not graph.directed else factor
        first, second = graph.first[r, s], graph.second[r, s]
        state.cell[r, s] = _cell(graph.kind, first, second, state.edges[r, s], state.exposure[r, s])
        if not graph.directed:
            state.exposure[s, r], state.cell[s, r] = state.exposure[r, s], state.cell[r, s]
