"""Pictures of models: their sites, what depends on what, plates and priors, read off the Pyro program.

What they show is found by ``pyro.infer.inspect``, as for ``pyro.render_model``. That one draws with Graphviz' program
``dot``, which pip does not install, and tells neither parameters of priors nor names of axes.
"""

from custom_inference.faces.pictures.render import render
from custom_inference.faces.pictures.structure import Structure, structure_of

__all__ = ["Structure", "render", "structure_of"]
