"""Inference: how the models of ``ppl_models`` are learned, and how far an approximation is from the truth.

The rooms: ``core`` (results, registry, posteriors, draws), ``em``, ``svi``, ``mcmc``, ``gibbs`` (the generic
methods), ``families`` (closed-form engines and samplers), ``checks``, ``documents``, ``graphs`` (what is asked of fits)
and ``faces`` (ArviZ, figures, scikit-learn, the command line, processes). ``methods`` has all methods by name.

The public names are listed in ``__init__.pyi``; each is loaded when it is first used, so that importing the package
costs little. ``sklearn``, ``plots``, ``distributed`` and ``arviz`` of ``faces`` can be imported from here too.
"""

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import lazy_loader

#: As in pyproject.toml, CITATION.cff and ``ppl_models``; here too, so that asking for it does not import torch.
__version__ = "0.1.0"

with warnings.catch_warnings():
    # Plain bars in a notebook without widgets are no reason to warn anybody; Pyro, which imports tqdm too, comes later.
    warnings.filterwarnings("ignore", "IProgress not found")
    importlib.import_module("tqdm.auto")

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

#: Rooms of ``faces`` that have a shorter path: ``from custom_inference.sklearn import LDAEstimator``.
_SHORT = ("arviz", "distributed", "plots", "sklearn")


class _ShortPaths(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``custom_inference.sklearn...`` where it is: the same modules under a second name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None):
        package, _, rest = fullname.partition(".")
        if package != __name__ or rest.partition(".")[0] not in _SHORT:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: ModuleSpec):
        return importlib.import_module(spec.name.replace(__name__, f"{__name__}.faces", 1))

    def exec_module(self, module: ModuleType) -> None:
        """It has run under its own name."""


sys.meta_path.append(_ShortPaths())


def __getattr__(name: str):
    return importlib.import_module(f"{__name__}.faces.{name}") if name in _SHORT else _public(name)
