"""Evaluation of predicted ratings: errors, the ranking of each user's items, coverage of intervals.

Needs arrays alone; of the suite its errors are imported here, and what makes arrays of what people hold.
"""

from custom_inference.ratings.scores import (
    average_precision,
    interval_coverage,
    mae,
    ndcg_at,
    precision_at,
    ranking_scores,
    recall_at,
    rmse,
)

__all__ = [
    "average_precision",
    "interval_coverage",
    "mae",
    "ndcg_at",
    "precision_at",
    "ranking_scores",
    "recall_at",
    "rmse",
]
