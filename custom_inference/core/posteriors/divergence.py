"""How far one posterior is from another."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.core.posteriors.continuous import ContinuousPosterior, PointPosterior
from custom_inference.core.posteriors.labellings import LabellingPosterior, joint_divergence
from custom_inference.core.posteriors.protocol import LocalPosterior

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
        return joint_divergence(q, p)
    (_, log_q), (_, log_p) = q.table(), p.table()
    weight = log_q.exp()
    difference = torch.where(weight > 0, log_q - log_p, torch.zeros_like(log_q))
    return (weight * difference).sum(-1)
