"""Statistics of rows of numbers x (N, D): an ndarray, or a masked array, whose masked entries are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def _parts(x: Array) -> tuple[Array, Array]:
    """The values with 0 where one is missing, and 1 where it is not."""
    return np.ma.filled(x, 0.0), (~np.ma.getmaskarray(x)).astype(float)


def _moments(x: Array) -> tuple[Array, Array]:
    """Means of the columns (D,), and the values minus these (N, D), 0 where missing."""
    values, seen = _parts(x)
    mean = values.sum(0) / np.maximum(seen.sum(0), 1)
    return mean, (values - mean) * seen


def _ratio(above: Array | float, below: Array | float) -> Any:
    """above / below, 0 where below is 0."""
    below = np.asarray(below)
    found = np.divide(above, below, out=np.zeros(np.broadcast_shapes(np.shape(above), below.shape)), where=below > 0)
    return found if found.ndim else float(found)


#: Statistics of one expression: name -> function, and what it is.
SIMPLE: dict[str, tuple[Callable[[Array], Any], str]] = {
    "mean": (lambda x: x.mean(), "The mean of all entries; of 0/1 data the share of ones."),
    "variance": (lambda x: x.var(), "The variance of all entries about their common mean."),
    "min": (lambda x: x.min(), "The smallest entry."),
    "max": (lambda x: x.max(), "The largest entry."),
    "zero_share": (lambda x: (x == 0).mean(), "The share of entries that are 0."),
    "row_total_variance": (
        lambda x: np.ma.filled(x, 0).sum(1).var(),
        "Var_n(sum_j x_nj): above what independent columns give where these are positively correlated.",
    ),
    "row_total_max": (lambda x: np.ma.filled(x, 0).sum(1).max(), "max_n sum_j x_nj."),
    "empty_rows": (lambda x: (np.ma.filled(x, 0) == 0).all(1).mean(), "The share of rows without any entry but 0."),
    "distinct_rows": (
        lambda x: len(np.unique(np.ma.filled(x, -1), axis=0)),
        "The number of different rows; missing entries count as alike.",
    ),
}


def skewness(x: Array) -> float:
    """m_3 / m_2^(3/2), m_r the central moments of all entries."""
    centred = np.ma.compressed(x - x.mean())
    return float(_ratio((centred**3).mean(), (centred**2).mean() ** 1.5))


def kurtosis(x: Array) -> float:
    """m_4 / m_2^2 - 3, m_r the central moments of all entries; 0 of a normal distribution."""
    centred = np.ma.compressed(x - x.mean())
    return float(_ratio((centred**4).mean(), (centred**2).mean() ** 2)) - 3.0


def column_mean(x: Array) -> Array:
    """The mean of each column, (D,)."""
    return _moments(x)[0]


def column_variance(x: Array) -> Array:
    """The variance of each column, (D,)."""
    return _ratio((_moments(x)[1] ** 2).sum(0), _parts(x)[1].sum(0))


def correlation(x: Array) -> Array:
    """The correlation of every two columns i < j, (D (D - 1) / 2,); of 0/1 columns phi, their co-occurrence beyond
    what the two shares give. Of missing entries, over the rows where both are observed; 0 for a constant column."""
    centred, seen = _moments(x)[1], _parts(x)[1]
    squares = (centred**2).T @ seen  # of column i, over the rows where j is observed
    return _pairs(_ratio(centred.T @ centred, np.sqrt(squares * squares.T)))


def covariance(x: Array) -> Array:
    """The covariance of every two columns i < j over the rows where both are observed, (D (D - 1) / 2,)."""
    centred, seen = _moments(x)[1], _parts(x)[1]
    return _pairs(_ratio(centred.T @ centred, seen.T @ seen))


def _pairs(matrix: Array) -> Array:
    return matrix[np.triu_indices(len(matrix), 1)]


def dispersion(x: Array) -> float:
    """The mean over the columns of variance / mean, the index of dispersion: 1 of a Poisson distribution (Cox & Lewis,
    *The statistical analysis of series of events*, 1966). Columns without any count are left out."""
    share = column_mean(x)
    return float((column_variance(x)[share > 0] / share[share > 0]).mean()) if (share > 0).any() else 0.0


def value_frequency(x: Array) -> Array:
    """The number of entries that are 0, 1, ..., 29, and of those that are 30 or more, (31,)."""
    return np.bincount(np.minimum(np.ma.compressed(x).astype(np.int64), 30), minlength=31).astype(float)


def _answers(x: Array) -> Array:
    """1 where row n answers question r by category c, (N, R, C); all 0 where the answer is missing."""
    values, seen = _parts(x)
    categories = np.arange(int(values.max()) + 1)
    return ((values[..., None] == categories) & (seen[..., None] > 0)).astype(float)


def agreement(x: Array) -> float:
    """The share of answers that two rows have in common, over all pairs of rows and the questions that both answered:
    sum_r sum_c n_rc (n_rc - 1) / sum_r n_r (n_r - 1), as in Fleiss, Psychological Bulletin 76, 1971, eq. 2."""
    counts = _answers(x).sum(0)
    total = counts.sum(1)
    return float(_ratio((counts * (counts - 1)).sum(), (total * (total - 1)).sum()))


def uniform_rows(x: Array) -> float:
    """The share of rows that give the same answer to every question that they answer (straight-lining)."""
    low, high = np.ma.filled(x, np.inf).min(1), np.ma.filled(x, -np.inf).max(1)
    return float((low >= high).mean())


def modal_share_variance(x: Array) -> float:
    """Var_n(share of its questions that row n answers as most rows do): how unlike the rows are to each other."""
    answers, seen = _answers(x), _parts(x)[1]
    modal = np.take_along_axis(answers, answers.sum(0).argmax(1)[None, :, None], 2)[..., 0]
    return float(_ratio(modal.sum(1), seen.sum(1)).var())


def row_mean_variance(x: Array) -> float:
    """Var_n(mean of the numbers of its answers): of ratings, how far rows differ in their level."""
    values, seen = _parts(x)
    return float(_ratio(values.sum(1), seen.sum(1)).var())


def answer_share(x: Array) -> Array:
    """The share of those who answer question r that do so by category c, c = 0, ..., 9, (10 R,)."""
    counts = _answers(x)[..., :10].sum(0)
    padded = np.zeros((x.shape[1], 10))
    padded[:, : counts.shape[1]] = counts
    return (padded / np.maximum(_parts(x)[1].sum(0), 1)[:, None]).ravel()


def association(x: Array) -> Array:
    """Cramer's V of every two questions i < j, sqrt(chi^2 / (n (min(C_i, C_j) - 1))) of their table over the rows that
    answer both, C the categories that occur in it (Cramer, *Mathematical methods of statistics*, 1946)."""
    answers = _answers(x)
    size = answers.shape[1]
    tables = np.einsum("nic,njd->ijcd", answers, answers, optimize=True)
    i, j = np.triu_indices(size, 1)
    tables = tables[i, j]
    total = tables.sum((1, 2))
    rows, columns = tables.sum(2), tables.sum(1)
    expected = _ratio(rows[:, :, None] * columns[:, None, :], total[:, None, None])
    chi = _ratio((tables - expected) ** 2, expected).sum((1, 2))
    least = np.minimum((rows > 0).sum(1), (columns > 0).sum(1)) - 1
    return np.sqrt(_ratio(chi, total * least))


def words_used(x: Array) -> int:
    """The number of different words; of sequences, whose entries are words by number, 0 where there is none."""
    return len(np.setdiff1d(np.ma.filled(x, 0), 0))


def same_word_again(x: Array) -> float:
    """The share of words of sentences that are the same as the word before."""
    first, second = _neighbours(x)
    return _ratio((first == second).sum(), len(first))


def neighbours_information(x: Array) -> float:
    """The mutual information, in nats, of a word and the one behind it: what their order tells."""
    pairs, count = np.unique(_neighbours(x), axis=1, return_counts=True)
    sides = (np.unique(side, return_inverse=True)[1] for side in pairs)
    share, (left, right) = count / max(count.sum(), 1), sides
    each = [np.bincount(side, share)[side] for side in (left, right)]
    return float((share * np.log(share / (each[0] * each[1]))).sum())


def _neighbours(x: Array) -> tuple[Array, Array]:
    """The words of sentences and those behind them."""
    values = np.ma.filled(x, 0)
    first, second = values[:, :-1], values[:, 1:]
    both = (first != 0) & (second != 0)
    return first[both], second[both]
