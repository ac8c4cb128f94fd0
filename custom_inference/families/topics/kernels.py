"""Loops over documents on a processor. Import inside functions only: it loads the compiler.

The sweeps of ``dirichlet``: document by document, with its words' scores in the nearest cache. A document of M distinct
words needs M K scores, some kilobytes. They are gathered once, transposed, so that the two inner loops of a sweep run
along the words, and each document stops as soon as it has settled. exp(psi(x)) comes without a logarithm, from
psi(x) = psi(x + 10) - sum_{i<10} 1/(x + i) and, with u = x + 10 - 1/2, the series

    psi(u + 1/2) = log u + 1/(24 u^2) - 7/(960 u^4) + 31/(8064 u^6) - 127/(30720 u^8) + 511/(67584 u^10)
                   - 1414477/(67092480 u^12) + ...,

where with t = x (x + 9) the sum is (2 x + 9) [1/t + 1/(t + 8) + 1/(t + 14) + 1/(t + 18) + 1/(t + 20)], the logarithmic
derivative of the polynomial with these five roots.

The passes of ``cvb0``: word by word, each seeing the counts that the one before it left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.threads import count_shards, cut_evenly, map_in_threads
from custom_inference.families.common.compiled import REORDERED, Ints, Reals, entry, inner
from custom_inference.families.common.intrinsics import allocate, larger
from custom_inference.families.rows.documents import DocumentRows

#: Stored cells a call: between two calls the fit can be interrupted, and threads share the calls.
_CHUNK_CELLS = 2**16
#: Stored cells a shard, at least.
_SHARD_CELLS = 2**16
_LAST = -1414477 / 67092480


def settle_documents(
    rows: DocumentRows, score: Tensor, alpha: Tensor, concentration: Tensor, *, sweeps: int, threshold: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sweep each document until it has converged, updating ``concentration`` (N, K) in place; return the fields of
    ``Settled``. score: s_vk (V, K), each word's largest being 1. alpha: (K,), or (N, K) where it differs by
    document."""
    share, ratio = torch.empty_like(concentration), torch.empty_like(rows.counts.values())
    bound, used = concentration.new_empty(len(rows)), torch.empty(len(rows), dtype=torch.int32)
    weight = torch.ones_like(concentration) if rows.weight is None else rows.weight.contiguous()
    # Whole arrays, not views of one row: each layout of theirs would be compiled anew.
    each = alpha.expand_as(concentration).contiguous()
    parts = score, weight, each, concentration, share, ratio, bound, used
    run_in_parts(_settle, rows, parts, sweeps, threshold, apart=True)
    return share, ratio, bound, used


def run_in_parts(
    kernel: Callable[..., None], rows: DocumentRows, parts: Iterable[Tensor], *settings: float, apart: bool = False
) -> None:
    """Call a compiled loop for some documents at a time, with the counts, further arrays, the documents at which a call
    begins and ends, and settings. apart: what is done for one document does not depend on the others, so that threads
    share the calls."""
    arrays = [part.numpy() for part in (rows.counts.crow_indices(), rows.counts.col_indices(), rows.counts.values())]
    given = (*arrays, *(part.numpy() for part in parts))
    pairs = pairwise(cut_documents(arrays[0]))
    map_in_threads(lambda ends: kernel(*given, *ends, *settings), pairs, threads=None if apart else 1)


def cut_documents(crow: np.ndarray, first: int = 0, last: int | None = None) -> list[int]:
    """Return the documents at which calls begin and end, from ``first`` to ``last``, so that each has about
    ``_CHUNK_CELLS`` cells."""
    last = len(crow) - 1 if last is None else last
    inside = np.searchsorted(crow, np.arange(int(crow[first]) + _CHUNK_CELLS, int(crow[last]), _CHUNK_CELLS))
    return np.unique([first, *inside, last]).tolist()


@entry(fastmath=REORDERED)
def _settle(
    crow: Ints, column: Ints, count: Reals, score: Reals, weight: Reals, alpha: Reals, concentration: Reals,
    share_out: Reals, ratio_out: Reals, bound_out: Reals, used_out: Ints, first: int, last: int,
    sweeps: int, threshold: float,
):  # fmt: skip
    topics = score.shape[1]
    widest = 1
    for i in range(first, last):
        widest = larger(widest, crow[i + 1] - crow[i])
    seen = allocate((topics, widest), score.dtype)
    mixture, ratio = allocate(widest, score.dtype), allocate(widest, score.dtype)
    shares, exponent = allocate(topics, score.dtype), allocate(topics)
    which, priors, here = allocate(topics, np.int64), allocate(topics, alpha.dtype), allocate(topics, alpha.dtype)
    for i in range(first, last):
        start, size, own, length, total_at, value = crow[i], crow[i + 1] - crow[i], 0, 0.0, 0.0, 0.0
        for k in range(topics):  # those of weight 0 are left out: labelled documents have few
            if weight[i, k] > 0:
                which[own], priors[own], here[own] = k, alpha[i, k], concentration[i, k]
                own += 1
            else:
                concentration[i, k], share_out[i, k] = alpha[i, k], 0
                total_at += alpha[i, k]
        for j in range(size):
            row = score[column[start + j]]
            for k in range(own):
                seen[k, j] = row[which[k]] * weight[i, which[k]]
        at, share = here[:own], shares[:own]
        used_out[i] = _sweep(seen, count, start, size, priors, at, share, exponent, mixture, ratio, sweeps, threshold)
        scale = _exp_psi(at, share, exponent)
        _ratios(seen, share, count, start, size, mixture, ratio)
        for k in range(own):
            concentration[i, which[k]], share_out[i, which[k]] = at[k], share[k]
            total_at += at[k]
        for j in range(size):
            ratio_out[start + j] = ratio[j]
            length += count[start + j]
            value += count[start + j] * math.log(mixture[j])
        bound_out[i] = value + length * (scale - _psi(total_at))


@inner(fastmath=REORDERED)
def _sweep(
    seen: Reals,
    count: Reals,
    start: int,
    size: int,
    alpha: Reals,
    at: Reals,
    share: Reals,
    exponent: Reals,
    mixture: Reals,
    ratio: Reals,
    sweeps: int,
    threshold: float,
):
    """Sweep over one document, ``at`` (K,) being its pi~; return how many sweeps were made."""
    topics, used = len(at), 0
    for used in range(1, sweeps + 1):  # noqa: B007
        _exp_psi(at, share, exponent)
        _ratios(seen, share, count, start, size, mixture, ratio)
        change = 0.0
        for k in range(topics):
            total = seen.dtype.type(0)
            for j in range(size):
                total += ratio[j] * seen[k, j]
            after = alpha[k] + share[k] * total
            change += abs(after - at[k])
            at[k] = after
        if change < threshold * topics:
            break
    return used


@inner(fastmath=REORDERED)
def _ratios(seen: Reals, share: Reals, count: Reals, start: int, size: int, mixture: Reals, ratio: Reals):
    """Compute mixture_j = sum_k share_k seen_kj and ratio_j = count_j / mixture_j."""
    for j in range(size):
        mixture[j] = share[0] * seen[0, j]
    for k in range(1, len(share)):
        factor = share[k]
        for j in range(size):
            mixture[j] += factor * seen[k, j]
    for j in range(size):
        ratio[j] = count[start + j] / mixture[j]


@inner(fastmath=REORDERED)
def _exp_psi(x: Reals, share: Reals, exponent: Reals):
    """Compute share = exp(psi(x) - scale) and return scale, the largest exponent beside the powers of u."""
    # Half of what the smallest normal number is: the product of a share and a score is still a normal number.
    lowest = -340.0 if share.itemsize == 8 else -40.0
    for k in range(len(x)):
        exponent[k] = _beside_log(np.float64(x[k]))
    scale = exponent[0]
    for k in range(1, len(x)):
        scale = larger(scale, exponent[k])
    for k in range(len(x)):
        exponent[k] = larger(exponent[k] - scale, lowest)
    for k in range(len(x)):
        share[k] = (x[k] + 9.5) * math.exp(exponent[k])
    return scale


@inner(fastmath=REORDERED)
def _beside_log(x: float):
    """Compute psi(x) - log(x + 9.5)."""
    u = x + 9.5
    w = 1.0 / (u * u)
    series = w * (1 / 24 + w * (-7 / 960 + w * (31 / 8064 + w * (-127 / 30720 + w * (511 / 67584 + w * _LAST)))))
    t = x * (x + 9.0)
    above = 40320.0 + t * (24352.0 + t * (3924.0 + t * (240.0 + 5.0 * t)))
    below = t * (40320.0 + t * (12176.0 + t * (1308.0 + t * (60.0 + t))))
    return series - (2 * x + 9.0) * above / below


@entry
def _psi(x: float):
    return math.log(x + 9.5) + _beside_log(np.float64(x))


def refresh_documents(
    rows: DocumentRows, responsibility: Tensor, alpha: Tensor, table: Tensor, bound: Tensor, temperature: float
) -> Tensor:
    """Make one pass, in place: ``responsibility`` (nnz, K), ``table`` N_kv + gamma_v (V, K); adds to ``bound`` (N,).
    Returns N_kv, (V, K), counted anew: the running table has rounded at every word. alpha: (K,), or (N, K) by document,
    0 of a topic that a document cannot have, whose responsibilities stay 0.

    Many documents are passed in shards, each of which sees what the others left a pass before; the fixed points are the
    same."""
    arrays = [part.numpy() for part in (rows.counts.crow_indices(), rows.counts.col_indices(), rows.counts.values())]
    each, crow = alpha.expand(len(rows), -1).numpy(), arrays[0]
    shards = cut_evenly(crow, count_shards(responsibility.numel(), table.numel(), _SHARD_CELLS * table.shape[1]))

    def refresh(shard: tuple[int, int]) -> Tensor:
        own = table if len(shards) == 1 else table.clone()
        counts = torch.zeros_like(table)
        changed = [part.numpy() for part in (responsibility, own, own.sum(0), counts, bound)]
        for first, last in pairwise(cut_documents(crow, *shard)):
            _refresh(*arrays, each, *changed, first, last, temperature)
        return counts

    return sum(map_in_threads(refresh, shards), torch.zeros_like(table))


def start_documents(
    rows: DocumentRows, topic: Tensor, alpha: Tensor, sweeps: int, kept: torch.dtype | None = None
) -> Tensor:
    """Compute shares (nnz, K) at given topics (V, K); kept: in what precision, by default that of the topics."""
    responsibility = topic.new_empty(rows.counts.values().numel(), topic.shape[1], dtype=kept)
    run_in_parts(_start, rows, (alpha.expand(len(rows), -1), responsibility, topic), sweeps, apart=True)
    return responsibility


@entry(fastmath=REORDERED)
def _refresh(
    crow: Ints,
    column: Ints,
    count: Reals,
    alpha: Reals,
    responsibility: Reals,
    table: Reals,
    total: Reals,
    counts: Reals,
    bound: Reals,
    first: int,
    last: int,
    temperature: float,
):
    topics, zero = alpha.shape[1], table.dtype.type(0)
    document, new = allocate(topics, table.dtype), allocate(topics, table.dtype)
    power = table.dtype.type(temperature)
    for i in range(first, last):
        others = _document_counts(crow[i], crow[i + 1], count, alpha[i], responsibility, document) - 1.0
        value = 0.0
        for j in range(crow[i], crow[i + 1]):
            own, word, fresh, tokens = responsibility[j], table[column[j]], counts[column[j]], count[j]
            if temperature == 1.0:
                for k in range(topics):
                    new[k] = (document[k] - own[k]) * (word[k] - own[k]) / (total[k] - own[k])
            else:
                for k in range(topics):
                    seen = larger(word[k] - own[k], zero) / (total[k] - own[k])
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


@entry(fastmath=REORDERED)
def _start(
    crow: Ints,
    column: Ints,
    count: Reals,
    alpha: Reals,
    responsibility: Reals,
    topic: Reals,
    first: int,
    last: int,
    sweeps: int,
):
    topics = alpha.shape[1]
    document, new = allocate(topics, topic.dtype), allocate(topics, topic.dtype)
    for i in range(first, last):
        for j in range(crow[i], crow[i + 1]):
            for k in range(topics):
                new[k] = topic[column[j], k] if alpha[i, k] > 0 else 0.0
            _normalise(new)
            for k in range(topics):
                responsibility[j, k] = new[k]
        for _ in range(sweeps):
            _document_counts(crow[i], crow[i + 1], count, alpha[i], responsibility, document)
            for j in range(crow[i], crow[i + 1]):
                own, seen = responsibility[j], topic[column[j]]
                for k in range(topics):
                    new[k] = (document[k] - own[k]) * seen[k]
                _normalise(new)
                for k in range(topics):
                    document[k] += (new[k] - own[k]) * count[j]
                    own[k] = new[k]


@inner(fastmath=REORDERED)
def _document_counts(start: int, stop: int, count: Reals, alpha: Reals, responsibility: Reals, document: Reals):
    """Compute document_k = N_dk + alpha_k and return their sum."""
    for k in range(len(alpha)):  # assigning arrays to slices compiles the message of its error: a second
        document[k] = alpha[k]
    for j in range(start, stop):
        for k in range(len(alpha)):
            document[k] += count[j] * responsibility[j, k]
    length = 0.0
    for k in range(len(alpha)):
        length += document[k]
    return length


@inner(fastmath=REORDERED)
def _normalise(new: Reals):
    """Normalise in place and return the sum; what rounding took below 0 is 0, and what cannot be told apart is
    equal."""
    zero, one = new.dtype.type(0), new.dtype.type(1)
    mass = zero
    for k in range(len(new)):
        new[k] = larger(new[k], zero)
        mass += new[k]
    if not mass > zero:
        for k in range(len(new)):
            new[k] = one / len(new)
        return new.dtype.type(1e-30)
    inverse = one / mass
    for k in range(len(new)):
        new[k] *= inverse
    return mass
