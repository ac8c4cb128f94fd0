"""Aspect Bernoulli on short newsgroup documents: topics, and the words that are left out (the paper, 3.5 and 3.6.3).

    python -m benchmarks.quality.aspect_news [--data DIR]

Writes ``benchmarks/results/aspect_news.{md,json}`` and figures. 100 consecutive documents of each of four newsgroups;
the words that are frequent and, where used, repeated (``_aspect_data.newsgroups``; not stemmed). The fit sees no
groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _aspect_plots as draw
from benchmarks.quality._aspect_data import Binary, newsgroups, set_to
from benchmarks.quality._aspect_explain import added_ones, added_table, aic_table, starts_table
from benchmarks.quality._aspect_methods import Aspects, best_aspects
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data

#: Fits in the search for phantoms; default fits and random starts of which the best is taken.
STARTS, SEEDS = 15, 3


def aspect_order(fit: Aspects, data: Binary) -> tuple[list[int], list[str]]:
    """The phantom first, then by group; and names: the group that has most of an aspect's memberships."""
    by_group = np.array([fit.membership[data.groups == g].sum(0) for g in range(len(data.group_names))])
    order = sorted(range(len(fit.aspect)), key=lambda k: (k != fit.lightest, int(by_group[:, k].argmax())))
    names = [data.group_names[int(by_group[:, k].argmax())] for k in order]
    count = {name: names[1:].count(name) for name in names}
    for i in range(1, len(names)):
        if count[names[i]] > 1:
            names[i] += f" ({names[1 : i + 1].count(names[i])})" if "(" not in names[i] else ""
    names[0] = "phantom"
    return order, names


def topic_table(fit: Aspects, data: Binary, order: Sequence[int], names: Sequence[str]) -> Table:
    table = Table(
        f"Aspects (Table 1), K = {len(order)}",
        ["aspect", "sum of memberships", "in its group", "most probable words, P(word | aspect)"],
        note=(
            f"{len(data.x)} documents x {data.x.shape[1]} words, {data.x.mean():.1%} ones (Bingham et al.: 6.3%). In "
            "its group: the share of the aspect's memberships that falls on documents of the group that names it."
        ),
    )
    for k, name in zip(order, names, strict=True):
        top = ", ".join(f"{data.features[t]} {fit.aspect[k, t]:.2f}" for t in np.argsort(-fit.aspect[k])[:12])
        share = max(fit.membership[data.groups == g, k].sum() for g in range(4)) / fit.membership[:, k].sum()
        table.rows.append([name, f"{fit.membership[:, k].sum():.1f}", f"{share:.0%}", top])
    return table


def heterogeneous(fit: Aspects, x: np.ndarray, number: int = 3) -> list[int]:
    """Documents of at least eight words whose topical memberships have the largest entropy."""
    topical = np.delete(fit.membership, fit.lightest, axis=1) + 1e-12
    topical /= topical.sum(1, keepdims=True)
    entropy = -(topical * np.log(topical)).sum(1)
    return np.argsort(-np.where(x.sum(1) >= 8, entropy, -1))[:number].tolist()


def analysis_table(
    fit: Aspects, data: Binary, order: Sequence[int], names: Sequence[str], rows: Sequence[int]
) -> Table:
    table = Table(
        "Three heterogeneous documents (Table 2)",
        ["document", "memberships", "word", "who says it: q(aspect | word, document)"],
        note="Those of at least eight words whose memberships, the phantom aside, have the largest entropy (eq. 7).",
    )
    posterior = fit.attribution(list(rows))
    for n, q in zip(rows, posterior, strict=True):
        shown = ", ".join(f"{name} {fit.membership[n, k]:.2f}" for k, name in zip(order, names, strict=True))
        for position, t in enumerate(np.flatnonzero(data.x[n])[:9]):
            say = [(float(q[k, t]), name) for k, name in zip(order, names, strict=True) if q[k, t] >= 0.01]
            words = ", ".join(f"{name} {value:.2f}" for value, name in sorted(say, reverse=True))
            group = data.group_names[data.groups[n]]
            start = [f"{n} ({group})", shown] if position == 0 else ["", ""]
            table.rows.append([*start, data.features[t], words])
    return table


def expansion_table(fit: Aspects, data: Binary, number: int = 10) -> Table:
    table = Table(
        "Expansion of ten documents (Table 3)",
        ["group", "words of the document", "words that the phantom keeps out, q(phantom | absent)"],
        note=(
            "Ten random documents of 3 to 14 words; the absent words for which the phantom is most responsible. Over "
            "all documents with words, "
        ),
    )
    size = data.x.sum(1)
    candidates = np.flatnonzero((size >= 3) & (size <= 14))
    for n in np.sort(np.random.default_rng(1).choice(candidates, number, replace=False)):
        have = ", ".join(data.features[t] for t in np.flatnonzero(data.x[n]))
        more = ", ".join(f"{data.features[t]} {value:.2f}" for t, value in fit.expansion(int(n), 8))
        table.rows.append([data.group_names[data.groups[n]], have, more])
    table.note += expansion_score(fit, data)
    return table


def expansion_score(fit: Aspects, data: Binary) -> str:
    """How far the suggested words are those of the document's own group, next to the most frequent absent words."""
    typical = np.array([data.x[data.groups == g].mean(0) for g in range(4)])
    lift = typical / data.x.mean(0)
    frequent = np.argsort(-data.x.mean(0))
    suggested, common = [], []
    for n in np.flatnonzero(data.x.sum(1) > 0):
        own = lift[data.groups[n]]
        suggested += [own[t] for t, _ in fit.expansion(int(n), 8)]
        common += [own[t] for t in frequent[data.x[n, frequent] == 0][:8]]
    return (
        f"a suggested word is {np.mean(suggested):.2f} times as frequent in the document's own group as overall; the "
        f"eight most frequent absent words: {np.mean(common):.2f} times."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    data = newsgroups(require_data(parser, parser.parse_args()))
    quiet_and_single_threaded()
    aic, _ = aic_table(data.x, range(2, 8), SEEDS, "Bingham et al. (2007), on its own documents: K = 5.")
    fit = best_aspects(data.x, 5, SEEDS)
    order, names = aspect_order(fit, data)
    documents = heterogeneous(fit, data.x)
    tables = [aic, topic_table(fit, data, order, names)]
    figure = draw.richness(fit, order, data.x.sum(1), "distinct words in the document", "Newsgroups", documents, names)
    tables[1].figures = [draw.save(figure, RESULTS, "aspect_news_richness")]
    tables.append(starts_table(data.x, 5, STARTS, "Bingham et al. (2007): 28 of 30 random starts."))
    tables += [analysis_table(fit, data, order, names, documents), expansion_table(fit, data)]
    runs = {most: set_to(1, data.x, seed=7, most=most) for most in (0.4, 0.16)}
    divisions = {most: (added, added_ones(added, 6, SEEDS)) for most, added in runs.items()}
    paper = (
        "Bingham et al. (2007) have 6.3% ones before and 13.7% after, which is Uniform[0, 0.16] rather than the "
        "Uniform[0, 0.4] that they state; both are shown. Best likelihood of several fits, about as many parameters."
    )
    files = [f"aspect_news_added_{round(100 * most)}.png" for most in divisions]
    tables.append(added_table(divisions, paper, files))
    for file, (most, (_, division)) in zip(files, divisions.items(), strict=True):
        figure = draw.divisions(division, f"Newsgroups with ones added, Uniform[0, {most}]")
        draw.save(figure, RESULTS, file.removesuffix(".png"))
    meta = {"documents": len(data.x), "words": data.x.shape[1]}
    print(write_report("aspect_news", "Aspect Bernoulli on newsgroup documents", tables, meta, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
