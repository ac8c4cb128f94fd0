"""Programs of one's own whose rows mix components in shares, or with activations, of their own.

``structure`` reads them, ``proof`` proves them in rows, which ``rows`` keeps by stored entries; ``globals`` has what is
learned of the components, ``starts`` where searches begin, ``engine`` variational Bayes, ``posterior`` what is said of
the latents.
"""
