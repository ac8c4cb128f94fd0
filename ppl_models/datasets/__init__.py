"""Generators of data with known truth, and loaders for files."""

import inspect

from ppl_models.data.files.matrices import read_matrix
from ppl_models.datasets.factors import sample_gamma_poisson, sample_ratings
from ppl_models.datasets.graphs import (
    GeneratedGraph,
    common_cause_graph,
    common_effect_graph,
    hierarchy_graph,
    karate,
    nine_nodes,
    ring_graph,
    sample_mmsb,
    sample_sbm,
)
from ppl_models.datasets.images import (
    Generated,
    bars,
    image_patterns,
    mixed_images,
    overlapping_boxes,
    sample_cvq,
    sample_noca,
)
from ppl_models.datasets.topics import admixture, aspect_images, river_bank, sample_aspects, sample_lda, topic_corpus

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in vars().items() if not (name.startswith("_") or inspect.ismodule(value))
)
