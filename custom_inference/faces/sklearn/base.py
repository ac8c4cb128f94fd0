"""The estimator of a model of rows: fit, transform, score, sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import scalable_bound
from custom_inference.faces.sklearn.common import fitted, plain, seed_of
from ppl_models import Data, Model, as_matrix

Array = NDArray[Any]


# eq, repr: scikit-learn has its own.
@dataclass(eq=False, repr=False)
class RowEstimator(TransformerMixin, DensityMixin, BaseEstimator):
    """A model of rows as a scikit-learn transformer and density model.

    A subclass names the model: ``class MyEstimator(RowEstimator): model_type = MyModel`` will do.

    Parameters
    ----------
    num_components: K, components, topics or classes.
    method: a method object or its name; None: the default of ``custom_inference.fit`` for the model.
    max_iterations, tolerance: of the method; None: its own.
    settings: further settings of the method by name.
    priors: site -> distribution, as ``Model.with_priors`` takes them.
    bound: what ``score`` and ``score_samples`` report: "exact" for the exact log-likelihood, or the name of a lower
        bound on it. None: exact where the latents of a row have finitely many values; where they are continuous the
        model's scalable bound, whatever K, so that scores of different K are of one kind. See ``bound_``.
    random_state: an int is the seed that ``custom_inference.fit`` would take.
    device: of torch, such as "cuda".
    verbose: whether to show progress.

    Attributes
    ----------
    fit_: the :class:`custom_inference.Fit`, with its parameters, figures and reports.
    components_: (K, F), what each component does to the features.
    n_iter_: iterations; n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    bound_: the name of what ``score`` reports.

    NaN entries are missing. Bad data raise ``ppl_models.DataError``, bad settings other ``ppl_models.PPLError``: each
    is a ``ValueError``. A fit that stops at its limit of iterations warns with scikit-learn's ``ConvergenceWarning``.
    """

    num_components: int = 8
    _: KW_ONLY
    method: Any = None
    max_iterations: int | None = None
    tolerance: float | None = None
    settings: Mapping[str, Any] | None = None
    priors: Mapping[str, Any] | None = None
    bound: str | None = None
    random_state: Any = None
    device: Any = None
    verbose: bool = False

    model_type: ClassVar[type[Model]]
    #: Parameters that are fields of the model.
    model_fields: ClassVar[tuple[str, ...]] = ()
    #: Whether sparse matrices stay sparse in the model; they are refused elsewhere.
    takes_sparse: ClassVar[bool] = False

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = self.takes_sparse
        return tags

    # ----- data and model ---------------------------------------------------------------------------------

    def _entries(self, x: Any) -> Any:
        """The entries as the model reads them: binarised, rounded; by default as they are."""
        return x

    def _validated(self, X: Any, *, reset: bool) -> Any:
        # Components beyond the features are refused in scikit-learn's words, where the model would refuse them.
        narrow = getattr(self.model_type, "wide_reason", None) is not None and isinstance(self.num_components, Integral)
        x = validate_data(
            self,
            X,
            reset=reset,
            ensure_min_features=max(1, int(self.num_components)) if reset and narrow else 1,
            accept_sparse="csr" if self.takes_sparse else False,
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            ensure_non_negative=self.__sklearn_tags__().input_tags.positive_only,
        )
        return self._entries(x)

    def _model(self, data: Data) -> Model:
        """The model whose shape fits the data, with the estimator's priors."""
        values = {name: plain(getattr(self, name)) for name in self.model_fields}
        given = {name: value for name, value in values.items() if value is not None}
        model = self.model_type.for_data(data, plain(self.num_components), **given)
        return model.with_priors(**self.priors) if self.priors else model

    # ----- scikit-learn's interface -----------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the globals from rows X (N, D); ``y`` is ignored."""
        del y
        data = as_matrix(self._validated(X, reset=True), keep_sparse=True, dtype=torch.float64)
        names = getattr(self, "feature_names_in_", None)
        if names is not None:
            data = replace(data, coords={"feature": list(names)})
        self.fit_: Fit = fitted(self, self._model(data), data)
        self.components_: Array = _array(self.fit_.model.component_matrix(self.fit_.globals))
        self.n_iter_ = len(self.fit_.elbo)
        return self

    def transform(self, X: Any) -> Array:
        """Posterior means of the latents of each row, (N, K): probabilities, memberships, proportions, scores."""
        check_is_fitted(self)
        return _array(self.fit_.transform(self._validated(X, reset=False)))

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Names of the columns of ``transform``: the model's name and a number, "lda0", "lda1", ..."""
        check_is_fitted(self)
        _check_feature_names_in(self, input_features, generate_names=False)
        name = self.model_type.__name__.lower()
        return np.array([f"{name}{k}" for k in range(self.fit_.model.local_shape[0])], dtype=object)

    @property
    def bound_(self) -> str:
        """The name of what ``score`` and ``score_samples`` report; "exact" is exact."""
        check_is_fitted(self, "fit_")
        model = self.fit_.model
        if self.bound is not None:
            return self.bound
        return scalable_bound(model) if model.has_continuous_locals else "exact"

    def score_samples(self, X: Any) -> Array:
        """log p(x_n | globals) of each row, (N,), or the lower bound on it that ``bound_`` names.

        Raises ``ppl_models.CapacityError`` where the exact sum does not fit; it lists the bounds to choose from.
        """
        check_is_fitted(self)
        return _array(self.fit_.log_likelihood(self._validated(X, reset=False), bound=self.bound_))

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of ``score_samples``: what cross-validation maximises."""
        del y
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Array:
        """New rows (n_samples, D) from the fitted model; by default with the estimator's ``random_state``."""
        check_is_fitted(self)
        seed = seed_of(self.random_state if random_state is None else random_state)
        drawn = self.fit_.sample(plain(n_samples), seed=seed)[self.fit_.model.observed_site]
        return _array(drawn)


class ClassMixin:
    """What models whose rows belong to one of K classes add: the class of a row."""

    def predict_proba(self: Any, X: Any) -> Array:
        """P(class | row), (N, K): the same as ``transform``, always an array."""
        check_is_fitted(self)
        return _array(self.fit_.transform(self._validated(X, reset=False)))

    def predict(self: Any, X: Any) -> Array:
        """The most probable class of each row, (N,)."""
        return self.predict_proba(X).argmax(-1)

    def fit_predict(self: Any, X: Any, y: Any = None) -> Array:
        """Fit, and the most probable class of each row, (N,)."""
        return self.fit(X, y).predict(X)


def _array(value: torch.Tensor) -> Array:
    return value.detach().cpu().numpy()
