"""Pyro's stochastic variational inference for any model: the method, its guides, where it starts, its minibatches.

May import ``core``; the partitions that graphs start from come through the registry.
"""
