"""What several families share: sums over codes, Laplace's approximation, slice steps, polynomials, compiled loops.

Imports ``core``, ``conjugate``, ``rows`` and the protocol of ``gibbs`` alone; the other rooms of ``families`` may
import it.
"""
