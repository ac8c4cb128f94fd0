"""Generative models of discrete data with latent variables, each a Pyro program."""

import inspect
import re

#: As in pyproject.toml, CITATION.cff and ``custom_inference``.
__version__ = "0.1.0"

import ppl_models.core.bars  # before all that imports Pyro, and with it tqdm
from ppl_models import datasets, distributions
from ppl_models.aspect_bernoulli import AspectBernoulli, AspectBernoulliIndicator
from ppl_models.bilinear_pmf import BilinearPMF, ChoicePMF
from ppl_models.block_models import SBM, BlockModel, DegreeCorrectedSBM, InfiniteSBM, PoissonSBM
from ppl_models.categorical_pca import CategoricalPCA, SoftmaxPCA
from ppl_models.core.document_model import DocumentModel
from ppl_models.core.errors import (
    CapacityError,
    DataError,
    DataWarning,
    FileFormatError,
    MethodError,
    ModelError,
    PPLError,
    PriorError,
    ProcessError,
)
from ppl_models.core.graph_model import GraphModel
from ppl_models.core.model import Example, Model
from ppl_models.core.row_models import ComponentModel, RowModel
from ppl_models.core.sites import Site
from ppl_models.core.two_mode import TwoModeModel
from ppl_models.covariate_sbm import CovariateSBM
from ppl_models.ctm import CTM, RandomEffectsLDA
from ppl_models.cvq import CVQ
from ppl_models.data.answers import answers
from ppl_models.data.blocks.door import row_blocks
from ppl_models.data.documents.counts import as_documents
from ppl_models.data.documents.door import documents
from ppl_models.data.graphs.data import GraphData
from ppl_models.data.graphs.door import as_graph, graph, largest_component
from ppl_models.data.matrix import Data, as_binary, as_counts, as_matrix
from ppl_models.data.ratings.covariates import covariate_blocks
from ppl_models.data.ratings.data import Ratings
from ppl_models.data.ratings.door import ratings
from ppl_models.data.ratings.impressions import impressions
from ppl_models.data.relations.data import Relations
from ppl_models.data.relations.door import relations
from ppl_models.data.row_blocks import RowBlocks, open_blocks, save_blocks
from ppl_models.data.sequences.data import Sequences
from ppl_models.data.sequences.door import sequences
from ppl_models.dirichlet_multinomial_regression import DirichletMultinomialRegression, MultinomialRegressionLDA
from ppl_models.discriminative_categorical_pca import DiscriminativeCategoricalPCA
from ppl_models.discriminative_lda import DiscriminativeLDA
from ppl_models.dtm import DTM
from ppl_models.gamma_poisson import NMF, GammaPoisson, SpikeGammaPoisson
from ppl_models.hdp import HDP
from ppl_models.helmholtz_machine import HelmholtzMachine
from ppl_models.irm import IRM
from ppl_models.labeled_lda import LabeledLDA, PartiallyLabeledLDA
from ppl_models.lda import LDA, PLSA, LDAIndicator, MultinomialPCA
from ppl_models.lda_hmm import LDAHMM
from ppl_models.mixtures import (
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
)
from ppl_models.mmsb import MMSB, MMSBIndicator
from ppl_models.noca import NOCA
from ppl_models.pca import ExponentialFamilyPCA, GaussianPCA, LogisticPCA, PoissonPCA
from ppl_models.pmf import PMF
from ppl_models.rbm import RBM
from ppl_models.replicated_softmax import ReplicatedSoftmax
from ppl_models.rtm import RTM
from ppl_models.supervised_lda import SupervisedLDA
from ppl_models.user_rating_profile import UserRatingProfile

#: Every model of the suite by name (``MixtureOfPoissons`` is "mixture_of_poissons", ``SBM`` "sbm"): what is imported
#: above and is a program of its own. The command line, the estimators, the documentation and the conformance tests read
#: this.
MODELS: dict[str, type[Model]] = dict(
    sorted(
        (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(), kind)
        for kind in vars().values()
        if inspect.isclass(kind) and issubclass(kind, Model) and kind.has_example() and kind.listed
    )
)

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    "datasets",
    "distributions",
    *sorted(name for name, value in vars().items() if not (name.startswith("_") or inspect.ismodule(value))),
]
