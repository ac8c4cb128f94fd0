"""Criticism of fits: exact against approximate, calibration, posterior predictive checks, leave-one-out.

May import all but the faces that are no figures and no ArviZ; the public names are those of ``custom_inference``.
"""
