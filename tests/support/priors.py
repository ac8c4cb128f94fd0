"""Priors that are conjugate to nothing, and posteriors under them on grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from scipy.special import logsumexp, softmax
from torch.distributions import transforms


def logit_normal(mean: float, scale: float) -> Any:
    return dist.TransformedDistribution(dist.Normal(mean, scale), [transforms.SigmoidTransform()])


def correlated_logits(correlation: float) -> Any:
    """Of two probabilities, one row."""
    covariance = torch.tensor([[1.0, correlation], [correlation, 1.0]])
    base = dist.MultivariateNormal(torch.zeros(2), covariance)
    return dist.TransformedDistribution(base, [transforms.SigmoidTransform()])


def mixture_of(parts: Any) -> Any:
    """An equal mixture of the distributions in a batch."""
    size = parts.batch_shape[-1]
    return dist.MixtureSameFamily(dist.Categorical(torch.full((size,), 1 / size)), parts)


PRIORS: dict[str, dict[str, Any]] = {
    "probability": {
        "logit-normal": logit_normal(1.0, 0.7),
        "interval": dist.Uniform(0.1, 0.45),
        "mixture of Betas": mixture_of(dist.Beta(torch.tensor([2.0, 12.0]), torch.tensor([12.0, 3.0]))),
        "Kumaraswamy": dist.Kumaraswamy(2.0, 3.0),
        "Beta": dist.Beta(0.7, 2.0),
    },
    "rate": {
        "log-normal": dist.LogNormal(0.5, 0.8),
        "half-Cauchy": dist.HalfCauchy(1.0),
        "interval": dist.Uniform(0.5, 2.0),
        "inverse Gamma": dist.InverseGamma(3.0, 2.0),
        "Gamma": dist.Gamma(0.6, 1.5),
    },
    "simplex": {
        "logistic-normal": dist.LogisticNormal(torch.tensor([0.5, -0.5]), torch.tensor([1.0, 0.6])),
        "mixture of Dirichlets": mixture_of(dist.Dirichlet(torch.tensor([[6.0, 1.0, 2.0], [1.0, 5.0, 5.0]]))),
        "Dirichlet": dist.Dirichlet(torch.tensor([0.6, 2.0, 1.0])),
    },
}


class OnGrid:
    """A site's element under a prior, on an even grid of its logits or logarithms: integrals given its counts.

    kind: "probability", "rate" or "simplex". parts: of a simplex, 2 or 3.
    """

    def __init__(self, prior: Any, kind: str, parts: int = 3):
        self.kind = kind
        self.points, area = _points(kind, parts)
        inside = prior.support.check(torch.as_tensor(self.points))
        self._logs = np.full(len(self.points), -np.inf)
        self._logs[inside.numpy()] = prior.log_prob(torch.as_tensor(self.points)[inside]).numpy()
        self._logs += area
        self._total = logsumexp(self._logs)
        self._known: dict[tuple[float, ...], tuple[float, Any]] = {}

    def weight(self, counts: tuple[float, ...]) -> np.ndarray:
        """Posterior weights of the points (G,), which add up to 1.

        counts: successes and failures, events and exposure, or of each part of a simplex.
        """
        return softmax(self._logs + self._log_likelihood(counts))

    def integral(self, counts: tuple[float, ...]) -> tuple[float, Any]:
        """(log of the likelihood's integral over the prior, the posterior mean)."""
        if counts not in self._known:
            log = logsumexp(self._logs + self._log_likelihood(counts)) - self._total
            self._known[counts] = float(log), self.weight(counts) @ self.points
        return self._known[counts]

    def _log_likelihood(self, counts: tuple[float, ...]) -> np.ndarray:
        if self.kind == "probability":
            return counts[0] * np.log(self.points) + counts[1] * np.log1p(-self.points)
        if self.kind == "rate":
            return counts[0] * np.log(self.points) - counts[1] * self.points
        return np.log(self.points) @ np.array(counts)


def _points(kind: str, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Values (G, ...) on an even grid of u, and log dv / du."""
    if kind == "probability":
        u = np.linspace(-25, 15, 10001)
        return 1 / (1 + np.exp(-u)), -np.logaddexp(0, u) - np.logaddexp(0, -u)
    if kind == "rate":
        u = np.linspace(-30, 25, 10001)
        return np.exp(u), u
    free = np.stack(np.meshgrid(*[np.linspace(-20, 16, 145)] * (parts - 1), indexing="ij"), -1).reshape(-1, parts - 1)
    logits = np.concatenate([free, np.zeros((len(free), 1))], 1)
    logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    points = np.exp(logs)
    return points / points.sum(1, keepdims=True), logs.sum(1)
