"""The aspect Bernoulli model under Dirichlet posteriors of the memberships (variational Bayes).

q(s_n) = Dirichlet(gamma_n), and independently of it every draw's aspect has q(z = k) proportional to e_nk b_k with
e_nk = exp(E log s_nk) = exp(psi(gamma_nk) - psi(sum_j gamma_nj)), b = a for a draw that came out 1 and 1 - a for a 0
(as in Blei, Ng & Jordan, *Latent Dirichlet allocation*, JMLR 2003, for the model of 001, eqs. 1-3). The bound is

    L_n = sum_t [ones_nt log(e_n' a_t) + zeros_nt log(e_n' (1 - a_t))] - KL(Dirichlet(gamma_n) || Dirichlet(alpha))

plus the binomial coefficient, and gamma_n = alpha + e_n * [(ones / e a) a' + (zeros / e (1 - a)) (1 - a)'], elementwise
where not a matrix product: no array of rows by features by aspects is formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.aspects.marginal import AspectMarginal
from custom_inference.families.common.counts import CountRows
from custom_inference.families.common.dirichlet import dirichlet_divergence
from ppl_models import Model

#: Sweeps of the first E step, which starts from equal shares.
_COLD_SWEEPS = 25


@dataclass(frozen=True, kw_only=True)
class AspectDirichlet(AspectMarginal):
    """sweeps: updates of gamma per E step."""

    sweeps: int = 5

    name = "dirichlet"

    def e_step(
        self, model: Model, params: Params, rows: CountRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        a = params["aspect_probability"]
        alpha, present, absent = self.alpha(model, a), a.pow(temperature), (1 - a).pow(temperature)
        on, off, found, bounds = torch.zeros_like(a), torch.zeros_like(a), [], []
        for at, part in rows.blocks:
            gamma = warm["concentration"][at] if warm else alpha + (part.draws / len(alpha))[:, None]
            for _ in range(self.sweeps if warm else max(self.sweeps, _COLD_SWEEPS)):
                share = _log_share(gamma).exp()
                rise, fall = part.ones / (share @ present), part.zeros / (share @ absent)
                gamma = alpha + share * (rise @ present.T + fall @ absent.T)
            share = _log_share(gamma).exp()
            one, zero = share @ present, share @ absent
            on += present * (share.T @ (part.ones / one))
            off += absent * (share.T @ (part.zeros / zero))
            if temperature != 1.0:
                one, zero = share @ a, share @ (1 - a)
            entries = torch.xlogy(part.ones, one) + torch.xlogy(part.zeros, zero)
            bounds.append(entries.sum(-1) - dirichlet_divergence(gamma, alpha))
            found.append(gamma)
        bound = torch.cat(bounds) + rows.log_coefficient
        return EStep({"on": on, "off": off}, {"concentration": torch.cat(found)}, bound)

    def posterior(self, model: Model, params: Params, rows: CountRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])


def _log_share(gamma: Tensor) -> Tensor:
    """E[log s] under Dirichlet(gamma), bounded: the exponential of concentrations near 0 would be e^(-1 / gamma)."""
    value = torch.digamma(gamma) - torch.digamma(gamma.sum(-1, keepdim=True))
    return value.clamp(min=-80.0)
