"""How far one posterior is from another."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.core.posteriors.continuous import PointPosterior
from custom_inference.core.posteriors.finite import CodePosterior, LabellingPosterior
from custom_inference.core.posteriors.protocol import ContinuousPosterior, LocalPosterior
from ppl_models import MethodError

#: Draws for the divergence of continuous posteriors.
DRAWS = 1000


def kullback_leibler(q: LocalPosterior, p: LocalPosterior, *, seed: int = 0) -> Tensor:
    """KL(q || p) of each row, (N,).

    Over finite latents the exact sum over all values in both tables; over continuous ones the mean of
    log q - log p over ``DRAWS`` draws from q, an estimate. Infinite for a point: it has no density. Of the nodes of a
    graph, where one of the two is joint, (1,): the divergence of the joint distributions.
    """
    if isinstance(q, PointPosterior):
        return torch.full_like(q.value[:, 0], torch.inf)
    if isinstance(q, ContinuousPosterior):
        draws = q.sample(DRAWS, seed=seed)
        pairs = [(q.log_prob(one), p.log_prob(one)) for one in draws]
        if q.joint or p.joint:
            return torch.stack([log_q.sum() - log_p.sum() for log_q, log_p in pairs]).mean().unsqueeze(0)
        return torch.stack([log_q - log_p for log_q, log_p in pairs]).mean(0)
    if isinstance(q, LabellingPosterior) or isinstance(p, LabellingPosterior):
        return _of_labellings(q, p)
    (_, log_q), (_, log_p) = q.table(), p.table()
    return _expected_difference(log_q, log_p)


def _expected_difference(log_q: Tensor, log_p: Tensor) -> Tensor:
    """sum_c q_c (log q_c - log p_c), (...), of tables (..., C)."""
    weight = log_q.exp()
    return (weight * torch.where(weight > 0, log_q - log_p, torch.zeros_like(log_q))).sum(-1)


def _of_labellings(q: LocalPosterior, p: LocalPosterior) -> Tensor:
    """KL(q || p) of posteriors over labelings, (1,): exact, where one of them lists its labelings.

    A posterior of independent nodes is laid out over the labelings that the other lists; its mass elsewhere makes the
    divergence from it infinite, as it should where p lists all that are possible.
    """
    listed = p if isinstance(p, LabellingPosterior) else q
    assert isinstance(listed, LabellingPosterior)
    labels, _ = listed.distinct()
    log_q, log_p = _at(q, labels), _at(p, labels)
    if float(log_q.exp().sum()) < 1 - 1e-6:
        return log_q.new_full((1,), torch.inf)
    return _expected_difference(log_q, log_p).unsqueeze(0)


def _at(posterior: LocalPosterior, labels: Tensor) -> Tensor:
    """log-probabilities (C,) of labelings (C, N), all different."""
    if isinstance(posterior, CodePosterior) and posterior.shared:
        order = posterior.codes.argmax(-1)  # the codes are one-hot
        by_block = posterior.log_weight[:, torch.argsort(order)]
        return by_block[torch.arange(labels.shape[1], device=labels.device), labels.long()].sum(-1)
    if isinstance(posterior, LabellingPosterior):
        listed, log_weight = posterior.distinct()
        both, place = torch.unique(torch.cat([listed, labels.to(listed)]), dim=0, return_inverse=True)
        found = log_weight.new_full((len(both),), -torch.inf)
        found[place[: len(listed)]] = log_weight
        return found[place[len(listed) :]]
    raise MethodError(f"no divergence between labelings and a {type(posterior).__name__}")
