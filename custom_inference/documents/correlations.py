"""Correlated topic models: which topics go together, and how covariates change them.

The covariance Sigma of the logits is known up to equal changes of all logits: what is reported is C Sigma C, with
C = I - 1 1'/K, as correlations.
"""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from custom_inference.core.result import Result
from custom_inference.core.settings import require_seed
from custom_inference.families.correlated.common import CorrelatedRows, LocationPrior
from ppl_models import MethodError
from ppl_models.ctm import LogisticNormalTopics

Array = NDArray[np.float64]

#: Draws of the Gaussian that stands in for a posterior without draws.
_DRAWS = 2000


def topic_correlations(fit: Result) -> pd.DataFrame:
    """Correlations of the centred logits of the topics (K, K). Topics that have nothing to do with each other have
    -1 / (K - 1) on average, as shares add up to 1."""
    centred = _centre_covariance(fit)
    scale = np.sqrt(np.maximum(np.diag(centred), np.finfo(float).tiny))
    names = fit.coords["component"]
    return pd.DataFrame(centred / np.outer(scale, scale), index=names, columns=names)


def topic_precision(fit: Result, penalty: float = 0.1) -> pd.DataFrame:
    """Partial correlations of the topics (K, K) by the graphical lasso (Friedman, Hastie & Tibshirani, Biostatistics
    2008; scikit-learn's) on the correlations of the logits: exact zeros where two topics are independent given the
    others (Fig. 27.10).

    penalty: of the absolute values of the precision of the correlations, above 0; more leaves fewer links. What the
    data do not see of the logits is given their average variance, so that nothing is singular.

    Raises MethodError for a penalty that is not positive.
    """
    from sklearn.covariance import graphical_lasso
    from sklearn.exceptions import ConvergenceWarning

    if not penalty > 0:
        raise MethodError(f"penalty = {penalty!r}, expected a positive number")
    centred, names = _centre_covariance(fit), fit.coords["component"]
    size = len(centred)
    if size == 1:
        return pd.DataFrame(np.ones((1, 1)), index=names, columns=names)
    whole = centred + np.trace(centred) / (size - 1) / size
    scale = np.sqrt(np.diag(whole))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        _, precision = graphical_lasso(whole / np.outer(scale, scale), alpha=float(penalty), max_iter=500)
    own = np.sqrt(np.diag(precision))
    partial = -precision / np.outer(own, own)
    np.fill_diagonal(partial, 1.0)
    return pd.DataFrame((partial + partial.T) / 2, index=names, columns=names)


def prevalence_effects(fit: Result, *, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """What covariates do to the topics' prevalence: a line for each covariate and topic.

    weight: the logits' change for one unit of the covariate, less its mean over the topics, with its ``low`` and
        ``high``. share: the change of the topic's share, from half a unit below to half a unit above the average
        document, with ``share_low`` and ``share_high``. Intervals hold ``level`` of the posterior: of the fit's draws
        where it has some, else of the Gaussian of the regression of the logits at the fitted covariance.

    Raises MethodError for a fit without covariates.
    """
    model = _model(fit)
    weights = _draw_weights(model, fit, seed)
    base, slopes = weights[:, 0], weights[:, 1:]
    if "prevalence_weight" not in model.sites:
        base, slopes = weights.mean(1) * 0, weights
    centred = slopes - slopes.mean(-1, keepdims=True)
    share = softmax(base[:, None] + slopes / 2, -1) - softmax(base[:, None] - slopes / 2, -1)
    tails = [(1 - level) / 2, (1 + level) / 2]
    columns = {}
    for name, value in (("weight", centred), ("share", share)):
        low, high = np.quantile(value, tails, axis=0)
        before = "" if name == "weight" else "share_"
        columns |= {name: value.mean(0).ravel(), f"{before}low": low.ravel(), f"{before}high": high.ravel()}
    names = fit.coords.get("covariate", range(slopes.shape[1]))
    index = pd.MultiIndex.from_product([list(names), fit.coords["component"]], names=["covariate", "topic"])
    return pd.DataFrame(columns, index=index)


def _draw_weights(model: LogisticNormalTopics, fit: Result, seed: int) -> Array:
    """(draws, P', K) of the rows of B."""
    if not model.num_covariates:
        raise MethodError(f"this {type(model).__name__} has no covariates; expected num_covariates = P")
    draws = fit.draws or {}
    if set(model.location_sites) <= set(draws):
        flat = {site: draws[site].flatten(0, 1).double() for site in model.location_sites}
        return model.location(flat).cpu().numpy()
    params = {site: fit.params[site].double().cpu() for site in (*model.location_sites, "covariance")}
    location = model.location(params)
    rows = CorrelatedRows.read(model, fit.data.to(device="cpu")).to(torch.float64)
    try:
        prior = LocationPrior.of(model, location).precision.flatten()
    except MethodError:
        prior = torch.zeros(location.numel(), dtype=torch.float64)
    gram = (rows.design.T @ (rows.design / rows.scale[:, None])).contiguous()
    precision = torch.linalg.inv(params["covariance"]).contiguous()
    factor = torch.linalg.cholesky(torch.kron(gram, precision) + torch.diag(prior))
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(factor), _DRAWS, generator=generator, dtype=torch.float64)
    away = torch.linalg.solve_triangular(factor.T, noise, upper=True).T
    return (location + away.reshape(_DRAWS, *location.shape)).numpy()


def _model(fit: Result) -> LogisticNormalTopics:
    if not isinstance(fit.model, LogisticNormalTopics):
        kind = type(fit.model).__name__
        raise MethodError(f"{kind} has no covariance of topics; expected a fit of CTM or RandomEffectsLDA")
    return fit.model


def _centre_covariance(fit: Result) -> Array:
    size = _model(fit).num_topics
    centre = np.eye(size) - 1 / size
    return centre @ fit.params["covariance"].double().cpu().numpy() @ centre


def graph_places(partial: Array, seed: int = 0) -> Array:
    """Places (K, 2) of topics for a figure: springs as strong as their partial correlations, none for negative ones."""
    import networkx

    require_seed(seed)
    graph = networkx.from_numpy_array(np.where(partial > 0, partial, 0.0) * (1 - np.eye(len(partial))))
    size = len(partial)
    places = networkx.spring_layout(graph, seed=seed, k=2.4 / np.sqrt(max(size, 1)), iterations=300)
    return np.array([places[k] for k in range(size)])
