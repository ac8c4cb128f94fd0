"""Programs of one's own whose rows have Gaussian latents: exact where everything is linear.

``affine`` knows their laws, ``structure`` reads them, ``binding`` proves them in rows; ``rows`` has posteriors and
evidence; ``steps``, ``starts`` and ``engine`` are EM.
"""
