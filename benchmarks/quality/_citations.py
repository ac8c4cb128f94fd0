"""Who is cited together at NIPS: communities as one perceives them, and how well components match them (paper, 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from ppl_models import Data
from ppl_models.datasets import read_matrix

Array = NDArray[np.float64]

#: Written down before any fit, from general knowledge of the field, as the paper did for its own names (5.4.2).
COMMUNITIES: dict[str, tuple[str, ...]] = {
    "reinforcement": (
        "sutton", "barto", "watkins", "tesauro", "singh", "moore", "bertsekas", "dayan", "bradtke", "atkeson",
        "littman", "tsitsiklis", "thrun",
    ),
    "Bayes, variational": (
        "neal", "mackay", "ghahramani", "jaakkola", "saul", "frey", "jordan", "hinton", "zemel", "rubin", "nowlan",
    ),
    "kernels, theory": (
        "vapnik", "haussler", "baum", "barron", "bartlett", "warmuth", "kearns", "cortes", "boser", "guyon", "freund",
        "schapire", "burges", "blum", "rivest",
    ),
    "digits": (
        "cun", "lecun", "denker", "henderson", "howard", "hubbard", "jackel", "boser", "simard", "solla", "bottou",
        "guyon",
    ),
    "speech": ("waibel", "bourlard", "robinson", "lang", "lippmann", "lippman", "bengio", "watrous", "iso", "cole"),
    "cognition": (
        "rumelhart", "mcclelland", "elman", "smolensky", "cottrell", "pollack", "mozer", "giles", "chauvin", "munro",
    ),
    "neurobiology": (
        "koch", "bialek", "douglas", "mahowald", "mel", "movshon", "hasselmo", "schulten", "linsker", "bienenstock",
        "sejnowski", "andersen", "willshaw",
    ),
    "unsupervised": (
        "amari", "cichocki", "oja", "linsker", "olshausen", "sanger", "becker", "bienenstock", "sejnowski",
    ),
}  # fmt: skip
#: As many names of a component as the paper lists (Fig. 13); of a community at least 5 is good purity, 3 or 4 mediocre.
TOP, GOOD, MEDIOCRE = 7, 5, 3


class Components(NamedTuple):
    """vectors (K, D), of whose rows the largest elements are the component's names; weight (K,), summing to 1."""

    vectors: Array
    weight: Array

    @classmethod
    def of(cls, vectors: torch.Tensor, weight: torch.Tensor) -> Components:
        share = weight.numpy().astype(float)
        return cls(vectors.numpy().astype(float), share / share.sum())


def citations(folder: Path) -> tuple[Data, int]:
    """Papers x cited surnames without papers that cite nobody, and how many those were (the paper drops them too)."""
    data = read_matrix(folder / "nips" / "nips_cited_surnames.npz", dtype=torch.float64)
    some = data.x.sum(1) > 0
    return data.rows(some.nonzero().flatten()), int((~some).sum())


def top_names(vector: Array, names: Sequence[str], top: int = TOP) -> list[str]:
    return [names[j] for j in np.argsort(-vector, kind="stable")[:top]]


def score(names: Sequence[str], community: Sequence[str]) -> float:
    """1 for a component of good purity, 1/2 for a mediocre one, else 0: the paper's judgement by eye, as a count."""
    inside = len(set(names) & set(community))
    return 1.0 if inside >= GOOD else 0.5 if inside >= MEDIOCRE else 0.0


def successes(vectors: Array, names: Sequence[str]) -> dict[str, float]:
    """Community -> the best score of any component; a component speaks for the one community it has most names of."""
    best = dict.fromkeys(COMMUNITIES, 0.0)
    for vector in vectors:
        listed = top_names(vector, names)
        which = max(COMMUNITIES, key=lambda c: len(set(listed) & set(COMMUNITIES[c])))
        best[which] = max(best[which], score(listed, COMMUNITIES[which]))
    return best


def community_vectors(names: Sequence[str]) -> Array:
    """0/1 vectors of the communities (Singliar & Hauskrecht 2006, 5.4.2), (C, D)."""
    return np.array([[float(name in members) for name in names] for members in COMMUNITIES.values()])


def cosines(left: Array, right: Array) -> Array:
    """(K, C); a vector of zeros has cosine 0 with everything."""

    def unit(vectors: Array) -> Array:
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)

    return unit(left) @ unit(right).T


def weighted_cosines(found: Components, reference: Array) -> Array:
    """u_i cos(x_i, y_rho(i)) of the matched pairs, the largest first, (min(K, C),).

    rho is the one-to-one matching of largest sum, by linear assignment: the formula of 5.4.2 prints its minimum, the
    text says which one is meant. u_i are the components' weights, a convex combination. The sum of the first L entries
    is the height of Fig. 14 at L.
    """
    gain = found.weight[:, None] * cosines(found.vectors, reference)
    rows, columns = linear_sum_assignment(-gain)
    return np.sort(gain[rows, columns])[::-1]
