"""Aspect Bernoulli and the baselines it is compared with, through one small interface on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from sklearn.decomposition import NMF

from custom_inference import Fit, VariationalEM, fit
from custom_inference.predictive import reconstruct
from ppl_models import AspectBernoulli, LogisticPCA, MixtureOfBernoullis

#: A phantom's mean over the features is this close to 0 (white) or to 1 (black).
BLANK = 0.02


@dataclass(frozen=True)
class Aspects:
    """A fit of AB: aspect (K, D), membership (N, K)."""

    fit: Fit

    @cached_property
    def aspect(self) -> np.ndarray:
        return self.fit.params["aspect_probability"].numpy()

    @cached_property
    def membership(self) -> np.ndarray:
        return self.fit.params["membership"].numpy()

    @cached_property
    def log_likelihood(self) -> float:
        """Eq. 6, at the estimated memberships."""
        return float(self.fit.plugin_log_likelihood().sum())

    @property
    def mean(self) -> np.ndarray:
        return self.membership @ self.aspect

    @property
    def aic(self) -> float:
        return self.fit.aic()

    @property
    def lightest(self) -> int:
        """The aspect of the smallest sum: the one that source 001 takes for the white phantom."""
        return int(self.aspect.sum(1).argmin())

    @property
    def darkest(self) -> int:
        return int(self.aspect.sum(1).argmax())

    def is_phantom(self, k: int, black: bool = False) -> bool:
        mean = float(self.aspect[k].mean())
        return mean > 1 - BLANK if black else mean < BLANK

    def without(self, k: int) -> np.ndarray:
        """The mean with aspect k dropped and the memberships normalised again (3.6.1)."""
        weight = self.membership.copy()
        weight[:, k] = 0
        total = weight.sum(1, keepdims=True)
        # A row that only the phantom explains says nothing of the others: their average shares.
        average = np.broadcast_to(weight.sum(0) / weight.sum(), weight.shape)
        return np.where(total > 1e-9, weight / np.maximum(total, 1e-9), average) @ self.aspect

    def attribution(self, x: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """q(k, t, n) of eq. 7: (rows, K, D)."""
        likelihood = np.where(x[rows][:, None] == 1, self.aspect, 1 - self.aspect)
        joint = self.membership[rows][:, :, None] * likelihood
        return joint / joint.sum(1, keepdims=True)

    def expansion(self, x: np.ndarray, row: int, top: int) -> list[tuple[int, float]]:
        """The absent features for which the phantom is most responsible (Table 3)."""
        q = self.attribution(x, [row])[0, self.lightest]
        return [(int(t), float(q[t])) for t in np.argsort(-q) if x[row, t] == 0][:top]


def default_aspects(x: np.ndarray, k: int, seed: int = 0) -> Aspects:
    model = AspectBernoulli(num_components=k, num_features=x.shape[1])
    return Aspects(fit(model, x, seed=seed, progress=False))


def random_start(x: np.ndarray, k: int, seed: int) -> Aspects:
    """One random start, as source 001 makes them."""
    model = AspectBernoulli(num_components=k, num_features=x.shape[1])
    return Aspects(VariationalEM(guide="map", search=None, max_iterations=1000).fit(model, x, seed=seed, progress=False))


def started_at(x: np.ndarray, aspect: np.ndarray) -> Aspects:
    """From given aspects."""
    model = AspectBernoulli(num_components=len(aspect), num_features=x.shape[1])
    start = {"aspect_probability": torch.as_tensor(aspect, dtype=torch.float64)}
    return Aspects(fit(model, x, init=start, progress=False))


def mixture(x: np.ndarray, k: int, seed: int = 0) -> Fit:
    return fit(MixtureOfBernoullis(num_components=k, num_features=x.shape[1]), x, seed=seed, progress=False)


def logistic_pca(x: np.ndarray, k: int, seed: int = 0) -> Fit:
    """Point estimates of scores and weights, as source 001 has them; the default priors are a mild penalty."""
    model = LogisticPCA(num_components=k, num_features=x.shape[1])
    return VariationalEM(guide="map").fit(model, x, seed=seed, progress=False)


def mixture_mean(result: Fit) -> np.ndarray:
    """Every row's mean under its posterior over the components."""
    return (result.transform() @ result.params["probability"]).numpy()


def nmf(x: np.ndarray, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's Euclidean NMF by multiplicative updates, as in source 001: the bases, and the product cut at 1."""
    start = "nndsvda" if k <= min(x.shape) else "random"
    learner = NMF(k, init=start, solver="mu", max_iter=500, random_state=seed)
    score = learner.fit_transform(x)
    return learner.components_, np.minimum(score @ learner.components_, 1)


@dataclass(frozen=True)
class Topics:
    """PLSA by EM: topic p(t | k) (K, D), proportion p(k | n) (N, K)."""

    topic: np.ndarray
    proportion: np.ndarray

    @property
    def word(self) -> np.ndarray:
        """p(t | n), (N, D)."""
        return self.proportion @ self.topic

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Eq. 32: the probability that a feature occurs at all in as many draws as the row has ones."""
        return 1 - (1 - np.minimum(self.word, 1)) ** x.sum(1, keepdims=True)


def plsa(x: np.ndarray, k: int, seed: int = 0, iterations: int = 200) -> Topics:
    generator, small = np.random.default_rng(seed), 1e-12
    proportion, topic = generator.dirichlet(np.ones(k), len(x)), generator.dirichlet(np.ones(x.shape[1]), k)
    for _ in range(iterations):
        ratio = x / (proportion @ topic + small)
        proportion = proportion * (ratio @ topic.T)
        proportion /= np.maximum(proportion.sum(1, keepdims=True), small)
        ratio = x / (proportion @ topic + small)
        topic = topic * (proportion.T @ ratio)
        topic /= topic.sum(1, keepdims=True) + small
    return Topics(topic, proportion)


#: Means (N, D) of the rows that were learned from, by method.
RECONSTRUCTIONS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "mixture of Bernoullis": lambda x, k, seed: mixture_mean(mixture(x, k, seed)),
    "logistic PCA": lambda x, k, seed: reconstruct(logistic_pca(x, k, seed)).numpy(),
    "NMF": lambda x, k, seed: nmf(x, k, seed)[1],
    "PLSA": lambda x, k, seed: plsa(x, k, seed).mean(x),
}
