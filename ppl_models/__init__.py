"""Generative models of discrete data with latent variables, each a Pyro program."""

from ppl_models import datasets, distributions
from ppl_models.aspect_bernoulli import AspectBernoulli, AspectBernoulliIndicator
from ppl_models.core.component_model import ComponentModel
from ppl_models.core.document_model import DocumentModel
from ppl_models.core.errors import (
    CapacityError,
    DataError,
    DataWarning,
    FileFormatError,
    MethodError,
    ModelError,
    PPLError,
    ProcessError,
)
from ppl_models.core.graph_model import GraphModel
from ppl_models.core.model import Example, Model
from ppl_models.covariate_sbm import CovariateSBM
from ppl_models.ctm import CTM
from ppl_models.cvq import CVQ
from ppl_models.data.blocks.door import row_blocks
from ppl_models.data.blocks.folder import open_blocks, save_blocks
from ppl_models.data.documents.counts import as_documents
from ppl_models.data.documents.door import documents
from ppl_models.data.graphs.data import GraphData
from ppl_models.data.graphs.door import graph
from ppl_models.data.graphs.reading import as_graph, largest_component
from ppl_models.data.matrix import Data, as_binary, as_counts, as_matrix
from ppl_models.data.row_blocks import RowBlocks
from ppl_models.lda import LDA, LDAIndicator, MultinomialPCA
from ppl_models.logistic_pca import LogisticPCA
from ppl_models.mixture_of_bernoullis import MixtureOfBernoullis
from ppl_models.mixture_of_categoricals import MixtureOfCategoricals
from ppl_models.mixture_of_multinomials import MixtureOfMultinomialCounts, MixtureOfMultinomials
from ppl_models.mixture_of_poissons import MixtureOfPoissons
from ppl_models.mmsb import MMSB, MMSBIndicator
from ppl_models.noca import NOCA
from ppl_models.plsa import PLSA
from ppl_models.rbm import RBM
from ppl_models.sbm import SBM, BlockModel, DegreeCorrectedSBM, PoissonSBM
from ppl_models.supervised_lda import SupervisedLDA
from ppl_models.user_rating_profile import UserRatingProfile

#: Every model of the suite by name: the command line and the conformance tests read this.
MODELS: dict[str, type[Model]] = {
    "aspect_bernoulli": AspectBernoulli,
    "covariate_sbm": CovariateSBM,
    "ctm": CTM,
    "cvq": CVQ,
    "degree_corrected_sbm": DegreeCorrectedSBM,
    "lda": LDA,
    "logistic_pca": LogisticPCA,
    "mixture_of_bernoullis": MixtureOfBernoullis,
    "mixture_of_categoricals": MixtureOfCategoricals,
    "mixture_of_multinomial_counts": MixtureOfMultinomialCounts,
    "mixture_of_multinomials": MixtureOfMultinomials,
    "mixture_of_poissons": MixtureOfPoissons,
    "mmsb": MMSB,
    "multinomial_pca": MultinomialPCA,
    "noca": NOCA,
    "plsa": PLSA,
    "poisson_sbm": PoissonSBM,
    "rbm": RBM,
    "sbm": SBM,
    "supervised_lda": SupervisedLDA,
    "user_rating_profile": UserRatingProfile,
}

__all__ = [
    "CTM",
    "CVQ",
    "LDA",
    "MMSB",
    "MODELS",
    "NOCA",
    "PLSA",
    "RBM",
    "SBM",
    "AspectBernoulli",
    "AspectBernoulliIndicator",
    "BlockModel",
    "CapacityError",
    "ComponentModel",
    "CovariateSBM",
    "Data",
    "DataError",
    "DataWarning",
    "DegreeCorrectedSBM",
    "DocumentModel",
    "Example",
    "FileFormatError",
    "GraphData",
    "GraphModel",
    "LDAIndicator",
    "LogisticPCA",
    "MMSBIndicator",
    "MethodError",
    "MixtureOfBernoullis",
    "MixtureOfCategoricals",
    "MixtureOfMultinomialCounts",
    "MixtureOfMultinomials",
    "MixtureOfPoissons",
    "Model",
    "ModelError",
    "MultinomialPCA",
    "PPLError",
    "PoissonSBM",
    "ProcessError",
    "RowBlocks",
    "SupervisedLDA",
    "UserRatingProfile",
    "as_binary",
    "as_counts",
    "as_documents",
    "as_graph",
    "as_matrix",
    "datasets",
    "distributions",
    "documents",
    "graph",
    "largest_component",
    "open_blocks",
    "row_blocks",
    "save_blocks",
]
