"""The evidence of exponential-family PCA by adaptive Gauss-Hermite quadrature, one or two components: exact EM.

p(x_n) = int p(x_n | s) N(s; prior) ds. The integrand is log-concave in s, with mode c_n and curvature H_n there. With
s = c_n + L_n t, L_n L_n' = H_n^-1, and Gauss-Hermite nodes t_q with weights w_q (sum w_q = 1, for N(0, I)),

p(x_n) ~ (2 pi)^(K/2) |L_n| sum_q w_q e^{t_q't_q / 2} p(x_n, c_n + L_n t_q)

which is exact where p(x_n, s) is that Gaussian times a polynomial of degree below 2 Q. The error grows with the kinks
that large weights make within a wide posterior: with the default numbers of nodes it is below 1e-8 for weights up to
about 3 (any number of features) and for larger ones if many features share the evidence; a row of two features with
weights of 30 is off by 1e-2. More ``nodes`` help. The weights of the nodes, normalised, give posterior moments to the
same accuracy, and the M step is one update at every node: of logistic PCA under Jaakkola's bound, else by Newton's
method.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import LogisticPosterior, ScorePosterior
from custom_inference.core.posteriors.scores import LogisticJoint, ScoreJoint
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.common import FactorEngine, NewtonSteps
from custom_inference.families.factors.logistic_pca import LogisticEngine, half_signs
from custom_inference.families.factors.moving import Points, equations
from custom_inference.families.factors.natural import outer_products
from custom_inference.families.factors.rows import FactorRows
from custom_inference.families.rows.base import BlockSteps
from custom_inference.families.rows.matrix import BinaryRows, MatrixRows
from ppl_models import CapacityError, Model
from ppl_models.core.likelihood import hermite, jaakkola_curvature

_Rows = TypeVar("_Rows", bound=MatrixRows)
#: The largest number of components whose product rule is offered.
MOST_COMPONENTS = 2
#: Entries of the (rows, nodes, features) array per block.
_BLOCK_ENTRIES = 2**21
#: Steps of Newton's method to the mode.
_MODE_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class Quadrature(FactorEngine[_Rows], ExactEngine[_Rows, Params]):
    """Nodes and weights of every row; E steps are the subclasses'.

    nodes: Gauss-Hermite nodes for each component (the rule has nodes^K); 160 for one component, 32 each for two.
    """

    nodes: int | None = None

    def feasible(self, model: Model) -> bool:
        return model.local_shape[0] <= MOST_COMPONENTS

    def check(self, model: Model, rows: _Rows) -> None:
        """Raises MethodError for priors other than Normal, CapacityError for more than two components."""
        super().check(model, rows)
        self.require_few(model.shapes["weight"][0], rows)

    def require_few(self, num_components: int, rows: _Rows) -> None:
        if num_components > MOST_COMPONENTS:
            nodes, each = self._each(num_components), float(rows.like.element_size() * rows.like.shape[1])
            needed, allowed = (each * float(nodes) ** number for number in (num_components, MOST_COMPONENTS))
            what = f"quadrature over {num_components} scores takes {nodes}^{num_components} nodes a row"
            fits = f'it is offered for up to {MOST_COMPONENTS}; use the bound "{self.instead}" instead'
            raise CapacityError(f"{what}; {fits}", needed_bytes=needed, allowed_bytes=allowed)

    #: The bound for more components.
    instead: ClassVar[str] = "variational"

    def _each(self, num_components: int) -> int:
        """Return the number of nodes for each component."""
        return self.nodes or (160 if num_components == 1 else 32)

    def _parts(self, params: Params, rows: _Rows) -> list[_Rows]:
        num_components, num_columns = params["weight"].flatten(1).shape
        self.require_few(num_components, rows)
        size = max(1, _BLOCK_ENTRIES // (self._each(num_components) ** num_components * num_columns))
        return [part for _, part in rows.parts(size)]

    @abc.abstractmethod
    def _joint(self, model: Model, params: Params, rows: _Rows, temperature: float = 1.0) -> tuple[Any, Tensor, Tensor]:
        """Return log p(x_n, s) as a function of scores (N, Q, K), its mode roughly (N, K), and the Cholesky factor of
        minus its Hessian there."""

    def _nodes(self, model: Model, params: Params, rows: _Rows, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return scores (N, Q, K) and log-weights (N, Q), whose logsumexp is log p(x_n).

        The rule is exact up to its own error wherever it is centred: a rough mode is enough.
        """
        size = len(params["weight"])
        joint, mode, factor = self._joint(model, params, rows, temperature)
        grid, constant = (value.to(mode) for value in _hermite(self._each(size), size))
        # precision = F F', so L = F'^-1 and |L| = 1 / |F|.
        step = torch.linalg.solve_triangular(factor.mT, grid.T.expand(len(mode), -1, -1), upper=True)
        score = mode[:, None] + step.mT
        log_volume = -factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return score, joint(score) + constant + log_volume[:, None]

    def _moments(self, model: Model, params: Params, rows: _Rows) -> dict[str, Tensor]:
        """Compute posterior means and covariances, and log p(x_n)."""
        means, covariances, evidences = [], [], []
        for part in self._parts(params, rows):
            score, log_weight = self._nodes(model, params, part)
            weight = log_weight.softmax(-1)
            mean = torch.einsum("nq,nqk->nk", weight, score)
            apart = score - mean[:, None]
            means.append(mean)
            covariances.append(torch.einsum("nq,nqk,nql->nkl", weight, apart, apart))
            evidences.append(log_weight.logsumexp(-1))
        return {
            "location": torch.cat(means),
            "covariance": torch.cat(covariances),
            "log_evidence": torch.cat(evidences),
        }

    def log_evidence(self, model: Model, params: Params, rows: _Rows) -> Tensor:
        parts = self._parts(params, rows)
        return torch.cat([self._nodes(model, params, part)[1].logsumexp(-1) for part in parts])


@dataclass(frozen=True, kw_only=True)
class LogisticQuadrature(LogisticEngine, Quadrature):
    """The E step by quadrature, of logistic PCA."""

    instead: ClassVar[str] = "gaussian"

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        steps, size = BlockSteps(), len(params["weight"])
        for part in self._parts(params, rows):
            score, log_weight = self._nodes(model, params, part, temperature)
            weight, flat = log_weight.softmax(-1), score.reshape(-1, size)
            xi = (params["bias"] + flat @ params["weight"]).abs()
            extended = torch.cat([flat, torch.ones_like(flat[:, :1])], 1)
            rate = (jaakkola_curvature(xi) * weight.reshape(-1, 1)).reshape(*weight.shape, -1)
            if part.mask is not None:
                rate = rate * part.mask[:, None]
            mean = torch.einsum("nq,nqk->nk", weight, extended.reshape(*weight.shape, -1))
            counts = {
                "pair": temperature * (rate.reshape(len(flat), -1).T @ outer_products(extended)),
                "target": temperature * (half_signs(part).T @ mean),
            }
            steps.add(counts, log_weight.logsumexp(-1))
        return steps.join()

    def _joint(
        self, model: Model, params: Params, rows: BinaryRows, temperature: float = 1.0
    ) -> tuple[LogisticJoint, Tensor, Tensor]:
        weight, bias = params["weight"], params["bias"]
        prior = Normal.of(model, "score", model.local_shape, weight)
        joint = LogisticJoint(half_signs(rows), weight, bias, prior.mean, prior.precision, rows.observed, temperature)
        return joint, *joint.mode()

    def posterior(self, model: Model, params: Params, rows: BinaryRows, step: EStep | None = None) -> LogisticPosterior:
        """Return the posterior with its moments and its integral by quadrature."""
        prior = Normal.of(model, "score", model.local_shape, params["weight"])
        return LogisticPosterior(
            **self._moments(model, params, rows), half=half_signs(rows), weight=params["weight"], bias=params["bias"],
            prior_mean=prior.mean, prior_precision=prior.precision,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FactorQuadrature(NewtonSteps, Quadrature):
    """The E step by quadrature, of any likelihood."""

    def e_step(
        self, model: Model, params: Params, rows: FactorRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        steps = BlockSteps()
        for part in self._parts(params, rows):
            score, log_weight = self._nodes(model, params, part, temperature)
            # Every node is a row of its own, of so much weight; most have next to none.
            weight = log_weight.softmax(-1)
            mean = torch.einsum("nq,nqk->nk", weight, score)
            index, node = (weight > 1e-3 * torch.finfo(weight.dtype).eps).nonzero(as_tuple=True)
            weight = weight[index, node]
            problem = part.problem(model, params, temperature)
            offset = None if problem.offset is None else problem.offset[index]
            prior = problem.prior
            if prior.mean.ndim == 2:
                prior = Normal(prior.mean[index], prior.precision)
            problem = problem._replace(
                target=problem.target[index] * weight.view(-1, 1, 1), total=problem.total[index] * weight[:, None],
                base=problem.base[index], offset=offset, prior=prior,
            )  # fmt: skip
            moving = Points(problem)
            at = moving.at(score[index, node], moving.prior, None)
            steps.add(equations(problem, at, None, moving.curvature(at)), log_weight.logsumexp(-1), score=mean)
        return steps.join()

    def _joint(
        self, model: Model, params: Params, rows: FactorRows, temperature: float = 1.0
    ) -> tuple[ScoreJoint, Tensor, Tensor]:
        problem = rows.problem(model, params, temperature)
        moving = Points(problem)
        at = moving.run_newton(moving.start(len(rows)), _MODE_STEPS, 1e-8)
        offset = torch.zeros_like(problem.base) if problem.offset is None else problem.offset
        kind = rows.normaliser().kind
        joint = ScoreJoint(
            problem.target, problem.total, problem.base, offset, problem.weight, problem.bias,
            problem.prior.mean.expand(len(rows), -1), problem.prior.precision, torch.tensor(kind, device=offset.device),
        )  # fmt: skip
        return joint, at.score, torch.linalg.cholesky(moving.precision_at(at))

    def posterior(self, model: Model, params: Params, rows: FactorRows, step: EStep | None = None) -> ScorePosterior:
        """Return the posterior with its moments and its integral by quadrature."""
        joint, peak, _ = self._joint(model, params, rows)
        return ScorePosterior(**self._moments(model, params, rows), peak=peak, **joint._asdict())


@lru_cache(maxsize=8)
def _hermite(nodes: int, size: int) -> tuple[Tensor, Tensor]:
    """Return nodes t (Q, K) of the product rule, and log w + t't / 2 + K log(2 pi) / 2, (Q,)."""
    node, weight = hermite(nodes)
    log_weight = torch.log(weight) + node.square() / 2 + math.log(2 * math.pi) / 2
    grid, total = (torch.cartesian_prod(*[part] * size).reshape(-1, size) for part in (node, log_weight))
    return grid, total.sum(-1)
