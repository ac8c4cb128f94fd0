"""The Gaussian of the logits as a sampler holds it: in the coordinates that the data see, the rest integrated out.

Q = [H, 1 / sqrt(K)] is orthogonal, the columns of H (K, K - 1) Helmert's, each of sum 0. The tokens see xi_n = H'z_n
alone. Under InverseWishart(df, Psi), Psi in these coordinates partitioned into Psi_11 (K - 1 rows), psi_12, psi_22,

    Sigma_11                                 ~ InverseWishart(df - 1, Psi_11)              seen
    sigma_22.1 = S_22 - S_21 S_11^-1 S_12    ~ InverseWishart(df, psi_22.1)                not seen, nor
    b = S_11^-1 S_12 | sigma_22.1            ~ Normal(Psi_11^-1 psi_12, sigma_22.1 Psi_11^-1)

independently of Sigma_11: what is not seen is as under the prior, and is drawn only where draws of the sites are asked
for. Rows of B likewise: Normal in all K coordinates, H'B_p is sampled, the last given that. With G, X and T the moments
of xi (``common.Moments``),

    vec(B H) | xi, Sigma_11 ~ Normal,  precision  G x Sigma_11^-1 + diag(A_p),  A_p that of H'B_p under the prior
    Sigma_11 | xi, B H      ~ InverseWishart(df - 1 + N, Psi_11 + sum of squares about the means / s_n).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from custom_inference.families.conjugate.wishart import InverseWishart
from custom_inference.families.correlated.common import LocationPrior
from ppl_models.core.priors import value_if_known
from ppl_models.ctm import LogisticNormalTopics

Array = NDArray[np.float64]


def helmert_basis(size: int) -> Array:
    """Return Q (K, K), orthogonal, its last column 1 / sqrt(K)."""
    rows = np.tri(size, size, -1) - np.diag(np.arange(size))
    rows[0] = 1.0
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(np.roll(rows, -1, axis=0).T)


class SeenGaussian:
    """location: B H (P', K - 1); covariance: Sigma_11 (K - 1, K - 1). Sites with known values are held there.

    Raises PriorError for priors of B that are not Normal and of Sigma that are not inverse Wishart.
    """

    def __init__(self, model: LogisticNormalTopics):
        like = torch.zeros((), dtype=torch.float64)
        self.size = size = model.num_topics
        self.basis = helmert_basis(size)
        known = {site: value_if_known(model.priors[site]) for site in (*model.location_sites, "covariance")}
        held = {site: value for site, value in known.items() if value is not None}
        free = model.with_priors(**{site: dist.Normal(0.0, 1.0) for site in held if site != "covariance"})
        self._location_prior(LocationPrior.of(free, like))
        rows = [np.full(torch.Size(model.shapes[s][:-1]).numel(), s in held) for s in model.location_sites]
        self.held = np.concatenate(rows)
        fixed = {s: held.get(s, torch.zeros(())).double().expand(model.shapes[s]) for s in model.location_sites}
        whole = model.location(fixed).numpy() @ self.basis
        self.location = np.where(self.held[:, None], whole, self.centre)[:, :-1]
        self._fixed_last = whole[:, -1]
        self._covariance_prior(model, held.get("covariance"))
        self.expected = self.location, self.covariance

    def _location_prior(self, prior: LocationPrior) -> None:
        precision, self.centre = prior.precision.numpy(), prior.centre.numpy() @ self.basis
        self.flat = (precision == 0).all(1)
        variance = np.where(precision > 0, 1 / np.where(precision > 0, precision, 1.0), 1.0)
        whole = np.einsum("ka,pk,kb->pab", self.basis, variance, self.basis)
        self.row_precision = np.linalg.inv(whole[:, :-1, :-1]) * ~self.flat[:, None, None]
        self.gain = np.einsum("pa,pab->pb", whole[:, -1, :-1], self.row_precision)
        last = whole[:, -1, -1] - np.einsum("pa,pa->p", self.gain, whole[:, -1, :-1])
        self.last_variance = np.where(self.flat, 0.0, last.clip(0))

    def _covariance_prior(self, model: LogisticNormalTopics, known: torch.Tensor | None) -> None:
        prior = InverseWishart(self.size + 1.0, known)
        if known is None:
            prior = InverseWishart.of(model, "covariance", torch.zeros((), dtype=torch.float64))
        whole = self.basis.T @ prior.scale.double().numpy() @ self.basis
        self.fixed, self.df, self.psi = known is not None, float(prior.df), whole[:-1, :-1]
        self.seen_prior = InverseWishart(self.df - 1, self.psi)
        self.slope = np.linalg.solve(self.psi, whole[:-1, -1])
        self.rest = float(whole[-1, -1] - whole[-1, :-1] @ self.slope)
        self.covariance = self.psi if self.fixed else np.eye(self.size - 1)

    def settle(self, location: Array, covariance: Array) -> None:
        """Go on from these values of B (P', K) and Sigma (K, K)."""
        start = (location @ self.basis)[:, :-1]
        self.location = np.where(self.held[:, None], self.location, start)
        if not self.fixed:
            self.covariance = (self.basis.T @ covariance @ self.basis)[:-1, :-1]

    def update(self, xi: Array, design: Array, scale: Array, generator: np.random.Generator) -> None:
        """New values given xi (N, K - 1)."""
        if self.size == 1:
            return
        weighted = design / scale[:, None]
        gram, cross, outer = design.T @ weighted, weighted.T @ xi, (xi / scale[:, None]).T @ xi
        expected = self._new_location(gram, cross, generator)
        part = cross.T @ self.location
        scatter = outer - part - part.T + self.location.T @ gram @ self.location
        mean = self.covariance
        if not self.fixed:
            posterior = self.seen_prior.update(len(xi), scatter)
            self.covariance, mean = posterior.draw(generator), posterior.mean
        self.expected = expected, mean

    def _new_location(self, gram: Array, cross: Array, generator: np.random.Generator) -> Array:
        free, few = np.flatnonzero(~self.held), self.size - 1
        if not len(free):
            return self.location
        precision = np.linalg.inv(self.covariance)
        right = (cross - gram[:, self.held] @ self.location[self.held]) @ precision
        right = right + np.einsum("pab,pb->pa", self.row_precision, self.centre[:, :-1])
        system = np.kron(gram[np.ix_(free, free)], precision)
        for place, p in enumerate(free):
            block = slice(place * few, (place + 1) * few)
            system[block, block] += self.row_precision[p]
        factor = np.linalg.cholesky(system)
        half = solve_triangular(factor, right[free].ravel(), lower=True)
        noise = generator.standard_normal(len(half))
        mean, value = (solve_triangular(factor, one, lower=True, trans=1) for one in (half, half + noise))
        expected, self.location = self.location.copy(), self.location.copy()
        expected[free], self.location[free] = mean.reshape(-1, few), value.reshape(-1, few)
        return expected

    def log_density(self, xi: Array, design: Array, scale: Array) -> float:
        """log p(xi | B, Sigma) + log p(B H) + log p(Sigma_11), of what is not held, and with every constant."""
        few = self.size - 1
        factor = np.linalg.cholesky(self.covariance)
        off = solve_triangular(factor, (xi - design @ self.location).T, lower=True) if few else np.zeros((0, len(xi)))
        log_det = 2 * np.log(factor.diagonal()).sum()
        total = -0.5 * (np.square(off).sum(0) / scale + few * np.log(2 * np.pi * scale) + log_det).sum()
        for p in np.flatnonzero(~self.held & ~self.flat):
            away, precision = self.location[p] - self.centre[p, :-1], self.row_precision[p]
            total += 0.5 * (np.linalg.slogdet(precision)[1] - few * math.log(2 * math.pi) - away @ precision @ away)
        return float(total) + (0.0 if self.fixed else self.seen_prior.log_density(self.covariance))

    def means(self) -> tuple[Array, Array]:
        """B (P', K) and Sigma (K, K) expected given the last update; of a Sigma_22 without a mean by its mode."""
        location, covariance = self.expected
        last = self._last(location)
        rest = self.rest
        if not self.fixed:
            rest = rest / (self.df - 2) if self.df > 2 else rest / (self.df + 2)
        corner = rest + self.slope @ covariance @ self.slope
        if not self.fixed and self.size > 1:
            corner += rest * np.trace(np.linalg.solve(self.psi, covariance))
        return self._whole(location, last), self._add_border(covariance, covariance @ self.slope, corner)

    def draw(self, generator: np.random.Generator) -> tuple[Array, Array]:
        """B and Sigma, what is not seen drawn too."""
        noise = np.sqrt(self.last_variance) * ~self.held
        last = self._last(self.location) + noise * generator.standard_normal(len(noise))
        rest, slope = self.rest, self.slope
        if not self.fixed:
            rest = self.rest / generator.chisquare(self.df)
            root = np.linalg.cholesky(np.linalg.inv(self.psi)) if self.size > 1 else self.psi
            slope = slope + math.sqrt(rest) * (root @ generator.standard_normal(self.size - 1))
        along = self.covariance @ slope
        return self._whole(self.location, last), self._add_border(self.covariance, along, rest + slope @ along)

    def _last(self, location: Array) -> Array:
        known = self.centre[:, -1] + np.einsum("pa,pa->p", self.gain, location - self.centre[:, :-1])
        return np.where(self.held, self._fixed_last, np.where(self.flat, 0.0, known))

    def _whole(self, location: Array, last: Array) -> Array:
        return np.concatenate([location, last[:, None]], 1) @ self.basis.T

    def _add_border(self, covariance: Array, along: Array, corner: Any) -> Array:
        found = np.block([[covariance, along[:, None]], [along[None], np.array([[corner]])]])
        found = self.basis @ found @ self.basis.T
        return (found + found.T) / 2
