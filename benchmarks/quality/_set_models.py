"""Bag-of-words models as distributions over sets of words (Singliar & Hauskrecht 2006, sections 5.3 and 5.4.3).

NOCA gives every *set* of words a probability. LDA, PLSA and the mixture of multinomials draw words one after the other
with probabilities q (V,), and the same word may come twice. As a distribution over sets S they are taken at their best:
draw the size from the sizes of the training documents, then that many words, again from the start until all differ,

    P(S) = P(|S| = n) p(S | n),    p(S | n) = E_q[prod_{v in S} q_v] / E_q[e_n(q)],

E_q over the documents' q (a class of the mixture; topic proportions), e_n the n-th elementary symmetric polynomial:
n! prod q_v is the probability that n draws are the members of S in any order, n! e_n(q) that they all differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]


def elementary(q: Array, most: int) -> Array:
    """e_0(q), ..., e_most(q) of every row of q (S, V): the sums over subsets of their products, (S, most + 1)."""
    total = np.zeros((len(q), most + 1))
    total[:, 0] = 1.0
    for v in range(q.shape[1]):
        total[:, 1:] += q[:, v, None] * total[:, :-1].copy()
    return total


def log_words(x: Array, q: Array, log_weight: Array) -> Array:
    """log sum_s w_s prod_v q_sv^x_nv, (N,): of the words in their order, given how many there are."""
    with np.errstate(divide="ignore"):
        log_q = np.maximum(np.log(q), -1e3)  # a product of 0 times a finite number stays representable
    found: Any = logsumexp(x @ log_q.T + log_weight, axis=1)
    return found


def log_distinct(sizes: NDArray[np.int64], q: Array, log_weight: Array) -> Array:
    """log sum_s w_s e_n(q_s) at every size n in ``sizes``, (N,)."""
    found = elementary(q, int(sizes.max()))
    with np.errstate(divide="ignore"):
        every: Any = logsumexp(np.log(found) + log_weight[:, None], axis=0)
    return every[sizes]


def log_set_given_size(x: Array, q: Array, log_weight: Array) -> Array:
    """log p(S | n) of every row of x (N, V), which has 1 for the members of S."""
    sizes = x.sum(1).astype(np.int64)
    return log_words(x, q, log_weight) - log_distinct(sizes, q, log_weight)


def log_size(train: Array, test: Array) -> Array:
    """log P(|S| = n) of every row of ``test``: shares of the sizes in ``train``, and one document spread over 1..V."""
    size = train.shape[1]
    count = np.bincount(train.sum(1).astype(np.int64), minlength=size + 1)[1:] + 1.0 / size
    return np.log(count / count.sum())[test.sum(1).astype(np.int64) - 1]
