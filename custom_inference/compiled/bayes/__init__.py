"""Posteriors over the globals of compiled programs of finite latents.

Variational Bayes: ``beliefs`` are posteriors of sites with counts, ``open_beliefs`` of those without, by fixed draws;
``global_beliefs`` is the state of all, whose ``moments`` stand in the place of values; ``updates`` and ``engine``.
Gibbs sampling: ``drawing`` draws the globals given codes, and ``hidden`` causes first (``gibbs.programs`` has the
chains).
"""
