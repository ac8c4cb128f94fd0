"""The protocol: ``Model``, its sites, priors and errors, and the bases of the families of models.

May import ``ppl_models.data`` and ``ppl_models.distributions``; every model imports it.
"""
