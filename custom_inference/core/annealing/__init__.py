"""Estimates of log p(x_n | globals) and of the posterior of a row's latents by annealing, for any program of rows.

``chains`` says what a tempered chain must do, ``program`` does it for any program, ``tempering`` runs chains along a
path of densities, ``estimate`` chooses paths and spends a budget.
"""
