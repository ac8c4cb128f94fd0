"""Loops over documents on a processor. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry
from custom_inference.families.common.intrinsics import allocate, larger
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.kernels import run_in_parts


def refresh_at_topics(
    rows: DocumentRows, topic: Tensor, alpha: Tensor, before: Tensor, sweeps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Make ``sweeps`` passes at topics (V, K) from responsibilities (nnz, K).

    Returns those after, sum_d n_dv r_dvk and sum_d n_dv r_dvk (1 - r_dvk), (V, K), and the log predictive probabilities
    of the tokens by document (N,).
    """
    counts, missing = torch.zeros_like(topic), torch.zeros_like(topic)
    after, value = torch.empty_like(before), torch.zeros_like(rows.lengths)
    run_in_parts(_refresh_documents, rows, (topic, alpha, before, after, counts, missing, value), sweeps)
    return after, counts, missing, value


@entry(fastmath=REORDERED)
def _refresh_documents(
    crow: Ints,
    column: Ints,
    count: Reals,
    topic: Reals,
    alpha: Reals,
    before: Reals,
    after: Reals,
    counts: Reals,
    missing: Reals,
    value: Reals,
    first: int,
    last: int,
    sweeps: int,
):
    topics, zero, tiny = topic.shape[1], topic.dtype.type(0), topic.dtype.type(1e-30)
    new, at = allocate(topics, topic.dtype), allocate(topics, topic.dtype)
    for i in range(first, last):
        total, gain, length = 0.0, 0.0, 0.0
        for k in range(topics):
            at[k] = alpha[k]
            total += alpha[k]
        for j in range(crow[i], crow[i + 1]):
            length += count[j]
            for k in range(topics):
                after[j, k] = before[j, k]
                at[k] += count[j] * before[j, k]
        for sweep in range(sweeps):
            for j in range(crow[i], crow[i + 1]):
                own, word, tokens, mass = after[j], topic[column[j]], count[j], zero
                for k in range(topics):
                    new[k] = larger(at[k] - own[k], tiny) * word[k]
                    mass += new[k]
                mass = larger(mass, tiny)
                if sweep == sweeps - 1:
                    gain += tokens * math.log(mass)
                inverse = topic.dtype.type(1) / mass
                for k in range(topics):
                    share = new[k] * inverse
                    at[k] += (share - own[k]) * tokens
                    own[k] = share
        value[i] = gain - length * math.log(larger(length + total - 1.0, 1e-30))
        for j in range(crow[i], crow[i + 1]):
            of_word, unsure, own, tokens = counts[column[j]], missing[column[j]], after[j], count[j]
            for k in range(topics):
                of_word[k] += tokens * own[k]
                unsure[k] += tokens * own[k] * (topic.dtype.type(1) - own[k])
