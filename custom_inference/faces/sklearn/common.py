"""What the estimators of rows and of graphs share: seeds, plain settings, one fit, its warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from custom_inference.core.fit import Fit
from custom_inference.em.loop import AT_LIMIT
from custom_inference.methods import fit as fit_model
from ppl_models import DataError, Model


def seed_of(random_state: Any) -> int:
    """The seed of a fit: a whole number as it is, so that results are those of ``custom_inference.fit``; else drawn."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def plain(value: Any) -> Any:
    """A NumPy scalar, as parameter grids hold them, as Python's own number; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def fitted(estimator: Any, model: Model, data: Any) -> Fit:
    """The fit of a model with the settings that an estimator holds; warns where it stopped at its limit."""
    limits = {"max_iterations": estimator.max_iterations, "tolerance": estimator.tolerance}
    settings: Mapping[str, Any] = {name: value for name, value in limits.items() if value is not None}
    settings = {name: plain(value) for name, value in {**settings, **(estimator.settings or {})}.items()}
    found = fit_model(
        model,
        data,
        seed=seed_of(estimator.random_state),
        method=estimator.method,
        device=estimator.device,
        progress=bool(estimator.verbose),
        **settings,
    )
    if found.status.startswith(AT_LIMIT):
        message = f"{type(estimator).__name__}: {found.status}; increase max_iterations or tolerance"
        warnings.warn(message, ConvergenceWarning, stacklevel=3)
    return found


def thresholded(x: Any, threshold: float) -> Any:
    """1 where an entry exceeds the threshold, 0 elsewhere, dense or sparse; NaN stays NaN, and missing."""
    if not scipy.sparse.issparse(x):
        return np.where(np.isnan(x), np.nan, (x > threshold).astype(np.float64))
    if threshold < 0:
        problem = f"a sparse matrix with binarize = {threshold:g}, which would turn its zeros into ones"
        raise DataError(problem, expected="a threshold of at least 0, or a dense array")
    x = x.copy()
    x.data = thresholded(x.data, threshold)
    x.eliminate_zeros()
    return x
