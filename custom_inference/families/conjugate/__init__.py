"""Conjugate pairs, a file each: what their posteriors, modes, divergences, integrals and draws are in closed form.

A pair is a prior, or a posterior of its form. ``update``, ``mode`` and ``log_marginal`` take the statistics that a log
likelihood is linear in: successes and trials (Beta), events and exposure (Gamma), counts (Dirichlet).
"""
