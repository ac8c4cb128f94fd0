"""Inference for any program: its latents of a row as one vector, their density, and references for their posterior,
exact by sums or by quadrature, else estimates by importance sampling.

Nothing here knows engines, fits or methods. Values of the latents of a row, of whatever kind, are coded as one vector
(:mod:`latents`): posteriors over that vector are joint posteriors of all latents.
"""
