"""Generators of data with known truth, and loaders for files."""

from ppl_models.datasets._aspects import admixture, aspect_images, sample_aspects
from ppl_models.datasets._files import read_matrix
from ppl_models.datasets._images import Generated, image_patterns, overlapping_boxes, sample_noca
from ppl_models.datasets._real import bars, mixed_images, sample_cvq
from ppl_models.datasets._topics import river_bank, sample_lda, topic_corpus

__all__ = [
    "Generated",
    "admixture",
    "aspect_images",
    "bars",
    "image_patterns",
    "mixed_images",
    "overlapping_boxes",
    "read_matrix",
    "river_bank",
    "sample_aspects",
    "sample_cvq",
    "sample_lda",
    "sample_noca",
    "topic_corpus",
]
