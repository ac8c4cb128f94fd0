"""The adaptive prior of the rows of one side: a multivariate regression on their features.

    w_n ~ N(m + F_n, L^-1),   F = X beta,   beta ~ N(0, (ridge L)^-1) by rows,
    m | L ~ N(0, (strength L)^-1),   L ~ Wishart(degrees, (spread degrees I)^-1)

(source 002, 27.90 with learned mean and covariance; features as in Macau, Simm et al. 2017). With centred features and
the eigenvectors Q (N, P) of X X', eigenvalues e_j, it is F = Q b with b_j ~ N(0, (ridge / e_j L)^-1): columns of the
design (1, Q) are orthogonal, so that their coefficients B are independent given L. From the moments of the rows,

    precision of row j of B: k_j L,   k = (strength + N, ridge / e + 1),   B = (sum_n w_n, Q'w) / k,
    L ~ Wishart(degrees + N, S^-1),   S = spread degrees I + E[w'w] - sum_j k_j B_j B_j'.

``evidence`` is the log of what the prior of the rows integrates to over m, beta and L, at expected moments: the part of
the evidence lower bound that has the rows' prior in it, at the best q(m, beta, L).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from scipy.special import multigammaln, psi

from custom_inference.families.ratings.incidence import Array
from ppl_models.core.errors import DataError

RIDGES = tuple(float(r) for r in 10.0 ** np.arange(-1, 3.01, 0.25))
#: Sides with fewer rows or features than this have all eigenvectors found exactly.
EXACT = 2500


@dataclass(frozen=True)
class Basis:
    """Features of rows in the eigenbasis of their centred products. vectors (N, P) orthonormal, values (P,) > 0.

    centre (D,): the features' means; back (D, P): coefficients of features are back @ b.
    """

    vectors: Array
    values: Array
    centre: Array
    back: Array

    @classmethod
    def of(cls, features: Array | sp.sparray, rank: int = 300, seed: int = 0) -> Basis:
        """features: (N, D), dense or sparse; the ``rank`` greatest eigenvalues are used."""
        x = sp.csr_array(features) if sp.issparse(features) else np.asarray(features, np.float64)
        if not np.isfinite(x.data if sp.issparse(x) else x).all():
            raise DataError("features are not all finite", expected="numbers")
        size, width = x.shape
        centre = np.asarray(x.sum(0)).ravel() / max(size, 1)
        rank = min(rank, width, max(size - 1, 0))
        if min(size, width) <= EXACT:
            products = x.T @ x if width < size else x @ x.T
            products = np.asarray(products.todense() if sp.issparse(products) else products, np.float64)
            products = products - size * np.outer(centre, centre) if width < size else _centred(products)
            top = len(products)
            values, vectors = scipy.linalg.eigh(
                products, subset_by_index=(top - rank, top - 1), driver="evr", overwrite_a=True, check_finite=False
            )
            if width < size:
                vectors = (x @ vectors - centre @ vectors) / np.sqrt(np.maximum(values, 1e-300))
        else:
            vectors, values = _randomised(x, centre, rank, seed)
        kept = values > 1e-9 * values.max(initial=1e-300)
        vectors, values = np.ascontiguousarray(vectors[:, kept]), values[kept]
        back = (x.T @ vectors - np.outer(centre, vectors.sum(0))) / values
        return cls(vectors, values, centre, np.asarray(back))

    def of_new(self, features: Array | sp.sparray) -> Array:
        """Rows of the basis (N', P) for features (N', D) of further rows."""
        return np.asarray(features @ self.back) - self.centre @ self.back


def _centred(products: Array) -> Array:
    mean = products.mean(0)
    return products - mean - mean[:, None] + mean.mean()


def _randomised(x, centre: Array, rank: int, seed: int, rounds: int = 3) -> tuple[Array, Array]:
    """Subspace iteration (Halko, Martinsson & Tropp 2011, algorithm 4.4)."""
    block = np.random.default_rng(seed).standard_normal((x.shape[1], rank + 20))
    for _ in range(rounds):
        left = np.linalg.qr(x @ block - centre @ block)[0]
        block = x.T @ left - np.outer(centre, left.sum(0))
    left = np.linalg.qr(x @ block - centre @ block)[0]
    inner, singular, _ = np.linalg.svd((x.T @ left - np.outer(centre, left.sum(0))).T, full_matrices=False)
    return (left @ inner)[:, :rank], singular[:rank] ** 2


@dataclass(frozen=True)
class PriorSettings:
    """strength, degrees, spread: of the prior of m and L (degrees: beyond K). ridges: values that ridge is chosen from."""

    strength: float = 1.0
    degrees: float = 1.0
    spread: float = 0.1
    ridges: tuple[float, ...] = RIDGES


@dataclass(frozen=True)
class RowPrior:
    """q(m, beta, L), or a draw from the posterior given rows.

    degrees, scale (d, d): of the Wishart posterior, scale^-1 its matrix; precision: E[L], or the draw of L.
    coefficient (P + 1, d): B, or its draw; strength (P + 1,): k; ridge: as chosen; evidence: see the module.
    """

    degrees: float
    scale: Array
    precision: Array
    coefficient: Array
    strength: Array
    ridge: float
    evidence: float

    def means(self, basis: Basis | None, rows: int) -> Array:
        """m + F of the rows."""
        mean = np.broadcast_to(self.coefficient[0], (rows, self.scale.shape[0]))
        if basis is not None:
            mean = mean + basis.vectors @ self.coefficient[1:]
        return np.ascontiguousarray(mean)


def prior_given_rows(
    mean: Array, covariance: Array, basis: Basis | None, settings: PriorSettings, ridges: tuple[float, ...] | None = None
) -> RowPrior:
    """q(m, beta, L) given the rows' means (N, d) and the sum of their covariances (d, d), at the ridge of most evidence."""
    size, d = mean.shape
    degrees = settings.degrees + d - 1
    start = settings.spread * degrees
    total = mean.sum(0)
    moments = mean.T @ mean + covariance + start * np.eye(d)
    common = _log_normaliser(degrees + size, d) - _log_normaliser(degrees, d) - 0.5 * size * d * np.log(np.pi)
    common += 0.5 * degrees * d * np.log(start)
    moments = moments - np.outer(total, total) / (settings.strength + size)
    common += 0.5 * d * np.log(settings.strength / (settings.strength + size))
    projected = basis.vectors.T @ mean if basis is not None else np.zeros((0, d))
    best = None
    for ridge in (ridges or settings.ridges) if basis is not None else (1.0,):
        lift = ridge / basis.values if basis is not None else np.zeros(0)
        scale = moments - (projected / (1 + lift)[:, None]).T @ projected
        value = 0.5 * d * np.log(lift / (1 + lift)).sum() - 0.5 * (degrees + size) * np.linalg.slogdet(scale)[1]
        if best is None or value > best[0]:
            best = value, ridge, lift, scale
    assert best is not None
    value, ridge, lift, scale = best
    scale = 0.5 * (scale + scale.T)
    strength = np.concatenate([[settings.strength + size], 1 + lift])
    coefficient = np.concatenate([total[None], projected]) / strength[:, None]
    precision = (degrees + size) * np.linalg.inv(scale)
    return RowPrior(degrees + size, scale, precision, coefficient, strength, ridge, float(common + value))


def _log_normaliser(degrees: float, d: int) -> float:
    return float(multigammaln(degrees / 2, d))


def drawn(prior: RowPrior, generator: np.random.Generator) -> RowPrior:
    """A draw of L and of B given L: Bartlett's decomposition."""
    d = len(prior.scale)
    factor = np.linalg.cholesky(np.linalg.inv(prior.scale))
    lower = np.tril(generator.standard_normal((d, d)), -1)
    lower[np.diag_indices(d)] = np.sqrt(generator.chisquare(prior.degrees - np.arange(d)))
    root = factor @ lower
    noise = generator.standard_normal(prior.coefficient.shape) / np.sqrt(prior.strength)[:, None]
    coefficient = prior.coefficient + np.linalg.solve(root.T, noise.T).T
    return RowPrior(
        prior.degrees, prior.scale, root @ root.T, coefficient, prior.strength, prior.ridge, prior.evidence
    )


def expected_log_det(prior: RowPrior) -> float:
    """E[log |L|]."""
    d = len(prior.scale)
    return float(psi((prior.degrees - np.arange(d)) / 2).sum() + d * np.log(2) - np.linalg.slogdet(prior.scale)[1])
