"""Models beside the best program that installs from PyPI: for every row the data, both fits, and one score of either.

A fit returns what the score reads: topics and concentrations, rates, predictions or a log-likelihood. Settings of other
programs are those that did best where they were tried, their defaults elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import custom_inference as ci
from benchmarks.quality._correlated_data import newsgroups, perplexity, split, under_dirichlet, under_gaussian
from benchmarks.quality._counts_data import counts, divergence, score
from benchmarks.quality._counts_methods import LINES
from benchmarks.quality._dynamic_data import synthetic, variation
from benchmarks.quality._machines_data import digits
from benchmarks.quality._ratings import Films
from benchmarks.quality.correlated_topics import LINES as TOPICS
from benchmarks.quality.dynamic_topics import dynamic
from benchmarks.quality.dynamic_topics import tomotopy as tomotopy_dtm
from benchmarks.quality.machines import of_scikit_learn
from benchmarks.quality.machines import score as boltzmann_score
from benchmarks.quality.ratings import WAYS
from benchmarks.quality.ratings import score as rating_score
from benchmarks.quality.supervised_topics import constrained, poliblog
from benchmarks.quality.supervised_topics import tomotopy as tomotopy_slda
from custom_inference.core.local_inference import log_likelihood
from ppl_models import (
    CTM,
    DTM,
    HDP,
    LDA,
    NMF,
    PMF,
    RBM,
    GammaPoisson,
    GaussianPCA,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    PoissonPCA,
    SupervisedLDA,
)
from ppl_models.core.model import Model

_TOPICS, _FOLDS, _COMPONENTS = 20, 5, 10


@dataclass(frozen=True)
class Row:
    """kind: the model; what: data and score; better: "less" or "more"; peer: a program and its settings; package: what
    has to be installed for it; data, ours, theirs, score: from a folder of data to numbers."""

    kind: type[Model]
    what: str
    better: str
    peer: str
    package: str
    data: Callable[[Path], Any]
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    score: Callable[[Any, Any], float]


# ----- topics -----------------------------------------------------------------------------------------------------


def _tomotopy(kind: str, x: Any, sweeps: int, **settings: Any) -> tuple[Any, np.ndarray]:
    """A trained model of documents (rows of x), and its topics (K, V)."""
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    made = getattr(tp, kind)(seed=1, **settings)
    for row in x:
        made.add_doc(list(np.repeat(row.indices, row.data).astype(str)))
    made.train(sweeps, workers=1)
    topic, known = np.full((made.k, x.shape[1]), 1e-10), np.array([int(word) for word in made.used_vocabs])
    for k in range(made.k):
        topic[k, known] = made.get_topic_word_dist(k)
    return made, topic / topic.sum(1, keepdims=True)


def _tomotopy_lda(data: Any) -> Any:
    made, topic = _tomotopy("LDAModel", data[0], 500, k=_TOPICS, eta=0.05)
    return topic, np.asarray(made.alpha), None


def _sampled_lda(data: Any) -> Any:
    """One chain that learns the concentrations, as the peer's does."""
    model = LDA(num_topics=_TOPICS, vocabulary_size=data[0].shape[1]).with_concentration(alpha=0.1, gamma=0.05)
    method = ci.CollapsedGibbs(chains=1, threads=1, search=False, learn=True, warmup=200, num_samples=30, thin=5)
    found = method.fit(model, data[0], progress=False)
    alpha = found.model.priors["topic_proportion"].concentration.expand(_TOPICS)
    return found.params["topic"].double().numpy(), alpha.double().numpy(), None


def _tomotopy_ctm(data: Any) -> Any:
    made, topic = _tomotopy("CTModel", data[0], 200, k=_TOPICS, eta=0.05)
    return topic, np.asarray(made.prior_mean), np.asarray(made.prior_cov)


def _tomotopy_hdp(data: Any) -> Any:
    """Of its topics those that are in use, by their tokens."""
    made, topic = _tomotopy("HDPModel", data[0], 500, initial_k=_TOPICS, eta=0.05)
    tokens = np.asarray(made.get_count_by_topics()) * np.array([made.is_live_topic(k) for k in range(made.k)])
    live = tokens > 0
    return topic[live], made.alpha * tokens[live] / tokens.sum(), None


def _hdp(data: Any) -> Any:
    found = ci.fit(HDP(max_topics=50, vocabulary_size=data[0].shape[1]), data[0], progress=False).params
    alpha = found["concentration"] * found["topic_weight"]
    return found["topic"].double().numpy(), alpha.double().numpy(), None


def _completed(data: Any, found: Any) -> float:
    """Perplexity of half the tokens of 400 test documents."""
    topic, mean, covariance = found
    seen, held = split(data[1], 0.5)
    share = under_dirichlet(topic, mean, seen) if covariance is None else under_gaussian(topic, mean, covariance, seen)
    return perplexity(share, topic, held)


def _topics(line: str) -> Callable[[Any], Any]:
    return lambda data: tuple(TOPICS[line](data[0], _TOPICS, 0))


def _by_folds(predict: Callable[..., Any]) -> Callable[[Any], Any]:
    """Predictions of every document by a fit to the other folds."""

    def run(corpus: Any) -> Any:
        found = np.empty(len(corpus.y))
        for fold in range(_FOLDS):
            own = corpus.fold == fold
            found[own] = predict(corpus, corpus.x[~own], corpus.y[~own], corpus.x[own])
        return found

    return run


# ----- counts, ratings, rows --------------------------------------------------------------------------------------


def _rate(line: str) -> Callable[[Any], Any]:
    return lambda data: LINES[line].fitted(data[0], 0)[0]


def _hpfrec(data: Any) -> Any:
    import pandas as pd
    from hpfrec import HPF  # pyright: ignore[reportMissingImports]

    cells = sp.coo_matrix(data[0])
    table = pd.DataFrame({"UserId": cells.row, "ItemId": cells.col, "Count": cells.data})
    settings: dict[str, Any] = {"stop_crit": "maxiter", "check_every": 300, "reindex": False, "verbose": False}
    made = HPF(k=_TOPICS, ncores=1, maxiter=300, random_seed=0, use_float=False, **settings)
    made.fit(table)
    rate, theta, beta = np.zeros(data[0].shape), np.asarray(made.Theta), np.asarray(made.Beta)
    rate[: len(theta), : len(beta)] = theta @ beta.T
    return rate


def _glmpca(data: Any) -> Any:
    from glmpca.glmpca import glmpca  # pyright: ignore[reportMissingImports]

    np.random.seed(0)  # noqa: NPY002 (it has no other way to be seeded)
    x, rate = data[0].astype(float), np.zeros(data[0].shape)
    used = x.sum(0) > 0
    found = glmpca(x[:, used].T, 10, fam="poi", penalty=10.0, ctl={"maxIter": 60, "eps": 1e-4})
    log = found["factors"] @ found["loadings"].T + found["coefX"][:, 0] + np.log(x[:, used].mean(1))[:, None]
    rate[:, used] = np.exp(np.clip(log, -30, 10))
    return rate


def _films(folder: Path) -> Any:
    films = Films.read(folder)
    return films, *films.split(0)


def _ways(name: str) -> Callable[[Any], Any]:
    return lambda data: WAYS[name].predicted(*data)[0]


def _myfm(kind: str, **settings: Any) -> Callable[[Any], Any]:
    def run(data: Any) -> Any:
        import myfm  # pyright: ignore[reportMissingImports]

        films, train, test = data
        sizes = films.shape
        one_hot = [sp.csr_matrix((np.ones(len(place)), (np.arange(len(place)), place)), (len(place), size))
                   for place, size in zip((films.user, films.item), sizes, strict=True)]  # fmt: skip
        x = sp.hstack(one_hot).tocsr()
        made = getattr(myfm, kind)(rank=10, random_seed=0)
        made.fit(x[train], films.value[train], grouping=np.repeat([0, 1], sizes), **settings)
        return made.predict(x[test])

    return run


def _grey(folder: Path) -> Any:
    """Digits in shades of grey, 0 to 1."""
    from sklearn.datasets import load_digits

    del folder
    rows: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(rows.data))
    return rows.data[order[:1437]] / 16, rows.data[order[1437:]] / 16


def _likelihood(model: Any, data: Any, rows: Any) -> float:
    """Mean log-likelihood of rows under the default fit to the training rows."""
    found = ci.fit(model, data[0], progress=False)
    return float(log_likelihood(model, found.globals, model.prepare(rows, dtype=torch.float64)).mean())


def _gaussian_pca(data: Any) -> float:
    return _likelihood(GaussianPCA(num_components=_COMPONENTS, num_features=data[0].shape[1]), data, data[1])


def _pca(data: Any) -> float:
    from sklearn.decomposition import PCA

    return float(PCA(_COMPONENTS).fit(data[0]).score(data[1]))


def _stepmix(measurement: str) -> Callable[[Any], float]:
    def run(data: Any) -> float:
        from stepmix import StepMix  # pyright: ignore[reportMissingImports]

        settings: dict[str, Any] = {"n_init": 10, "random_state": 0, "progress_bar": 0, "max_iter": 300}
        made = StepMix(_COMPONENTS, measurement=measurement, **settings).fit(data[0].astype(int))
        return float(made.score(data[0].astype(int)))

    return run


def _shades(folder: Path) -> Any:
    """Digits in four shades, 0 to 3."""
    return tuple(np.minimum((part * 4).astype(int), 3) for part in _grey(folder))


def _boltzmann(data: Any) -> Any:
    return ci.fit(RBM(num_hidden=16, num_features=64), data[0], method="pcd", progress=False).globals


def _bernoulli_rbm(data: Any) -> Any:
    from sklearn.neural_network import BernoulliRBM

    settings: dict[str, Any] = {"learning_rate": 0.01, "batch_size": 10, "n_iter": 300, "random_state": 0}
    return of_scikit_learn(BernoulliRBM(16, **settings).fit(data[0]))


_NEWS = "four newsgroups, 20 topics: perplexity of half the tokens of test documents"
_THINNED = "four newsgroups, thinned: log-likelihood of a token left out"
_RATED = "MovieLens 100K: RMSE of a tenth of the ratings"


def _given(data: Any, found: float) -> float:
    del data
    return found


def _accuracy(corpus: Any, found: Any) -> float:
    return float(((found > 0.5) == (corpus.y > 0.5)).mean())


def _rmse(data: Any, mean: Any) -> float:
    films, _, test = data
    return rating_score(mean, np.ones(len(mean)), films.value[test])[0]


_SHADES = MixtureOfCategoricals(num_components=_COMPONENTS, num_features=64, num_categories=4)
_PIXELS = MixtureOfBernoullis(num_components=_COMPONENTS, num_features=64)
_MIXED = "log-likelihood of a row, which both maximise"

ROWS: tuple[Row, ...] = (
    Row(LDA, _NEWS, "less", "tomotopy LDAModel, 500 sweeps", "tomotopy", newsgroups, _topics("LDA"), _tomotopy_lda,
        _completed),
    Row(LDA, f"{_NEWS}, sampled", "less", "tomotopy LDAModel, 500 sweeps", "tomotopy", newsgroups, _sampled_lda,
        _tomotopy_lda, _completed),
    Row(CTM, _NEWS, "less", "tomotopy CTModel, 200 sweeps", "tomotopy", newsgroups, _topics("CTM, default (sampling)"),
        _tomotopy_ctm, _completed),
    Row(HDP, _NEWS.replace("20 topics", "their topics' number learned"), "less",
        "tomotopy HDPModel, 500 sweeps", "tomotopy", newsgroups, _hdp, _tomotopy_hdp, _completed),
    Row(DTM, "ten slices, 5 topics: total variation of the topics", "less", "tomotopy DTModel, 500 iterations",
        "tomotopy", lambda folder: synthetic(0), lambda data: dynamic(data[0], 5, 0.2)[0],
        lambda data: tomotopy_dtm(data[0], 5, 0.2)[0], lambda data, found: variation(data[1], found)),
    Row(SupervisedLDA, "political blogs, five folds: accuracy", "more", "tomotopy SLDAModel, 500 sweeps", "tomotopy",
        poliblog, _by_folds(partial(constrained, weight=50.0)), _by_folds(tomotopy_slda), _accuracy),
    Row(NMF, "four newsgroups, 20 factors: divergence a token, which both minimise", "less",
        "scikit-learn NMF, nndsvda, 300 iterations", "scikit-learn", counts, _rate("NMF, 300 iterations 20"),
        _rate("NMF-KL (scikit-learn) 20"), lambda data, rate: divergence(rate, data[0])),
    Row(GammaPoisson, _THINNED + ", 20 factors", "more", "hpfrec, 300 iterations", "hpfrec", counts,
        _rate("GaP, Gibbs 20"), _hpfrec, lambda data, rate: score(rate, *data)),
    Row(PoissonPCA, _THINNED + ", 10 factors", "more", "glmpca, penalty 10, 60 iterations", "glmpca", counts,
        _rate("Poisson PCA 10"), _glmpca, lambda data, rate: score(rate, *data)),
    Row(PMF, _RATED, "less", "myFM variational, rank 10, 50 iterations", "myfm", _films, _ways("VB"),
        _myfm("VariationalFMRegressor", n_iter=50), _rmse),
    Row(PMF, _RATED + ", sampled", "less", "myFM Gibbs, rank 10, 512 iterations", "myfm", _films, _ways("Gibbs"),
        _myfm("MyFMRegressor", n_iter=512, n_kept_samples=462), _rmse),
    Row(GaussianPCA, "digits in grey: log-likelihood of a test row", "more", "scikit-learn PCA", "scikit-learn", _grey,
        _gaussian_pca, _pca, _given),
    Row(MixtureOfBernoullis, f"digits, black and white: {_MIXED}", "more", "stepmix, 10 starts", "stepmix",
        lambda folder: digits(), lambda data: _likelihood(_PIXELS, data, data[0]), _stepmix("binary"), _given),
    Row(MixtureOfCategoricals, f"digits in four shades: {_MIXED}", "more", "stepmix, 10 starts", "stepmix", _shades,
        lambda data: _likelihood(_SHADES, data, data[0]), _stepmix("categorical"), _given),
    Row(RBM, "digits, 16 hidden units: log-likelihood of a test row", "more", "scikit-learn BernoulliRBM, 300 passes",
        "scikit-learn", lambda folder: digits(), _boltzmann, _bernoulli_rbm,
        lambda data, weights: boltzmann_score(weights, data[1])),
)  # fmt: skip
