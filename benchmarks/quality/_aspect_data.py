"""The binary matrices of the aspect Bernoulli experiments, and the corruptions that Bingham et al. (2007) puts on them.

Bingham, Kabán and Fortelius, The aspect Bernoulli model, Pattern Anal. Applic. 2007. Its fossil data (501
sites x 139 genera) and its digits are not at hand as it used them; these are the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

#: What headers and signatures leave behind.
_HEADERS = """
subject lines organization writes article edu com university apr mar gov org news net nntp host posting distribution
reply don doesn isn didn won wasn wouldn
"""
#: Everyday words that usual stop lists (SMART's, which the paper's toolkit removes) have and scikit-learn's has not.
_EVERYDAY = """
able ask asking believe best better certain come comes consider corresponding did different does doing example far
follow following getting goes going good got help hope inside instead just know known knows let like likely little
look looking looks made make makes maybe mean means need needed needs new old probably really regarding right said saw
say saying says second sure taken tell thank thanks thing things think thought took tried tries try trying unless use
used useful uses using usually value various want wants way ways went wonder yes
"""


@dataclass(frozen=True)
class Binary:
    """0-1 data with names: x (N, D)."""

    name: str
    x: np.ndarray
    features: list[str] = field(default_factory=list)
    groups: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    group_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corrupted:
    """x (N, D) after corruption; ``changed`` marks the entries that differ from the original."""

    x: np.ndarray
    original: np.ndarray

    @property
    def changed(self) -> np.ndarray:
        return self.x != self.original


def digits(folder: Path) -> Binary:
    """2000 handwritten digits of 16 x 15 pixels, on where at least 3 of the 6 fine pixels are."""
    with np.load(folder / "mfeat_pix" / "mfeat_pix.npz", allow_pickle=False) as archive:
        return Binary("digits", (archive["X"] >= 3).astype(np.float64), groups=archive["y"].astype(int))


def newsgroups(folder: Path, first: int = 200, *, min_documents: int = 12, min_repeats: float = 1.4) -> Binary:
    """Documents first .. first + 99 of each of four newsgroups and their frequent content words.

    A content word is one that is repeated where it is used: at least ``min_repeats`` times a document that has it, in
    at least ``min_documents`` documents; no stop words, headers, or names of less than three letters. No group labels
    are used. The first documents of a group are long lists of questions and answers, hence not ``first=0``.
    """
    path = folder / "newsgroups4" / "newsgroups4.npz"
    counts = sparse.csr_matrix(sparse.load_npz(path))
    with np.load(path, allow_pickle=False) as archive:
        group, words, names = archive["y"], archive["words"], archive["group_names"]
    chosen = np.concatenate([np.flatnonzero(group == g)[first : first + 100] for g in range(4)])
    part = counts[chosen].toarray()
    documents = (part > 0).sum(0)
    repeats = part.sum(0) / np.maximum(documents, 1)
    stop = ENGLISH_STOP_WORDS.union(_HEADERS.split(), _EVERYDAY.split())
    word = np.array([len(w) > 2 and w.isalpha() and w not in stop for w in words])
    kept = np.flatnonzero(word & (documents >= min_documents) & (repeats >= min_repeats))
    x = (part[:, kept] > 0).astype(np.float64)
    short = tuple(str(n).split(".")[-1] for n in names)
    return Binary("newsgroups", x, [str(words[j]) for j in kept], group[chosen].astype(int), short)


@dataclass(frozen=True)
class Fossils(Binary):
    """Sites x genera with the sites' ages in million years: the middle of the range, the oldest and the youngest."""

    age: np.ndarray = field(default_factory=lambda: np.zeros(0))


def mammals(folder: Path) -> Fossils:
    """351 European and Anatolian Miocene sites x 104 genera of large mammals (NOW database)."""
    with np.load(folder / "now_mammals" / "now_miocene.npz", allow_pickle=False) as archive:
        age = (archive["max_age"].astype(np.float64) + archive["min_age"]) / 2
        return Fossils("mammals", archive["X"].astype(np.float64), [str(g) for g in archive["genera"]], age=age)


def set_to(value: int, x: np.ndarray, seed: int, most: float = 0.4) -> Corrupted:
    """Every entry becomes ``value`` with a probability of its row's own, drawn from Uniform[0, most].

    As in Bingham et al. (2007) (its footnote 7) new values also fall on entries that have them already, to no effect.
    """
    generator = np.random.default_rng(seed)
    share = generator.uniform(0, most, size=(len(x), 1))
    hit = generator.uniform(size=x.shape) < share
    return Corrupted(np.where(hit, float(value), x), x)


def removal_rate(rounded: np.ndarray, corrupted: Corrupted) -> tuple[float, float, float]:
    """Bingham et al. (2007), 3.6.2: noise removal 1 - (fp + fn) / 2, with fp and fn, for added zeros.

    fp: the share of the true zeros (0 in the original) that the reconstruction turns to 1; fn: the share of the false
    zeros (1 in the original, 0 now) that it does not turn to 1. Ones that were left alone do not count. Changing
    nothing, and turning every zero to one, both score 1/2.
    """
    true_zero, false_zero = corrupted.original == 0, corrupted.changed
    fp, fn = float(rounded[true_zero].mean()), float(1 - rounded[false_zero].mean())
    return 1 - (fp + fn) / 2, fp, fn


def flipped(corrupted: Corrupted) -> Corrupted:
    """Ones and zeros change names, so that added ones are judged as added zeros are."""
    return Corrupted(1 - corrupted.x, 1 - corrupted.original)
