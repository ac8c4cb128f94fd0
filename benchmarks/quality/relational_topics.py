"""Links between papers from their topics, words from links, documents without links; recovery of known topics.

    python -m benchmarks.quality.relational_topics [--data DIR] [--parts default,chain,average,peers,new,recovery]

2,410 papers of Cora with 4,231 citations, taken as undirected: a tenth of the links is hidden and looked for among
20,000 pairs without a link (AUC, AP), and among all documents that the other end is not known to be linked to (median
rank). The number of topics and ``link_copies`` are chosen within the training links of every split, by the average
precision of a short chain on a tenth of them; of the default nothing is. The peer, LDA and a logistic regression, has
as many topics and chains as the default. Parts that are not run keep their tables.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from custom_inference import CollapsedGibbs, VariationalEM, match_components
from custom_inference import fit as default_fit
from custom_inference.families.links import SAMPLED
from ppl_models import LDA, RTM

INTRO = (
    "Means over the splits. CPU seconds of one thread and one split, the choice of the settings apart. The additive "
    "link, sampled from the links alone (negatives=0): on the proportions, and on the topics that the tokens took, as "
    "the source has it. Scores are the expected links at the posterior means, averaged over chains where there are "
    "several; once more times the roots of 1 + degree of both documents. Hidden links are looked for between "
    "documents that keep their other links."
)
COLUMNS = ("method", "splits", "AUC", "AP", "median rank", "CPU s", "CPU s of the choice")
#: Numbers of topics and of copies of the links to choose from, for one chain and for several.
CHOICES, OF_SEVERAL = ((50, 3), (100, 3)), ((100, 4), (150, 4))
#: Chains that are averaged; those of the default of RTM.
CHAINS, DEFAULT_CHAINS = 10, SAMPLED().chains
#: The model whose number of topics is that of the documents; type checkers ask for it.
OPEN: Any = RTM
#: Settings of chains: on the proportions and on the tokens' topics, of those for a choice, and of those for an average.
LONG = {"warmup": 40, "num_samples": 30, "thin": 4}
SHORT = {"warmup": 30, "num_samples": 10, "thin": 2}
TOKENS = {"link_on": "tokens", "warmup": 40, "num_samples": 40, "thin": 2}
EACH = {"warmup": 40, "num_samples": 6, "thin": 4, "alpha": 0.05}


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


def fitted(x: Any, links: Any, topics: int, copies: int, seed: int = 0, **settings: Any) -> Any:
    given = {"link_on": "proportions", "alpha": 0.1, **LONG, **settings}
    how: dict[str, Any] = {"link_on": given.pop("link_on"), "link_copies": copies, "negatives": 0}
    model = RTM(num_topics=topics, vocabulary_size=x.shape[1], **how)
    method = CollapsedGibbs(chains=1, threads=1, **{name: given[name] for name in ("warmup", "num_samples", "thin")})
    model = model.with_concentration(alpha=given["alpha"], gamma=0.1)
    return method.fit(model, x, links=links, seed=seed, progress=False)


def chains(split: Split, topics: int, copies: int, number: int, **settings: Any) -> Any:
    """The mean of the expected links of so many chains."""
    fits = (fitted(split.x, split.matrix, topics, copies, seed, **settings) for seed in range(number))
    return sum(fit.predict(None).numpy() for fit in fits) / number


def chosen(split: Split, choices: Sequence[tuple[int, int]], alpha: float) -> tuple[int, int]:
    """The settings of the best average precision on a tenth of the training links."""
    order = np.random.default_rng(7).permutation(len(split.known))
    hidden = len(order) // 10
    inner = Split(split.x, split.known[order[hidden:]], split.known[order[:hidden]], split.unlinked)
    found = [scores(inner, chains(inner, *one, 1, **SHORT, alpha=alpha))[1] for one in choices]
    return choices[int(np.argmax(found))]


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


def regression(split: Split) -> Any:
    """The mean over as many chains of LDA as the default of RTM has, of as many topics."""
    topics = OPEN.for_data(split.x).num_topics
    return sum(_regression(split, topics, seed) for seed in range(DEFAULT_CHAINS)) / DEFAULT_CHAINS


def _regression(split: Split, topics: int, seed: int) -> Any:
    """The probability of links by a logistic regression on the products of LDA's proportions."""
    from sklearn.linear_model import LogisticRegression

    model = LDA(num_topics=topics, vocabulary_size=split.x.shape[1])
    model = model.with_concentration(alpha=min(0.1, 7.5 / topics))
    method = CollapsedGibbs(chains=1, threads=1, warmup=40, num_samples=6, thin=4)
    fit = method.fit(model, split.x, seed=seed, progress=False)
    share, size, rng = fit.transform().numpy(), split.x.shape[0], np.random.default_rng(2)
    others = np.sort(rng.integers(0, size, (10 * len(split.known), 2)), 1)
    pairs, truth = np.r_[split.known, others], np.arange(11 * len(split.known)) < len(split.known)
    learner = LogisticRegression(C=1.0, max_iter=5000).fit(50 * share[pairs[:, 0]] * share[pairs[:, 1]], truth)
    return 1 / (1 + np.exp(-50 * (share * learner.coef_[0]) @ share.T - learner.intercept_[0]))


def line(name: str, split: Split, made: Callable[[], Any], choice: float | None = None) -> list[Any]:
    score, seconds = cpu_seconds(made)
    found = [*scores(split, score), seconds, choice]
    print(name, found, flush=True)
    return found


def averaged(name: str, rows: list[list[Any]]) -> list[Any]:
    columns = [None if column[0] is None else float(np.mean(column)) for column in zip(*rows, strict=True)]
    return [name, len(rows), *columns]


def sampled(x: Any, pairs: Any, splits: int, number: int, choices: Sequence[tuple[int, int]]) -> Table:
    """Chains on the proportions, and on the tokens' topics."""
    title, settings_of = ("One chain", LONG) if number == 1 else ("The mean of several chains", EACH)
    of_tokens = TOKENS if number == 1 else {**EACH, "link_on": "tokens"}
    alpha: Any = settings_of.get("alpha", 0.1)
    table, rows, scaled, tokens, picked = Table(title, COLUMNS), [], [], [], []
    fitted(x, linked(pairs, x.shape[0]), 2, 1, warmup=22, num_samples=1, thin=1)  # compiles what it needs
    for seed in range(splits):
        split = split_of(x, pairs, seed)
        settings, choice = cpu_seconds(lambda split=split: chosen(split, choices, alpha))
        picked.append(f"{settings[0]} topics, {settings[1]} copies")
        kept: list[Any] = []
        made = partial(chains, split, settings[0], settings[1], number, **settings_of)
        rows.append(line(title, split, lambda m=made, k=kept: _keep(k, m()), choice))
        made = partial(chains, split, settings[0], settings[1], number, **of_tokens)
        tokens.append(line("tokens", split, made, choice))
        root = np.sqrt(np.asarray(split.matrix.sum(1)).ravel() + 1)
        scaled.append([*scores(split, kept[0] * root[:, None] * root), *rows[-1][3:]])
    made_of = "one chain" if number == 1 else f"mean of {number} chains"
    name = f"RTM on proportions, {made_of}"
    table.rows.append(averaged(name, rows))
    table.rows.append(averaged(f"{name}, times the roots of 1 + degree", scaled))
    table.rows.append(averaged(f"RTM on tokens' topics, {made_of}", tokens))
    table.note = f"Chosen: {'; '.join(picked)}. Concentration of the proportions: {alpha:g}."
    return table


def _keep(kept: list[Any], value: Any) -> Any:
    kept.append(value)
    return value


def defaults(x: Any, pairs: Any, splits: int) -> Table:
    """The two lines, on every split."""
    table = Table(TITLES["default"], COLUMNS)
    table.note = f"{OPEN.for_data(x).num_topics} topics, by the number of documents; {DEFAULT_CHAINS} chains."
    rows = [line("default", split_of(x, pairs, s), partial(by_default, split_of(x, pairs, s))) for s in range(splits)]
    table.rows.append(averaged("fit(RTM(vocabulary_size=V), x, links=links)", rows))
    return table


def peers(x: Any, pairs: Any, splits: int) -> Table:
    table = Table(TITLES["peers"], COLUMNS)
    table.note = "LDA with the topics and the chains of the default of RTM, concentrations too."
    lines: dict[str, Callable[[Split], Any]] = {
        "LDA, logistic on products": regression,
        "tf-idf cosine": lambda split: cosine(tfidf(split.x)),
        "tf-idf smoothed over the links, cosine": smoothed,
    }
    for name, made in lines.items():
        every = [split_of(x, pairs, seed) for seed in range(splits)]
        table.rows.append(averaged(name, [line(name, s, lambda s=s, m=made: m(s)) for s in every]))
    return table


def new_documents(x: Any, pairs: Any, topics: int, copies: int) -> Table:
    """A tenth of the documents unseen: their links from their words alone, and their words from their links alone."""
    size = x.shape[0]
    unseen = np.zeros(size, bool)
    unseen[np.random.default_rng(3).permutation(size)[: size // 10]] = True
    place, whole = np.cumsum(~unseen) - 1, linked(pairs, size)
    inner = place[pairs[~unseen[pairs].any(1)]]
    near = linked(inner, int((~unseen).sum()))
    fits = {
        "RTM on proportions": fitted(x[~unseen], near, topics, copies),
        "RTM on tokens' topics": fitted(x[~unseen], near, topics, copies, **TOKENS),
    }
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


def recovery(draws: int) -> Table:
    """4 topics over 120 words, 150 documents of 40 tokens, links of each kind."""
    note = "Medians over the draws; weights: the correlation of the estimates with the truth over topics, and the bias."
    columns = ("link", "method", "draws", "topic TV", "TV without links", "weight correlation", "bias error", "CPU s")
    table = Table("Recovery", columns, note=note)
    gibbs = CollapsedGibbs(chains=1, threads=1, warmup=60, num_samples=20, thin=2)
    bounded = VariationalEM(guide="dirichlet", max_iterations=25)
    lines: list[tuple[str, str, Any, dict[str, Any]]] = [
        ("additive", "Gibbs", gibbs, {"link_on": "tokens"}),
        ("additive", "Gibbs, on proportions", gibbs, {"link_copies": 1}),
        ("sigmoid", "Gibbs", gibbs, {}),
        ("exponential", "Gibbs", gibbs, {}),
        ("sigmoid", "variational EM", bounded, {}),
        ("sigmoid", "variational EM, no negatives", bounded, {"negatives": 0}),
    ]
    for kind, name, method, how in lines:
        found = np.median([_recovered(kind, method, seed, how) for seed in range(draws)], 0).tolist()
        table.rows.append([kind, name, draws, *found])
        print(table.rows[-1], flush=True)
    return table


def _recovered(kind: str, method: Any, seed: int, how: dict[str, Any]) -> tuple[float, ...]:
    rng = np.random.default_rng(seed)
    topic, proportion = rng.dirichlet(np.full(120, 0.1), 4), rng.dirichlet(np.full(4, 0.2), 150)
    tokens = np.stack([rng.multinomial(40, p) for p in proportion])
    x = np.sum([[rng.multinomial(n, topic[k]) for n in tokens[:, k]] for k in range(4)], 0).astype(float)
    weight, bias = (
        (np.array([0.6, 0.4, 0.3, 0.2]), 0.01) if kind == "additive" else (np.array([6.0, 5.0, 4.0, 3.0]), -5.0)
    )
    model = RTM(num_topics=4, vocabulary_size=120, link=kind, **how)
    share = proportion if model.link_on == "proportions" else tokens / 40
    score = (share * weight) @ share.T + bias
    rate = {"additive": score, "sigmoid": 1 / (1 + np.exp(-score)), "exponential": np.exp(score)}[kind]
    drawn = rng.random(rate.shape) < rate if kind == "sigmoid" else rng.poisson(rate)
    upper = np.triu(drawn, 1).astype(float)
    fit, seconds = cpu_seconds(
        lambda: method.fit(model, x, links=sp.csr_matrix(upper + upper.T), seed=seed, progress=False)
    )
    plain = CollapsedGibbs(chains=1, threads=1, warmup=60, num_samples=20).fit(
        LDA(num_topics=4, vocabulary_size=120), x, seed=seed, progress=False
    )
    order = match_components(torch.as_tensor(topic), fit.params["topic"]).order
    found, error = fit.params["link_weight"][order].numpy(), float(fit.params["link_bias"]) - bias
    return _apart(topic, fit), _apart(topic, plain), float(np.corrcoef(found, weight)[0, 1]), abs(error), seconds


def _apart(topic: Any, fit: Any) -> float:
    """The mean total variation of the topics, matched."""
    order = match_components(torch.as_tensor(topic), fit.params["topic"]).order
    return float(np.abs(fit.params["topic"][order].numpy() - topic).sum(1).mean() / 2)


TITLES = {
    "default": "By default",
    "chain": "One chain",
    "average": "The mean of several chains",
    "peers": "Without links in the topics",
    "new": "Documents without links, documents without words",
    "recovery": "Recovery",
}


def main(arguments: Sequence[str] | None = None, *, results: Path | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--parts", default=",".join(TITLES))
    given = parser.parse_args(arguments)
    smoke = bool(os.environ.get("PPL_SMOKE"))
    results = results or (QUICK if smoke else RESULTS)
    folder, parts = require_data(parser, given), given.parts.split(",")
    quiet_and_single_threaded()
    (x, pairs), splits = cora(folder), 1 if smoke else 3
    choices, several = (((5, 1),),) * 2 if smoke else (CHOICES, OF_SEVERAL)
    old = read_tables("relational_topics", folder=results)
    made: dict[str, Callable[[], Table]] = {
        "default": lambda: defaults(x, pairs, splits),
        "chain": lambda: sampled(x, pairs, splits, 1, choices),
        "average": lambda: sampled(x, pairs, splits, 2 if smoke else CHAINS, several),
        "peers": lambda: peers(x, pairs, splits),
        "new": lambda: new_documents(x, pairs, 5 if smoke else 100, 3),
        "recovery": lambda: recovery(1 if smoke else 10),
    }
    tables = [made[part]() if part in parts else old.get(TITLES[part]) for part in made]
    shown = [table for table in tables if table is not None]
    write_report("relational_topics", "Links between documents from their topics", shown, intro=INTRO, folder=results)


if __name__ == "__main__":
    main()
