"""Features of users or items as the columns of a regression: principal coordinates of blocks of features.

Of a block X (N, D), centred, the eigenvectors Q of X X' with the greatest eigenvalues e give the columns Q sqrt(e), to
one scale for all blocks: coefficients N(0, I / ridge) of them are those of the features themselves, up to the rest of
the eigenvectors. Feedback that is implicit is a block too: which items a user has rated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from custom_inference.families.ratings.incidence import Array, ByRow
from ppl_models.core.errors import DataError

#: Blocks with fewer rows or features than this have their eigenvectors found exactly.
EXACT = 500


def implicit_feedback(ratings: ByRow, popularity: Array) -> sp.csr_array:
    """Compute (N, M): n^(-1/2) popularity_j^(-1/4) at each j of the other side's M rows that a row has its n ratings
    with.

    popularity (M,): ratings of the other side's rows, so that rare ones say more of a row.
    """
    weight = 1 / np.sqrt(np.repeat(ratings.counts, ratings.counts) * np.sqrt(np.maximum(popularity, 1))[ratings.index])
    return sp.csr_array((weight, ratings.index, ratings.start), (len(ratings.counts), len(popularity)))


@dataclass(frozen=True)
class Design:
    """columns (N, P), centred; gram (P, P): their products; block (P,): whose ridge each one has.

    centres, backs: of each block, the features' means (D,) and what takes features to columns (D, P_b).
    """

    columns: Array
    gram: Array
    block: np.ndarray
    centres: tuple[Array, ...]
    backs: tuple[Array, ...]

    @classmethod
    def of(cls, blocks: Sequence[Array | sp.sparray], rows: int, rank: int, site: str = "features") -> Design:
        """blocks: each (N, D), dense or sparse. Raises DataError where one is not finite or not of so many rows."""
        found = [_principal(_check_features(one, rows, site), rank) for one in blocks]
        columns = np.ascontiguousarray(np.concatenate([one[0] for one in found], 1))
        block = np.repeat(np.arange(len(found)), [one[0].shape[1] for one in found])
        return cls(columns, columns.T @ columns, block, tuple(one[1] for one in found), tuple(one[2] for one in found))

    def of_new(self, blocks: Sequence[Array | sp.sparray], site: str = "features") -> Array:
        """Return the columns (N', P) of further rows with these features."""
        if len(blocks) != len(self.backs):
            raise DataError(f"{len(blocks)} blocks of features", site=site, expected=f"{len(self.backs)}")
        found = [_check_features(one, None, site) @ b for one, b in zip(blocks, self.backs, strict=True)]
        return np.concatenate(found, 1) - np.concatenate([c @ b for c, b in zip(self.centres, self.backs, strict=True)])


def _check_features(features: Any, rows: int | None, site: str) -> Any:
    if features.ndim != 2 or (rows is not None and features.shape[0] != rows):
        raise DataError(f"features of shape {features.shape}", site=site, expected=f"{rows or 'any number of'} rows")
    x: Any = sp.csr_array(features) if sp.issparse(features) else np.asarray(features, np.float64)
    if not np.isfinite(x.data if sp.issparse(x) else x).all():
        raise DataError("features are not all finite", site=site, expected="numbers")
    return x.astype(np.float64)


def _principal(x: Any, rank: int) -> tuple[Array, Array, Array]:
    """Return columns (N, P) whose squares add up to N, the features' means (D,) and ``back`` (D, P)."""
    size, width = x.shape
    centre = np.asarray(x.sum(0)).ravel() / max(size, 1)
    rank = min(rank, width, max(size - 1, 0))
    if rank == 0:
        return np.zeros((size, 0)), centre, np.zeros((width, 0))
    if width <= EXACT:
        products = x.T @ x
        products = products.toarray() if sp.issparse(products) else products
        products, last = products - size * np.outer(centre, centre), width - 1
        values, right = scipy.linalg.eigh(products, subset_by_index=(width - rank, last), check_finite=False)
    else:
        values, right = _iterate_subspace(x, centre, rank)
    # Of features that are the same in all rows nothing but rounding is left.
    whole = float(np.square(x.data if sp.issparse(x) else x).sum())
    right = right[:, values > max(1e-9 * values.max(initial=0.0), 1e-14 * whole, 1e-300)]
    columns = np.asarray(x @ right) - centre @ right
    scale = np.sqrt(size / max(np.square(columns).sum(), 1e-300))
    return columns * scale, centre, right * scale


def _iterate_subspace(x: Any, centre: Array, rank: int, rounds: int = 4) -> tuple[Array, Array]:
    """Compute squared singular values and right singular vectors by subspace iteration (Halko, Martinsson & Tropp 2011,
    algorithm 4.4)."""
    more = min(rank + 20, *x.shape)
    block = np.random.default_rng(0).standard_normal((x.shape[1], more))
    for _ in range(rounds):
        left = np.linalg.qr(x @ block - centre @ block)[0]
        block = x.T @ left - np.outer(centre, left.sum(0))
    basis, upper = np.linalg.qr(block)
    inner, singular = np.linalg.svd(upper, full_matrices=False)[:2]
    return singular[:rank] ** 2, (basis @ inner)[:, :rank]
