"""What several families share: conjugate updates, rows as engines read them, sums over codes, polynomials.

Imports ``core`` alone; the other rooms of ``families`` may import it.
"""
