"""Pictures of models: their sites, what depends on what, plates and priors, read off the Pyro program."""

from custom_inference.pictures._render import render
from custom_inference.pictures._structure import Structure, structure_of

__all__ = ["Structure", "render", "structure_of"]
