"""Programs of one's own whose rows mix components in shares, or with activations, of their own.

``reader`` finds their ``structure``, ``proof`` proves it in rows, which ``rows`` keeps by stored entries; ``globals``
has what is learned of the components, ``starts`` where searches begin, ``engine`` variational Bayes, ``posterior`` what
is said of the latents. ``responses`` are normal about averages of components' numbers, ``ascent`` infers rows that have
such, or rates by shares; ``cvb0`` integrates shares and topics out; ``engines`` has all of these by name, ``labels``
what may change places.
"""
