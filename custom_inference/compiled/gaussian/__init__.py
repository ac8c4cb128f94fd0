"""Programs of one's own whose rows have Gaussian latents: exact where everything is linear, given each value of the
finite latents beside them.

``affine`` knows their laws, ``structure`` reads them, ``binding`` proves them in rows; ``rows`` has posteriors and
evidence; ``steps``, ``starts``, ``groups`` and ``engine`` are EM.
"""
