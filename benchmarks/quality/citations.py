"""Citation analysis: NOCA beside LDA, PLSA, a mixture of multinomials and logistic PCA (source 000, section 5.4).

    python -m benchmarks.quality.citations [--starts 20] [--splits 20] [--quick] [--data DIR]

Writes ``benchmarks/results/citations.{md,json}`` and figures. Source 000 had CiteSeer papers x 40 authors of five
communities; here are NIPS 0-12 papers x 201 surnames found in their texts, and communities written down before any fit,
from general knowledge of the field (``_citations.COMMUNITIES``). A document is the set of names it cites.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import custom_inference
from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _citation_figures as draw
from benchmarks.quality._citations import (
    COMMUNITIES,
    GOOD,
    MEDIOCRE,
    TOP,
    Components,
    citations,
    community_vectors,
    score,
    successes,
    top_names,
    weighted_cosines,
)
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from benchmarks.quality._set_models import log_set_given_size, log_size, log_words
from custom_inference import EM, Fit, Search
from ppl_models import LDA, NOCA, PLSA, Data, LogisticPCA, MixtureOfMultinomials

#: Draws of topic proportions from the prior for LDA's E_q.
DRAWS = 20_000


class Learned(NamedTuple):
    """A fit and what stands for its components."""

    fit: Fit
    components: Components


def noca(data: Data, size: int, seed: int) -> Learned:
    """Exact EM from one start of the default search: a run of 000 is one start."""
    model = NOCA(num_components=size, num_features=data.num_features)
    fit = custom_inference.fit(model, data, seed=seed, search=Search(restarts=1), progress=False)
    return Learned(fit, Components.of(fit.params["loading"], fit.params["source_prior"]))


def lda(data: Data, size: int, seed: int, alpha: float = 0.1) -> Learned:
    model = LDA(num_topics=size, vocabulary_size=data.num_features).with_concentration(alpha=alpha)
    return _admixture(custom_inference.fit(model, data, seed=seed, progress=False))


def plsa(data: Data, size: int, seed: int) -> Learned:
    """EM from one start."""
    model = PLSA(num_topics=size, vocabulary_size=data.num_features)
    return _admixture(custom_inference.fit(model, data, seed=seed, search=Search(restarts=1), progress=False))


def _admixture(fit: Fit) -> Learned:
    """The weight of a topic is its share of the tokens: P(z) of PLSA."""
    return Learned(fit, Components.of(fit.params["topic"], fit.transform().T @ fit.data.dense().x.sum(1)))


def mixture(data: Data, size: int, seed: int) -> Learned:
    """Exact EM from one start; the topics' Dirichlet prior is that of LDA."""
    model = MixtureOfMultinomials(num_topics=size, vocabulary_size=data.num_features)
    fit = custom_inference.fit(model, data, seed=seed, method=EM(search=Search(restarts=1)), progress=False)
    return Learned(fit, Components.of(fit.params["topic"], fit.params["weight"]))


def logistic_pca(data: Data, size: int, seed: int) -> Learned:
    """The sizes of the weights are the components' variances; 000 gives them no weights."""
    model = LogisticPCA(num_components=size, num_features=data.num_features)
    fit = custom_inference.fit(model, data, seed=seed, search=Search(restarts=1, informed=False), progress=False)
    return Learned(fit, Components.of(fit.params["weight"], fit.params["weight"].square().sum(1)))


METHODS: dict[str, Callable[..., Learned]] = {
    "logistic PCA": logistic_pca,
    "mixture": mixture,
    "PLSA": plsa,
    "LDA": lda,
    "NOCA": noca,
}


class Runs(NamedTuple):
    """Every method's fits from all starts, and the CPU seconds of one."""

    learned: dict[str, list[Learned]]
    seconds: dict[str, float]

    def typical(self, name: str) -> Learned:
        """The start with the best objective."""
        return max(self.learned[name], key=lambda one: float(one.fit.elbo[-1]))


def runs(data: Data, size: int, starts: int) -> Runs:
    """LDA's starts differ in alpha, .01 to 10 (000, 5.4: its components hardly depend on the start)."""
    learned, seconds = {}, {}
    alphas = np.geomspace(0.01, 10, starts)
    for name, method in METHODS.items():
        begin = time.process_time()
        extra: list[dict[str, Any]] = [{"alpha": a} if name == "LDA" else {} for a in alphas]
        learned[name] = [method(data, size, seed, **extra[seed]) for seed in range(starts)]
        seconds[name] = (time.process_time() - begin) / starts
        print(f"K = {size}: {name}, {seconds[name]:.2f} s a fit", flush=True)
    return Runs(learned, seconds)


# ----- Table 1, Figs. 12 to 14 ----------------------------------------------------------------------------------------


def success_table(found: Runs, names: Sequence[str], size: int) -> Table:
    table = Table(
        f"Communities recovered (Table 1), K = {size}",
        ["method", *COMMUNITIES, "all", "CPU s a fit"],
        note=(
            f"Percent of the {len(found.learned['NOCA'])} starts. 000 judged by eye; here a component speaks for the "
            f"community that most of its {TOP} strongest names belong to, and scores 1 where at least {GOOD} of them do "
            f"(good purity), 1/2 at {MEDIOCRE} or {GOOD - 1} (mediocre), else 0; a community counts its best component. "
            "LDA's runs differ in alpha, .01 to 10, as in 000. With K components no more than K communities can be found."
        ),
    )
    for name, learned in found.learned.items():
        scores = [successes(one.components.vectors, names) for one in learned]
        mean = [100 * float(np.mean([s[c] for s in scores])) for c in COMMUNITIES]
        table.rows.append([name, *(f"{v:.1f}" for v in [*mean, float(np.mean(mean))]), f"{found.seconds[name]:.2f}"])
    return table


def names_table(found: Runs, names: Sequence[str], size: int) -> Table:
    table = Table(
        f"Strongest names of each component (Fig. 13), K = {size}",
        ["method", "weight", "strongest names", "community"],
        note=(
            "The best of the starts by its objective. Weight: the source's prior (NOCA), share of the tokens (LDA, PLSA) "
            "or of the documents (mixture), of the squared weights (logistic PCA)."
        ),
    )
    for name in METHODS:
        fit, components = found.typical(name)
        weight = fit.params["source_prior"].numpy() if name == "NOCA" else components.weight
        for position, k in enumerate(np.argsort(-weight)):
            listed = top_names(components.vectors[k], names)
            which = max(COMMUNITIES, key=lambda c: len(set(listed) & set(COMMUNITIES[c])))
            purity = {1.0: which, 0.5: f"{which}?", 0.0: "?"}[score(listed, COMMUNITIES[which])]
            start = name if position == 0 else ""
            table.rows.append([start, f"{weight[k]:.3f}", ", ".join(listed), purity])
    return table


def similarity_table(found: dict[int, Runs], names: Sequence[str], file: str) -> Table:
    """Fig. 14, against the communities; and between starts."""
    reference = community_vectors(names)
    table = Table(
        "Weighted cosine similarity (Fig. 14)",
        ["K", "method", "L = 1", "L = 2", "L = 3", "L = 5", "all matched", "between starts"],
        note=(
            "Each component is matched one-to-one to a community's 0/1 vector so that the sum of u_i cos is largest "
            "(linear assignment; u_i: weights of the components, which sum to 1). L: sum over the L largest terms, mean "
            "over the starts. Between starts: the same similarity of two consecutive starts' components, all matched."
        ),
    )
    curves: dict[int, dict[str, np.ndarray]] = {}
    for size, run in found.items():
        curves[size] = {}
        for name, learned in run.learned.items():
            each = [np.cumsum(weighted_cosines(one.components, reference)) for one in learned]
            curve = curves[size][name] = np.mean(each, axis=0)
            pairs = zip(learned, learned[1:], strict=False)
            between = [weighted_cosines(a.components, b.components.vectors).sum() for a, b in pairs]
            at = [float(curve[min(length, len(curve)) - 1]) for length in (1, 2, 3, 5)]
            last = float(np.mean(between)) if between else None
            table.rows.append([size, name, *(f"{v:.3f}" for v in at), f"{curve[-1]:.3f}", last and f"{last:.3f}"])
    table.figures = [draw.save(draw.similarity(curves), RESULTS, file)]
    return table


# ----- Table 2 --------------------------------------------------------------------------------------------------------


class Scores(NamedTuple):
    """Cross-entropy of every test document: as a set, and of its words in their order given their number."""

    sets: np.ndarray
    words: np.ndarray | None = None


def noca_scores(learned: Learned, train: Data, test: Data) -> dict[str, Scores]:
    del train
    exact = -learned.fit.log_likelihood(test).numpy()
    bound = -learned.fit.log_likelihood(test, bound="factorized").numpy()
    return {"NOCA, factorized bound": Scores(bound), "NOCA, exact": Scores(exact)}


def lda_scores(learned: Learned, train: Data, test: Data) -> dict[str, Scores]:
    fit, x = learned.fit, test.dense().x.numpy()
    generator = np.random.default_rng(0)
    alpha = fit.model.priors["topic_proportion"].concentration.numpy().astype(float)  # pyright: ignore[reportAttributeAccessIssue]
    q = generator.dirichlet(alpha, DRAWS) @ fit.params["topic"].numpy()
    uniform = np.full(DRAWS, -np.log(DRAWS))
    bound, estimate = fit.log_likelihood(test, bound="dirichlet").numpy(), log_words(x, q, uniform)
    given_size = log_set_given_size(x, q, uniform)
    size = log_size(train.dense().x.numpy(), x)
    return {
        "LDA, variational bound": Scores(-(given_size - estimate + bound) - size, -bound),
        "LDA, estimate": Scores(-given_size - size, -estimate),
    }


def plsa_scores(learned: Learned, train: Data, test: Data) -> dict[str, Scores]:
    fit, x = learned.fit, test.dense().x.numpy()
    topic, size = fit.params["topic"].numpy(), log_size(train.dense().x.numpy(), test.dense().x.numpy())
    own = fit.transform(test).numpy() @ topic
    folded = [[f(x[n : n + 1], own[n : n + 1], np.zeros(1))[0] for f in (log_set_given_size, log_words)] for n in range(len(x))]
    sets, words = np.array(folded).T
    others = fit.transform().numpy() @ topic
    uniform = np.full(len(others), -np.log(len(others)))
    return {
        "PLSA, folded in": Scores(-sets - size, -words),
        "PLSA, mixes of the training documents": Scores(
            -log_set_given_size(x, others, uniform) - size, -log_words(x, others, uniform)
        ),
    }


def mixture_scores(learned: Learned, train: Data, test: Data) -> dict[str, Scores]:
    x, q = test.dense().x.numpy(), learned.fit.params["topic"].numpy()
    log_weight = np.log(learned.fit.params["weight"].numpy())
    size = log_size(train.dense().x.numpy(), x)
    return {"mixture": Scores(-log_set_given_size(x, q, log_weight) - size, -log_words(x, q, log_weight))}


SCORES = {"NOCA": noca_scores, "LDA": lda_scores, "PLSA": plsa_scores, "mixture": mixture_scores}
KINDS = {
    "NOCA, factorized bound": "upper bound",
    "NOCA, exact": "exact",
    "LDA, variational bound": "upper bound (its E e_n an estimate)",
    "LDA, estimate": f"estimate, {DRAWS} draws of the proportions",
    "PLSA, folded in": "no distribution: mixes refitted to the scored document",
    "PLSA, mixes of the training documents": "exact",
    "mixture": "exact",
    "independent names": "exact",
}


def independent_scores(train: Data, test: Data) -> dict[str, Scores]:
    """Names cited independently of each other: NOCA without sources."""
    share = (train.x.mean(0) * len(train) + 0.5) / (len(train) + 1)
    log_p = test.x @ torch.log(share) + (1 - test.x) @ torch.log1p(-share)
    return {"independent names": Scores(-log_p.numpy())}


def perplexity_table(data: Data, sizes: Sequence[int], splits: int) -> Table:
    table = Table(
        "Cross-entropy of test documents (Table 2)",
        ["K", "model", "per document, as sets", "sd of splits", "sd of documents", "what it is", "words in their order"],
        note=(
            f"Nats per document, mean over {splits} splits (4/5 training, 1/5 test). As sets: -log P(S). The models of "
            "words draw the size of the set from the training documents' sizes, then words until they all differ "
            "(``_set_models``); NOCA's P(S) needs neither. A bound on P is a lower one, so that on the cross-entropy is "
            "an upper one (000 calls it lower). Words in their order: -log p(words | how many), which gives away the "
            "size and counts every order as a document of its own; 000's figures for models of words seem to be these. "
            "Papers without citations are left out, as in 000, but NOCA still gives them probability."
        ),
    )
    every: dict[tuple[int, str], list[Scores]] = {}
    for split in range(splits):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(split))
        cut = len(data) // 5
        train, test = data.rows(order[cut:]), data.rows(order[:cut])
        for size in sizes:
            for name, scored in SCORES.items():
                for label, result in scored(METHODS[name](train, size, split), train, test).items():
                    every.setdefault((size, label), []).append(result)
        for label, result in independent_scores(train, test).items():
            every.setdefault((0, label), []).append(result)
        print(f"split {split + 1} of {splits}", flush=True)
    for (size, label), found in sorted(every.items(), key=lambda item: item[0][0]):
        means = [float(one.sets.mean()) for one in found]
        spread = float(np.std(np.concatenate([one.sets for one in found])))
        words = [float(one.words.mean()) for one in found if one.words is not None]
        row = [size or "", label, float(np.mean(means)), float(np.std(means)), spread, KINDS[label]]
        table.rows.append([*row, float(np.mean(words)) if words else None])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="two starts, two splits, K = 5: does it run?")
    add_data_option(parser)
    arguments = parser.parse_args()
    data, empty = citations(require_data(parser, arguments))
    quiet_and_single_threaded()
    starts, splits = (2, 2) if arguments.quick else (arguments.starts, arguments.splits)
    sizes = (5,) if arguments.quick else (5, 10)
    names = [str(name) for name in data.coords["feature"]]
    found = {size: runs(data, size, starts) for size in sizes}
    tables = []
    for size, run in found.items():
        tables += [success_table(run, names, size), names_table(run, names, size)]
    shown = {size: run.typical("NOCA").components for size, run in found.items()}
    tables[1].figures = [draw.save(draw.loadings(shown, names), RESULTS, "citations_loadings")]
    tables.append(similarity_table(found, names, "citations_similarity"))
    tables.append(perplexity_table(data, sizes, splits))
    meta = {"documents": len(data), "left out without citation": empty, "names": len(names), "starts": starts}
    print(write_report("citations", "Citation analysis", tables, {**meta, "splits": splits}, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
