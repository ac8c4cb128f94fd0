"""The one driver of all EM-like methods: loop, search, acceleration, minibatches, streaming, checkpoints.

Runs any engine of ``core.engine``; knows no family. ``method`` and ``guides`` are what users see of it.
"""
