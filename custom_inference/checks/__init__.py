"""Criticism of fitted models: posterior predictive checks and leave-one-out cross-validation."""

from custom_inference.checks._check import posterior_predictive_check
from custom_inference.checks._loo import LeaveOneOut, compare_loo, loo
from custom_inference.checks._result import PredictiveCheck
from custom_inference.checks._table import STATISTICS, Statistic

__all__ = [
    "STATISTICS",
    "LeaveOneOut",
    "PredictiveCheck",
    "Statistic",
    "compare_loo",
    "loo",
    "posterior_predictive_check",
]
