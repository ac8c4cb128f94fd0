"""scikit-learn estimators of the models: transformers and density models of rows, and clusterers of graphs.

One class a model, named after it: ``LDAEstimator`` of :class:`ppl_models.LDA`. Models of rows transform a row to the
posterior mean of its latents and score rows by their log-likelihood; models of graphs take an adjacency matrix, as
``SpectralClustering(affinity="precomputed")`` does, and find the blocks of its nodes.
"""

from custom_inference.faces.sklearn.base import RowEstimator
from custom_inference.faces.sklearn.graphs import (
    CovariateSBMEstimator,
    DegreeCorrectedSBMEstimator,
    GraphEstimator,
    MMSBEstimator,
    PoissonSBMEstimator,
    SBMEstimator,
)
from custom_inference.faces.sklearn.rows import (
    AspectBernoulliEstimator,
    CVQEstimator,
    LDAEstimator,
    LogisticPCAEstimator,
    MixtureOfBernoullisEstimator,
    MixtureOfCategoricalsEstimator,
    MixtureOfMultinomialCountsEstimator,
    MixtureOfMultinomialsEstimator,
    MixtureOfPoissonsEstimator,
    MultinomialPCAEstimator,
    NOCAEstimator,
    PLSAEstimator,
    UserRatingProfileEstimator,
)

#: Every estimator by the name of its model in ``ppl_models.MODELS``.
ESTIMATORS: dict[str, type[RowEstimator] | type[GraphEstimator]] = {
    "aspect_bernoulli": AspectBernoulliEstimator,
    "covariate_sbm": CovariateSBMEstimator,
    "cvq": CVQEstimator,
    "degree_corrected_sbm": DegreeCorrectedSBMEstimator,
    "lda": LDAEstimator,
    "logistic_pca": LogisticPCAEstimator,
    "mixture_of_bernoullis": MixtureOfBernoullisEstimator,
    "mixture_of_categoricals": MixtureOfCategoricalsEstimator,
    "mixture_of_multinomial_counts": MixtureOfMultinomialCountsEstimator,
    "mixture_of_multinomials": MixtureOfMultinomialsEstimator,
    "mixture_of_poissons": MixtureOfPoissonsEstimator,
    "mmsb": MMSBEstimator,
    "multinomial_pca": MultinomialPCAEstimator,
    "noca": NOCAEstimator,
    "plsa": PLSAEstimator,
    "poisson_sbm": PoissonSBMEstimator,
    "sbm": SBMEstimator,
    "user_rating_profile": UserRatingProfileEstimator,
}

__all__ = [
    "ESTIMATORS",
    "AspectBernoulliEstimator",
    "CVQEstimator",
    "CovariateSBMEstimator",
    "DegreeCorrectedSBMEstimator",
    "GraphEstimator",
    "LDAEstimator",
    "LogisticPCAEstimator",
    "MMSBEstimator",
    "MixtureOfBernoullisEstimator",
    "MixtureOfCategoricalsEstimator",
    "MixtureOfMultinomialCountsEstimator",
    "MixtureOfMultinomialsEstimator",
    "MixtureOfPoissonsEstimator",
    "MultinomialPCAEstimator",
    "NOCAEstimator",
    "PLSAEstimator",
    "PoissonSBMEstimator",
    "RowEstimator",
    "SBMEstimator",
    "UserRatingProfileEstimator",
]
