"""NOCA's factorized variational bound: the paper's algorithm (Singliar & Hauskrecht 2006, sections 2.2 and 3, Fig. 2,
with its errata).

Every observed x_nj = 1 carries a distribution q_nj over the sources. Jensen's inequality on the concave
phi(a) = log(1 - e^{-a}) gives log P(x_j = 1 | s) >= phi(theta_0) + sum_i s_i g_i(q_i) with
g_i(q) = q [phi(theta_0 + theta_i / q) - phi(theta_0)]                                                    (eq. 6)
so that, with lambda_ni = Q(s_ni = 1), the bound on log p(x_n) is

F_n = sum_i [lambda_i logit pi_i + log(1 - pi_i)] - sum_j zeros_nj (theta_0j + sum_i lambda_i theta_ij)
      + sum_{j: x_nj = 1} [phi(theta_0j) + sum_i lambda_i g_i(q_nj(i))] + H(Q)                            (eq. 7)

q is stored only for the observed ones, as an (E, K) matrix in row order. At q -> 0, theta/q -> infinity and
g -> -0 * phi(theta_0) = 0; q is kept above the smallest normal number, where this limit is reached exactly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.optimize.newton import decreasing_root
from custom_inference.core.posteriors import BernoulliPosterior, LocalPosterior
from custom_inference.families.conjugate.beta import FLOOR, Beta, interior
from custom_inference.families.noca.common import NocaEngine, linear_terms, prior_mode, thetas
from custom_inference.families.noca.truncated import QUICK
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Model
from ppl_models.distributions import log1mexp

#: Constants of a block of rows, and sums over them: see ``_roots``.
Parts = tuple[Tensor, ...]
Sums = Callable[..., Any]


def _safe(q: Tensor) -> Tensor:
    return q.clamp(min=torch.finfo(q.dtype).tiny ** 0.5)


class FeatureLinks(NamedTuple):
    """theta (E, K), theta_0 (E, 1) and phi(theta_0) (E, 1) of the feature of every observed one."""

    theta: Tensor
    theta0: Tensor
    phi0: Tensor

    @classmethod
    def of(cls, params: Params, rows: BinaryRows) -> FeatureLinks:
        # A leak of 0 is a limit in which g is infinite: taken at a tiny leak, g is too small, and F still a bound.
        theta, theta0 = (_safe(value) if value.ndim == 1 else value for value in thetas(params))
        column = rows.nonzero[1]
        return cls(theta.T[column], theta0[column, None], log1mexp(theta0)[column, None])

    def gain(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Compute g(q) >= 0 and q dg/dq >= 0, dg/dq = phi(theta_0 + u) - phi(theta_0) - u phi'(theta_0 + u), u = theta
        / q.

        The derivative is the bracket of Fig. 2; both come from one exponential.
        """
        u = self.theta / _safe(q)
        on = -torch.expm1(-(self.theta0 + u))
        rise = torch.log(on) - self.phi0
        return q * rise, q * (rise - u * (1 - on) / on).clamp(min=0)


def sharpen(mean: Tensor, q: Tensor, slope: Tensor) -> Tensor:
    """Update q once (the paper, Fig. 2): q_i <- lambda_i q_i dg_i/dq_i, normalised, given ``slope`` = q dg/dq.

    It never lowers G(q) = sum_i lambda_i g_i(q_i). With u_i = theta_i / q_i, g_i is convex as a function of 1 / q_i
    (phi' is convex), and so with w_i = lambda_i q_i dg_i/dq_i

        G(q') - G(q) >= sum_i w_i (1 - q_i / q'_i),      which is 0 at q' = w / sum w.
    """
    weight = mean * slope
    total = weight.sum(-1, keepdim=True)
    # Nothing to distribute (no source is on, or none reaches this feature): leave q alone.
    new = weight / total.clamp(min=torch.finfo(q.dtype).tiny)
    return new if bool((total > 0).all()) else torch.where(total > 0, new, q)


@dataclass(frozen=True, kw_only=True)
class NocaFactorized(NocaEngine):
    """E step: alternate Q (eq. 5) and q (Fig. 2) ``inner_steps`` times. M step: the roots of Fig. 2.

    start: where q of a row begins: "codes" (its likely codes, by a truncated posterior) or "prior" (the paper's: the
        same for every row).
    """

    additive = False
    reads_rows = True

    inner_steps: int = 5
    start: str = "codes"
    name: ClassVar[str] = "factorized"

    def first_q(self, model: Model, params: Params, rows: BinaryRows) -> Tensor:
        """Start q in proportion to lambda_i theta_ij / (theta_ij + theta_0j), (E, K), lambda as ``start`` says.

        F has many local optima in q: from lambda = pi the sources of a row share its ones and none is convincing.
        """
        theta, theta0 = thetas(params)
        row, column = rows.nonzero
        share = (theta / _safe(theta + theta0)).T[column]
        mean = params["source_prior"] if self.start == "prior" else QUICK.infer_means(model, params, rows, 4)[row]
        weight = mean * share + FLOOR
        return weight / weight.sum(-1, keepdim=True)

    def source_mean(self, params: Params, rows: BinaryRows, gain: Tensor, temperature: float = 1.0) -> Tensor:
        """Compute lambda (N, K): Q(s) in proportion to P(s) prod_j h(x_j | s) (eq. 5), the best Q at this q."""
        theta, _ = thetas(params)
        gained = gain.new_zeros(len(rows), gain.shape[1]).index_add(0, rows.nonzero[0], gain)
        odds = torch.logit(interior(params["source_prior"]))
        return torch.sigmoid(odds + temperature * (gained - rows.zeros @ theta.T))

    def bound(self, params: Params, rows: BinaryRows, gain: Tensor, mean: Tensor) -> Tensor:
        """Compute F_n of eq. 7, (N,), from g_i(q) of every observed one."""
        row, column = rows.nonzero
        per_one = log1mexp(thetas(params)[1])[column] + (mean[row] * gain).sum(-1)
        return linear_terms(params, rows, mean).index_add(0, row, per_one)

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        outcomes, first = [], 0
        for _, part in rows.parts():  # rows are independent given the globals, and a block's arrays stay in cache
            row, links = part.nonzero[0], FeatureLinks.of(params, part)
            q = self.first_q(model, params, part) if not warm else warm["q"][first : first + len(row)]
            gain, slope = links.gain(q)
            mean = self.source_mean(params, part, gain, temperature)
            for _ in range(self.inner_steps):
                q = sharpen(mean.index_select(0, row), q, slope)
                gain, slope = links.gain(q)
                mean = self.source_mean(params, part, gain, temperature)
            outcomes.append((q, mean, self.bound(params, part, gain, mean)))
            first += len(row)
        q, mean, bound = (torch.cat(parts) for parts in zip(*outcomes, strict=True))
        statistics = {"source": mean.sum(0), "rows": mean.new_tensor(len(rows))}
        return EStep(statistics, {"q": q, "mean": mean}, bound)

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows | AllRows) -> Params:
        """Find the roots of dF/dtheta_ij for all i, j at once, then those of dF/dtheta_0j (F is concave in each).

        Of rows that are read block by block every step of Newton's method reads them, and their q and lambda, once.
        """
        every = AllRows.of(rows)
        source, count = step.statistics["source"], round(float(step.statistics["rows"]))
        new = {**params, "source_prior": prior_mode(model, params, source, count)}
        new["loading"] = -torch.expm1(-self._loading_roots(model, new, every, step.locals))
        new["leak"] = -torch.expm1(-self._leak_roots(model, new, every, step.locals))
        return new

    def _loading_roots(self, model: Model, params: Params, rows: AllRows, warm: Params) -> Tensor:
        """Solve sum_n lambda_ni [-m_nj + x_nj / (1 - A)] + (a - 1) / (e^theta - 1) - (b - 1) = 0."""
        theta, theta0 = thetas(params)
        a, b = Beta.with_mode(model, "loading", theta)

        def ready(part: BinaryRows, q: Tensor, mean: Tensor) -> Parts:
            row, column = part.nonzero
            return column, mean[row], _safe(q).reciprocal(), theta0[column, None], part.sum_observed(mean)

        def terms(t: Tensor, column: Tensor, weight: Tensor, scale: Tensor, base: Tensor, seen: Tensor) -> Parts:
            absent = t.T.contiguous().index_select(0, column).mul_(scale).add_(base).neg_().exp_()
            on = 1 - absent
            ratio = weight / on
            first = _by_feature(ratio, column, t)
            return first, _by_feature(ratio.mul_(absent).mul_(scale).div_(on), column, t), seen

        def derivative(t: Tensor, first: Tensor, second: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
            pull = (a - 1) / torch.expm1(t)
            return _balance(first + pull, -second - pull * (1 + 1 / torch.expm1(t)), present + b - 1)

        return _roots(theta, ready, terms, derivative, rows, warm)

    def _leak_roots(self, model: Model, params: Params, rows: AllRows, warm: Params) -> Tensor:
        """Solve sum_{n: x=1} sum_i q_i [lambda_i / (e^{theta_0 + u_i} - 1) + (1 - lambda_i) / (e^theta_0 - 1)] =
        #zeros."""
        theta, theta0 = thetas(params)
        a, b = Beta.with_mode(model, "leak", theta0)
        zero = torch.zeros_like(theta0)

        def ready(part: BinaryRows, q: Tensor, mean: Tensor) -> Parts:
            row, column = part.nonzero
            off = zero.index_add(0, column, ((1 - mean[row]) * q).sum(-1))
            return column, mean[row] * q, theta.T[column] / _safe(q), part.zeros.sum(0), off

        def terms(t: Tensor, column: Tensor, on: Tensor, shift: Tensor, zeros: Tensor, off: Tensor) -> Parts:
            reached = (t[column, None] + shift).expm1_().reciprocal_()
            sent = on * reached
            first = zero.index_add(0, column, sent.sum(-1))
            return first, zero.index_add(0, column, sent.mul_(reached).sum(-1)), zeros, off

        def derivative(t: Tensor, first: Tensor, more: Tensor, zeros: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
            rest, weight = 1 / torch.expm1(t), off + (a - 1)
            return _balance(first + weight * rest, -first - more - weight * rest * (1 + rest), zeros + b - 1)

        return _roots(theta0, ready, terms, derivative, rows, warm)

    def posterior(self, model: Model, params: Params, rows: BinaryRows, step: EStep) -> LocalPosterior:
        return BernoulliPosterior(step.locals["mean"])


def _roots(start: Tensor, ready: Sums, terms: Sums, derivative: Sums, rows: AllRows, warm: Params) -> Tensor:
    """Find the t where the derivative of F is 0.

    ready: what the sums over a block need of its rows, q (E, K) and lambda (N, K); made once where rows are in memory.
    terms: those sums, at t. derivative: that of F and its slope, from the sums over all rows of all processes.
    """
    pieces = rows.pieces(warm)
    held = [ready(part, kept["q"], kept["mean"]) for part, kept in pieces] if isinstance(pieces, list) else None

    def at(t: Tensor) -> tuple[Tensor, Tensor]:
        constants = held or (ready(part, kept["q"], kept["mean"]) for part, kept in rows.pieces(warm))
        found = zip(*(terms(t, *each) for each in constants), strict=True)
        return derivative(t, *rows.total(*(functools.reduce(torch.add, each) for each in found)))

    return decreasing_root(at, torch.full_like(start, FLOOR), torch.full_like(start, -math.log(FLOOR)), start)


def _by_feature(values: Tensor, column: Tensor, like: Tensor) -> Tensor:
    """Sum (E, K) values of the observed ones by feature -> (K, D)."""
    return torch.zeros_like(like.T).index_add(0, column, values).T


def _balance(gain: Tensor, slope: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 - cost / gain(t) and its derivative: the root of gain(t) = cost for a decreasing gain >= 0, cost >= 0.

    The gains are sums of 1 / (1 - e^{-u}) or 1 / (e^u - 1), so their reciprocals are nearly linear in t: Newton's
    method on this form takes a few steps where it takes tens on gain - cost.
    """
    gain = gain.clamp(min=torch.finfo(gain.dtype).tiny)
    return (gain - cost) / gain, cost * slope / gain**2
