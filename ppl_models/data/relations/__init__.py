"""Relations between entities of several types: the container, and the door that lets them in.

May import the other modules of ``ppl_models.data`` and ``ppl_models.core.errors``; models import it.
"""
