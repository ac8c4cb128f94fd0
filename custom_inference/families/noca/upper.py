"""An upper bound on NOCA's evidence, so that every row is bracketed from both sides without sampling.

Source: Jaakkola & Jordan, *Variational probabilistic inference and the QMR-DT network*, JAIR 10 (1999), section 3. With
a_j(s) = theta_0j + sum_i s_i theta_ij, log(1 - e^-a) is concave in a, and by its conjugate dual

    log P(x_j = 1 | s) <= lambda_j a_j(s) - F(lambda_j),   F(l) = (l + 1) log(l + 1) - l log l,   lambda_j > 0  (eq. 17)

a product over the sources, like the zeros. Ones that are so bounded, B, leave sums over the subsets of the others alone
(``subsets``): with b_i(lambda) = pi_i prod_{zeros} (1 - p_ij) exp(sum_{j in B} lambda_j theta_ij),

    log p(x) <= U(lambda) = log Z(lambda) + sum_{j in B} [lambda_j theta_0j - F(lambda_j)],
    dU / dlambda_j = theta_0j + sum_i theta_ij E[s_i] - log((lambda_j + 1) / lambda_j),

convex in lambda. Where B has all ones, Z is a product over the sources, and Newton's method finds the lambda of all
rows at once. As in the source's section 4, each one's price, what U loses when that one alone is exact, tells which are
worth the sum: those of the highest prices. Newton steps with independent sources in the slope's derivative then fit
lambda to the rest; the lowest U counts, as every lambda is a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from custom_inference.core.engine import Params
from custom_inference.families.conjugate.beta import interior
from custom_inference.families.noca.common import thetas
from custom_inference.families.noca.subsets import Subsets
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Data, Model

#: Newton steps where all ones are bounded, and beside exact ones; lambda is kept within these.
_STEPS, _FEW_STEPS = 40, 4
_LEAST, _LARGEST = 1e-12, 1e12
#: Numbers of the matrices of a block of rows.
_ENTRIES = 2**22


@dataclass(frozen=True)
class _Bounded:
    """Rows (R, M) by the columns of their ones, of which ``held`` (R, M) are bounded; the others are exact.

    theta (R, M, K) and theta_0 (R, M) of the ones, 0 where a row has fewer; odds (R, K): log pi_i / (1 - pi_i) +
    log prod_{zeros} (1 - p_ij); constant (R,): log prod_i (1 - pi_i) prod_{zeros} (1 - p_0j).
    """

    theta: Tensor
    theta0: Tensor
    there: Tensor
    odds: Tensor
    constant: Tensor

    @classmethod
    def of(cls, params: Params, rows: BinaryRows) -> _Bounded:
        (theta, theta0), prior = thetas(params), interior(params["source_prior"])
        count, ones = rows.ones.sum(1).long(), rows.ones > 0
        width = max(int(count.max()), 1)
        column = torch.argsort((~ones).to(torch.uint8), dim=1, stable=True)[:, :width]
        there = torch.arange(width, device=count.device) < count[:, None]
        odds = torch.logit(prior) - rows.zeros @ theta.T
        constant = torch.log1p(-prior).sum() - rows.zeros @ theta0
        return cls(theta.T[column] * there[..., None], theta0[column] * there, there, odds, constant)

    def tilt(self, slope: Tensor, held: Tensor) -> Tensor:
        """Compute sum_{j in B} lambda_j theta_ij, (R, K)."""
        return torch.einsum("rm,rmk->rk", slope * held, self.theta)

    def offset(self, slope: Tensor, held: Tensor) -> Tensor:
        """Compute sum_{j in B} [lambda_j theta_0j - F(lambda_j)], (R,)."""
        return (held * (slope * self.theta0 - conjugate(slope))).sum(1)

    def step(self, slope: Tensor, held: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return Newton's step in log lambda at means (R, K) of the sources, (R, M), and the gradient there.

        In log lambda the dual's own curvature, lambda / (1 + lambda), stays between 0 and 1 whatever lambda is.
        """
        gradient = self.theta0 + torch.einsum("rmk,rk->rm", self.theta, mean) - torch.log1p(1 / slope)
        scaled = slope[..., None] * self.theta
        curvature = torch.einsum("rmk,rk,rlk->rml", scaled, mean * (1 - mean), scaled)
        # That of a convex function of lambda in log lambda adds the gradient; where it is negative it is left out.
        own = slope / (1 + slope) + (slope * gradient).clamp(min=0)
        keep = held & self.there
        curvature = torch.where(keep[:, :, None] & keep[:, None, :], curvature, 0.0)
        matrix = curvature + torch.diag_embed(torch.where(keep, own + 1e-12, 1.0))
        right = torch.where(keep, slope * gradient, 0.0)
        return torch.linalg.solve(matrix, right), right


def conjugate(slope: Tensor) -> Tensor:
    """Compute F(lambda) = (lambda + 1) log(lambda + 1) - lambda log lambda."""
    return torch.xlogy(slope + 1, slope + 1) - torch.xlogy(slope, slope)


def bound_above(model: Model, params: Params, data: Data, *, exact_ones: int = 10) -> tuple[Tensor, Tensor]:
    """Compute an upper bound on log p(x_n) of every row, (N,), and in which rows it is log p(x_n) itself, (N,).

    exact_ones: how many ones of a row are summed over exactly; where it has no more, the bound is exact.
    """
    del model
    params = {site: value.detach().double() for site, value in params.items()}
    rows = BinaryRows.of(data)
    read = BinaryRows(rows.ones.double(), rows.mask)
    number, count = len(params["source_prior"]), read.ones.sum(1)
    found, exact = read.ones.new_empty(len(read)), count <= exact_ones
    if bool(exact.any()):
        found[exact] = Subsets.of(params, read.select(exact)).log_evidence().to(found)
    rest = (~exact).nonzero().flatten()
    if len(rest):
        rest, width = rest[torch.argsort(count[rest])], float(count.max())
        for block in rest.split(max(1, int(_ENTRIES / (width * max(number, width))))):
            found[block] = _bound_block(params, read.select(block), exact_ones).to(found)
    return found.to(rows.like), exact


def _bound_block(params: Params, rows: BinaryRows, exact_ones: int) -> Tensor:
    bounded = _Bounded.of(params, rows)
    slope, bound = _bound_all(bounded)
    if exact_ones == 0:
        return bound
    price = bound[:, None] - _bound_without(bounded, slope)
    chosen = torch.where(bounded.there, price, -torch.inf).argsort(1, descending=True)[:, :exact_ones]
    held = bounded.there.scatter(1, chosen, False)
    left_out, best = mark_bounded(rows, held), bound.clone()
    seen = ~left_out if rows.mask is None else rows.mask & ~left_out
    rest = BinaryRows(rows.ones.masked_fill(left_out, 0.0), seen)
    for attempt in range(_FEW_STEPS + 1):
        expected = Subsets.of(params, rest, bounded.tilt(slope, held)).expect()
        value = expected.log_evidence.to(slope) + bounded.offset(slope, held)
        best = torch.minimum(best, value)
        if attempt == _FEW_STEPS or not bool(held.any()):
            break
        move, _ = bounded.step(slope, held, expected.mean.to(slope))
        slope = (slope * torch.exp(-move.clamp(-1, 1))).clamp(_LEAST, _LARGEST)
    return best


def mark_bounded(rows: BinaryRows, held: Tensor) -> Tensor:
    """Return a matrix (R, D) of the ones that are bounded, from their places among the row's ones (R, M)."""
    row, column = (rows.ones > 0).nonzero(as_tuple=True)
    place = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    found = torch.zeros_like(rows.ones, dtype=torch.bool)
    found[row, column] = held[row, place]
    return found


def _bound_all(bounded: _Bounded) -> tuple[Tensor, Tensor]:
    """Minimise U over lambda where all ones are bounded: lambda (R, M) and U (R,).

    Newton steps in log lambda, halved for rows where they do not lower U.
    """
    there = bounded.there

    def value(slope: Tensor) -> Tensor:
        return (
            bounded.constant + softplus(bounded.odds + bounded.tilt(slope, there)).sum(1) + bounded.offset(slope, there)
        )

    mean = torch.sigmoid(bounded.odds)  # lambda is the slope of log(1 - e^-a) at some a: at these means to begin with
    activation = bounded.theta0 + torch.einsum("rmk,rk->rm", bounded.theta, mean)
    slope = torch.where(there, 1 / torch.expm1(activation.clamp(min=1e-8)), 1.0).clamp(_LEAST, _LARGEST)
    bound, size = value(slope), torch.ones_like(bounded.constant)
    for _ in range(_STEPS):
        mean = torch.sigmoid(bounded.odds + bounded.tilt(slope, there))
        move, gradient = bounded.step(slope, there, mean)
        tried = (slope * torch.exp(-(size[:, None] * move).clamp(-3, 3))).clamp(_LEAST, _LARGEST)
        new = value(tried)
        lower = new <= bound
        slope, bound = torch.where(lower[:, None], tried, slope), torch.where(lower, new, bound)
        size = torch.where(lower, (2 * size).clamp(max=1.0), size / 4)
        if float(gradient.abs().max()) < 1e-9:
            break
    return slope, bound


def _bound_without(bounded: _Bounded, slope: Tensor) -> Tensor:
    """Compute U where one one alone is exact, (R, M), the others at their lambda: by the sources' product,

    sum_s prod_i (odds_i e^{t_i s_i}) (1 - e^{-a_j(s)}) = Z^{-j} (1 - e^{-theta_0j} prod_i (1 - q_i p_ij)),  q_i under
    Z^{-j}.
    """
    odds = bounded.odds + bounded.tilt(slope, bounded.there)
    others = odds[:, None] - slope[..., None] * bounded.theta
    silent = torch.log1p(torch.sigmoid(others) * torch.expm1(-bounded.theta)).sum(-1) - bounded.theta0
    tiny = torch.finfo(silent.dtype).tiny
    exact = softplus(others).sum(-1) + torch.log((-torch.expm1(silent)).clamp(min=tiny))
    rest = bounded.offset(slope, bounded.there)[:, None] - (slope * bounded.theta0 - conjugate(slope))
    return bounded.constant[:, None] + exact + rest
