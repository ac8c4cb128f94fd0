"""Real documents for the topic models' benchmarks: the NIPS papers and four newsgroups, with a cut vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from custom_inference import Fit
from ppl_models import datasets
from ppl_models.data.sparse import to_scipy

Array = NDArray[np.float64]
Counts = Any  # scipy.sparse.csr_matrix


class Documents(NamedTuple):
    """Counts (N, V) to learn from and to test on, the words, and what was cut, in words."""

    name: str
    train: Counts
    test: Counts
    words: list[str]
    cut: str

    @property
    def title(self) -> str:
        return f"{self.name}: {self.train.shape[0]} + {self.test.shape[0]} documents, V = {self.train.shape[1]}"


def nips(folder: Path, num_words: int = 2000, seed: int = 0) -> Documents:
    """NIPS 0-12 papers, a tenth of them held out."""
    with np.load(folder / "nips" / "nips_words.npz", allow_pickle=False) as archive:
        parts = [archive[f"words_{part}"] for part in ("data", "indices", "indptr")]
        counts = sp.csr_matrix(tuple(parts), tuple(archive["words_shape"]))
        words = archive["vocab"].tolist()
    order = np.random.default_rng(seed).permutation(counts.shape[0])
    held = counts.shape[0] // 10
    return _cut("NIPS 0-12", counts[np.sort(order[held:])], counts[np.sort(order[:held])], words, num_words)


def newsgroups(folder: Path, num_words: int = 2000) -> Documents:
    """Four newsgroups, the test documents those of the by-date split."""
    path = folder / "newsgroups4" / "newsgroups4.npz"
    counts = sp.load_npz(path)
    with np.load(path, allow_pickle=False) as archive:
        test, words = archive["is_test"].astype(bool), archive["words"].tolist()
    return _cut("four newsgroups", counts[~test], counts[test], words, num_words)


def generated(num_documents: int, seed: int = 0) -> Documents:
    """LDA's own: 20 topics over 2000 words, documents of about 100 tokens."""
    drawn = datasets.topic_corpus(num_documents, seed=seed)
    test = datasets.sample_lda(drawn.truth["topic"], 500, alpha=0.1, length=100, min_length=20, seed=seed + 1)
    words = [str(v) for v in range(drawn.data.num_features)]
    return Documents("drawn from LDA", to_scipy(drawn.data.x), to_scipy(test.data.x), words, "")


def folded_in(fit: Fit, documents: Any, *, iterations: int = 40) -> Array:
    """Topic proportions of new documents at the fit's topics, (N, K), by so many of its E steps, each of many sweeps.

    ``Fit.transform`` goes on until nothing changes, which by EM takes long and changes no perplexity.
    """
    assert fit.solver is not None
    solver = replace(fit.solver, max_iterations=iterations, tolerance=1e-3)
    with torch.no_grad():
        local = solver.solve(fit.model, fit.globals, fit.model.prepare(documents, dtype=torch.float64))
    return local.posterior.mean.numpy()


def _cut(name: str, train: Counts, test: Counts, words: list[str], number: int) -> Documents:
    """The most frequent words of those in at most 40% of the documents; documents of at least 10 such words."""
    share = np.asarray((train > 0).mean(0)).ravel()
    total = np.where(share <= 0.4, np.asarray(train.sum(0)).ravel(), 0)
    kept = np.sort(np.argsort(-total, kind="stable")[:number])

    def part(counts: Counts) -> Counts:
        found = sp.csr_matrix(counts[:, kept]).astype(np.float64)
        return found[np.asarray(found.sum(1)).ravel() >= 10]

    shown = (
        f"{number} of {len(words)} words: the most frequent of those in at most 40% of the training documents, which "
        f"cover {train[:, kept].sum() / train.sum():.0%} of the tokens; documents of at least 10 such tokens"
    )
    return Documents(name, part(train), part(test), [words[v] for v in kept], shown)
