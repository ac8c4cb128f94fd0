"""Pyro's stochastic variational inference for any model: the method, its guides, where it starts, its minibatches.

May import ``core``, and the partitions of ``families.blocks`` that graphs start from.
"""
