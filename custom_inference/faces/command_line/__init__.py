"""The command line ``ppl``: ``app`` reads ``options``, ``run`` does the work, ``source`` reads data, ``output`` prints.

Nothing imports it.
"""
