"""Starts for topic models from a short run of collapsed Gibbs sampling.

Sampling leaves poor solutions that coordinate ascent would be caught in (a topic that means two things, two topics that
mean the same), and a sweep costs a fraction of a pass of variational Bayes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.families.common.documents import DocumentRows


def gibbs_counts(
    rows: DocumentRows,
    num_topics: int,
    alpha: Tensor | float,
    gamma: Tensor | float,
    generator: torch.Generator,
    *,
    sweeps: int = 50,
    average: int = 10,
) -> Tensor:
    """The tokens of every word in every topic, (K, V), averaged over the last ``average`` of ``sweeps`` passes.

    The first pass draws each token's topic given those of the tokens before it, documents in a random order.

    alpha: (K,) or one number; gamma: (V,) or one number: the concentrations of LDA's priors.
    """
    # The compiler is loaded where it is needed, not with the package.
    from custom_inference.families.topics.gibbs import LdaChain, TokenList

    seed = int(torch.randint(2**62, (), generator=generator))
    order = torch.randperm(len(rows), generator=generator)
    chain = LdaChain(TokenList.of(rows.select(order)), num_topics, alpha, gamma, seed)
    average = min(average, sweeps)
    for _ in range(sweeps - average):
        chain.sweep()
    total = torch.zeros(num_topics, rows.counts.shape[1], dtype=torch.float64)
    for _ in range(average):
        chain.sweep()
        total += torch.as_tensor(chain.word_topic.T)
    return (total / max(average, 1)).to(rows.like)
