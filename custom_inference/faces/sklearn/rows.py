"""One estimator a model of rows, by what an entry of x is: binary, real, a count, a category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from custom_inference.faces.sklearn.base import ClassMixin, RowEstimator
from custom_inference.faces.sklearn.common import thresholded
from ppl_models import (
    CVQ,
    LDA,
    NOCA,
    PLSA,
    AspectBernoulli,
    Data,
    DocumentModel,
    LogisticPCA,
    MethodError,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
    Model,
    MultinomialPCA,
    UserRatingProfile,
)


@dataclass(eq=False, repr=False)
class BinaryEstimator(RowEstimator):
    """binarize: entries above this threshold are 1, others 0, as in ``BernoulliNB``; None: x is 0/1 already."""

    binarize: float | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = self.binarize is None
        return tags

    def _entries(self, x: Any) -> Any:
        return x if self.binarize is None else thresholded(x, self.binarize)


@dataclass(eq=False, repr=False)
class CountEstimator(RowEstimator):
    """round_counts: round the entries to whole numbers first, as for expected counts; otherwise others are refused."""

    round_counts: bool = False

    takes_sparse: ClassVar[bool] = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def _entries(self, x: Any) -> Any:
        return np.round(x) if self.round_counts else x


@dataclass(eq=False, repr=False)
class DocumentEstimator(CountEstimator):
    """Documents by words, such as ``CountVectorizer`` makes them.

    alpha: Dirichlet concentration of the topics' proportions; gamma: of the words of a topic. None: the model's.
    document_length: tokens of the documents that ``sample`` draws.
    """

    alpha: float | Sequence[float] | None = None
    gamma: float | Sequence[float] | None = None
    document_length: int = 100

    model_fields: ClassVar[tuple[str, ...]] = ("document_length",)

    def _model(self, data: Data) -> Model:
        model = super()._model(data)
        assert isinstance(model, DocumentModel)
        return model.with_concentration(alpha=self.alpha, gamma=self.gamma)


@dataclass(eq=False, repr=False)
class CategoryEstimator(RowEstimator):
    """num_categories: C, entries are 0..C-1; None: up to the largest that the training data hold."""

    num_categories: int | None = None

    model_fields: ClassVar[tuple[str, ...]] = ("num_categories",)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.categorical = True
        return tags


# ----- binary ---------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class NOCAEstimator(BinaryEstimator):
    """Noisy-or component analysis: binary rows, each entry the noisy-or of K hidden binary sources.

    ``transform``: P(source present | row). Parameters: those of :class:`RowEstimator`, and ``binarize``.
    """

    model_type: ClassVar[type[Model]] = NOCA


@dataclass(eq=False, repr=False)
class AspectBernoulliEstimator(BinaryEstimator):
    """Aspect Bernoulli: every entry of a binary row comes from one of K aspects, in the row's own mix.

    ``transform``: the row's memberships. Parameters: those of :class:`RowEstimator`, ``binarize``, and

    total_count: draws an entry, m; with 2 the entries are 0, 1 or 2, as genotypes are.
    """

    total_count: int = 1

    model_type: ClassVar[type[Model]] = AspectBernoulli
    model_fields: ClassVar[tuple[str, ...]] = ("total_count",)
    takes_sparse: ClassVar[bool] = True

    def _entries(self, x: Any) -> Any:
        if self.binarize is not None and self.total_count != 1:
            raise MethodError(
                f"binarize = {self.binarize:g} with total_count = {self.total_count}: entries are counts, not binary; "
                "expected binarize=None"
            )
        return super()._entries(x)


@dataclass(eq=False, repr=False)
class LogisticPCAEstimator(BinaryEstimator):
    """Logistic PCA: binary rows whose log-odds are linear in K Gaussian scores.

    ``transform``: the posterior mean of the scores. Parameters: those of :class:`RowEstimator`, and ``binarize``.
    """

    num_components: int = 2

    model_type: ClassVar[type[Model]] = LogisticPCA


@dataclass(eq=False, repr=False)
class MixtureOfBernoullisEstimator(ClassMixin, BinaryEstimator):
    """Mixture of Bernoullis: each binary row is drawn from one of K classes.

    ``transform`` and ``predict_proba``: P(class | row). Parameters: those of :class:`RowEstimator`, and ``binarize``.
    """

    model_type: ClassVar[type[Model]] = MixtureOfBernoullis


# ----- real -----------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class CVQEstimator(RowEstimator):
    """Cooperative vector quantizer: real rows, each the sum of the weights of its present sources, and noise.

    ``transform``: P(source present | row). Parameters: those of :class:`RowEstimator`, and

    per_feature_scale: a standard deviation of the noise for every feature instead of one for all.
    """

    per_feature_scale: bool = False

    model_type: ClassVar[type[Model]] = CVQ
    model_fields: ClassVar[tuple[str, ...]] = ("per_feature_scale",)


# ----- counts ---------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class LDAEstimator(DocumentEstimator):
    """Latent Dirichlet allocation: every token of a document comes from one of K topics, in the document's own mix.

    ``transform``: the document's topic proportions. Parameters: those of :class:`RowEstimator`, ``alpha``, ``gamma``,
    ``document_length``, ``round_counts``.
    """

    model_type: ClassVar[type[Model]] = LDA


@dataclass(eq=False, repr=False)
class MultinomialPCAEstimator(DocumentEstimator):
    """Multinomial PCA: :class:`LDAEstimator` with the likelihood of counts, multinomial coefficient and all."""

    model_type: ClassVar[type[Model]] = MultinomialPCA


@dataclass(eq=False, repr=False)
class PLSAEstimator(DocumentEstimator):
    """Probabilistic latent semantic analysis: LDA with flat priors and point estimates of the proportions.

    ``transform`` folds documents in. ``score`` reports a bound on the likelihood with proportions integrated out.
    """

    model_type: ClassVar[type[Model]] = PLSA


@dataclass(eq=False, repr=False)
class MixtureOfMultinomialsEstimator(ClassMixin, DocumentEstimator):
    """Mixture of multinomials: all tokens of a document come from one of K topics.

    ``transform`` and ``predict_proba``: P(topic | document). Parameters: those of :class:`RowEstimator`, ``alpha``,
    ``gamma``, ``document_length``, ``round_counts``.
    """

    model_type: ClassVar[type[Model]] = MixtureOfMultinomials


@dataclass(eq=False, repr=False)
class MixtureOfMultinomialCountsEstimator(ClassMixin, DocumentEstimator):
    """:class:`MixtureOfMultinomialsEstimator` with the likelihood of counts, multinomial coefficient and all."""

    model_type: ClassVar[type[Model]] = MixtureOfMultinomialCounts


@dataclass(eq=False, repr=False)
class MixtureOfPoissonsEstimator(ClassMixin, CountEstimator):
    """Mixture of Poissons: each row of counts is drawn from one of K classes.

    ``transform`` and ``predict_proba``: P(class | row). Parameters: those of :class:`RowEstimator`, ``round_counts``.
    """

    model_type: ClassVar[type[Model]] = MixtureOfPoissons


# ----- categories -----------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class MixtureOfCategoricalsEstimator(ClassMixin, CategoryEstimator):
    """Mixture of categoricals (latent class analysis): each row of responses is drawn from one of K classes.

    ``transform`` and ``predict_proba``: P(class | row). Parameters: those of :class:`RowEstimator`, and

    num_categories: C, entries are 0..C-1; None: up to the largest that the training data hold.
    """

    model_type: ClassVar[type[Model]] = MixtureOfCategoricals


@dataclass(eq=False, repr=False)
class UserRatingProfileEstimator(CategoryEstimator):
    """User rating profile: each response of a row comes from one of K profiles, in the row's own mix.

    ``transform``: the row's memberships. Parameters: those of :class:`RowEstimator`, and ``num_categories``.
    """

    model_type: ClassVar[type[Model]] = UserRatingProfile
