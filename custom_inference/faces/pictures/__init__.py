"""Pictures of models: their sites, what depends on what, plates and priors, read off the Pyro program."""

from custom_inference.faces.pictures.render import render
from custom_inference.faces.pictures.structure import Structure, structure_of

__all__ = ["Structure", "render", "structure_of"]
