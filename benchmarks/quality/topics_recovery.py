"""Topics that know more, on documents of known topics: what the default fit of each model finds, and how many topics.

    python -m benchmarks.quality.topics_recovery

CPU seconds are of one thread and of the default fit alone, after one that compiles. PPL_SMOKE=1: two models, one draw,
no result.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from benchmarks.quality._correlated_data import perplexity, split, under_dirichlet
from benchmarks.quality._topics_truth import MODELS, WORDS, Draw, hdp
from custom_inference import fit
from ppl_models import LDA

Array = NDArray[Any]
NAME, RECOVERED, NUMBER = "topics_recovery", "Recovery of topics", "How many topics there are"
#: Draws of every line; true numbers of topics of the second table.
_DRAWS, _NUMBERS = 5, (3, 5)
#: A draw is recovered where its topics are no further than this from the truth than those of the fit from the truth.
_NEAR = 0.02
#: Topics that hold this share of the tokens are counted; numbers that LDA is offered, relative to the true one.
_HELD, _OFFERED = 0.99, (-2, -1, 0, 1, 2, 4)
INTRO = (
    "Total variation of the true topics from the matched ones, means over topics (and slices): of the default fit and "
    "of the same method started at the true values of all globals. Recovered: draws in which the first exceeds the "
    f"second by at most {_NEAR}. Held-out: perplexity of half of the tokens of 500 further documents given the other "
    "half, under Dirichlet(.1) proportions (HDP: its own), over that at the true topics: 1 is the truth, more is worse."
    " Supervised LDA is fitted to predict its responses, which its topics serve; the others are fitted to the words."
)
COLUMNS = ("model", "draws", "topic TV", "worst TV", "TV from the truth", "recovered", "held-out / truth's", "CPU s")


def topics_of(draw: Draw, found: Any) -> Array:
    """(K, V), or (T, K, V)."""
    if draw.topic.ndim == 3:
        return draw.model.topics(found.globals).double().numpy()
    return found.params["topic"].double().numpy()


def distance(truth: Array, topic: Array) -> float:
    """Mean total variation after the best matching, of the means over slices where there are any."""
    one, other = (value.reshape(-1, *value.shape[-2:]) for value in (truth, topic))
    cost = np.abs(one.mean(0)[:, None] - other.mean(0)[None]).sum(-1)
    return float(np.abs(one - other[:, linear_sum_assignment(cost)[1]]).sum(-1).mean() / 2)


def own_alpha(found: Any) -> Array | None:
    """The concentrations of HDP's fits, which say what topics are not used."""
    sites = found.params
    return (sites["concentration"] * sites["topic_weight"]).double().numpy() if "topic_weight" in sites else None


def held_out(draw: Draw, topic: Array, alpha: Array | None = None) -> float:
    """Perplexity of half the tokens of the further documents; alpha: of their proportions, .1 by default."""
    seen, held = split(draw.fresh, 0.5, most=None)
    if topic.ndim == 2:
        alpha = np.full(len(topic), 0.1) if alpha is None else alpha
        return perplexity(under_dirichlet(topic, alpha, seen), topic, held)
    total, slices = 0.0, np.asarray(draw.slices)
    for t in np.unique(slices):
        own, alpha = slices == t, np.full(topic.shape[1], 0.1)
        value = perplexity(under_dirichlet(topic[t], alpha, seen[own]), topic[t], held[own])
        total += held[own].sum() * np.log(value)
    return float(np.exp(total / held.sum()))


def one(draw: Draw) -> list[float]:
    """TV of the default fit and of that from the truth, held-out perplexities' ratio, CPU seconds."""
    run = partial(fit, draw.model, draw.x, seed=0, progress=False, **draw.others)
    found, seconds = cpu_seconds(run)
    truth = {site: torch.as_tensor(value, dtype=torch.float64) for site, value in draw.truth.items()}
    near = run(init=truth)
    topic = topics_of(draw, found)
    ratio = float("nan")
    if draw.fresh is not None:
        ratio = held_out(draw, topic, own_alpha(found)) / held_out(draw, draw.topic)
    return [distance(draw.topic, topic), distance(draw.topic, topics_of(draw, near)), ratio, seconds]


def line(name: str, seeds: int) -> list[Any]:
    run_example(MODELS[name](0).model)
    rows = np.array([one(MODELS[name](seed)) for seed in range(seeds)])
    tv, near, ratio, seconds = rows.T
    recovered = f"{int((tv - near <= _NEAR).sum())} of {seeds}"
    score = None if np.isnan(ratio).any() else float(ratio.mean())
    return [name, seeds, float(tv.mean()), float(tv.max()), float(near.mean()), recovered, score,
            float(np.median(seconds))]  # fmt: skip


def run_example(model: Any) -> None:
    """Compiles."""
    example = type(model).example()
    fit(example.model, example.data, progress=False)


def number(size: int, seeds: int) -> list[Any]:
    """A line of the second table: topics that HDP's fits use; LDA's best number by bound and by held-out tokens."""
    found: list[list[float]] = []
    for seed in range(seeds):
        draw = hdp(seed, size)
        made, seconds = cpu_seconds(partial(fit, draw.model, draw.x, seed=0, progress=False))
        tokens = np.sort((made.posterior.mean * made.posterior.concentration.sum(1, keepdim=True)).sum(0).numpy())[::-1]
        used = int(np.searchsorted(tokens.cumsum() / tokens.sum(), _HELD) + 1)
        truth = held_out(draw, draw.topic)
        offered = [size + more for more in _OFFERED if size + more > 0]
        every = {k: LDA(num_topics=k, vocabulary_size=WORDS) for k in offered}
        lda = {k: fit(one, draw.x, seed=0, method="vb", progress=False) for k, one in every.items()}
        scores = {k: held_out(draw, each.params["topic"].double().numpy()) for k, each in lda.items()}
        by_bound, by_score = max(lda, key=lambda k: float(lda[k].elbo[-1])), min(scores, key=lambda k: scores[k])
        own = held_out(draw, made.params["topic"].double().numpy(), own_alpha(made))
        found.append([used, by_bound, by_score, own / truth, scores[by_score] / truth, seconds])
    used, by_bound, by_score, own, best, seconds = np.array(found).T
    return [size, seeds, _often(used), _often(by_bound), _often(by_score), own.mean(), best.mean(), np.median(seconds)]


NUMBER_COLUMNS = ("true number", "draws", "HDP", "LDA by bound", "LDA by held-out tokens", "HDP held-out / truth's",
                  "LDA held-out / truth's", "CPU s of HDP")  # fmt: skip
NUMBER_NOTE = (
    f"HDP of at most 20 topics: those that hold {_HELD:.0%} of the tokens. LDA by variational Bayes, of "
    f"{len(_OFFERED)} numbers around the true one: that of the highest bound, and that of the lowest perplexity of "
    "held-out tokens. A cell says how often each number was found."
)


def _often(values: Array) -> str:
    return ", ".join(f"{int(value)}: {(values == value).sum()}" for value in np.unique(values))


def main() -> None:
    smoke = bool(os.environ.get("PPL_SMOKE"))
    results, draws = (QUICK, 1) if smoke else (RESULTS, _DRAWS)
    quiet_and_single_threaded()
    first, second = Table(RECOVERED, COLUMNS), Table(NUMBER, NUMBER_COLUMNS, note=NUMBER_NOTE)
    jobs = [(first, partial(line, name, draws)) for name in ([*MODELS][6:8] if smoke else MODELS)]
    jobs += [(second, partial(number, size, draws)) for size in _NUMBERS[: 1 if smoke else None]]
    for table, job in jobs:
        table.rows.append(job())
        print(table.rows[-1], flush=True)
    write_report(NAME, "Recovery of topics that know more", [first, second], intro=INTRO, folder=results)


if __name__ == "__main__":
    main()
