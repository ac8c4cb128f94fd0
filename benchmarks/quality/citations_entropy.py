"""Citation analysis: cross-entropy of test documents, as sets (Singliar & Hauskrecht 2006, section 5.4.3 and Table 2).

    python -m benchmarks.quality.citations_entropy [--data DIR]

Writes ``benchmarks/results/citations_entropy.{md,json}``. NIPS 0-12 papers, each the set of the surnames that it cites;
see ``citations`` for the components that the same models find.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import torch

from benchmarks._report import Table, write_report
from benchmarks.quality._citation_methods import METHODS, Learned
from benchmarks.quality._citations import citations
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from benchmarks.quality._set_models import log_set_given_size, log_size, log_words
from benchmarks.quality._topic_data import folded_in
from ppl_models import Data

#: Splits; draws of topic proportions from the prior for LDA's E_q.
SPLITS, DRAWS = 5, 10_000


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
    own = folded_in(fit, test) @ topic
    each = [(x[n : n + 1], own[n : n + 1], np.zeros(1)) for n in range(len(x))]
    sets, words = (np.array([log_p(*one)[0] for one in each]) for log_p in (log_set_given_size, log_words))
    others = fit.params["topic_proportion"].numpy() @ topic
    uniform = np.full(len(others), -np.log(len(others)))
    return {
        "PLSA, folded in": Scores(-sets - size, -words),
        "PLSA, mixes of the training documents": Scores(
            -log_set_given_size(x, others, uniform) - size, -log_words(x, others, uniform)
        ),
    }


def mixture_scores(learned: Learned, train: Data, test: Data) -> dict[str, Scores]:
    x, q = test.dense().x.numpy(), learned.fit.params["topic"].numpy()
    log_weight = np.log(learned.fit.params["mixing_proportion"].numpy())
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


def perplexity_table(data: Data) -> Table:
    table = Table(
        "Cross-entropy of test documents (Table 2)",
        ["K", "model", "per document, as sets", "sd of splits", "sd of documents", "what it is", "words in order"],
        note=(
            f"Nats per document, mean over {SPLITS} splits (4/5 training, 1/5 test). As sets: -log P(S). The models of "
            "words draw the size of the set from the training documents' sizes, then words until they all differ "
            "(``_set_models``); NOCA's P(S) needs neither. A bound on P is a lower one, so that on the cross-entropy "
            "is an upper one (the paper calls it lower). Words in order: -log p(words | how many), which gives away "
            "the size and counts every order as a document of its own; the paper's figures for models of words seem to "
            "be these. Papers without citations are left out, as in the paper, but NOCA still gives them probability."
        ),
    )
    every: dict[tuple[int, str], list[Scores]] = {}
    for split in range(SPLITS):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(split))
        cut = len(data) // 5
        train, test = data.rows(order[cut:]), data.rows(order[:cut])
        for size in (5, 10):
            for name, scored in SCORES.items():
                for label, result in scored(METHODS[name](train, size, split), train, test).items():
                    every.setdefault((size, label), []).append(result)
        for label, result in independent_scores(train, test).items():
            every.setdefault((0, label), []).append(result)
        print(f"split {split + 1} of {SPLITS}", flush=True)
    for (size, label), found in sorted(every.items(), key=lambda item: item[0][0]):
        means = [float(one.sets.mean()) for one in found]
        spread = float(np.std(np.concatenate([one.sets for one in found])))
        words = [float(one.words.mean()) for one in found if one.words is not None]
        row = [size or "", label, float(np.mean(means)), float(np.std(means)), spread, KINDS[label]]
        table.rows.append([*row, float(np.mean(words)) if words else None])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    data, empty = citations(require_data(parser, parser.parse_args()))
    quiet_and_single_threaded()
    meta = {"documents": len(data), "left out without citation": empty}
    table = perplexity_table(data)
    print(write_report("citations_entropy", "Citation analysis: cross-entropy", [table], meta, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
