"""No-U-turn sampling of the globals, discrete locals summed out.

May import ``core``, ``em`` and ``svi``, whose fits its chains start from.
"""
