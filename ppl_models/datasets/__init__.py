"""Generators of data with known truth, and loaders for files."""

from ppl_models.datasets._aspects import admixture, aspect_images, sample_aspects
from ppl_models.datasets._files import read_matrix
from ppl_models.datasets._images import Generated, image_patterns, overlapping_boxes, sample_noca
from ppl_models.datasets._real import bars, mixed_images, sample_cvq

__all__ = [
    "Generated",
    "admixture",
    "aspect_images",
    "bars",
    "image_patterns",
    "mixed_images",
    "overlapping_boxes",
    "read_matrix",
    "sample_aspects",
    "sample_cvq",
    "sample_noca",
]
