"""Poisson PCA at the level of arrays: Gaussian posteriors of scores, Newton's steps of the weights, turns of both.

    x_nj ~ Poisson(exp(o_n + b_j + w_j's_n)),   s_n ~ N(p, diag(t)^-1)              (Murphy 2012, eq. 27.9, offsets o_n)

q(s_n) = N(m_n, V_n). The log rate is Gaussian under q, so that the bound has a closed form, with
r_nj = E[rate_nj] = exp(o_n + b_j + w_j'm_n + w_j'V_n w_j / 2):

    log p(x_n) >= sum_j [x_nj (o_n + b_j + w_j'm_n) - r_nj - log x_nj!] - KL(q(s_n) || p(s_n))

Scores. At the best V_n^-1 = H_n = diag(t) + sum_j r_nj w_j w_j', which is Newton's matrix of m_n too:
    m_n += H_n^-1 [sum_j (x_nj - r_nj) w_j - t (m_n - p)].
A row whose bound falls goes half the way, again and again: m along the step, V^-1 along the line to H_n.

Weights. With c_j = (w_j, b_j), s~ = (s, 1) and E[rate s~] = r_nj (m~_n + V~_n c_j), where V~ has 0 beside V:
    g_j = sum_n [x_nj m~_n - r_nj (m~_n + V~_n c_j)],   H_j = sum_n r_nj (m~_n m~_n' + V~_n),
a quadratic about c_j. Held as H_j and H_j c_j + g_j, both are additive over rows. H_j lacks the part of the second
derivative that is of higher order in V_n; steps are capped, and what holds the iterations sees that none is too long.

Uncertain weights. With q(c_j) = N(c_j, T_j), T_j^-1 = H_j + prior, in place of points, and T_j's part U_j of w_j alone,

    r_nj = exp(o_n + c_j'm~_n + <w_j w_j' + U_j, V_n> / 2 + m~_n'T_j m~_n / 2)
    H_n = diag(t) + sum_j r_nj (w_j w_j' + U_j)

The product s_n'w_j is not Gaussian then: this leaves out terms of order V U, so that what is climbed is an *estimate*
of the bound, not a bound.

Turns. s' = A (s - d), w' = A^-T w, b' = b + w'd change no rate. The best of them have a closed form: :func:`find_turn`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.packing import halve_products, pack_symmetric, products, unpack_symmetric

#: The longest step of the scores of a row, and of weights and bias of a column, that is taken at once.
LONGEST = 1.5
#: No rate is taken for larger than exp of this: a cold start would overflow in single precision.
_LARGEST_LOG_RATE = 30.0
#: How often a row's step is halved before the row stays where it is.
_HALVINGS = 6


class Globals(NamedTuple):
    """weight (K, D), bias (D,); spread (D, K + 1, K + 1): the covariances T of columns (w_j, b_j), None of points."""

    weight: Tensor
    bias: Tensor
    spread: Tensor | None = None

    @property
    def columns(self) -> Tensor:
        """c (D, K + 1)."""
        return torch.cat([self.weight.T, self.bias[:, None]], 1)

    @property
    def pairs(self) -> Tensor:
        """E[w_j w_j'], packed, (D, K (K + 1) / 2)."""
        known, size = products(self.weight.T), len(self.weight)
        return known if self.spread is None else known + pack_symmetric(self.spread[:, :size, :size])


class Columns(NamedTuple):
    """The normal prior of the columns: mean and precision (D, K + 1)."""

    mean: Tensor
    precision: Tensor


class PoissonCounts(NamedTuple):
    """x (N, D), 0 where an entry is missing; offset (N,); observed (N, D): 1 or 0, or None where everything is."""

    x: Tensor
    offset: Tensor
    observed: Tensor | None = None


class PoissonScores(NamedTuple):
    """q of the scores: mean (N, K), covariance (N, K, K)."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def at(cls, prior: Normal, size: int) -> PoissonScores:
        covariance = torch.diag(prior.precision.reciprocal())
        return cls(prior.mean.expand(size, -1), covariance.expand(size, -1, -1))


def append_ones(matrix: Tensor) -> Tensor:
    """Append a one to every row: (s, 1)."""
    return torch.cat([matrix, torch.ones_like(matrix[:, :1])], 1)


def rates(counts: PoissonCounts, at: Globals, q: PoissonScores, pairs: Tensor | None = None) -> Tensor:
    """Compute the rates r (N, D), 0 where an entry is missing."""
    pairs, size = at.pairs if pairs is None else pairs, len(at.weight)
    found = torch.addmm(at.bias, q.mean, at.weight)
    found += counts.offset[:, None]
    found.addmm_(halve_products(pack_symmetric(q.covariance), size), pairs.T)
    if at.spread is not None:
        found.addmm_(halve_products(products(append_ones(q.mean)), size + 1), pack_symmetric(at.spread).T)
    found.clamp_(max=_LARGEST_LOG_RATE).exp_()
    return found if counts.observed is None else found.mul_(counts.observed)


class Row(NamedTuple):
    """q of some rows, its rates (N, D), and its bound (N,) but for what depends on x alone."""

    q: PoissonScores
    rate: Tensor
    bound: Tensor

    def put(self, index: Tensor, other: Row) -> None:
        """Replace the values of the rows ``index``."""
        mine, theirs = (*self.q, self.rate, self.bound), (*other.q, other.rate, other.bound)
        for value, new in zip(mine, theirs, strict=True):
            value[index] = new

    def select(self, index: Tensor) -> Row:
        return Row(PoissonScores(*(value[index] for value in self.q)), self.rate[index], self.bound[index])


def log_determinant(factor: Tensor) -> Tensor:
    """Compute log det F F' (N,) from triangular F (N, K, K)."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class RowBlock:
    """Rows at given globals. temperature: the likelihood's exponent."""

    def __init__(self, counts: PoissonCounts, at: Globals, prior: Normal, temperature: float = 1.0):
        self.counts, self.at, self.prior, self.temperature = counts, at, prior, temperature
        self.along, self.pairs = counts.x @ at.weight.T, at.pairs

    def row(self, q: PoissonScores) -> Row:
        return self._row(q, log_determinant(torch.linalg.cholesky(q.covariance)))

    def _row(self, q: PoissonScores, log_det: Tensor) -> Row:
        rate = rates(self.counts, self.at, q, self.pairs)
        likelihood = (self.along * q.mean).sum(-1) - rate.sum(-1)
        return Row(q, rate, self.temperature * likelihood - self.prior.kl_of(*q, log_det))

    def _row_from_solution(self, mean: Tensor, factor: Tensor) -> Row:
        """Evaluate the rows at the mean, with the covariance whose inverse has the triangular factor."""
        return self._row(PoissonScores(mean, torch.cholesky_inverse(factor)), -log_determinant(factor))

    def constant(self) -> Tensor:
        """What the bound has of x alone, but for log x!, (N,)."""
        x = self.counts.x
        return self.temperature * (x @ self.at.bias + self.counts.offset * x.sum(-1))

    def step(self, row: Row) -> Row:
        """Take one step in every row, none of which lowers its bound."""
        (mean, _), size = row.q, row.q.mean.shape[1]
        precision = unpack_symmetric(self.temperature * (row.rate @ self.pairs), size)
        precision.diagonal(dim1=-2, dim2=-1).add_(self.prior.precision)
        slope = self.along - row.rate @ self.at.weight.T
        if self.at.spread is not None:
            spread = unpack_symmetric(row.rate @ pack_symmetric(self.at.spread), size + 1)[:, :size]
            slope -= (spread @ append_ones(mean)[..., None])[..., 0]
        slope = self.temperature * slope - self.prior.precision * (mean - self.prior.mean)
        factor = torch.linalg.cholesky(precision)
        step = cap_steps(torch.cholesky_solve(slope[..., None], factor)[..., 0])
        new = self._row_from_solution(mean + step, factor)
        worse = (~(new.bound >= row.bound)).nonzero().flatten()
        if len(worse):
            new.put(worse, self._shorten_steps(worse, row.select(worse), precision[worse], step[worse]))
        return new

    def _shorten_steps(self, index: Tensor, row: Row, precision: Tensor, step: Tensor) -> Row:
        """Take shorter steps in the rows ``index``; where none serves, these stay as they are."""
        counts = PoissonCounts._make(None if part is None else part[index] for part in self.counts)
        part = RowBlock(counts, self.at, self.prior, self.temperature)
        before, rest, share = torch.linalg.inv(row.q.covariance), torch.ones_like(row.bound, dtype=torch.bool), 1.0
        start = row.q.mean.clone()
        for _ in range(_HALVINGS):
            share /= 2
            factor = torch.linalg.cholesky(torch.lerp(before, precision, share))
            found = part._row_from_solution(start + share * step, factor)
            good = (rest & (found.bound >= row.bound)).nonzero().flatten()
            row.put(good, found.select(good))
            rest[good] = False
            if not bool(rest.any()):
                break
        return row

    def sums(self, row: Row) -> dict[str, Tensor]:
        """Sum H_j as "pair" (D, (K + 1)(K + 2) / 2) and H_j c_j + g_j as "target" (D, K + 1) of the columns; E[s] and
        E[s s'] as "first" (K,) and "second" (K, K), and the number of "rows" (1,)."""
        (mean, covariance), size, long = row.q, row.q.mean.shape[1], append_ones(row.q.mean)
        rate, x = self.temperature * row.rate.T, self.temperature * self.counts.x
        pair = unpack_symmetric(rate @ products(long), size + 1)
        # What V_n adds to H_j c_j is what it takes from g_j.
        target = x.T @ long - rate @ long + (pair @ self.at.columns[..., None])[..., 0]
        pair[:, :size, :size] += unpack_symmetric(rate @ pack_symmetric(covariance), size)
        second = mean.T @ mean + covariance.sum(0)
        return {
            "pair": pack_symmetric(pair), "target": target, "first": mean.sum(0), "second": second,
            "rows": mean.new_tensor([float(len(mean))]),
        }  # fmt: skip


def cap_steps(step: Tensor, longest: float = LONGEST) -> Tensor:
    """Shorten steps (M, K) that are longer than ``longest`` to that length."""
    return step * (longest / step.norm(dim=-1, keepdim=True).clamp(min=longest))


def step_columns(sums: dict[str, Tensor], at: Globals, prior: Columns, share: float = 1.0) -> Globals:
    """Return the columns after one capped step, or a share of it; with covariances where there are some."""
    column, size = at.columns, len(at.weight) + 1
    matrix = unpack_symmetric(sums["pair"], size)
    matrix.diagonal(dim1=-2, dim2=-1).add_(prior.precision)
    # Where the prior is flat and the data say nothing, the step is 0.
    matrix.diagonal(dim1=-2, dim2=-1).add_(torch.finfo(column.dtype).eps)
    slope = sums["target"] + prior.precision * prior.mean - (matrix @ column[..., None])[..., 0]
    factor = torch.linalg.cholesky(matrix)
    column = column + share * cap_steps(torch.cholesky_solve(slope[..., None], factor)[..., 0])
    spread = None if at.spread is None else torch.cholesky_inverse(factor)
    return Globals(column[:, :-1].T.contiguous(), column[:, -1].contiguous(), spread)


class Turn(NamedTuple):
    """s' = matrix (s - shift)."""

    matrix: Tensor
    shift: Tensor

    def scores(self, q: PoissonScores) -> PoissonScores:
        return PoissonScores((q.mean - self.shift) @ self.matrix.T, self.matrix @ q.covariance @ self.matrix.T)

    def globals(self, at: Globals) -> Globals:
        size = len(self.shift)
        onto = torch.eye(size + 1).to(at.weight)
        onto[:size, :size], onto[size, :size] = torch.linalg.inv(self.matrix.T), self.shift
        column = at.columns @ onto.T
        spread = None if at.spread is None else onto @ at.spread @ onto.T
        return Globals(column[:, :-1].T.contiguous(), column[:, -1].contiguous(), spread)

    def within(self, chosen: Tensor) -> Turn:
        """Return the turn of these components among all (chosen (K,), True) that leaves the others where they are."""
        index, size = chosen.nonzero().flatten(), len(chosen)
        matrix, shift = torch.eye(size).to(self.matrix), self.shift.new_zeros(size)
        matrix[index[:, None], index] = self.matrix
        shift[index] = self.shift
        return Turn(matrix, shift)


def find_turn(sums: dict[str, Tensor], at: Globals, score: Tensor, weight: Tensor | None, bias: Normal) -> Turn:
    """Find the turn that raises the objective most: first the shift, then the matrix; the new E[w w'] is diagonal.

    score, weight: the precisions t and l of every score and weight, whose prior means are 0; bias: the prior's mean and
    precision (D,). With C = t sum_n E[(s_n - d)(s_n - d)'] and G = l sum_j E[w_j w_j'], B = (A'A)^-1 maximises

        -(M / 2) log|B| - tr(B^-1 C) / 2 - tr(B G) / 2,   so that M B + B G B = C:

    B = R f(R'G R) R' with C = R R' and f(h) = 2 / (M + sqrt(M^2 + 4 h)) of the eigenvalues. M is the number of rows
    less, where the columns have covariances, that of the columns.
    """
    number, first, (mean, rest) = sums["rows"], sums["first"], bias
    # The shift maximises -N t |d - first / N|^2 / 2 - sum_j rest_j E[(b_j + w_j'd - mean_j)^2] / 2.
    pulled, gram = at.weight * rest, at.weight @ at.weight.T
    system, right = pulled @ at.weight.T, pulled @ (at.bias - mean)
    if at.spread is not None:
        joint = (at.spread * rest[:, None, None]).sum(0)
        system, right = system + joint[:-1, :-1], right + joint[:-1, -1]
        gram = gram + at.spread[:, :-1, :-1].sum(0)
    system.diagonal().add_(score * number)
    shift = torch.linalg.solve(system, score * first - right)
    cross = torch.outer(first, shift)
    root = torch.linalg.cholesky(score * (sums["second"] - cross - cross.T + number * torch.outer(shift, shift)))
    value, vector = torch.linalg.eigh(root.T @ gram @ root)
    stretch = number.sqrt().expand_as(value)
    if weight is not None:
        free = number - (0 if at.spread is None else at.weight.shape[1])
        stretch = ((free + (free.square() + 4 * weight * value.clamp(min=0)).sqrt()) / 2).sqrt()
    # A = f^-1/2 V'R^-1, since then A^-T w = f^1/2 V'R'w, whose products are diagonal.
    return Turn(torch.linalg.solve(root.T, (vector * stretch).flip(1)).T.contiguous(), shift)
