"""Criticism of fits: exact against approximate, calibration, posterior predictive checks, leave-one-out."""
