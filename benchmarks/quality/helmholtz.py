"""Helmholtz machines: the 4 x 4 bars of Dayan et al. (1995), other nets, and topic words.

    python -m benchmarks.quality.helmholtz [--data DIR]

Writes ``benchmarks/results/helmholtz.{md,json}`` and figures. One thread; CPU seconds of the fit alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import scipy.sparse as sp
import torch
from matplotlib import pyplot as plt

import custom_inference as ci
from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from ppl_models import HelmholtzMachine

Array = np.ndarray
#: Rows of a sample; seeds of the default, and of everything else.
_SAMPLE, _SEEDS, _FEW = 20_000, 5, 2
#: Steps of the methods with a recognition network.
_STEPS = 6000


def bars(side: int = 4) -> Array:
    """Every choice of the bars of one orientation, not all of them; the empty image once for each orientation."""
    code = (np.arange(2**side - 1)[:, None] >> np.arange(side)) & 1
    return np.concatenate([np.repeat(code, side, axis=1), np.tile(code, side)]).astype(float)


def flat(layers: tuple[int, ...]) -> HelmholtzMachine:
    """A machine whose weights are hardly held by their priors."""
    model = HelmholtzMachine(layers=layers)
    return model.with_priors(**dict.fromkeys(model.global_sites, dist.Normal(0.0, 500.0)))


def divergence(fit: ci.Fit, rows: Array, share: Array) -> float:
    """KL from the distribution that gives different rows these shares, exact."""
    return float((share * (np.log(share) - fit.log_likelihood(rows).numpy())).sum())


def shares(rows: Array) -> tuple[Array, Array]:
    different, count = np.unique(rows, axis=0, return_counts=True)
    return different, count / count.sum()


def part_bars() -> Table:
    """All of the bars by the default, and by what learns with a recognition network."""
    table = Table("4 x 4 bars, 1-8-16", ["method", "data", "KL", "most", "<= .06", "CPU s"], note=(
        "Orientation 1/2, each of four bars on with probability 1/2, all on excluded: entropy 3.3550. KL from "
        "this distribution to the machine, exact, by the 2^9 states of the hidden layers. A network built by hand has "
        f".056. The default: {_SEEDS} seeds, from the distribution itself (30 rows, priors Normal(0, 500)) and from "
        f"{_SAMPLE:,} rows. Methods with a recognition network: {_FEW} seeds, 5,000 rows, {_STEPS:,} steps of 100; "
        "wake-sleep as on the slides takes plain steps at the rate .3."))  # fmt: skip
    every = bars()
    different, share = shares(every)

    def sampled(seed: int, size: int) -> Array:
        return different[np.random.default_rng(seed).choice(len(different), size, p=share)]

    def learned(method: str, seed: int, **settings: Any) -> ci.Fit:
        given = {"method": method, "steps": _STEPS, "seed": seed, "progress": False, **settings}
        return ci.fit(HelmholtzMachine(layers=(1, 8, 16)), sampled(seed, 5000), **given)

    model = HelmholtzMachine(layers=(1, 8, 16))
    ways: list[tuple[str, str, int, Callable[[int], ci.Fit]]] = [
        ("default (exact sums)", "itself", _SEEDS, lambda s: ci.fit(flat((1, 8, 16)), every, seed=s, progress=False)),
        ("default (exact sums)", "20,000 rows", _SEEDS,
         lambda s: ci.fit(model, sampled(s, _SAMPLE), seed=s, progress=False)),
        ("wake-sleep of the slides", "5,000 rows", _FEW,
         partial(learned, "wake_sleep", optimizer="sgd", learning_rate=0.3)),
        ("reweighted wake-sleep", "5,000 rows", _FEW, partial(learned, "reweighted_wake_sleep")),
        ("importance weighted (VIMCO)", "5,000 rows", _FEW, partial(learned, "importance_weighted")),
    ]  # fmt: skip
    for name, data, seeds, way in ways:
        found = [cpu_seconds(partial(way, seed)) for seed in range(seeds)]
        kl = np.array([divergence(fit, different, share) for fit, _ in found])
        good = f"{int((kl <= 0.06).sum())} of {seeds}"
        seconds = float(np.median([one for _, one in found]))
        table.rows.append([name, data, float(kl.mean()), float(kl.max()), good, seconds])
        print(table.rows[-1], flush=True)
        if name.startswith("default") and data == "itself":
            draw_fantasies(found[0][0])
            table.figures = ["helmholtz_fantasies.png", "helmholtz_weights.png"]
    return table


def draw_fantasies(fit: ci.Fit) -> None:
    """Rows drawn from the machine, and the weights of its hidden units."""
    drawn = fit.sample(24, seed=0)["x"].numpy().reshape(-1, 4, 4)
    weight = fit.params["weight_2"].numpy().reshape(-1, 4, 4)
    for name, images, width in (("fantasies", drawn, 12), ("weights", weight, 8)):
        figure, axes = plt.subplots(len(images) // width, width, figsize=(0.7 * width, 0.8 * len(images) / width))
        for panel, image in zip(np.ravel(axes), images, strict=True):
            limit = max(1.0, float(np.abs(image).max()))
            colors, least = ("gray_r", 0.0) if name == "fantasies" else ("RdBu_r", -limit)
            panel.imshow(image, cmap=colors, vmin=least, vmax=limit)
            panel.set_xticks([])
            panel.set_yticks([])
        figure.tight_layout(pad=0.3)
        figure.savefig(RESULTS / f"helmholtz_{name}.png", dpi=120)
        plt.close(figure)


def part_others() -> Table:
    """Other nets, by the default."""
    table = Table("Other nets, by the default", ["problem", "network", "KL", "most", "the truth's own", "CPU s"], note=(
        f"KL from the empirical distribution of the rows to the machine, means of {_FEW} seeds. Teachers: machines of "
        "weights from N(0, 2^2), 2,000 rows drawn from each. Noise: every pixel of a sample of 2,000 bars flipped with "
        "probability .02; the truth is the distribution that made the rows."))  # fmt: skip
    rng = np.random.default_rng(0)
    cases: list[tuple[str, tuple[int, ...], list[Array], list[float]]] = []
    cases.append(("3 x 3 bars", (1, 6, 9), [bars(3)] * _FEW, [0.0] * _FEW))
    for layers in ((2, 5, 12), (2, 3, 4, 10)):
        rows, own = zip(*(teacher(layers, seed) for seed in range(_FEW)), strict=True)
        cases.append(("random teacher", layers, list(rows), list(own)))
    every, noisy, own = bars(), [], []
    for _ in range(_FEW):
        chosen = every[rng.integers(len(every), size=2000)]
        rows = np.abs(chosen - (rng.random(chosen.shape) < 0.02))
        different, share = shares(rows)
        apart = np.abs(different[:, None] - every).sum(-1)
        log_p = np.logaddexp.reduce(apart * np.log(0.02) + (16 - apart) * np.log(0.98), axis=1) - np.log(len(every))
        noisy.append(rows)
        own.append(float((share * (np.log(share) - log_p)).sum()))
    cases.append(("4 x 4 bars with noise", (1, 8, 16), noisy, own))
    for name, layers, data, truth in cases:
        found = []
        for seed, rows in enumerate(data):
            model = flat(layers) if len(rows) < 100 else HelmholtzMachine(layers=layers)
            fit, seconds = cpu_seconds(partial(ci.fit, model, rows, seed=seed, progress=False))
            found.append((divergence(fit, *shares(rows)), seconds))
        kl, seconds = np.array(found).T
        network = "-".join(map(str, layers))
        table.rows.append([name, network, kl.mean(), kl.max(), float(np.mean(truth)), float(np.median(seconds))])
        print(table.rows[-1], flush=True)
    return table


def teacher(layers: tuple[int, ...], seed: int) -> tuple[Array, float]:
    """Rows of a random machine, and the KL from their distribution to the machine's."""
    generator, model = torch.Generator().manual_seed(seed), HelmholtzMachine(layers=layers)
    truth = {site: 2.0 * torch.randn(shape, generator=generator).double() for site, shape in model.shapes.items()}
    known = model.with_priors(**truth)
    some = torch.tensor([[0.0], [1.0]]).expand(2, layers[-1])
    fit = ci.SVI(guide="delta", steps=1).fit(known, some, progress=False)
    rows = fit.sample(2000, seed=seed)["x"].numpy()
    return rows, divergence(fit, *shares(rows))


def part_words(folder: Path) -> Table:
    """Words of the hidden units of a machine on documents."""
    columns = ["hidden unit", "on", "terms, on and off", "groups", "words", "words without it"]
    table = Table("Topic words of newsgroups", columns, note=(
        "Four newsgroups, training documents by date, the 200 most frequent terms of at least three letters that are "
        "no stop words, which of them a document has; 1-8-200 by exact sums. On: the share of the documents; terms: "
        "how many a document has then, and otherwise; groups: in which the unit is on most and least often, and how "
        "often. Words: those whose share of the documents is larger by most where the unit is on than without it, "
        "and the reverse. A unit is no topic: all eight together describe a document, and one that tells long "
        "documents from short ones has the words of no subject."))  # fmt: skip
    x, names, group, titles = frequent_terms(folder, 200)
    fit, seconds = cpu_seconds(lambda: ci.fit(HelmholtzMachine(layers=(1, 8, 200)), x, progress=False))
    table.note += f" {seconds:.0f} CPU s."
    on = fit.transform()[:, 1:].numpy()
    apart = on.T @ x / on.sum(0)[:, None] - (1 - on).T @ x / (1 - on).sum(0)[:, None]
    shares = np.stack([on[group == one].mean(0) for one in range(len(titles))], 1)
    for unit in np.argsort(on.mean(0)):
        most, least = shares[unit].argmax(), shares[unit].argmin()
        many = f"{on[:, unit] @ x.sum(1) / on[:, unit].sum():.0f}, "
        many += f"{(1 - on[:, unit]) @ x.sum(1) / (1 - on[:, unit]).sum():.0f}"
        where = f"{titles[most]} {shares[unit, most]:.2f}, {titles[least]} {shares[unit, least]:.2f}"
        order = np.argsort(-apart[unit])
        words = [", ".join(str(names[one]) for one in part if sign * apart[unit, one] > 0.02)
                 for part, sign in ((order[:10], 1), (order[::-1][:5], -1))]  # fmt: skip
        table.rows.append([int(unit), float(on[:, unit].mean()), many, where, *words])
        print(table.rows[-1], flush=True)
    return table


def frequent_terms(folder: Path, number: int) -> tuple[Array, Array, Array, list[str]]:
    """Which of the most frequent terms every training document has, these terms, its group, and the groups' names."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    path = folder / "newsgroups4" / "newsgroups4.npz"
    with np.load(path, allow_pickle=False) as archive:
        test, words = archive["is_test"].astype(bool), archive["words"]
        group, titles = archive["y"].astype(int), [str(one) for one in archive["group_names"]]
    has = sp.load_npz(path)[~test] > 0
    known = np.array([len(word) >= 3 and word not in ENGLISH_STOP_WORDS for word in words])
    often = np.asarray(has.sum(0)).ravel() * known
    chosen = np.sort(np.argsort(-often)[:number])
    x = has[:, chosen].toarray().astype(float)
    long = x.sum(1) >= 5
    return x[long], words[chosen], group[~test][long], titles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    print(write_report("helmholtz", "Helmholtz machines", [part_bars(), part_others(), part_words(folder)]))


if __name__ == "__main__":
    main()
