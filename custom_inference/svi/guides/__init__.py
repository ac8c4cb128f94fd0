"""Pyro guides of the local latents and of the globals, for ``SVI``.

Import the modules; they may import ``core`` and ``svi``, and no family.
"""
