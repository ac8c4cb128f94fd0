"""Dynamic topics by structured variational Bayes: Gaussian chains for the logits, Dirichlets for the documents.

q = prod_kv Normal(b_kv | mean_kv, J_kv^-1) prod_i Dirichlet(pi_i | g_i) prod (tokens' topics), J tridiagonal, after
Blei & Lafferty (ICML 2006); the variance of b is bounded as there (Murphy 2012, 21.8.1.1): for any zeta > 0

    E[log sum_v exp b_tkv] <= log sum_v exp(mean_tkv + var_tkv / 2)
                           <= log zeta_tk + sum_v exp(mean_tkv + var_tkv / 2) / zeta_tk - 1

E step: LDA's at the scores exp(mean_tkv) / sum_v' exp(mean_tkv' + var_tkv' / 2), which bound E[log softmax(b)] from
below. M step, with n_tkv the expected tokens, N_tk their sums and c_tk = N_tk / zeta_tk: given c each chain is by
itself, and its part of the bound is concave in its mean and covariance:

    sum_t [n_t mean_t - c_t exp(mean_t + var_t / 2)] - KL(Normal(mean, J^-1) || walk)

Newton's step in the mean and the fixed point of J = Lambda + diag(c exp(mean + var / 2)), by one elimination; chain by
chain halved towards where it was until the bound does not fall. Then zeta, the numbers that can be added to all words
of a topic in a slice, and the hyper-parameters (``walks``), each to its maximum. So every iteration raises

    sum_i L_i - KL(q(b) || walk) + log p(m, s, sigma^2)  <=  log p(words | m, s, sigma^2) + log p(m, s, sigma^2)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Warm
from custom_inference.core.optimize.newton import cut_steps
from custom_inference.core.posteriors.walk import Tridiagonal
from custom_inference.families.dynamics.common import WalkEngine, in_slices, side_by_side
from custom_inference.families.dynamics.walks import WalkPrior, WalkState, hyper_steps
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.dirichlet import LdaDirichlet, TopicScores
from ppl_models import DTM


@dataclass(frozen=True, kw_only=True)
class DynamicGaussian(WalkEngine, LdaDirichlet):
    """rounds: of chains, zeta and hyper-parameters an M step."""

    rounds: int = 3

    name: ClassVar[str] = "gaussian"

    def scores(self, model: DTM, params: WalkState, temperature: float = 1.0) -> TopicScores:
        """The bound on E[log softmax(b)], tempered."""
        variance, _ = params.eliminated.variances()
        log_sum = torch.logsumexp(params.mean + variance / 2, -1, keepdim=True)
        return TopicScores.of(temperature * side_by_side(params.mean - log_sum))

    def e_step(
        self, model: DTM, state: WalkState, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self.documents(rows, self.scores(model, state, temperature), self.alpha(model, state.mean), warm)

    def m_step(self, model: DTM, state: WalkState, step: EStep, rows: DocumentRows) -> WalkState:
        counts = in_slices(step.statistics["topic"], model.num_times)
        for _ in range(self.rounds):
            prior = WalkPrior(model, state.hypers)
            state = _move_chains(prior, state, counts)
            state = replace(state, mean=prior.centre_logits(state.mean))
            state = replace(state, **hyper_steps(model, state.hypers, state.mean, state.eliminated))
        return state

    def prior_term(self, model: DTM, state: WalkState) -> Tensor:
        divergence = WalkPrior(model, state.hypers).divergence(state.mean, state.eliminated)
        return self.log_prior_of_hypers(model, state) - divergence.double().sum()


def _move_chains(prior: WalkPrior, state: WalkState, counts: Tensor) -> WalkState:
    """Move every chain to a mean and a precision where its part of the bound is no lower."""
    total = counts.sum(-1, keepdim=True)
    chain = state.eliminated
    variance, _ = chain.variances()
    log_rate = total.log() - torch.logsumexp(state.mean + variance / 2, -1, keepdim=True)

    def gain(mean: Tensor, at: Tridiagonal) -> Tensor:
        expected = (log_rate + mean + at.variances()[0] / 2).exp()
        return (counts * mean - expected).sum(0) - prior.divergence(mean, at)

    weight = (log_rate + state.mean + variance / 2).exp()
    diagonal = prior.diagonal + weight
    full = Tridiagonal.of(diagonal, prior.coupling)
    move = full.solve(counts - weight - prior.pull(state.mean))

    def step(size: Tensor) -> tuple[WalkState, Tensor]:
        parts = (torch.lerp(old, new, size) for old, new in (
            (state.diagonal, diagonal), (state.coupling, prior.coupling)))  # fmt: skip
        new = replace(state, mean=state.mean + size * move, **dict(zip(("diagonal", "coupling"), parts, strict=True)))
        return new, gain(new.mean, new.eliminated)

    return cut_steps(step, gain(state.mean, chain), cuts=12)
