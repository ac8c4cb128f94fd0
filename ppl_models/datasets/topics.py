"""Corpora with known topics: the river/bank/money example, and planted topics of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from ppl_models.core.errors import ModelError
from ppl_models.data import sparse
from ppl_models.datasets.images import Generated


def sample_lda(
    topic: Tensor,
    num_documents: int,
    *,
    alpha: float | Tensor = 0.1,
    length: int | float | Tensor = 100,
    lengths: str = "poisson",
    min_length: int = 1,
    seed: int = 0,
    coords: dict[str, list[Any]] | None = None,
) -> Generated:
    """Draw documents from latent Dirichlet allocation (002, eqs. 27.18-27.21) with the given topics (K, V).

    Parameters
    ----------
    alpha: concentration of the documents' topic proportions, one number or (K,).
    length: tokens of a document, one number or (num_documents,); the mean where ``lengths`` is "poisson".
    lengths: "poisson" (no document shorter than ``min_length``) or "fixed".

    Returns counts (N, V) in torch's CSR layout; ``truth`` has ``topic`` and ``topic_proportion``.
    """
    concentration, size = _checked(topic, num_documents, alpha, length, lengths, min_length)
    rng = np.random.default_rng(seed)
    words = topic.detach().cpu().double().numpy()
    words = words / words.sum(1, keepdims=True)
    proportion = rng.dirichlet(concentration, num_documents)
    tokens = rng.poisson(size) if lengths == "poisson" else size.astype(np.int64)
    # How many tokens of each document come from each topic; then the words of a topic's tokens, all at once.
    each = rng.multinomial(np.maximum(tokens, min_length), proportion)
    place = np.arange(num_documents)
    row = np.concatenate([place.repeat(column) for column in each.T])
    column = np.concatenate([rng.choice(words.shape[1], int(n), p=p) for n, p in zip(each.sum(0), words, strict=True)])
    counts = scipy.sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(num_documents, words.shape[1]))
    dtype = torch.get_default_dtype()
    truth = {"topic": torch.as_tensor(words).to(dtype), "topic_proportion": torch.as_tensor(proportion).to(dtype)}
    return Generated.of(sparse.from_scipy(counts, dtype=dtype), truth, coords)


def _checked(
    topic: Tensor, num_documents: int, alpha: Any, length: Any, lengths: str, min_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The concentration (K,) and the length of each document (N,), or ModelError."""
    total = topic.sum(-1)
    if topic.ndim != 2 or bool((topic < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-4):
        raise ModelError(f"topic of shape {tuple(topic.shape)}, expected rows (K, V) of probabilities that sum to 1")
    if num_documents < 1 or min_length < 0:
        raise ModelError(f"num_documents = {num_documents}, min_length = {min_length}; expected at least 1 and 0")
    if lengths not in ("poisson", "fixed"):
        raise ModelError(f"lengths = {lengths!r}, expected 'poisson' or 'fixed'")
    try:
        concentration = np.broadcast_to(np.asarray(alpha, dtype=float), (topic.shape[0],))
        size = np.broadcast_to(np.asarray(length, dtype=float), (num_documents,))
    except ValueError:
        found = f"alpha of shape {np.shape(alpha)}, length of shape {np.shape(length)}"
        raise ModelError(f"{found}; expected one number each, or ({topic.shape[0]},) and ({num_documents},)") from None
    if not (np.isfinite(concentration).all() and (concentration > 0).all()):
        raise ModelError(f"alpha = {alpha}, expected positive finite numbers")
    if not (np.isfinite(size).all() and (size >= 0).all()) or (lengths == "fixed" and (size != size.round()).any()):
        raise ModelError(f"length = {length}, expected numbers of at least 0; whole ones where lengths are fixed")
    return concentration, size


def topic_corpus(
    num_documents: int = 2000,
    vocabulary_size: int = 2000,
    num_topics: int = 20,
    *,
    alpha: float = 0.1,
    gamma: float = 0.05,
    length: float = 100,
    min_length: int = 20,
    seed: int = 0,
) -> Generated:
    """A planted corpus: topics ~ Dirichlet(gamma), documents by :func:`sample_lda` with Poisson lengths.

    Documents to hold out come from the same topics: ``sample_lda(corpus.truth["topic"], 500, seed=1)``.
    """
    if min(vocabulary_size, num_topics) < 1 or not gamma > 0:
        sizes = f"vocabulary_size = {vocabulary_size}, num_topics = {num_topics}, gamma = {gamma}"
        raise ModelError(f"{sizes}; expected sizes of at least 1 and a positive concentration")
    rng = np.random.default_rng([seed, 1])  # another stream than the documents'
    topic = torch.as_tensor(rng.dirichlet(np.full(vocabulary_size, gamma), num_topics))
    settings: dict[str, Any] = {"alpha": alpha, "length": length, "min_length": min_length, "seed": seed}
    return sample_lda(topic, num_documents, **settings)


def river_bank(num_documents: int = 16, seed: int = 0, *, length: int = 16, alpha: float = 1.0) -> Generated:
    """The corpus of 002, Fig. 27.8 (Steyvers & Griffiths, *Probabilistic topic models*, 2007, Fig. 7), drawn anew.

    Five words and two topics, one of money, loan and bank, one of river, stream and bank, each word with probability
    1/3; documents of ``length`` tokens mix the topics in any proportion (alpha = 1). Counts are dense.
    """
    words = ["river", "stream", "bank", "money", "loan"]
    topic = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.float64) / 3
    coords = {"component": ["money", "river"], "feature": words}
    settings: dict[str, Any] = {"alpha": alpha, "length": length, "lengths": "fixed", "seed": seed, "coords": coords}
    drawn = sample_lda(topic, num_documents, **settings)
    return replace(drawn, data=drawn.data.dense())
