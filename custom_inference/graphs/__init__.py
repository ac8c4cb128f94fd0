"""What is asked of fits of graphs: links held out, blocks and how many, communities, figures."""

from custom_inference.graphs.blocks import block_matrix
from custom_inference.graphs.choice import BlockChoice, choose_num_blocks, integrated_likelihood
from custom_inference.graphs.communities import best_match_f1, communities
from custom_inference.graphs.criteria import icl, integrated_log_likelihood
from custom_inference.graphs.links import HeldDyads, hold_out_dyads, link_prediction, link_probability

__all__ = [
    "BlockChoice",
    "HeldDyads",
    "best_match_f1",
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
