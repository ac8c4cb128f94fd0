"""Numerical optimisation, each method once: L-BFGS, Newton's method for many problems at once, bracketed roots.

Modules here import ``core`` alone; everybody may import them.
"""
