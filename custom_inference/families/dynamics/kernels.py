"""Loops over documents on a processor. Import inside functions only: it loads the compiler."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.topics.kernels import _FAST, _cuts, _parts


def refresh_at_topics(
    rows: DocumentRows, topic: Tensor, alpha: Tensor, responsibility: Tensor, proportion: Tensor, sweeps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``sweeps`` passes, in place: ``responsibility`` (nnz, K) and ``proportion``, alpha_k + N_dk (N, K), at topics
    (V, K). Returns sum_d n_dv r_dvk and sum_d n_dv r_dvk (1 - r_dvk), (V, K), and the log predictive probabilities of the
    tokens by document (N,)."""
    counts, missing = torch.zeros_like(topic), torch.zeros_like(topic)
    value = torch.zeros_like(rows.lengths)
    given = (topic, float(alpha.sum()), responsibility, proportion, counts, missing, value)
    arrays: Any = (*_parts(rows), *(part.numpy() if isinstance(part, Tensor) else part for part in given))
    for first, last in pairwise(_cuts(arrays[0])):
        _refresh_documents(*arrays, first, last, sweeps)  # pyright: ignore[reportCallIssue]
    return counts, missing, value


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _refresh_documents(
    crow, column, count, topic, total, responsibility, proportion, counts, missing, value, first, last, sweeps
):  # fmt: skip
    topics = topic.shape[1]
    new, zero, tiny = np.empty(topics, topic.dtype), topic.dtype.type(0), topic.dtype.type(1e-30)
    for i in range(first, last):
        at, length, gain = proportion[i], 0.0, 0.0
        for j in range(crow[i], crow[i + 1]):
            length += count[j]
        for sweep in range(sweeps):
            for j in range(crow[i], crow[i + 1]):
                own, word, tokens, mass = responsibility[j], topic[column[j]], count[j], zero
                for k in range(topics):
                    new[k] = max(at[k] - own[k], zero) * word[k] + tiny * word[k]
                    mass += new[k]
                mass = max(mass, tiny)
                if sweep == sweeps - 1:
                    gain += tokens * math.log(mass)
                inverse = topic.dtype.type(1) / mass
                for k in range(topics):
                    share = new[k] * inverse
                    at[k] += (share - own[k]) * tokens
                    own[k] = share
        value[i] = gain - length * math.log(max(length + total - 1.0, 1e-30))
        for j in range(crow[i], crow[i + 1]):
            of_word, unsure, own, tokens = counts[column[j]], missing[column[j]], responsibility[j], count[j]
            for k in range(topics):
                of_word[k] += tokens * own[k]
                unsure[k] += tokens * own[k] * (topic.dtype.type(1) - own[k])
