"""Compiled sweeps and scores of the labels of many chains at given globals. Import inside functions only: it loads the
compiler.

With A and B of ``likelihoods`` and w the weights of the nodes,

    log p(x, z) = sum_i log pi_(z_i) + sum over dyads [x_ij A_(z_i z_j) + w_i w'_j B_(z_i z_j)] + constant,

at a cost of the edges, the hidden dyads and K^2; where every dyad has features of its own, of all N^2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from custom_inference.families.blocks.gibbs_conditionals import draw_label
from custom_inference.families.blocks.gibbs_kernels import count_node
from custom_inference.families.common.compiled import Ints, Reals, Words, bare
from custom_inference.families.common.random import draw_class

if TYPE_CHECKING:
    from custom_inference.families.blocks.rows import Graph, PartitionState


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
