"""How the citation benchmarks fit each model, and what stands for its components (the paper, section 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

import custom_inference
from benchmarks.quality._citations import Components
from custom_inference import EM, Fit, Search
from ppl_models import LDA, NOCA, PLSA, Data, LogisticPCA, MixtureOfMultinomials

#: One random start; and the gain a document below which EM ends.
ONE, TOLERANCE = Search(restarts=1, informed=False), 1e-3
#: Starts of logistic PCA, which all end at one solution.
FEW = 3


class Learned(NamedTuple):
    """A fit and what stands for its components."""

    fit: Fit
    components: Components


def noca(data: Data, size: int, seed: int) -> Learned:
    """Exact EM from one random start, as a run of the paper is one start of its variational EM."""
    model = NOCA(num_components=size, num_features=data.num_features)
    fit = custom_inference.fit(model, data, seed=seed, search=ONE, tolerance=TOLERANCE, progress=False)
    return Learned(fit, Components.of(fit.params["loading"], fit.params["source_prior"]))


def lda(data: Data, size: int, seed: int, alpha: float = 0.1) -> Learned:
    model = LDA(num_topics=size, vocabulary_size=data.num_features).with_concentration(alpha=alpha)
    return _admixture(custom_inference.fit(model, data, seed=seed, progress=False))


def plsa(data: Data, size: int, seed: int) -> Learned:
    """EM from one random start."""
    model = PLSA(num_topics=size, vocabulary_size=data.num_features)
    return _admixture(
        custom_inference.fit(model, data, seed=seed, search=ONE, tolerance=10 * TOLERANCE, progress=False)
    )


def _admixture(fit: Fit) -> Learned:
    """The weight of a topic is its share of the tokens: P(z) of PLSA."""
    mixes = fit.params["topic_proportion"] if "topic_proportion" in fit.params else fit.transform()
    return Learned(fit, Components.of(fit.params["topic"], mixes.T @ fit.data.dense().x.sum(1)))


def mixture(data: Data, size: int, seed: int) -> Learned:
    """Exact EM from one random start; the topics' Dirichlet prior is that of LDA."""
    model = MixtureOfMultinomials(num_topics=size, vocabulary_size=data.num_features)
    fit = EM(search=ONE, tolerance=TOLERANCE).fit(model, data, seed=seed, progress=False)
    return Learned(fit, Components.of(fit.params["topic"], fit.params["mixing_proportion"]))


def logistic_pca(data: Data, size: int, seed: int) -> Learned:
    """Its components have no weights: all the same."""
    model = LogisticPCA(num_components=size, num_features=data.num_features)
    fit = custom_inference.fit(model, data, seed=seed, search=ONE, progress=False)
    return Learned(fit, Components.of(fit.params["weight"], torch.ones(size)))


METHODS: dict[str, Callable[..., Learned]] = {
    "logistic PCA": logistic_pca,
    "mixture": mixture,
    "PLSA": plsa,
    "LDA": lda,
    "NOCA": noca,
}
