"""Rows of the table of peers: models of documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._lines import Lines
from benchmarks.quality import _tomotopy_models, labelled_topics, relational_topics
from benchmarks.quality._correlated_data import newsgroups, perplexity, split, under_dirichlet, under_gaussian
from benchmarks.quality._dynamic_data import synthetic, variation
from benchmarks.quality._peer_rows_of import Row, Timed, once
from benchmarks.quality.relational_topics import cora, split_of
from benchmarks.quality.supervised_topics import poliblog
from custom_inference.core.fit import Fit
from custom_inference.families.links import SAMPLED
from ppl_models import DTM, RTM

_TOPICS, _FOLDS = 20, 5
_NEWS = "four newsgroups, 20 topics: perplexity of half the tokens of test documents"


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


def _scikit_learn_lda(data: Any) -> Any:
    from sklearn.decomposition import LatentDirichletAllocation

    settings: dict[str, Any] = {"doc_topic_prior": 0.1, "topic_word_prior": 0.05, "max_iter": 50, "random_state": 0}
    made = LatentDirichletAllocation(_TOPICS, **settings).fit(data[0])
    return made.components_ / made.components_.sum(1, keepdims=True), np.full(_TOPICS, 0.1), None


def _tomotopy_ctm(data: Any) -> Any:
    made, topic = _tomotopy("CTModel", data[0], 200, k=_TOPICS, eta=0.05)
    return topic, np.asarray(made.prior_mean), np.asarray(made.prior_cov)


def _tomotopy_hdp(data: Any) -> Any:
    """Of its topics those that are in use, by their tokens."""
    made, topic = _tomotopy("HDPModel", data[0], 500, initial_k=_TOPICS, eta=0.05)
    tokens = np.asarray(made.get_count_by_topics()) * np.array([made.is_live_topic(k) for k in range(made.k)])
    live = tokens > 0
    return topic[live], made.alpha * tokens[live] / tokens.sum(), None


def _of_words(read: Callable[[Any, Fit], Any]) -> Callable[[Lines, Any], Any]:
    return once(lambda data: {"x": data[0]}, read)


def _lda(data: Any, found: Fit) -> Any:
    del data
    prior: Any = found.model.priors["topic_proportion"]
    topic = found.params["topic"].double().numpy()
    return topic, prior.concentration.double().expand(len(topic)).numpy(), None


def _hdp(data: Any, found: Fit) -> Any:
    del data
    alpha = found.params["concentration"] * found.params["topic_weight"]
    return found.params["topic"].double().numpy(), alpha.double().numpy(), None


def _ctm(data: Any, found: Fit) -> Any:
    del data
    return tuple(found.params[site].double().numpy() for site in ("topic", "mean", "covariance"))


def _dtm(data: Any, found: Fit) -> Any:
    del data
    model: DTM = found.model  # pyright: ignore[reportAssignmentType]
    return model.topics(found.globals).double().numpy()


def _completed(data: Any, found: Any) -> float:
    """Perplexity of half the tokens of 400 test documents."""
    topic, mean, covariance = found
    seen, held = split(data[1], 0.5)
    share = under_dirichlet(topic, mean, seen) if covariance is None else under_gaussian(topic, mean, covariance, seen)
    return perplexity(share, topic, held)


def _by_folds(predict: Callable[..., Any], corpus: Any) -> Any:
    """Predictions of every document by a fit to the other folds."""
    found = np.empty(len(corpus.y))
    for fold in range(_FOLDS):
        own = corpus.fold == fold
        found[own] = predict(corpus, corpus.x[~own], corpus.y[~own], corpus.x[own])
    return found


def _supervised(lines: Lines, corpus: Any) -> Any:
    return _by_folds(lambda _, x, y, new: lines.fit(x=x, y=y).predict(new).numpy(), corpus)


def _accuracy(corpus: Any, found: Any) -> float:
    return float(((found > 0.5) == (corpus.y > 0.5)).mean())


# ----- labels, covariates, links ----------------------------------------------------------------------------------


def _plain(alpha: float) -> Callable[[Any, Fit], Any]:
    """Topics, and the same concentration of all for every document."""
    return lambda data, found: (found.params["topic"].double().numpy(), alpha)


def _by_group(data: Any, found: Fit) -> Any:
    """Topics, and the concentrations of the documents' groups."""
    alpha = (found.params["prevalence_bias"] + found.params["prevalence_weight"]).exp().double().numpy()
    return found.params["topic"].double().numpy(), alpha[data.truth]


def _half_given(data: Any, found: Any) -> float:
    """Perplexity of half the tokens of test documents, or what a peer's run says of it."""
    if type(found) is float:
        return found
    topic, alpha = found
    alpha = np.full(len(topic), alpha) if np.ndim(alpha) == 0 else alpha
    return perplexity(under_dirichlet(topic, alpha, data.seen), topic, data.held)


def _of_labels(lines: str, what: str, peer: str, read: Callable[[Any, Fit], Any], theirs: Callable[..., Any]) -> Row:
    def timed(data: Any) -> Timed:
        found = theirs(data, 0)
        return Timed(float(found.perplexity), found.seconds)

    ours = once(lambda data: {"x": data.x, "y": data.y, "groups": np.eye(labelled_topics.GROUPS)[data.y]}, read)
    what = f"four newsgroups, {what}: perplexity of half the tokens of test documents"
    return Row(Lines(lines), what, "less", f"tomotopy {peer}", ("tomotopy",), labelled_topics.read, ours, timed,
               _half_given)  # fmt: skip


def _citations(folder: Path) -> Any:
    return split_of(*cora(folder), 0)


def _regression_of_chains(split: Any) -> Any:
    """The mean over as many chains of LDA as the default of RTM has, of as many topics."""
    topics, chains = RTM.for_data(split.x).num_topics, SAMPLED().chains
    return sum(relational_topics.regression(split, topics, seed, draws=6) for seed in range(chains)) / chains


def _precision(split: Any, chance: Any) -> float:
    """Average precision of the hidden links."""
    return relational_topics.scores(split, chance)[1]


def _news(lines: str, peer: str, package: str, read: Callable[[Any, Fit], Any], theirs: Callable[[Any], Any]) -> Row:
    what = _NEWS if package != "tomotopy" or "HDP" not in lines else _NEWS.replace("20 topics", "topics as found")
    return Row(Lines(lines), what, "less", peer, (package,), newsgroups, _of_words(read), theirs, _completed)


def _synthetic(folder: Path) -> Any:
    del folder
    return synthetic(0)


ROWS: tuple[Row, ...] = (
    _news("fit(LDA(num_topics=20), x)", "tomotopy LDAModel, 500 sweeps", "tomotopy", _lda, _tomotopy_lda),
    _news("fit(LDA(num_topics=20), x, method='learned', chains=1)", "tomotopy LDAModel, 500 sweeps", "tomotopy", _lda,
          _tomotopy_lda),
    _news("fit(MultinomialPCA(num_topics=20), x)", "scikit-learn LatentDirichletAllocation, 50 iterations",
          "scikit-learn", _lda, _scikit_learn_lda),
    _news("fit(CTM(num_topics=20), x)", "tomotopy CTModel, 200 sweeps", "tomotopy", _ctm, _tomotopy_ctm),
    _news("fit(HDP(max_topics=50), x)", "tomotopy HDPModel, 500 sweeps", "tomotopy", _hdp, _tomotopy_hdp),
    Row(Lines("fit(DTM(num_topics=5), x, time=time)"), "ten slices, 5 topics: total variation of the topics", "less",
        "tomotopy DTModel, 500 iterations", ("tomotopy",), _synthetic,
        once(lambda data: {"x": data[0].counts, "time": data[0].time}, _dtm),
        lambda data: _tomotopy_models.fit_over_time(data[0], 5)[0], lambda data, found: variation(data[1], found)),
    Row(Lines("fit(SupervisedLDA(num_topics=20), x, response=y)"), "political blogs, five folds: accuracy", "more",
        "tomotopy SLDAModel, 500 sweeps", ("tomotopy",), poliblog, _supervised,
        partial(_by_folds, _tomotopy_models.predict_responses),
        _accuracy),
    _of_labels("fit(LabeledLDA(num_topics=4, num_labels=4), x, labels=y)", "a topic a label",
               "PLDAModel, 500 sweeps", _plain(0.1), partial(_tomotopy_models.fit_labelled, own=1, common=0)),
    _of_labels("fit(PartiallyLabeledLDA(num_topics=20, num_labels=4, topics_per_label=4), x, labels=y)",
               "4 topics a label, 4 in common", "PLDAModel, 500 sweeps", _plain(0.1), _tomotopy_models.fit_labelled),
    _of_labels("fit(DirichletMultinomialRegression(num_topics=20), x, covariates=groups)",
               "20 topics, the group given", "DMRModel, 500 sweeps", _by_group, _tomotopy_models.fit_regression),
    Row(Lines("fit(RTM(vocabulary_size=x.shape[1]), x, links=links)"),
        "citations of Cora: average precision of a hidden tenth", "more",
        "LDA of as many topics and chains, then scikit-learn's LogisticRegression", ("scikit-learn",), _citations,
        once(lambda split: {"x": split.x, "links": split.matrix}, lambda split, found: found.predict(None).numpy()),
        _regression_of_chains, _precision),
)  # fmt: skip
