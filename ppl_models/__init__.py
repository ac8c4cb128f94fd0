"""Generative models of discrete data with latent variables, each a Pyro program."""

from ppl_models import datasets, distributions
from ppl_models._component_model import ComponentModel
from ppl_models._data import Data, as_binary, as_counts, as_matrix
from ppl_models._errors import (
    CapacityError,
    DataError,
    DataWarning,
    FileFormatError,
    MethodError,
    ModelError,
    PPLError,
)
from ppl_models._model import Example, Model
from ppl_models.aspect_bernoulli import AspectBernoulli, AspectBernoulliIndicator
from ppl_models.cvq import CVQ
from ppl_models.logistic_pca import LogisticPCA
from ppl_models.mixture_of_bernoullis import MixtureOfBernoullis
from ppl_models.noca import NOCA

#: Every model of the suite by name: the command line and the conformance tests read this.
MODELS: dict[str, type[Model]] = {
    "aspect_bernoulli": AspectBernoulli,
    "cvq": CVQ,
    "logistic_pca": LogisticPCA,
    "mixture_of_bernoullis": MixtureOfBernoullis,
    "noca": NOCA,
}

__all__ = [
    "CVQ",
    "MODELS",
    "NOCA",
    "AspectBernoulli",
    "AspectBernoulliIndicator",
    "CapacityError",
    "ComponentModel",
    "Data",
    "DataError",
    "DataWarning",
    "Example",
    "FileFormatError",
    "LogisticPCA",
    "MethodError",
    "MixtureOfBernoullis",
    "Model",
    "ModelError",
    "PPLError",
    "as_binary",
    "as_counts",
    "as_matrix",
    "datasets",
    "distributions",
]
