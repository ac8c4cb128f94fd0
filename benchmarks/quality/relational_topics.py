"""Links between papers from their topics, words from links, documents without links.

    python -m benchmarks.quality.relational_topics [--data DIR]

2,410 papers of Cora with 4,231 citations, taken as undirected: a tenth of the links is hidden and looked for among
20,000 pairs without a link (AUC, AP), and among all documents that the other end is not known to be linked to (median
rank). PPL_SMOKE=1: one split, few topics, no result.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from custom_inference import CollapsedGibbs
from custom_inference import fit as default_fit
from custom_inference.families.links import SAMPLED
from ppl_models import LDA, RTM

INTRO = (
    "Means over the splits. CPU seconds of one thread and one split. The additive link, sampled from the links alone "
    "(negatives=0): on the proportions, and on the topics that the tokens took, as the source has it. Scores are the "
    "expected links at the posterior means, averaged over chains where there are several. Hidden links are looked for "
    "between documents that keep their other links."
)
COLUMNS = ("method", "splits", "AUC", "AP", "median rank", "CPU s")
#: Topics of one chain, and how often each link counts.
TOPICS, COPIES = 100, 3
#: The model whose number of topics is that of the documents; type checkers ask for it.
OPEN: Any = RTM
#: Settings of chains on the proportions and on the tokens' topics.
SETTINGS: dict[str, dict[str, Any]] = {
    "RTM on proportions": {"link_on": "proportions", "warmup": 40, "num_samples": 30, "thin": 4},
    "RTM on tokens' topics": {"link_on": "tokens", "warmup": 40, "num_samples": 40, "thin": 2},
}


@dataclass(frozen=True)
class Split:
    """Counts (N, V); links for training and hidden ones (M, 2); pairs without a link."""

    x: Any
    known: Any
    hidden: Any
    unlinked: Any

    @property
    def matrix(self) -> Any:
        return linked(self.known, self.x.shape[0])


def cora(folder: Path) -> tuple[Any, Any]:
    with np.load(folder / "cora_rtm" / "cora_rtm.npz") as archive:
        x = sp.csr_matrix(
            (archive["data"].astype(float), archive["indices"], archive["indptr"]), tuple(archive["shape"])
        )
        return x, np.unique(np.sort(archive["cites"].astype(int), 1), axis=0)


def linked(pairs: Any, size: int) -> Any:
    """The symmetric matrix of links."""
    ones = np.ones(2 * len(pairs))
    return sp.csr_matrix((ones, (np.r_[pairs[:, 0], pairs[:, 1]], np.r_[pairs[:, 1], pairs[:, 0]])), (size, size))


def split_of(x: Any, pairs: Any, seed: int) -> Split:
    """A tenth of the links hidden, and 20,000 pairs that are not linked anywhere."""
    size, order, hidden = x.shape[0], np.random.default_rng(seed).permutation(len(pairs)), len(pairs) // 10
    keys, rng, found = set((pairs[:, 0] * size + pairs[:, 1]).tolist()), np.random.default_rng(1), []
    while len(found) < 20000:
        i, j = sorted(rng.integers(0, size, 2).tolist())
        if i != j and i * size + j not in keys:
            found.append((i, j))
    return Split(x, pairs[order[hidden:]], pairs[order[:hidden]], np.array(found))


def scores(split: Split, score: Any) -> tuple[float, float, float]:
    """AUC, AP and median rank of the hidden links under a score of all pairs (N, N)."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    both = np.r_[split.hidden, split.unlinked]
    value, truth = score[both[:, 0], both[:, 1]], np.arange(len(both)) < len(split.hidden)
    excluded = split.matrix.toarray() > 0
    np.fill_diagonal(excluded, True)
    rank = []
    for i, j in np.r_[split.hidden, split.hidden[:, ::-1]]:
        others = score[i][~excluded[i]]
        rank.append(1 + (others > score[i, j]).sum() + 0.5 * ((others == score[i, j]).sum() - 1))
    return float(roc_auc_score(truth, value)), float(average_precision_score(truth, value)), float(np.median(rank))


def fitted(x: Any, links: Any, topics: int, *, link_on: str, **chain: Any) -> Any:
    how: dict[str, Any] = {"link_on": link_on, "link_copies": COPIES, "negatives": 0}
    model = RTM(num_topics=topics, vocabulary_size=x.shape[1], **how).with_concentration(alpha=0.1, gamma=0.1)
    method = CollapsedGibbs(chains=1, threads=1, **chain)
    return method.fit(model, x, links=links, progress=False)


def tfidf(x: Any) -> Any:
    weighted = x @ sp.diags(np.log(x.shape[0] / np.maximum(np.asarray((x > 0).sum(0)).ravel(), 1)))
    return weighted.tocsr()


def cosine(rows: Any, others: Any = None) -> Any:
    from sklearn.preprocessing import normalize

    scaled: list[Any] = [normalize(one) for one in (rows, rows if others is None else others)]
    return (scaled[0] @ scaled[1].T).toarray()


def smoothed(split: Split) -> Any:
    """tf-idf averaged with that of the neighbours, cosine."""
    degree = np.maximum(np.asarray(split.matrix.sum(1)).ravel(), 1)
    weighted = tfidf(split.x)
    return cosine(weighted + sp.diags(1 / degree) @ split.matrix @ weighted)


def by_default(split: Split) -> Any:
    """The two lines: ``fit(RTM(vocabulary_size=V), x, links=links)`` and ``predict``."""
    return (
        default_fit(OPEN(vocabulary_size=split.x.shape[1]), split.x, links=split.matrix, progress=False)
        .predict(None)
        .numpy()
    )


def regression(split: Split, topics: int, seed: int = 0, draws: int = 30) -> Any:
    """The probability of links by a logistic regression on the products of LDA's proportions, of one chain."""
    from sklearn.linear_model import LogisticRegression

    model = LDA(num_topics=topics, vocabulary_size=split.x.shape[1])
    model = model.with_concentration(alpha=min(0.1, 7.5 / topics))
    method = CollapsedGibbs(chains=1, threads=1, warmup=40, num_samples=draws, thin=4)
    fit = method.fit(model, split.x, seed=seed, progress=False)
    share, size, rng = fit.transform().numpy(), split.x.shape[0], np.random.default_rng(2)
    others = np.sort(rng.integers(0, size, (10 * len(split.known), 2)), 1)
    pairs, truth = np.r_[split.known, others], np.arange(11 * len(split.known)) < len(split.known)
    learner = LogisticRegression(C=1.0, max_iter=5000).fit(50 * share[pairs[:, 0]] * share[pairs[:, 1]], truth)
    return 1 / (1 + np.exp(-50 * (share * learner.coef_[0]) @ share.T - learner.intercept_[0]))


def table_of(title: str, note: str, splits: list[Split], lines: dict[str, Callable[[Split], Any]]) -> Table:
    """The means of every line over the splits."""
    table = Table(title, COLUMNS, note=note)
    for name, made in lines.items():
        found = []
        for split in splits:
            score, seconds = cpu_seconds(partial(made, split))
            found.append([*scores(split, score), seconds])
        table.rows.append([name, len(splits), *np.mean(found, axis=0).tolist()])
        print(table.rows[-1], flush=True)
    return table


def one_chain(splits: list[Split], topics: int) -> Table:
    """Chains on the proportions, and on the tokens' topics."""

    def made(settings: dict[str, Any]) -> Callable[[Split], Any]:
        return lambda split: fitted(split.x, split.matrix, topics, **settings).predict(None).numpy()

    for settings in SETTINGS.values():  # compiles what it needs
        fitted(splits[0].x, splits[0].matrix, 2, **{**settings, "warmup": 22, "num_samples": 1})
    note = f"{topics} topics, every link {COPIES} times. Concentration of the proportions: 0.1."
    return table_of("One chain", note, splits, {f"{name}, one chain": made(one) for name, one in SETTINGS.items()})


def defaults(splits: list[Split]) -> Table:
    """The two lines, on every split."""
    topics = OPEN.for_data(splits[0].x).num_topics
    note = f"{topics} topics, by the number of documents; {SAMPLED().chains} chains."
    return table_of("By default", note, splits, {"fit(RTM(vocabulary_size=V), x, links=links)": by_default})


def peers(splits: list[Split], topics: int) -> Table:
    note = f"LDA with {topics} topics, a chain as long as those above, the same concentration."
    lines: dict[str, Callable[[Split], Any]] = {
        "LDA, logistic on products": partial(regression, topics=topics),
        "tf-idf cosine": lambda split: cosine(tfidf(split.x)),
        "tf-idf smoothed over the links, cosine": smoothed,
    }
    return table_of("Without links in the topics", note, splits, lines)


def new_documents(x: Any, pairs: Any, topics: int) -> Table:
    """A tenth of the documents unseen: their links from their words alone, and their words from their links alone."""
    size = x.shape[0]
    unseen = np.zeros(size, bool)
    unseen[np.random.default_rng(3).permutation(size)[: size // 10]] = True
    place, whole = np.cumsum(~unseen) - 1, linked(pairs, size)
    inner = place[pairs[~unseen[pairs].any(1)]]
    near = linked(inner, int((~unseen).sum()))
    fits = {name: fitted(x[~unseen], near, topics, **settings) for name, settings in SETTINGS.items()}
    across = whole[unseen][:, ~unseen]
    some = np.asarray(across.sum(1)).ravel() > 0
    known, words = across[some], x[unseen][some]
    columns = ("what", "method", "median rank of links", "perplexity of words")
    note = f"{some.sum()} unseen documents with {int(known.sum())} links to {(~unseen).sum()} others; {topics} topics."
    table = Table("Documents without links, documents without words", columns, note=note)
    for name, score in {
        **{name: fit.predict(words).numpy() for name, fit in fits.items()},
        "tf-idf cosine": cosine(tfidf(sp.vstack([words, x[~unseen]]).tocsr()))[: words.shape[0], words.shape[0] :],
    }.items():
        rank = [1 + (score[i] > score[i, j]).sum() for i, j in zip(*known.nonzero(), strict=True)]
        table.rows.append(["links from words", name, float(np.median(rank)), None])
    total = np.asarray(x[~unseen].sum(0)).ravel() + 0.1
    frequency = total / total.sum()
    near = (known @ x[~unseen]).toarray()
    mixed = (near + 300 * frequency) / (near.sum(1, keepdims=True) + 300)
    for name, chance in {
        **{name: fit.predict(None, links=known).numpy() for name, fit in fits.items()},
        "word frequencies of the corpus": np.broadcast_to(frequency, mixed.shape),
        "words of the neighbours, smoothed": mixed,
    }.items():
        perplexity = np.exp(-(words.multiply(np.log(np.maximum(chance, 1e-12)))).sum() / words.sum())
        table.rows.append(["words from links", name, None, float(perplexity)])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    number, topics, results = (1, 5, QUICK) if os.environ.get("PPL_SMOKE") else (3, TOPICS, RESULTS)
    x, pairs = cora(folder)
    splits = [split_of(x, pairs, seed) for seed in range(number)]
    tables = [defaults(splits), one_chain(splits, topics), peers(splits, topics), new_documents(x, pairs, topics)]
    write_report("relational_topics", "Links between documents from their topics", tables, intro=INTRO, folder=results)


if __name__ == "__main__":
    main()
