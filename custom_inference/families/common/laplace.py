"""Memberships under any prior with a density: a Gaussian about the mode of every row, corrected by its own nodes.

Rows whose tokens are drawn from a mix of K topics: with n_nv tokens of word v, p(x_n | pi_n) = prod_v (pi_n' b_v)^n_nv,
as in LDA and models whose rows can be written so. In stick-breaking coordinates u (``posteriors.logistic_normal``),

    h_n(u) = sum_v n_nv log(pi(u)' b_v) + log p(pi(u)) + log |d pi / d u|

Laplace. m_n = argmax h_n by Newton's method, L_n L_n' = (-d2 h_n / du2)^-1 there. With phi_vk = pi_k b_kv / pi'b_v,
c = sum_v n_v phi_v, Phi = sum_v n_v phi_v phi_v', t_j = sum_{k>=j} c_k and J = d log pi / du,

    gradient J'c = c_j - s_j t_j,    - curvature J'[diag(c) - Phi] J - diag(t s (1 - s)),

those of the prior by automatic differentiation. Where minus the Hessian is not positive definite the step takes the
curvature at given phi alone (a minoriser's), and the prior's made definite; every step is halved where it descends.

Correction. With nodes z_q of N(0, I), weights w_q (sum 1; ``standard_nodes``), and u_nq = m_n + L_n z_q,

    r_nq = w_q exp h_n(u_nq) / N(u_nq; m_n, L_n L_n'),    log p(x_n) ~ log sum_q r_nq

which is Laplace's estimate with one node, at 0, and adaptive quadrature or importance sampling with more: exact where
the posterior is Gaussian in u, else an estimate that may lie on either side. Normalised, the weights r give the
expected counts that the M step takes, and the mean and the covariance of the Gaussian that is reported. At given nodes
the M step raises the objective; the nodes then follow the modes, so that an iteration may lower it by their error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Objective, Params, Warm
from custom_inference.core.optimize.newton import cut_steps
from custom_inference.core.posteriors import LogisticNormalPosterior
from custom_inference.core.posteriors.logistic_normal import Sticks
from custom_inference.core.posteriors.nodes import Nodes, standard_nodes
from custom_inference.core.settings import require_whole
from custom_inference.families.common.stick_prior import StickPrior
from custom_inference.families.rows.documents import DocumentBlock, DocumentRows
from ppl_models import Model, PriorError


class _PointMoments(NamedTuple):
    """Moments of rows at one point each: sum_v n_v log pi'b_v (N,), c (N, K) and Phi (N, K, K)."""

    log_likelihood: Tensor
    counts: Tensor
    pairs: Tensor


class TokenMoments:
    """The rows at given topics (K, V), columns of positive numbers; counts to the power of a temperature."""

    def __init__(self, rows: DocumentRows, topics: Tensor, temperature: float):
        self.rows, self.temperature = rows, temperature
        self.word = topics.T.contiguous().clamp_min(torch.finfo(topics.dtype).tiny)

    def log_likelihood(self, share: Tensor) -> Tensor:
        """Compute the log-likelihoods (N,) at shares (N, K)."""
        found = share.new_empty(len(share))
        for block in self.rows.blocks:
            mixture = (block.of_words(self.word) @ share[block.documents].unsqueeze(-1)).squeeze(-1)
            found[block.documents] = torch.xlogy(block.count, mixture).sum(-1)
        return self.temperature * found

    def moments(self, share: Tensor) -> _PointMoments:
        size = share.shape[-1]
        value, counts, pairs = share.new_empty(len(share)), torch.empty_like(share), share.new_empty(*share.shape, size)
        for block in self.rows.blocks:
            at = block.documents
            joint = block.of_words(self.word) * share[at].unsqueeze(1)
            mixture = joint.sum(-1)
            value[at] = torch.xlogy(block.count, mixture).sum(-1)
            phi = joint / mixture.unsqueeze(-1)
            weighted = phi * block.count.unsqueeze(-1)
            counts[at], pairs[at] = weighted.sum(1), phi.mT @ weighted
        return _PointMoments(self.temperature * value, self.temperature * counts, self.temperature * pairs)

    def at_nodes(self, block: DocumentBlock, share: Tensor) -> tuple[Tensor, Tensor]:
        """Compute, at shares (B, Q, K) of a block, the mixtures of its words (B, M, Q) and the log-likelihoods (B,
        Q)."""
        mixture = block.of_words(self.word) @ share.mT
        return mixture, self.temperature * torch.xlogy(block.count.unsqueeze(-1), mixture).sum(1)


class _MembershipPeak(NamedTuple):
    """The modes u (N, D), h(u) (N,), and L (N, D, D), where L L' is the inverse of minus the Hessian there."""

    u: Tensor
    value: Tensor
    root: Tensor


def _peaks(rows: TokenMoments, prior: StickPrior, start: Tensor, steps: int, tolerance: float) -> _MembershipPeak:
    """Find the modes by safeguarded Newton steps."""

    def height(u: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        sticks = Sticks.of(u)
        value = rows.log_likelihood(sticks.log_share.exp()) + prior.log_prob(u, sticks)
        return (u, value), value

    (u, value), _ = height(start)
    slack = 8 * torch.finfo(start.dtype).eps
    for _ in range(steps):
        slope, factor = _quadratic(rows, prior, u)
        move = torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
        gain = (slope * move).sum(-1)
        if not bool((gain > tolerance + slack * value.abs()).any()):
            break
        u, value = cut_steps(
            lambda size, u=u, move=move: height(u + size.unsqueeze(-1) * move), value - slack * value.abs(), divisor=4
        )
    _, factor = _quadratic(rows, prior, u)
    eye = torch.eye(u.shape[1]).to(u)
    return _MembershipPeak(u, value, torch.linalg.solve_triangular(factor.mT, eye, upper=True))


def _quadratic(rows: TokenMoments, prior: StickPrior, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient (N, D), and the Cholesky factor of minus the Hessian, or of what stands in for it."""
    sticks, (slope_of_prior, bend_of_prior) = Sticks.of(u), prior.derivatives(u)
    found, size, s = rows.moments(sticks.log_share.exp()), u.shape[-1], sticks.broken
    tail = found.counts.flip(-1).cumsum(-1).flip(-1)[..., :size]
    slope = found.counts[..., :size] - s * tail + slope_of_prior
    # J = d log pi / du: 1 - s_j where k = j, -s_j where k > j.
    own = torch.eye(size + 1).to(u)[:, :size]
    jacobian = own - torch.tril(torch.ones(size + 1, size)).to(u) * s.unsqueeze(-2)
    given = torch.diag_embed(tail * s * (1 - s))
    spread = torch.diag_embed(found.counts) - found.pairs
    factor, failed = torch.linalg.cholesky_ex(given + bend_of_prior - jacobian.mT @ spread @ jacobian)
    wrong = (failed != 0) | ~torch.isfinite(factor).all(-1).all(-1)
    if bool(wrong.any()):
        # By Gershgorin's circles the sum is positive definite.
        ridge = bend_of_prior[wrong].abs().sum(-1) + 1e-6
        factor[wrong] = torch.linalg.cholesky(given[wrong] + bend_of_prior[wrong] + torch.diag_embed(ridge))
    return slope, factor


class _Corrected(NamedTuple):
    """location, covariance of the Gaussian (B, D), (B, D, D); log_evidence (B,); share (B, Q, K) and weight (B, Q):
    the nodes and what they weigh."""

    location: Tensor
    covariance: Tensor
    log_evidence: Tensor
    share: Tensor
    weight: Tensor


def _correct(height: Callable[[Tensor, Sticks], Tensor], peak: _MembershipPeak, nodes: Nodes) -> _Corrected:
    """Correct the Gaussian by importance weights at the nodes. height: (u, sticks) -> h, at (B, Q, D)."""
    place, size = nodes.place, peak.u.shape[-1]
    u = peak.u.unsqueeze(1) + place @ peak.root.mT
    sticks = Sticks.of(u)
    log_det = peak.root.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
    log_normal = -0.5 * place.square().sum(-1) - 0.5 * size * math.log(2 * math.pi) - log_det
    joint = nodes.log_weight + height(u, sticks) - log_normal
    log_evidence = joint.logsumexp(-1)
    weight = torch.softmax(joint, -1)
    centre, spread = _standard_moments(weight, nodes)
    location = peak.u + (peak.root @ centre.unsqueeze(-1)).squeeze(-1)
    covariance = peak.root @ spread @ peak.root.mT
    return _Corrected(location, (covariance + covariance.mT) / 2, log_evidence, sticks.log_share.exp(), weight)


def _standard_moments(weight: Tensor, nodes: Nodes) -> tuple[Tensor, Tensor]:
    """Compute mean (B, D) and covariance (B, D, D) of weighted nodes; of draws the covariance is drawn to I by their
    noise."""
    place, size = nodes.place, nodes.place.shape[-1]
    eye = torch.eye(size).to(weight)
    if len(place) == 1:
        return weight.new_zeros(len(weight), size), eye.expand(len(weight), -1, -1)
    centre = weight @ place
    second = (weight @ (place.unsqueeze(-1) * place.unsqueeze(-2)).flatten(1)).view(-1, size, size)
    spread = second - centre.unsqueeze(-1) * centre.unsqueeze(-2)
    if nodes.drawn:
        # The effective number of draws beyond those that the covariance takes.
        effective = 1 / weight.square().sum(-1)
        trust = (effective / (effective + size + 1)).view(-1, 1, 1)
        spread = trust * spread + (1 - trust) * eye
    return centre, spread


@dataclass(frozen=True, kw_only=True)
class LaplaceMemberships(Engine):
    """E steps of engines for memberships under any prior that has a density with two derivatives.

    draws: nodes a row; None: Gauss and Hermite's rule for up to four components, 8 draws a component beyond that, 64
        at least; 1: Laplace's approximation as it is.
    steps: Newton steps at most. tolerance: they end where none promises more than this.
    """

    draws: int | None = None
    steps: int = 60
    tolerance: float = 1e-9

    name: ClassVar[str] = "laplace"
    objective: ClassVar[Objective] = "estimate"

    def __post_init__(self) -> None:
        if self.draws is not None:
            require_whole("draws", self.draws, 1, why=", or None")

    @property
    def saved_settings(self) -> dict[str, Any]:
        return {} if self.draws is None else {"draws": self.draws}

    def alpha(self, model: Model, like: Tensor) -> Tensor:
        """Return (K,) ones: starts are sampled as under a flat Dirichlet prior, whatever the prior is."""
        return like.new_ones(model.local_shape)

    def local_prior(self, model: Model, like: Tensor) -> StickPrior:
        return StickPrior(model.prior(model.local_site, like=like))

    def check_local_prior(self, model: Model, like: Tensor) -> None:
        """Raises PriorError where the prior has no density, or none with two derivatives."""
        middle = like.new_zeros(1, model.local_shape[0] - 1)
        try:
            found = self.local_prior(model, like).derivatives(middle)
        except (NotImplementedError, RuntimeError) as error:
            why = f" ({str(error).splitlines()[0]})" if str(error) else ""
            found, reason = (), f"has no density with two derivatives{why}"
        else:
            reason = "has derivatives that are not finite at equal shares"
        if not found or not all(bool(torch.isfinite(one).all()) for one in found):
            kind = type(model.priors[model.local_site]).__name__
            raise PriorError(f"the prior {kind} of '{model.local_site}' {reason}; use SVI or NUTS for it")

    def infer_memberships(
        self, model: Model, documents: DocumentRows, topics: Tensor, warm: Warm, temperature: float
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return expected tokens of every word in every topic (K, V), the locals, and log p(x_n) (N,), at topics (K,
        V)."""
        rows, prior = TokenMoments(documents, topics, temperature), self.local_prior(model, topics)
        start = warm["mode"] if warm else topics.new_zeros(len(documents), len(topics) - 1)
        peak = _peaks(rows, prior, start.to(topics), self.steps, self.tolerance)
        nodes = standard_nodes(len(topics) - 1, self.draws).to(topics)
        location, covariance = torch.empty_like(peak.u), torch.empty_like(peak.root)
        bound, words = torch.empty_like(peak.value), torch.zeros_like(rows.word)
        for block in documents.blocks:
            at = block.documents
            mixtures: list[Tensor] = []

            def height(
                u: Tensor, sticks: Sticks, block: DocumentBlock = block, kept: list[Tensor] = mixtures
            ) -> Tensor:
                mixture, log_likelihood = rows.at_nodes(block, sticks.log_share.exp())
                kept.append(mixture)
                return log_likelihood + prior.log_prob(u, sticks)

            found = _correct(height, _MembershipPeak(*(part[at] for part in peak)), nodes)
            location[at], covariance[at], bound[at] = found.location, found.covariance, found.log_evidence
            ratio = temperature * block.count.unsqueeze(-1) * found.weight.unsqueeze(1) / mixtures[0]
            words.index_add_(0, block.word.flatten(), (ratio @ found.share).flatten(0, 1))
        locals_ = {"mode": peak.u, "location": location, "covariance": covariance}
        return (rows.word * words).T.contiguous(), locals_, bound

    def posterior(self, model: Model, state: Params, rows: Any, step: EStep) -> LogisticNormalPosterior:
        return LogisticNormalPosterior(step.locals["location"], step.locals["covariance"])
