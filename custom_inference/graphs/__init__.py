"""Evaluation of fits of graphs: held-out links, blocks and their number, communities, figures."""

from custom_inference.graphs.blocks import best_match_f1, block_matrix, communities
from custom_inference.graphs.choice import (
    BlockChoice,
    bethe_evidence,
    choose_num_blocks,
    icl,
    integrated_likelihood,
    integrated_log_likelihood,
)
from custom_inference.graphs.links import HeldDyads, hold_out_dyads, link_prediction, link_probability

__all__ = [
    "BlockChoice",
    "HeldDyads",
    "best_match_f1",
    "bethe_evidence",
    "block_matrix",
    "choose_num_blocks",
    "communities",
    "hold_out_dyads",
    "icl",
    "integrated_likelihood",
    "integrated_log_likelihood",
    "link_prediction",
    "link_probability",
]
