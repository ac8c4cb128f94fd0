"""River, bank, money: collapsed Gibbs sampling of a small corpus (Murphy 2012, section 27.3.5 and Fig. 27.8).

    python -m benchmarks.quality.topics_river_bank [--corpora 60] [--quick]

Writes ``benchmarks/results/topics_river_bank.{md,json}`` and a figure. Two topics over five words, each word of a topic
with probability 1/3; 16 documents of 16 tokens in any mix of the two. The corpus of the source is not printed, so its
estimates are compared with those of many corpora drawn anew.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln

import custom_inference
from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import quiet_and_single_threaded
from benchmarks.quality._topic_figures import assignments, save
from custom_inference import match_components
from custom_inference.core.registry import engine_for, proposals_for
from custom_inference.em.loop import run_em
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from ppl_models import LDA, Data, datasets

Array = NDArray[np.float64]
GAMMA, SWEEPS = 0.01, 64
#: Concentrations of the documents' mixes: any mix, and mostly one topic a document.
ALPHAS = {1.0: "in any mix", 0.2: "mostly of one topic each"}
WORDS = ("money", "loan", "bank", "river", "stream", "bank")
#: Murphy prints these (27.3.5); the words of each topic in the order of WORDS.
PRINTED = (0.32, 0.29, 0.39, 0.25, 0.40, 0.35)


def tokens_of(x: torch.Tensor) -> TokenList:
    return TokenList.of(DocumentRows.of(Data(x=x.double())))


def model_of(alpha: float) -> LDA:
    return LDA(num_topics=2, vocabulary_size=5).with_concentration(alpha=alpha, gamma=GAMMA)


def swept(chain: LdaChain, sweeps: int) -> LdaChain:
    for _ in range(sweeps):
        chain.sweep()
    return chain


def estimate(chain: LdaChain) -> Array:
    """The posterior mean of the topics given the tokens' topics: (c_vk + gamma) / (c_k + V gamma), (K, V)."""
    return chain.means()["topic"].numpy()


def random_chain(tokens: TokenList, alpha: float, seed: int) -> LdaChain:
    """A chain whose tokens have random topics, as Fig. 27.8 (a) shows."""
    chain = LdaChain(tokens, 2, alpha, GAMMA, seed)
    chain.assign(np.random.default_rng(seed).integers(0, 2, len(tokens)).astype(np.int32))
    return chain


def by_truth(topic: Array, truth: torch.Tensor) -> Array:
    """Topics in the order of the true ones."""
    return topic[match_components(truth, torch.as_tensor(topic)).order]


def one_corpus(seed: int, alpha: float) -> dict[str, Array]:
    """Method -> estimated topics, in the order of the true ones."""
    generated = datasets.river_bank(seed=seed, alpha=alpha)
    truth, chain = generated.truth["topic"], random_chain(tokens_of(generated.data.x), alpha, seed)
    swept(chain, SWEEPS)
    found = {f"Gibbs, one sample after {SWEEPS} sweeps": by_truth(estimate(chain), truth)}
    samples = []
    for _ in range(100):
        samples.append(by_truth(estimate(swept(chain, 5)), truth))
    found["Gibbs, mean of 100 samples"] = np.mean(samples, axis=0)
    for name in ("vb", "cvb0"):
        fit = custom_inference.fit(model_of(alpha), generated.data, seed=seed, method=name, progress=False)
        found[{"vb": "variational Bayes", "cvb0": "CVB0"}[name]] = by_truth(fit.params["topic"].numpy(), truth)
    return found


def many_corpora(number: int, alpha: float) -> Table:
    """Estimates of the six probabilities of 1/3 over many corpora."""
    every: dict[str, list[Array]] = {}
    for seed in range(number):
        for name, topic in one_corpus(seed, alpha).items():
            every.setdefault(name, []).append(_six(topic))
    table = Table(
        f"Topics found in {number} corpora, documents {ALPHAS[alpha]} (alpha = {alpha:g})",
        ["estimate", *(f"{w}, topic {1 + i // 3}" for i, w in enumerate(WORDS)), "within the printed", "farthest"],
        note=(
            "Mean ± standard deviation over the corpora; the truth is 1/3 throughout. Within the printed: share of "
            "corpora whose farthest entry is no farther from 1/3 than the printed estimates' farthest (0.083). "
            f"The fits have the alpha that drew the corpora, and gamma = {GAMMA:g}; the source does not state its own."
        ),
    )
    table.rows.append(["Murphy, 27.3.5 (one corpus)", *(f"{v:.2f}" for v in PRINTED), "", f"{_farthest(PRINTED):.3f}"])
    for name, rows in every.items():
        values = np.array(rows)
        far = np.array([_farthest(row) for row in values])
        cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(values.mean(0), values.std(0), strict=True)]
        within = f"{np.mean(far <= _farthest(PRINTED) + 1e-9):.0%}"
        table.rows.append([name, *cells, within, f"{np.median(far):.3f} (median)"])
    return table


def _six(topic: Array) -> Array:
    """In the order of WORDS; the corpora's words are river, stream, bank, money, loan, its first topic money's."""
    return np.array([topic[0, 3], topic[0, 4], topic[0, 2], topic[1, 0], topic[1, 1], topic[1, 2]])


def _farthest(six: Any) -> float:
    return float(np.abs(np.asarray(six) - 1 / 3).max())


# ----- against the exact posterior ------------------------------------------------------------------------------------


def exact_pairs(tokens: TokenList, alpha: float = 1.0) -> Array:
    """P(two tokens have the same topic | corpus), (T, T), by summing over all 2^T assignments.

    Their joint probability under the collapsed law is that of eqs. 27.34 and 27.36 (gamma for its beta). The exact
    posterior is the same with the topics' numbers exchanged, so that a mean topic says nothing and pairs say all.
    """
    every = np.array(list(product((0.0, 1.0), repeat=len(tokens) - 1)))
    second = np.hstack([np.zeros((len(every), 1)), every])  # the first token's topic is 0: half of the assignments
    log_joint = np.zeros(len(second))
    for z in (1 - second, second):
        words = np.stack([z[:, tokens.word == v].sum(1) for v in range(tokens.vocabulary_size)], 1)
        log_joint += gammaln(words + GAMMA).sum(1) - gammaln(words.sum(1) + tokens.vocabulary_size * GAMMA)
        for document in range(len(tokens.start) - 1):
            log_joint += gammaln(z[:, tokens.start[document] : tokens.start[document + 1]].sum(1) + alpha)
    p = np.exp(log_joint - log_joint.max())
    p /= p.sum()
    both = (second * p[:, None]).T @ second
    return both + ((1 - second) * p[:, None]).T @ (1 - second)


def gibbs_pairs(tokens: TokenList, seed: int, samples: int, chains: int = 20) -> tuple[Array, Array]:
    """The share of samples in which two tokens have the same topic, and its standard error, by independent chains."""
    each = []
    for which in range(chains):
        chain = swept(LdaChain(tokens, 2, 1.0, GAMMA, 1000 * seed + which), 100)
        total = np.zeros((len(tokens), len(tokens)))
        for _ in range(samples // chains):
            swept(chain, 2)
            total += chain.topic[:, None] == chain.topic
        each.append(total / (samples // chains))
    return np.mean(each, axis=0), np.std(each, axis=0, ddof=1) / chains**0.5


def factorized_pairs(x: torch.Tensor, bound: str, seed: int, starts: int = 5) -> Array:
    """Under q(z) = prod_l q(z_l) of variational Bayes or CVB0, the best of some starts."""
    model, data = model_of(1.0), Data(x=x.double())
    steps = engine_for(model, bound)
    rows, generator = steps.rows(model, data), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        begun = [proposals_for(model, steps).propose(model, rows, generator, attempt) for attempt in range(starts)]
        runs = [run_em(steps, model, rows, start, max_iterations=500, tolerance=1e-9) for start in begun]
        best = max(runs, key=lambda run: run.objective)
        cells = steps.responsibilities(model, best.state, rows, best.step.locals).numpy()
    q = cells.repeat(rows.counts.values().long().numpy(), axis=0)
    found = q @ q.T
    np.fill_diagonal(found, 1.0)
    return found


def exact_table(corpora: int, samples: int) -> Table:
    table = Table(
        f"Against the exact posterior of {corpora} small corpora",
        ["method", "mean error", "largest error", "mean P(same topic)", "mean error / standard error"],
        note=(
            "Four documents of four tokens, all 2^16 assignments summed under the collapsed law; alpha = 1. Error: of "
            f"the probability that two tokens have the same topic, over all pairs of tokens. Gibbs: {samples} samples "
            "of 20 chains, two sweeps apart; the mean of |error| over its standard error would be 0.80 for Gaussian "
            "errors. CVB0 and variational Bayes (the best of five starts each) treat the tokens as independent."
        ),
    )
    errors: dict[str, list[Array]] = {}
    level: dict[str, list[float]] = {}
    ratios = []
    for seed in range(corpora):
        x = datasets.river_bank(4, seed=seed, length=4).data.x
        exact = exact_pairs(tokens_of(x))
        pairs = np.triu_indices(len(exact), 1)
        sampled, error = gibbs_pairs(tokens_of(x), seed, samples)
        found = {"exact": exact, "collapsed Gibbs": sampled}
        found |= {"variational Bayes": factorized_pairs(x, "vb", seed), "CVB0": factorized_pairs(x, "cvb0", seed)}
        ratios.append((np.abs(sampled - exact) / np.maximum(error, 1e-6))[pairs])
        for name, value in found.items():
            errors.setdefault(name, []).append(np.abs(value - exact)[pairs])
            level.setdefault(name, []).append(float(value[pairs].mean()))
    for name, each in errors.items():
        cells = [f"{np.mean(each):.4f}", f"{np.max(each):.3f}", f"{np.mean(level[name]):.3f}"]
        table.rows.append([name, *cells, f"{np.mean(ratios):.2f}" if name == "collapsed Gibbs" else ""])
    return table


def picture(seed: int, alpha: float) -> Any:
    """Fig. 27.8: (a) topics at random, (b) after 64 sweeps."""
    generated = datasets.river_bank(seed=seed, alpha=alpha)
    tokens = tokens_of(generated.data.x)
    chain = random_chain(tokens, alpha, seed)
    before = chain.topic.copy()
    swept(chain, SWEEPS)
    same = match_components(generated.truth["topic"], torch.as_tensor(estimate(chain))).order[0] == 0
    after = chain.topic if same else 1 - chain.topic
    names = [str(name) for name in generated.coords["feature"]]
    titles = ("(a) random topics", f"(b) after {SWEEPS} sweeps")
    return assignments(tokens.document, tokens.word, (before, after), names, titles)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpora", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="few corpora and samples: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    folder = QUICK if arguments.quick else RESULTS
    corpora, small, samples = (5, 2, 500) if arguments.quick else (arguments.corpora, 20, 20_000)
    tables = [*(many_corpora(corpora, alpha) for alpha in ALPHAS), exact_table(small, samples)]
    tables[1].figures = [save(picture(0, 0.2), folder, "topics_river_bank")]
    print(write_report("topics_river_bank", "River, bank, money", tables, intro=INTRO, folder=folder))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
