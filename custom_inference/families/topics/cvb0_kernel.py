"""The passes of ``_cvb0_sweeps`` on a processor: word by word, each seeing the counts that the one before it left."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from custom_inference.families.common.documents import DocumentRows

#: Documents a call: between two calls the fit can be interrupted.
_CHUNK = 2**12
#: Sums over topics may be taken in any order; infinities and NaN keep their meaning.
_FAST = {"reassoc", "contract", "nsz", "arcp"}


def refresh_documents(
    rows: DocumentRows, share: Tensor, alpha: Tensor, table: Tensor, bound: Tensor, temperature: float
) -> Tensor:
    """One pass, in place: ``share`` (nnz, K), ``table`` N_kv + gamma_v (V, K); adds to ``bound`` (N,).

    Returns N_kv (V, K), counted anew: the running table has rounded at every word.
    """
    total, counts = table.sum(0), torch.zeros_like(table)
    arrays: Any = (*_parts(rows), *(part.numpy() for part in (alpha, share, table, total, counts, bound)))
    for first in range(0, len(rows), _CHUNK):
        last = min(first + _CHUNK, len(rows))
        _refresh(*arrays, first, last, temperature)  # pyright: ignore[reportCallIssue]
    return counts


def start_documents(rows: DocumentRows, topic: Tensor, alpha: Tensor, sweeps: int) -> Tensor:
    """Shares (nnz, K) at given topics (V, K)."""
    share = topic.new_empty(rows.counts.values().numel(), topic.shape[1])
    arrays: Any = (*_parts(rows), alpha.numpy(), share.numpy(), topic.numpy())
    for first in range(0, len(rows), _CHUNK):
        last = min(first + _CHUNK, len(rows))
        _start(*arrays, first, last, sweeps)  # pyright: ignore[reportCallIssue]
    return share


def _parts(rows: DocumentRows) -> list[np.ndarray]:
    counts = rows.counts
    return [counts.crow_indices().numpy(), counts.col_indices().numpy(), counts.values().numpy()]


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _refresh(crow, column, count, alpha, share, table, total, counts, bound, first, last, temperature):
    topics, zero = len(alpha), share.dtype.type(0)
    document, new = np.empty(topics, share.dtype), np.empty(topics, share.dtype)
    power = share.dtype.type(temperature)
    for i in range(first, last):
        others = _document_counts(crow[i], crow[i + 1], count, alpha, share, document) - 1.0
        value = 0.0
        for j in range(crow[i], crow[i + 1]):
            own, word, fresh, tokens = share[j], table[column[j]], counts[column[j]], count[j]
            if temperature == 1.0:
                for k in range(topics):
                    new[k] = (document[k] - own[k]) * (word[k] - own[k]) / (total[k] - own[k])
            else:
                for k in range(topics):
                    seen = max(word[k] - own[k], zero) / (total[k] - own[k])
                    new[k] = (document[k] - own[k]) * seen**power
            mass = _normalise(new)
            value += tokens * math.log(mass / others)
            for k in range(topics):
                change = (new[k] - own[k]) * tokens
                document[k] += change
                word[k] += change
                total[k] += change
                fresh[k] += new[k] * tokens
                own[k] = new[k]
        bound[i] += value


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _start(crow, column, count, alpha, share, topic, first, last, sweeps):
    topics = len(alpha)
    document, new = np.empty(topics, share.dtype), np.empty(topics, share.dtype)
    for i in range(first, last):
        for j in range(crow[i], crow[i + 1]):
            new[:] = topic[column[j]]
            _normalise(new)
            share[j] = new
        for _ in range(sweeps):
            _document_counts(crow[i], crow[i + 1], count, alpha, share, document)
            for j in range(crow[i], crow[i + 1]):
                own, seen = share[j], topic[column[j]]
                for k in range(topics):
                    new[k] = (document[k] - own[k]) * seen[k]
                _normalise(new)
                for k in range(topics):
                    document[k] += (new[k] - own[k]) * count[j]
                    own[k] = new[k]


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _document_counts(start, stop, count, alpha, share, document):
    """document_k = N_dk + alpha_k; returns their sum."""
    document[:] = alpha
    for j in range(start, stop):
        for k in range(len(alpha)):
            document[k] += count[j] * share[j, k]
    length = 0.0
    for k in range(len(alpha)):
        length += document[k]
    return length


@numba.njit(nogil=True, cache=True, fastmath=_FAST)
def _normalise(new):
    """In place; what rounding took below 0 is 0, and what cannot be told apart is equal. Returns the sum."""
    zero, one = new.dtype.type(0), new.dtype.type(1)
    mass = zero
    for k in range(len(new)):
        new[k] = max(new[k], zero)
        mass += new[k]
    if not mass > zero:
        new[:] = one / len(new)
        return new.dtype.type(1e-30)
    inverse = one / mass
    for k in range(len(new)):
        new[k] *= inverse
    return mass
