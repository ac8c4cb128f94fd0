"""Collapsed Gibbs sampling: the method, and what a family's sampler must provide for it.

May import ``core``; samplers of models live in the rooms of ``families``.
"""

from custom_inference.gibbs.method import CollapsedGibbs
from custom_inference.gibbs.protocol import Chain, Sampler, sampler_of

__all__ = ["Chain", "CollapsedGibbs", "Sampler", "sampler_of"]
