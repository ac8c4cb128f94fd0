"""Plain references for the dynamic topic model (source 002, eqs. 27.57-27.60). No project code.

    b_1kv = m_v + s z_kv,    z_kv ~ prior of ``topic_logit``, N(0, 1) where ``priors`` leaves it out
    b_tkv ~ N(b_{t-1,kv}, sigma^2)                       params["topic_logit"]  (T, K, V)              (eq. 27.57)
    pi_i ~ Dirichlet(alpha)                              the local, (N, K)                             (eq. 27.58)
    y_il ~ Categorical(sum_k pi_ik softmax(b_{t_i k}))   x (N, V) counts the words, time (N,)          (eq. 27.60)

params: topic_logit, drift_variance (sigma^2), background (m), initial_scale (s). Also the exact posterior of a walk
that is observed with Gaussian noise, by solving the dense linear system.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.special import softmax

from tests.references import _shared, _topics
from tests.references._shared import Array, Maybe, Params, Prior, Priors


def log_likelihood(params: Params, x: ArrayLike, proportion: ArrayLike, time: ArrayLike, mask: Maybe = None) -> Array:
    """log p(y_i | pi_i, b), (N,), each document by the topics of its slice."""
    topic = softmax(np.asarray(params["topic_logit"], dtype=np.float64), axis=-1)
    x, proportion = np.asarray(x, dtype=np.float64), np.asarray(proportion, dtype=np.float64)
    found = []
    for i, t in enumerate(np.asarray(time).astype(int)):
        one = None if mask is None else np.asarray(mask)[i : i + 1]
        found.append(_topics.log_likelihood(topic[t], x[i : i + 1], proportion[i : i + 1], one)[0])
    return np.array(found)


def log_walk(params: Params, standard: Prior = ("normal", 0.0, 1.0)) -> float:
    """log density of b: the first slice by that of z = (b_1 - m) / s, then the steps."""
    b, scale = np.asarray(params["topic_logit"], dtype=np.float64), float(params["initial_scale"])
    z = (b[0] - np.asarray(params["background"])) / scale
    first = _shared.log_density(z, standard) - z.size * np.log(scale)
    steps = sum(
        stats.norm.logpdf(b[t], b[t - 1], np.sqrt(float(params["drift_variance"]))).sum() for t in range(1, len(b))
    )
    return first + float(steps)


def log_joint(
    params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe = None, priors: Priors = None, time: Maybe = None
) -> float:
    """log p(globals) + sum_i log p(pi_i) + sum_i log p(y_i | pi_i, b); sites that ``priors`` leaves out add 0, but for
    the walk."""
    priors = dict(priors or {})
    total = log_walk(params, priors.pop("topic_logit", ("normal", 0.0, 1.0)))
    time = np.full(len(np.asarray(x)), len(params["topic_logit"]) - 1) if time is None else time
    densities = _shared.log_priors({**params, "topic_proportion": np.asarray(local)}, priors)
    return total + densities + float(log_likelihood(params, x, local, time, mask).sum())


def log_evidence(params: Params, x: ArrayLike, time: ArrayLike, alpha: ArrayLike) -> Array:
    """log p(y_i | b, alpha), (N,): exact, by all topics of a document's tokens."""
    topic = softmax(np.asarray(params["topic_logit"], dtype=np.float64), axis=-1)
    slices = np.asarray(time).astype(int)
    return np.array(
        [_topics.log_evidence(topic[t], [row], alpha)[0] for row, t in zip(np.asarray(x), slices, strict=True)]
    )


def walk_precision(num_times: int, first: float, drift: float) -> Array:
    """(T, T), of a walk whose first value has the variance ``first`` and whose steps have ``drift``."""
    difference = np.eye(num_times) - np.eye(num_times, k=-1)
    return difference.T @ np.diag([1 / first] + [1 / drift] * (num_times - 1)) @ difference


def smoothed(observed: ArrayLike, precision: ArrayLike, first: float, drift: float, mean: float = 0.0) -> Any:
    """The posterior mean (T,) and covariance (T, T) of a walk about ``mean``, seen as observed_t with these noise
    precisions (0: not at all), and the log evidence of what was seen, by the dense Gaussian."""
    y, w = (np.asarray(value, dtype=np.float64) for value in (observed, precision))
    prior = walk_precision(len(y), first, drift)
    covariance = np.linalg.inv(prior + np.diag(w))
    centre = covariance @ (w * y + prior @ np.full(len(y), mean))
    seen = w > 0
    noise = np.diag(1 / w[seen])
    spread: Any = np.linalg.inv(prior)[np.ix_(seen, seen)] + noise
    evidence = stats.multivariate_normal.logpdf(y[seen], np.full(seen.sum(), mean), spread) if seen.any() else 0.0
    return centre, covariance, float(evidence)
