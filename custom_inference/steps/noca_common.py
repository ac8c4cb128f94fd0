"""What NOCA's engines share: random starts, pruning, and the closed-form M step of cause transmission.

Cause transmission. Introduce z_ij ~ Bernoulli(s_i p_ij) for every source and z_0j ~ Bernoulli(p_0j) for the leak,
x_j = OR_i z_ij. Given s, P(z_ij = 1 | s, x_j = 1) = s_i p_ij / P(x_j = 1 | s), and 0 for x_j = 0. Hence with
T_ij = sum_n ones_nj E_q[s_i p_ij / P(x_j = 1 | s)] and S_ij = sum_n m_nj E_q[s_i] the M step is p_ij = T_ij / S_ij
(plus Beta pseudo-counts). It is an EM step for the augmented model, so it raises E_q[log p(x, s)] too.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from custom_inference.steps._beta import beta_mode, beta_parameters, logit_jitter
from custom_inference.steps._protocol import Params
from custom_inference.steps._rows import BinaryRows
from ppl_models import Model
from ppl_models.distributions import theta_of

#: Probabilities are kept this far from 0 and 1 (leak > 0 is needed wherever log(1 - e^{-theta_0}) is divided by).
FLOOR = 1e-6


def random_start(model: Model, rows: BinaryRows, generator: torch.Generator) -> Params:
    """Random loadings around the data's mean rate, a leak well below it."""
    num_components = model.shapes["source_prior"][0]
    like = rows.ones
    rate = (rows.ones.sum(0) / rows.observed_count.clamp(min=1)).clamp(0.01, 0.9)
    noise = torch.rand((num_components, rows.ones.shape[1]), generator=generator, dtype=torch.float64).to(like)
    loading = (rate * (0.4 + 1.2 * noise)).clamp(0.02, 0.95)
    return {
        "source_prior": logit_jitter(min(0.3, 2.0 / num_components), (num_components,), 0.1, generator, like),
        "loading": loading,
        "leak": (0.3 * rate).clamp(1e-3, 0.5),
    }


def prior_mode(model: Model, params: Params, source_total: Tensor, num_rows: int) -> Tensor:
    """pi_i = (sum_n E[s_ni] + a - 1) / (N + a + b - 2) (000, Fig. 2, with a Beta prior)."""
    like = params["source_prior"]
    total = torch.full_like(like, num_rows)
    return beta_mode(source_total, total, beta_parameters(model, "source_prior", like), floor=FLOOR)


def transmission_update(
    model: Model, params: Params, *, sent: Tensor, sent_leak: Tensor, present: Tensor, observed: Tensor
) -> dict[str, Tensor]:
    """p = T / S for loading (K, D) and leak (D,), with Beta pseudo-counts."""
    loading = beta_mode(sent, present, beta_parameters(model, "loading", params["loading"]), floor=FLOOR)
    leak = beta_mode(sent_leak, observed, beta_parameters(model, "leak", params["leak"]), floor=FLOOR)
    return {"loading": loading, "leak": leak}


def importance(params: Params) -> Tensor:
    """How much of the data's variation a source can explain: pi (1 - pi) sum_j p_ij, (K,)."""
    pi = params["source_prior"]
    return pi * (1 - pi) * params["loading"].sum(-1)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity of every row of a with every row of b."""
    return torch.nn.functional.normalize(a, dim=-1) @ torch.nn.functional.normalize(b, dim=-1).T


def absorb_into_leak(params: Params, keep: Tensor) -> Params:
    """Drop the sources outside ``keep``; what those that are nearly always on explain moves into the leak.

    A dropped source contributes on average pi_i theta_ij to theta_0j only if pi_i is near 1; otherwise its
    marginal effect 1 - pi_i p_ij on P(x_j = 0) is kept, which preserves the features' means.
    """
    dropped = [i for i in range(len(params["source_prior"])) if i not in set(keep.tolist())]
    pi, loading = params["source_prior"][dropped], params["loading"][dropped]
    always = (pi > 0.9).to(loading)[:, None]
    off = (1 - always * pi[:, None] * loading).prod(0)
    return {
        "source_prior": params["source_prior"][keep],
        "loading": params["loading"][keep],
        "leak": (1 - (1 - params["leak"]) * off).clamp(FLOOR, 1 - FLOOR),
    }


def prune(params: Params, num_components: int, *, merge_above: float = 0.9) -> Params:
    """The ``num_components`` sources that matter: duplicates are merged first, then the least important dropped."""
    weight = importance(params)
    keep = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    while int(keep.sum()) > num_components:
        index = keep.nonzero().flatten()
        similarity = cosine(params["loading"][index], params["loading"][index]).fill_diagonal_(-1)
        closest, flat = similarity.max(), int(similarity.argmax())
        if closest > merge_above:
            pair = index[[flat // len(index), flat % len(index)]]
            weaker = pair[weight[pair].argmin()]
        else:
            weaker = index[weight[index].argmin()]
        keep[weaker] = False
    return absorb_into_leak(params, keep.nonzero().flatten())


def widened(model: Model, num_components: int) -> Model:
    """The model with another number of sources (over-complete starts)."""
    return replace(model, num_components=num_components)  # pyright: ignore[reportCallIssue]


def thetas(params: Params) -> tuple[Tensor, Tensor]:
    """theta (K, D) and theta_0 (D,)."""
    return theta_of(params["loading"]), theta_of(params["leak"])
