"""Generators of data with known truth, and loaders for files."""

from ppl_models.datasets._files import read_matrix
from ppl_models.datasets._images import Generated, image_patterns, overlapping_boxes, sample_noca

__all__ = ["Generated", "image_patterns", "overlapping_boxes", "read_matrix", "sample_noca"]
