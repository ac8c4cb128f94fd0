"""Models of tomotopy on the data of reports whose peers they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.quality._common import cpu_seconds
from benchmarks.quality._correlated_data import Array, under_dirichlet
from benchmarks.quality._dynamic_data import Dated
from benchmarks.quality.labelled_topics import GROUPS, Corpus, Found, completed
from benchmarks.quality.supervised_topics import Corpus as Responses


def fit_over_time(data: Dated, num_topics: int) -> tuple[Array, float]:
    """DTModel, 500 iterations with its own hyper-parameters."""
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    made = tp.DTModel(k=num_topics, t=data.num_times, seed=0)
    for row, t in zip(data.counts, data.time, strict=True):
        made.add_doc(list(np.repeat(row.indices, row.data).astype(str)), timepoint=int(t))
    _, seconds = cpu_seconds(lambda: made.train(500, workers=1))
    topics = np.full((data.num_times, num_topics, data.counts.shape[1]), 1e-10)
    known = np.array([int(word) for word in made.used_vocabs])
    for t, k in np.ndindex(topics.shape[:2]):
        topics[t, k, known] = made.get_topic_word_dist(k, timepoint=t)
    return topics / topics.sum(-1, keepdims=True), seconds


def fit_labelled(data: Corpus, seed: int, own: int = 4, common: int = 4) -> Found:
    """PLDAModel, 500 sweeps; the group by the shares of the groups' topics."""
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    made = tp.PLDAModel(latent_topics=common, topics_per_label=own, alpha=0.1, eta=0.05, seed=seed)
    for row, group in zip(data.x, data.y, strict=True):
        made.add_doc(list(np.repeat(row.indices, row.data).astype(str)), labels=[str(group)])
    _, seconds = cpu_seconds(lambda: made.train(500, workers=1))
    topic, alpha, names = _topics_of(made, data.x.shape[1]), np.full(made.k, 0.1), list(made.topic_label_dict)
    share = under_dirichlet(topic, alpha, data.new)
    begin = [own * names.index(str(group)) for group in range(GROUPS)]
    chance = np.stack([share[:, at : at + own].sum(1) for at in begin], 1)
    return Found(chance, completed(data, topic, alpha), seconds)


def fit_regression(data: Corpus, seed: int, size: int = 20) -> Found:
    """DMRModel, 500 sweeps; completion knows the group, and so do its concentrations."""
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    made = tp.DMRModel(k=size, eta=0.05, seed=seed)
    for row, group in zip(data.x, data.y, strict=True):
        made.add_doc(list(np.repeat(row.indices, row.data).astype(str)), metadata=str(group))
    _, seconds = cpu_seconds(lambda: made.train(500, workers=1))
    topic = _topics_of(made, data.x.shape[1])
    alpha = np.stack([made.get_topic_prior(str(group)) for group in range(GROUPS)])
    chance = np.zeros((data.new.shape[0], GROUPS))
    return Found(chance, completed(data, topic, alpha[data.truth]), seconds)


def predict_responses(corpus: Responses, x: Any, y: Any, new: Any) -> Any:
    """SLDAModel of a binary response, 500 sweeps."""
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    settings: dict[str, Any] = {"vars": "b", "mu": [0.0], "nu_sq": [10.0], "glm_param": [10.0]}
    model = tp.SLDAModel(k=corpus.topics, alpha=0.1, eta=0.05, seed=0, **settings)
    for words, value in zip(_words(x), y, strict=True):
        model.add_doc(words, y=[float(value)])
    model.train(500, workers=1)
    documents = [model.make_doc(words) for words in _words(new)]
    model.infer(documents, iterations=200, workers=1)
    return np.array([model.estimate(one)[0] for one in documents])


def _words(x: Any) -> list[list[str]]:
    pairs = zip(x.indptr[:-1], x.indptr[1:], strict=True)
    return [np.repeat(x.indices[a:b], x.data[a:b].astype(int)).astype(str).tolist() for a, b in pairs]


def _topics_of(made: Any, words: int) -> Array:
    """The topics (K, V) of a model of tomotopy, whose words are the numbers of ours."""
    topic, known = np.full((made.k, words), 1e-10), np.array([int(word) for word in made.used_vocabs])
    topic[:, known] = np.stack([made.get_topic_word_dist(k) for k in range(made.k)])
    return topic / topic.sum(1, keepdims=True)
