"""Starts near the limit of what can be found: divisions of the nodes as probable, not as the best there is.

In sparse graphs the division of the highest likelihood is not near the truth, and labels with free rates between all
blocks end with all nodes in one. Labels are drawn here, from spectral ones on, as if all blocks were alike:

    pi_a = 1 / K,    rate within blocks p, between blocks p',      p, p' from the labels drawn before,
    |p - p'| >= K sqrt(s c) / N,                                   c the mean degree,

(s = 1 is the least that can be found in large graphs, Decelle et al., Phys. Rev. E 84, 2011), which leaves them no way
out, and the nodes' probabilities on the way are the start; what follows frees the rates.
Import inside functions only: it loads the compiler.
"""

from __future__ import annotations

import numpy as np
import torch

from custom_inference.families.blocks.cells import fill
from custom_inference.families.blocks.labels_given import start_from_labels, sweep_given
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.partitions import spectral_labels
from custom_inference.families.blocks.rows import Floats, Graph, PartitionState, SbmRows
from custom_inference.families.blocks.sweep import BlockExpectations
from ppl_models.block_models import BlockModel

#: Sweeps between new rates, how often, and those that are averaged at the end.
_SWEEPS, _ROUNDS, _COUNTED = 4, 35, 80
#: s. Of the mean rate both are at least this much, and probabilities at most so large.
_SIGNAL, _LEAST, _MOST = 1.2, 0.02, 0.98


def propose_planted(model: BlockModel, rows: SbmRows, seed: int, attempt: int) -> Floats:
    """Draw labels as if all blocks were alike; return every node's probabilities of the blocks, (N, K)."""
    kind, blocks, degree = partition_likelihood(model), model.num_blocks, rows.degrees
    ends = (degree + 1) / (degree.mean(1, keepdims=True) + 1) if kind == "degree_corrected" else np.ones_like(degree)
    graph, state = start_from_labels(rows, ends, blocks, spectral_labels(rows, blocks, kind, seed, attempt), seed)
    for _ in range(_ROUNDS):
        sweep_given(graph, state, _alike(model, rows, graph, state), _SWEEPS)
        fill(graph, state)
    return sweep_given(graph, state, _alike(model, rows, graph, state), _COUNTED)


def _alike(model: BlockModel, rows: SbmRows, graph: Graph, state: PartitionState) -> BlockExpectations:
    """Return one rate within all blocks and one between them, by the present labels, but no closer than can be told
    apart."""
    counts, blocks = state.counts(graph), model.num_blocks
    edges, exposure = np.array([[part.trace(), part.sum() - part.trace()] for part in (counts.edges, counts.exposure)])
    within, between = (edges + 0.5) / (exposure + 1)
    mean, apart = (edges.sum() + 0.5) / (exposure.sum() + 1), within - between
    apart = np.copysign(max(abs(apart), blocks * mean * np.sqrt(_SIGNAL / max(mean * len(rows), 1e-9))), apart)
    within, between = np.maximum((mean + apart * (1 - 1 / blocks), mean - apart / blocks), _LEAST * mean)
    rate = torch.as_tensor(np.where(np.eye(blocks) > 0, within, between)).clamp(max=_MOST)
    lift, base = (part.numpy() for part in likelihood_of(model).natural(rate))
    return BlockExpectations(np.full(blocks, -np.log(blocks)), lift, base, rows.unweighted, partition_likelihood(model))
