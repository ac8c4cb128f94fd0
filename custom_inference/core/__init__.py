"""The base of every method: engines, the registry, posteriors, results, draws, storing, processes, progress.

Modules here import ``ppl_models`` and each other; everybody may import them. ``fit`` alone reaches for ``faces``.
"""
