"""Estimates of the evidence log p(w | topics) of documents, unbiased for p(w | topics).

Wallach, Murray, Salakhutdinov & Mimno, *Evaluation methods for topic models*, ICML 2009. With topics b and the prior
Dirichlet(alpha) of the proportions pi, p(w) = int prod_v (sum_k pi_k b_kv)^n_v Dir(pi; alpha) d pi.

Importance sampling. p(w) = E_q[p(w | pi) Dir(pi; alpha) / q(pi)]. With q = Dir(alpha): the prior as proposal. With
Dir(alpha + c), c the expected numbers of tokens from each topic, draws lie where the document puts them, but the ratio
grows like pi_k^(-c_k) as pi_k -> 0, and has no variance where other topics explain the tokens too. Hence the mixture

    q = (1 - e) Dir(alpha + c) + e Dir(alpha),        weights p(w | pi) / [(1 - e) r(pi) + e] <= p(w | pi) / e,

r(pi) = Dir(pi; alpha + c) / Dir(pi; alpha), a share e of the draws from the prior.

Left to right. p(w) = prod_l p(w_l | w_<l) (their section 3.6). Each particle holds topics z_<l; for the next token they
are (1) resampled by Gibbs sweeps, which leave p(z_<l | w_<l) as it is; (2) weighted by p(w_l | z_<l) = sum_k b_{k,w_l}
(alpha_k + n_k) / (sum alpha + l - 1); (3) continued by z_l ~ p(z_l | z_<l, w_l). If weights are proper for
p(z_<l | w_<l), they are so for p(z_<=l | w_<=l) afterwards, with normaliser p(w_<=l). Averaging over particles in each
factor, as printed there, is unbiased only where particles are also drawn anew by their weights; so they are
(systematically, when fewer than half of them count), and the product of the factors' weighted means is the estimate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from torch import Tensor

from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.admixture import Admixture
from ppl_models import Data, MethodError
from ppl_models.data import sparse

Array = NDArray[np.float64]
#: Random numbers for the seeds of the documents, and others for the order of their tokens.
_Stream = tuple[np.random.Generator, np.random.Generator]

#: Documents in one call of the compiled samplers: between calls there is time for an interrupt.
_BATCH = 64


class Estimate(NamedTuple):
    """log of the estimate of p(w), (N,), and its standard error (N,), NaN where it is not known."""

    log_mean: Tensor
    standard_error: Tensor

    @classmethod
    def of(cls, log_weight: Array) -> Estimate:
        """Average log weights (N, R): the log of their mean, with the error sd(w) / (sqrt(R) mean(w))."""
        count = log_weight.shape[1]
        log_mean = logsumexp(log_weight, axis=1) - np.log(count)
        with np.errstate(invalid="ignore"):
            relative = np.exp(log_weight - log_mean[:, None])
            error = relative.std(1, ddof=1) / count**0.5 if count > 1 else np.full(len(log_mean), np.nan)
        return cls(torch.as_tensor(log_mean), torch.as_tensor(error))


def importance(said: Admixture, expected: Tensor, *, samples: int, from_prior: float, seed: int) -> Estimate:
    """expected: c (N, K). from_prior: e, the share of the draws that come from the prior."""
    rng, found = np.random.default_rng(seed), np.zeros((len(said.rows), samples))
    split = samples if from_prior >= 1 else min(max(1, round(from_prior * samples)), samples - 1)
    counts, words = sparse.to_scipy(said.rows.counts), _words_first(said)
    # One document at a time: its draws by its words are a matrix product large enough.
    for i, (prior, c) in enumerate(zip(_numbers(said.alpha), _numbers(expected), strict=True)):
        stored = slice(counts.indptr[i], counts.indptr[i + 1])
        seen, count = words[said.group[i]][counts.indices[stored]].T, counts.data[stored].astype(float)
        can = prior > 0
        found[i] = _weights(seen[can], count, prior[can], c[can], samples, split, rng)
    return Estimate.of(found)


def _weights(
    seen: Array, count: Array, prior: Array, expected: Array, samples: int, split: int, rng: np.random.Generator
) -> Array:
    """log weights (samples,) of one document: seen (K, M) are its words' probabilities, count (M,) their counts."""
    proposal = prior + expected
    concentration = np.concatenate([np.tile(prior, (split, 1)), np.tile(proposal, (samples - split, 1))])
    log_pi = _log_dirichlet(concentration, rng)
    with np.errstate(divide="ignore"):
        likelihood = np.log(np.exp(log_pi) @ seen) @ count
    if split == samples:
        return likelihood
    share = split / samples
    ratio = _log_norm(prior) - _log_norm(proposal) + log_pi @ expected
    return likelihood - np.logaddexp(np.log1p(-share) + ratio, np.log(share))


def _log_dirichlet(concentration: Array, rng: np.random.Generator) -> Array:
    """log of draws of Dirichlet(concentration): in logs, as small concentrations give shares below 1e-300, by
    Gamma(a) = Gamma(a + 1) U^(1 / a)."""
    log_uniform = np.log1p(-rng.random(concentration.shape))
    log_gamma = np.log(rng.standard_gamma(concentration + 1)) + log_uniform / concentration
    return log_gamma - np.logaddexp.reduce(log_gamma, axis=1, keepdims=True)


def _log_norm(concentration: Array) -> float:
    return float(gammaln(concentration).sum() - gammaln(concentration.sum()))


def left_to_right(said: Admixture, *, particles: int, sweeps: int, runs: int, seed: int) -> Estimate:
    """Mean over ``runs`` particle filters, whose spread is the standard error. Tokens come in a random order."""
    return Estimate.of(np.stack([_filter(said, particles, sweeps, stream) for stream in _streams(seed, runs)], 1))


def _filter(said: Admixture, particles: int, sweeps: int, stream: _Stream) -> Array:
    """Run the compiled filter on all documents, in a random order of their tokens."""
    from custom_inference.documents.kernels import filter_documents

    words, prior, group = _words_first(said), _numbers(said.alpha), said.group.cpu().numpy()
    seeds_from, order_from = stream
    row, word = (part.cpu().numpy().astype(np.int64) for part in said.rows.tokens())
    order = np.lexsort((order_from.random(len(word)), row))
    row, word = row[order], word[order]
    start = np.concatenate([[0], said.rows.lengths.long().cpu().numpy().cumsum()])
    seeds = seeds_from.integers(0, 2**63, len(said.rows)).astype(np.uint64)
    found = []
    for first in range(0, len(seeds), _BATCH):
        at = slice(first, first + _BATCH)
        tokens = slice(start[first], start[min(first + _BATCH, len(seeds))])
        ends = start[first : first + _BATCH + 1] - start[first]
        seen = words[group[row[tokens]], word[tokens]]
        found.append(filter_documents(seen, ends, prior[at], particles, sweeps, seeds[at]))
    return np.concatenate(found)


def _words_first(said: Admixture) -> Array:
    """Return the topics of every group, (G, V, K)."""
    return np.ascontiguousarray(_numbers(said.topic.mT))


def _numbers(value: Tensor) -> Array:
    return value.cpu().double().numpy()


def _streams(seed: int, runs: int) -> list[_Stream]:
    sequences = np.random.SeedSequence(seed).spawn(2 * runs)
    made = [np.random.default_rng(sequence) for sequence in sequences]
    return list(zip(made[::2], made[1::2], strict=True))


def split_tokens(data: Data, *, share: float = 0.5, seed: int = 0) -> tuple[Data, Data]:
    """The tokens of every document in two parts at random: floor(share L_i) of them, and the others.

    Masked entries are in neither part. Both parts have what the documents are given.
    """
    if not 0 < share < 1:
        raise MethodError(f"share = {share}, expected a number between 0 and 1")
    rows = DocumentRows.of(data)
    observed = torch.floor(share * rows.lengths.double() + 1e-9).long().cpu()
    first = rows.draw_tokens(observed, np.random.default_rng(seed).random(int(rows.lengths.sum())))
    parts = (sparse.with_values(rows.counts, values) for values in (first, rows.counts.values() - first))
    # Entries that became 0 are not stored.
    stored = (sparse.from_scipy(sparse.to_scipy(x), dtype=data.x.dtype, device=data.x.device) for x in parts)
    one, other = (replace(data, x=x, mask=None) for x in stored)
    return one, other
