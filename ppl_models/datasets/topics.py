"""Rows that mix: corpora with known topics (the river/bank/money example, and planted topics of any size), pictures of
the aspect Bernoulli model, and admixed genomes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ppl_models.core.errors import ModelError
from ppl_models.data import sparse
from ppl_models.datasets.images import Generated, patterns


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
    """Draw documents from latent Dirichlet allocation (Murphy 2012, eqs. 27.18-27.21) with the given topics (K, V).

    Parameters
    ----------
    alpha: concentration of the documents' topic proportions, one number or (K,).
    length: tokens of a document, one number or (num_documents,); the mean where ``lengths`` is "poisson".
    lengths: "poisson" (no document shorter than ``min_length``) or "fixed".

    Returns counts (N, V) in torch's CSR layout; ``truth`` has ``topic`` and ``topic_proportion``.
    """
    concentration, size = _check_settings(topic, num_documents, alpha, length, lengths, min_length)
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
    truth = {"topic": words, "topic_proportion": proportion}
    return Generated.of(sparse.from_scipy(counts, dtype=torch.get_default_dtype()), truth, coords)


def _check_settings(
    topic: Tensor, num_documents: int, alpha: ArrayLike, length: ArrayLike, lengths: str, min_length: int
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
    return sample_lda(topic, num_documents, alpha=alpha, length=length, min_length=min_length, seed=seed)


def river_bank(num_documents: int = 16, seed: int = 0, *, length: int = 16, alpha: float = 1.0) -> Generated:
    """The corpus of Murphy (2012), Fig. 27.8 (Steyvers & Griffiths, *Probabilistic topic models*, 2007, Fig. 7), drawn
    anew.

    Five words and two topics, one of money, loan and bank, one of river, stream and bank, each word with probability
    1/3; documents of ``length`` tokens mix the topics in any proportion (alpha = 1). Counts are dense.
    """
    words = ["river", "stream", "bank", "money", "loan"]
    topic = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.float64) / 3
    coords = {"component": ["money", "river"], "feature": words}
    drawn = sample_lda(topic, num_documents, alpha=alpha, length=length, lengths="fixed", seed=seed, coords=coords)
    return replace(drawn, data=drawn.data.dense())


def sample_aspects(
    aspect_probability: Tensor,
    num_rows: int,
    *,
    concentration: float | Tensor = 1.0,
    total_count: int = 1,
    seed: int = 0,
    coords: dict[str, list[Any]] | None = None,
    image_shape: tuple[int, int] | None = None,
) -> Generated:
    """Draw rows from an aspect Bernoulli model: s_n ~ Dirichlet(concentration), x ~ Binomial(total_count, s_n a)."""
    if num_rows < 1 or total_count < 1:
        raise ModelError(f"num_rows = {num_rows} and total_count = {total_count}, expected at least 1")
    rng, num_components = np.random.default_rng(seed), aspect_probability.shape[0]
    alpha = np.broadcast_to(np.asarray(concentration, dtype=float), (num_components,))
    membership = rng.dirichlet(alpha, num_rows)
    probability = np.clip(membership @ aspect_probability.double().numpy(), 0.0, 1.0)
    x = torch.as_tensor(rng.binomial(total_count, probability), dtype=torch.get_default_dtype())
    truth = {"aspect_probability": aspect_probability, "membership": membership}
    return Generated.of(x, truth, coords, image_shape=image_shape)


def aspect_images(
    n: int = 2000, seed: int = 0, *, concentration: float = 0.3, on: float = 0.9, off: float = 0.03
) -> Generated:
    """Images of 8x8 pixels, every pixel from one of eight drawn patterns in the image's own proportions."""
    drawn, coords = patterns()
    aspect = off + (on - off) * drawn
    return sample_aspects(aspect, n, concentration=concentration, seed=seed, coords=coords, image_shape=(8, 8))


def admixture(
    n: int = 500,
    num_features: int = 9915,
    num_components: int = 5,
    seed: int = 0,
    *,
    fst: float = 0.1,
    concentration: float = 0.2,
) -> Generated:
    """Genotypes (counts of two) of admixed individuals: allele frequencies by Balding and Nichols (Genetica 96, 1995).

    Ancestral frequency p_t ~ Uniform(.05, .95), a_kt ~ Beta(p_t (1 - F) / F, (1 - p_t) (1 - F) / F) with F = ``fst``.
    Every feature varies among the individuals drawn: constant ones are replaced by further draws.
    """
    rng = np.random.default_rng(seed)
    membership = rng.dirichlet(np.full(num_components, concentration), n)
    kept: list[np.ndarray] = []
    aspects: list[np.ndarray] = []
    while sum(x.shape[1] for x in kept) < num_features:
        ancestral = rng.uniform(0.05, 0.95, num_features)
        odds = (1 - fst) / fst
        aspect = rng.beta(ancestral * odds, (1 - ancestral) * odds, (num_components, num_features))
        x = rng.binomial(2, np.clip(membership @ aspect, 0.0, 1.0))
        varies = x.min(0) < x.max(0)
        kept.append(x[:, varies])
        aspects.append(aspect[:, varies])
    x = torch.as_tensor(np.concatenate(kept, 1)[:, :num_features], dtype=torch.get_default_dtype())
    truth = {"aspect_probability": np.concatenate(aspects, 1)[:, :num_features], "membership": membership}
    return Generated.of(x, truth)
