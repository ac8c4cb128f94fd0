"""Aspect Bernoulli and the baselines it is compared with, through one small interface on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from sklearn.decomposition import NMF

from custom_inference import (
    Fit,
    VariationalEM,
    attribute,
    denoise,
    empirical_bayes_log_likelihood,
    expand,
    fit,
    phantoms,
)
from ppl_models import AspectBernoulli, LogisticPCA, MixtureOfBernoullis


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
    def lightest(self) -> int:
        """The aspect of the smallest sum: the one that Bingham et al. (2007) takes for the white phantom."""
        return int(self.aspect.sum(1).argmin())

    @property
    def darkest(self) -> int:
        return int(self.aspect.sum(1).argmax())

    def is_phantom(self, k: int, black: bool = False) -> bool:
        """By the thresholds of ``phantoms``: mean at most .02 and half the data's rate, no entry above .5."""
        table = phantoms(self.fit)
        return k in table.index[table["kind"] == ("black" if black else "white")]

    def without(self, k: int) -> np.ndarray:
        """The means with aspect k dropped and the memberships normalised again (3.6.1)."""
        return denoise(self.fit, drop=k).numpy()

    def attribution(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """q(k, t, n) of eq. 7 for these training rows: (rows, K, D)."""
        return attribute(self.fit, rows=rows).transpose("row", "component", "feature").to_numpy()

    def expansion(self, row: int, top: int) -> list[tuple[int, float]]:
        """The absent features for which the phantom is most responsible (Table 3)."""
        table = expand(self.fit, row, top=top, phantom=self.lightest)
        return [(int(t), float(q)) for t, q in table["probability"].items()]


def default_aspects(x: np.ndarray, k: int, seed: int = 0) -> Aspects:
    model = AspectBernoulli(num_components=k, num_features=x.shape[1])
    return Aspects(fit(model, x, seed=seed, progress=False))


def random_start(x: np.ndarray, k: int, seed: int) -> Aspects:
    """One random start, as Bingham et al. (2007) makes them, to a gain below 0.0001 a row."""
    model = AspectBernoulli(num_components=k, num_features=x.shape[1])
    method = VariationalEM(guide="map", search=None, max_iterations=2000, tolerance=1e-4)
    return Aspects(method.fit(model, x, seed=seed, progress=False))


def started_at(x: np.ndarray, aspect: np.ndarray) -> Aspects:
    """From given aspects."""
    model = AspectBernoulli(num_components=len(aspect), num_features=x.shape[1])
    start = {"aspect_probability": torch.as_tensor(aspect, dtype=torch.float64)}
    return Aspects(fit(model, x, init=start, progress=False))


def best_aspects(x: np.ndarray, k: int, seeds: int) -> Aspects:
    """The largest likelihood of ``seeds`` default fits and as many random starts."""
    fits = (run(x, k, seed) for seed in range(seeds) for run in (default_aspects, random_start))
    return max(fits, key=lambda f: f.log_likelihood)


def mixture(x: np.ndarray, k: int, seed: int = 0) -> Fit:
    model = MixtureOfBernoullis(num_components=k, num_features=x.shape[1])
    return fit(model, x, seed=seed, method="em", progress=False)


def logistic_pca(x: np.ndarray, k: int, seed: int = 0) -> Fit:
    """Point estimates of scores and weights, as the paper has them; the default priors are a mild penalty."""
    model = LogisticPCA(num_components=k, num_features=x.shape[1])
    return VariationalEM(guide="map", tolerance=1e-3).fit(model, x, seed=seed, progress=False)


def mixture_mean(result: Fit) -> np.ndarray:
    """Every row's mean under its posterior over the components."""
    return (result.transform() @ result.params["probability"]).numpy()


def nmf(x: np.ndarray, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's Euclidean NMF by multiplicative updates, as in the paper: the bases, and the product cut at 1."""
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
    "logistic PCA": lambda x, k, seed: logistic_pca(x, k, seed).reconstruct().numpy(),
    "NMF": lambda x, k, seed: nmf(x, k, seed)[1],
    "PLSA": lambda x, k, seed: plsa(x, k, seed).mean(x),
}


def held_out(result: Fit, test: np.ndarray) -> float:
    """Mean empirical-Bayes log-likelihood of the test rows (eqs. 22-26)."""
    return float(empirical_bayes_log_likelihood(result, test).mean())


def held_out_plsa(topics: Topics, test: np.ndarray) -> float:
    """Eq. 24: the zeros do not count."""
    logs = test @ np.log(np.maximum(topics.word, 1e-12)).T
    top = logs.max(1, keepdims=True)
    return float((np.log(np.exp(logs - top).mean(1)) + top[:, 0]).mean())
