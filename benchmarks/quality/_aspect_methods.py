"""STAND-IN VERSION during development."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.decomposition import NMF

import standin


@dataclass(frozen=True)
class Aspects:
    aspect: np.ndarray
    membership: np.ndarray
    log_likelihood: float

    @property
    def mean(self):
        return self.membership @ self.aspect

    @property
    def aic(self):
        k, d = self.aspect.shape
        return -self.log_likelihood + d * k + (k - 1) * len(self.membership)

    @property
    def lightest(self):
        return int(self.aspect.sum(1).argmin())

    @property
    def darkest(self):
        return int(self.aspect.sum(1).argmax())

    def without(self, k):
        w = self.membership.copy(); w[:, k] = 0
        w /= np.maximum(w.sum(1, keepdims=True), 1e-12)
        return w @ self.aspect

    def attribution(self, x, rows):
        part = self.membership[rows][:, :, None] * np.where(x[rows][:, None] == 1, self.aspect, 1 - self.aspect)
        return part / part.sum(1, keepdims=True)

    def expansion(self, x, n, top):
        q = self.attribution(x, [n])[0, self.lightest]
        order = [int(t) for t in np.argsort(-q) if x[n, t] == 0][:top]
        return [(t, float(q[t])) for t in order]

    def is_phantom(self, k, black=False):
        a = 1 - self.aspect[k] if black else self.aspect[k]
        return bool(a.mean() < 0.02)


def default_aspects(x, k, seed=0):
    return max((Aspects(*standin.ab(x, k, 100 * seed + s, 300)) for s in range(3)), key=lambda f: f.log_likelihood)


def random_start(x, k, seed):
    return Aspects(*standin.ab(x, k, seed, 400))


@dataclass(frozen=True)
class Mixture:
    probability: np.ndarray
    posterior: np.ndarray
    log_likelihood: float


def mixture(x, k, seed=0):
    m, _, q, ll = max((standin.mb(x, k, s) for s in range(2)), key=lambda t: t[3])
    return Mixture(m, q, ll)


def logistic_pca(x, k, seed=0):
    v, u, p = standin.lpca(x, k, seed)
    return v[:-1], p


def nmf(x, k, seed=0):
    m = NMF(k, init="nndsvda", solver="mu", max_iter=400, random_state=seed); w = m.fit_transform(x)
    return m.components_, np.minimum(w @ m.components_, 1)


def plsa(x, k, seed=0):
    a, s = standin.plsa(x, k, seed)
    return a, s


def plsa_mean(x, a, s):
    return 1 - (1 - np.minimum(s @ a, 1)) ** x.sum(1, keepdims=True)


RECONSTRUCTIONS: dict[str, Callable] = {
    "AB": lambda x, k, seed: default_aspects(x, k, seed).mean,
    "mixture of Bernoullis": lambda x, k, seed: (lambda f: f.posterior @ f.probability)(mixture(x, k, seed)),
    "logistic PCA": lambda x, k, seed: logistic_pca(x, k, seed)[1],
    "NMF": lambda x, k, seed: nmf(x, k, seed)[1],
    "PLSA": lambda x, k, seed: plsa_mean(x, *plsa(x, k, seed)),
}


def _mean_over_training(p, test, zeros=True):
    p = np.clip(p, 1e-9, 1 - 1e-9)
    logs = test @ np.log(p).T + ((1 - test) @ np.log1p(-p).T if zeros else 0)
    top = logs.max(1, keepdims=True)
    return np.log(np.exp(logs - top).mean(1)) + top[:, 0]


@dataclass(frozen=True)
class Scored:
    log_likelihood: float
    num_parameters: int
    test: Callable


def _ab(x, k, seed):
    f = default_aspects(x, k, seed)
    return Scored(f.log_likelihood, x.shape[1] * k + (k - 1) * len(x), lambda t: _mean_over_training(f.mean, t))


def _mb(x, k, seed):
    m, w, q, ll = max((standin.mb(x, k, s) for s in range(2)), key=lambda t: t[3])
    def test(t):
        logs = np.log(w) + t @ np.log(m).T + (1 - t) @ np.log1p(-m).T
        top = logs.max(1, keepdims=True)
        return np.log(np.exp(logs - top).sum(1)) + top[:, 0]
    return Scored(ll, x.shape[1] * k + k - 1, test)


def _lpca(x, k, seed):
    p = np.clip(logistic_pca(x, k, seed)[1], 1e-9, 1 - 1e-9)
    ll = float((x * np.log(p) + (1 - x) * np.log1p(-p)).sum())
    return Scored(ll, x.shape[1] * (k + 1) + k * len(x), lambda t: _mean_over_training(p, t))


def _plsa(x, k, seed):
    a, s = plsa(x, k, seed)
    ll = float((x * np.log(np.maximum(s @ a, 1e-300))).sum())
    return Scored(ll, (x.shape[1] - 1) * k + (k - 1) * len(x), lambda t: _mean_over_training(s @ a, t, zeros=False))


SCORED = {"AB": _ab, "mixture of Bernoullis": _mb, "logistic PCA": _lpca, "PLSA": _plsa}
