"""NOCA under a mean-field posterior, with the noisy-or's expectation evaluated to a known accuracy.

E_Q[log(1 - e^{-a})] has the power series -sum_m E[e^{-m a}] / m, and every term factorises over the sources:
E[e^{-t a}] = e^{-t theta_0} prod_i (1 - lambda_i + lambda_i e^{-t theta_i}). The series needs about 1 / theta_0
terms. Instead -log(1 - e^{-a}) is approximated by a short exponential sum, sum_l w_l e^{-t_l a} with w >= 0, to a
uniform error eps over a >= min_j theta_0j (``exponential_sum``): the expectation then has the same error eps, and

L_n = sum_i [lambda_i logit pi_i + log(1 - pi_i)] - sum_j zeros_nj (theta_0j + sum_i lambda_i theta_ij) + H(Q)
      - sum_{j: x_nj = 1} [eps + sum_l w_l e^{-t_l theta_0j} prod_i (1 - lambda_i + lambda_i e^{-t_l theta_ij})]

never exceeds the ELBO of Q, hence never the evidence. L_n is multilinear in the lambda_i but for the entropy, so
every coordinate has a closed-form maximum, and sweeps over the sources never lower it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import BernoulliPosterior, LocalPosterior
from custom_inference.families.conjugate.beta import interior
from custom_inference.families.noca.common import NocaEngine, linear_terms, thetas, transmission_statistics
from custom_inference.families.noca.truncated import QUICK
from custom_inference.families.rows.base import BlockSteps
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Model

#: Entries of the (ones, nodes) work arrays per block of rows: four of them stay in cache, where the passes are cheap.
_BLOCK_ENTRIES = 2**18
#: Smallest theta_0 that the exponential sum reaches down to.
_LEAST_LEAK = 1e-9


class ExponentialSum(NamedTuple):
    """|sum_l weights_l e^{-nodes_l a} + log(1 - e^{-a})| <= error for every a >= a_min; weights > 0."""

    nodes: Tensor
    weights: Tensor
    error: float


def exponential_sum(a_min: float, tolerance: float = 1e-8) -> ExponentialSum:
    """Find the sum for arguments of at least ``a_min``, to the uniform error ``tolerance``.

    -log(1 - e^{-a}) = sum_m e^{-m a} / m is completely monotone, so nonnegative weights on few nodes suffice:
    nodes 1, 2, 3, ... that turn geometric, weights by nonnegative least squares, the ratio refined until the error
    is small enough. About 30 terms at a_min = 1e-3 and error 1e-8 replace the thousands of the power series.
    ``a_min`` is rounded down to quarter decades, so that a fit builds few of these.
    """
    if not (0 < a_min < math.inf) or not 0 < tolerance < 1:
        raise ValueError(f"a_min = {a_min} and tolerance = {tolerance}: expected positive, tolerance below 1")
    return _build(10.0 ** (math.floor(4 * math.log10(a_min)) / 4), tolerance)


@lru_cache(maxsize=256)
def _build(a_min: float, tolerance: float) -> ExponentialSum:
    # Beyond the grid both sides are below e^-60 and fall further: the error there is nothing.
    last = max(60.0, 2 * a_min)
    coarse, fine = np.geomspace(a_min, last, 1500), np.geomspace(a_min, last, 20001)
    nodes, weights, error = np.ones(1), np.ones(1), math.inf
    for ratio in (0.9, 0.75, 0.65, 0.55, 0.48, 0.42, 0.37, 0.33, 0.3, 0.26, 0.22, 0.18, 0.15):
        candidates = _candidates(ratio, 1.2 * math.log(1 / tolerance) / a_min)
        fitted, _ = nnls(np.exp(-np.outer(coarse, candidates)), -np.log(-np.expm1(-coarse)), maxiter=10000)
        nodes, weights = candidates[fitted > 0], fitted[fitted > 0]
        error = float(np.abs(np.exp(-np.outer(fine, nodes)) @ weights + np.log(-np.expm1(-fine))).max())
        if error <= tolerance:
            break
    # The grid is dense, but it is a grid: allow for what lies between its points.
    return ExponentialSum(torch.tensor(nodes), torch.tensor(weights), 1.1 * error)


def _candidates(ratio: float, last: float) -> np.ndarray:
    """Return 1, 2, 3, ... while the steps are at least one, then nodes that are geometric with the given log ratio, up
    to ``last``."""
    nodes = [1.0]
    while nodes[-1] < last:
        nodes.append(max(nodes[-1] + 1, nodes[-1] * math.exp(ratio)))
    return np.array(nodes)


class _Nodes(NamedTuple):
    """The exponential sum at the current parameters: fall (K, D, L) = 1 - e^{-t_l theta_ij}, leak (D, L), w (L,), and
    the weights w_l t_l (L,) of its derivative."""

    fall: Tensor
    leak: Tensor
    weights: Tensor
    slope: Tensor
    error: float

    @classmethod
    def of(cls, params: Params, tolerance: float) -> _Nodes:
        theta, theta0 = thetas(params)
        # No sum is accurate down to a = 0: a leak below _LEAST_LEAK counts as that much.
        theta0 = theta0.clamp(min=_LEAST_LEAK)
        terms = exponential_sum(float(theta0.min()), tolerance)
        nodes, slope = terms.nodes.to(theta), (terms.weights * terms.nodes).to(theta)
        fall = -torch.expm1(-theta[..., None] * nodes)
        return cls(fall, torch.exp(-theta0[:, None] * nodes), terms.weights.to(theta), slope, terms.error)


class _Block:
    """The sweeps over a block of rows: E[e^{-t_l a_j}] of each of its ones, (E, L), is kept up to date."""

    def __init__(self, params: Params, rows: BinaryRows, mean: Tensor, nodes: _Nodes):
        self.params, self.rows, self.mean, self.nodes = params, rows, mean, nodes
        self.row, self.column = rows.nonzero
        self.product = nodes.leak.index_select(0, self.column)
        for i in range(mean.shape[1]):
            self.product.mul_(self.factor(i)[0])

    def on(self, i: int) -> Tensor:
        """Return lambda_i of the row of every one, (E,)."""
        return self.mean[:, i].index_select(0, self.row)

    def factor(self, i: int) -> tuple[Tensor, Tensor]:
        """Return 1 - lambda_i (1 - e^{-t theta_ij}), and the bracket, (E, L): always rounded alike, so that it divides
        out."""
        fall = self.nodes.fall[i].index_select(0, self.column)
        return torch.addcmul(fall.new_ones(()), fall, self.on(i)[:, None], value=-1), fall

    def sweep(self, temperature: float) -> None:
        """Make one pass of lambda_i = sigmoid(logit pi_i + temperature * [L(s_i = 1) - L(s_i = 0)]), in place."""
        mean, product, logit = self.mean, self.product, torch.logit(interior(self.params["source_prior"]))
        absent = self.rows.zeros @ thetas(self.params)[0].T
        for i in range(mean.shape[1]):
            factor, fall = self.factor(i)
            product.div_(factor)
            gain = torch.mul(product, fall, out=factor) @ self.nodes.weights
            raised = torch.zeros_like(mean[:, 0]).index_add(0, self.row, gain) - absent[:, i]
            mean[:, i] = _clip(torch.sigmoid(logit[i] + temperature * raised))
            product.mul_(torch.addcmul(fall.new_ones(()), fall, self.on(i)[:, None], value=-1, out=factor))

    def bound(self) -> Tensor:
        cost = self.product @ self.nodes.weights + self.nodes.error
        return linear_terms(self.params, self.rows, self.mean).index_add(0, self.row, -cost)

    def statistics(self) -> dict[str, Tensor]:
        """Compute expected transmissions: E[s_i / P(x_j = 1 | s)] = lambda_i (1 + sum_l w_l t_l E[e^{-t_l a} | s_i =
        1])."""
        slope, sent = self.nodes.slope, torch.zeros_like(self.params["loading"])
        for i in range(len(sent)):
            factor, fall = self.factor(i)
            given = torch.div(self.product, factor, out=factor)
            given.addcmul_(given, fall, value=-1)
            sent[i].index_add_(0, self.column, self.on(i) * (1 + given @ slope))
        sent_leak = torch.zeros_like(sent[0]).index_add(0, self.column, 1 + self.product @ slope)
        return transmission_statistics(self.params, self.rows, self.mean, sent, sent_leak)


@dataclass(frozen=True, kw_only=True)
class NocaMeanField(NocaEngine):
    """E step: ``sweeps`` coordinate sweeps over the sources; M step: cause transmission.

    tolerance: largest uniform error of the exponential sum, per observed one.
    """

    sweeps: int = 2
    tolerance: float = 1e-7
    name: ClassVar[str] = "mean_field"

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        nodes = _Nodes.of(params, self.tolerance)
        # Coordinate ascent stays in the mode it starts in: begin at each row's likely codes.
        start = warm["mean"] if warm else QUICK.infer_means(model, params, rows, 4)
        steps = BlockSteps()
        for at, part in rows.parts(_block_rows(rows, nodes)):
            block = _Block(params, part, _clip(start[at].clone()), nodes)
            for _ in range(self.sweeps):
                block.sweep(temperature)
            steps.add(block.statistics(), block.bound(), mean=block.mean)
        return steps.join()

    def bound(self, model: Model, params: Params, rows: BinaryRows, mean: Tensor) -> Tensor:
        """Compute L_n of the module's docstring for any lambda = ``mean`` (N, K), per row (N,)."""
        nodes = _Nodes.of(params, self.tolerance)
        parts = rows.parts(_block_rows(rows, nodes))
        return torch.cat([_Block(params, part, mean[at], nodes).bound() for at, part in parts])

    def posterior(self, model: Model, params: Params, rows: BinaryRows, step: EStep) -> LocalPosterior:
        return BernoulliPosterior(step.locals["mean"])


def _block_rows(rows: BinaryRows, nodes: _Nodes) -> int:
    per_row = max(1, int(rows.ones.sum() / len(rows))) * len(nodes.weights)
    return max(1, _BLOCK_ENTRIES // per_row)


def _clip(mean: Tensor) -> Tensor:
    """Clip means off 0 and 1, so that a coordinate's own factor can be divided out of the products."""
    edge = 1e-10 if mean.dtype == torch.float64 else 1e-6
    return mean.clamp(edge, 1 - edge)
