"""Criticism of fitted models: posterior predictive checks and leave-one-out cross-validation."""

from custom_inference.checks.leave_one_out import LeaveOneOut, compare_loo, loo
from custom_inference.checks.predictive_check import posterior_predictive_check
from custom_inference.checks.predictive_result import PredictiveCheck
from custom_inference.checks.statistics import STATISTICS, Statistic

__all__ = [
    "STATISTICS",
    "LeaveOneOut",
    "PredictiveCheck",
    "Statistic",
    "compare_loo",
    "loo",
    "posterior_predictive_check",
]
