"""Other programs that find topics, run by the peers' Python: python -m benchmarks.speed._topic_peers PROGRAM IN OUT.

Needs tomotopy, gensim, lda and scikit-learn, of which each program imports its own. CPU seconds of the training alone:
taking a snapshot of the topics stops the clock. OUT holds ``passes``, ``seconds`` and ``topic`` (T, K, V) of the
snapshots, and for samplers ``averaged`` (K, V) over 50 samples, five sweeps apart, after the last of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed._topic_evaluator import Array, Corpus

#: Samples of an average, and the sweeps between them.
AVERAGED, APART = 50, 5


class Snapshots:
    """Topics by passes and CPU seconds; the clock stands still while they are copied."""

    def __init__(self, passes: int):
        steps = 1.3 ** np.arange(60)
        self.wanted = sorted({min(passes, round(s)) for s in steps})
        self.stopped, self.begin = 0.0, time.process_time()
        self.passes: list[float] = []
        self.seconds: list[float] = []
        self.topics: list[Array] = []

    def now(self) -> float:
        return time.process_time() - self.begin - self.stopped

    def restart(self) -> None:
        self.begin, self.stopped = time.process_time(), 0.0

    def take(self, passes: float, topic: Any) -> None:
        """Where another of the wanted numbers of passes is reached. topic: a call, made off the clock."""
        if len(self.topics) >= len(self.wanted) or passes < self.wanted[len(self.topics)] - 1e-6:
            return
        at, entered = self.now(), time.process_time()
        self.passes.append(passes)
        self.seconds.append(at)
        self.topics.append(np.asarray(topic(), dtype=np.float32))
        self.stopped += time.process_time() - entered


def scikit_learn(
    corpus: Corpus, size: int, passes: int, seed: int, taken: Snapshots, **settings: Any
) -> dict[str, Any]:
    from sklearn.decomposition import LatentDirichletAllocation

    class Recorded(LatentDirichletAllocation):
        done = 0.0

        def _em_step(self, X, total_samples, batch_update, parallel=None):
            super()._em_step(X, total_samples=total_samples, batch_update=batch_update, parallel=parallel)
            self.done += X.shape[0] / total_samples
            taken.take(self.done, self.components_.copy)

    priors = {"doc_topic_prior": corpus.alpha, "topic_word_prior": corpus.gamma}
    model = Recorded(n_components=size, max_iter=passes, evaluate_every=-1, random_state=seed, **priors, **settings)
    taken.restart()
    model.fit(corpus.train)
    return {"total": taken.now()}


def gensim_vb(corpus: Corpus, size: int, passes: int, seed: int, taken: Snapshots, chunk: int) -> dict[str, Any]:
    from gensim.models import LdaModel  # pyright: ignore[reportMissingImports]

    train = corpus.train
    places = zip(train.indptr[:-1], train.indptr[1:], strict=True)
    documents = [list(zip(map(int, train.indices[a:b]), map(int, train.data[a:b]), strict=True)) for a, b in places]
    names = {i: str(i) for i in range(train.shape[1])}

    class Recorded(LdaModel):
        def do_mstep(self, rho, other, extra_pass=False):
            super().do_mstep(rho, other, extra_pass)
            self.done = getattr(self, "done", 0.0) + other.numdocs / len(documents)
            taken.take(self.done, self.state.get_lambda)

    taken.restart()
    settings = {"alpha": [corpus.alpha] * size, "eta": corpus.gamma, "chunksize": chunk, "eval_every": None}
    Recorded(documents, id2word=names, num_topics=size, passes=passes, random_state=seed, **settings)
    return {"total": taken.now()}


def tomotopy(corpus: Corpus, size: int, passes: int, seed: int, taken: Snapshots, averaged: int) -> dict[str, Any]:
    import tomotopy as tp  # pyright: ignore[reportMissingImports]

    model = tp.LDAModel(k=size, alpha=corpus.alpha, eta=corpus.gamma, seed=seed)
    model.optim_interval = 0
    for row in range(corpus.train.shape[0]):
        cells = slice(corpus.train.indptr[row], corpus.train.indptr[row + 1])
        words = np.repeat(corpus.train.indices[cells], corpus.train.data[cells].astype(int))
        model.add_doc([str(v) for v in words])
    taken.restart()
    model.train(0, workers=1)
    used = np.array([int(v) for v in model.used_vocabs])

    def topic() -> Array:
        whole = np.full((size, corpus.train.shape[1]), 1e-7)
        whole[:, used] = np.stack([model.get_topic_word_dist(k) for k in range(size)])
        return whole

    done = 0
    for stop in taken.wanted:
        model.train(stop - done, workers=1)
        done = stop
        taken.take(done, topic)
    result: dict[str, Any] = {"total": taken.now()}
    total = 0
    for _ in range(averaged):
        model.train(APART, workers=1)
        at, entered = taken.now(), time.process_time()
        total = total + topic()
        taken.stopped += time.process_time() - entered
        result.update(averaged=total / averaged, averaged_seconds=at)
    return result


def lda_package(corpus: Corpus, size: int, passes: int, seed: int, taken: Snapshots) -> dict[str, Any]:
    import lda  # pyright: ignore[reportMissingImports]

    logging.getLogger("lda").setLevel(logging.ERROR)

    class Recorded(lda.LDA):
        done = 0

        def _sample_topics(self, rands):
            super()._sample_topics(rands)
            self.done += 1
            taken.take(self.done, lambda: self.nzw_ + self.eta)

    counts = corpus.train.toarray().astype(np.int64)
    taken.restart()
    Recorded(size, n_iter=passes, alpha=corpus.alpha, eta=corpus.gamma, random_state=seed, refresh=10**9).fit(counts)
    return {"total": taken.now()}


#: Name -> how it is called, its settings, and how many passes it is given.
PROGRAMS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "scikit-learn, batch VB": (scikit_learn, {"learning_method": "batch"}, 100),
    "scikit-learn, online VB, batch 128": (scikit_learn, {"learning_method": "online", "batch_size": 128}, 20),
    "gensim, chunk 2000": (gensim_vb, {"chunk": 2000}, 50),
    "gensim, chunk 256": (gensim_vb, {"chunk": 256}, 20),
    "tomotopy, Gibbs": (tomotopy, {"averaged": AVERAGED}, 500),
    "lda, Gibbs": (lda_package, {}, 300),
}
PACKAGES = {"scikit-learn": "scikit-learn", "gensim": "gensim", "tomotopy": "tomotopy", "lda": "lda"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--passes", type=int)
    parser.add_argument("--num-topics", type=int)
    parser.add_argument("--no-average", action="store_true")
    arguments = parser.parse_args()
    call, settings, passes = PROGRAMS[arguments.program]
    if arguments.no_average and "averaged" in settings:
        settings = {**settings, "averaged": 0}
    corpus, passes = Corpus.load(arguments.corpus), arguments.passes or passes
    taken = Snapshots(passes)
    warnings.simplefilter("ignore")
    size = arguments.num_topics or len(corpus.truth)
    more = call(corpus, size, passes, arguments.seed, taken, **settings)
    version = importlib.metadata.version(PACKAGES[arguments.program.split(",")[0]])
    parts = {"passes": taken.passes, "seconds": taken.seconds, "topic": np.stack(taken.topics)}
    np.savez(arguments.out, **parts, **more, version=json.dumps(version))


if __name__ == "__main__":
    main()
