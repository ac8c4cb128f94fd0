"""The compiled moves and the program against the reference: log joints, conditionals, all partitions."""

from itertools import combinations
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.families.relations.arrays import PAIR
from custom_inference.families.relations.exact import all_partitions, number_of_partitions, partitions
from custom_inference.families.relations.problem import clusters_of, concentration_grid, tables
from custom_inference.families.relations.search import join
from custom_inference.families.relations.state import PartitionPrior
from ppl_models import IRM, CapacityError
from tests.families.relations.cases import SYMMETRIC, TYPES, labels_of, problem
from tests.references import irm as reference

SETS = [*((name,) for name in TYPES), ("links", "grades"), tuple(TYPES)]
EACH = pytest.mark.parametrize("names", SETS, ids="+".join)
CLUSTERS = pytest.mark.parametrize("clusters", [None, {"a": 3, "b": 2}, {"b": 3}])


def random_labels(one, rng):
    return {t: rng.integers(0, one.clusters.get(t, 3), n) for t, n in one.sizes.items()}


def joint(one, z):
    return reference.log_joint_integrated(one.relations, z, one.c, one.clusters)


@EACH
@CLUSTERS
def test_log_joint_is_the_references(names, clusters):
    one, rng = problem(names, clusters=clusters), np.random.default_rng(1)
    held = clusters_of(one.model, one.data, 0)
    for _ in range(3):
        z = random_labels(one, rng)
        held.take(labels_of(one, z))
        assert held.log_joint() == pytest.approx(joint(one, z), rel=1e-10)


@EACH
def test_no_two_clusters_gain_by_being_joined_after_join(names):
    one = problem(names)
    held = clusters_of(one.model, one.data, 0)
    held.take(np.concatenate([np.arange(size) for size in one.sizes.values()]))
    before = held.log_joint()
    join(held)
    after, labels = held.log_joint(), held.labels
    assert after >= before
    for t in range(len(one.sizes)):
        for a, b in combinations(np.unique(labels[held.of_type(t)]), 2):
            merged = labels.copy()
            merged[held.of_type(t)][merged[held.of_type(t)] == a] = b
            held.take(merged)
            assert held.log_joint() <= after + 1e-8


@EACH
def test_the_program_is_the_references(names):
    """Tables included; and log p(x, tables | z) - log p(tables | x, z) is the integrated one, at any tables."""
    one, rng = problem(names), np.random.default_rng(2)
    z = {t: np.unique(v, return_inverse=True)[1] for t, v in random_labels(one, rng).items()}
    values = {f"cluster_{t}": torch.as_tensor(v) for t, v in z.items()}
    given: Any = pyro.poutine.trace(pyro.condition(one.model, data=values)).get_trace(one.data.x, **one.data.others)
    table: dict = {}
    for name in names:
        sites = [given.nodes[site]["value"].numpy() for site in one.model.tables(name)]
        number = [max(z[t]) + 1 for t in TYPES[name]]
        kind = one.model.cells[name]
        for block in np.ndindex(*number):
            held = [site[block] for site in sites]
            own = held if kind == "gaussian" else np.array([1 - held[0], held[0]]) if kind == "bernoulli" else held[0]
            if name not in SYMMETRIC or block == tuple(sorted(block)):
                table.setdefault(name, {})[block] = own
    expected = reference.log_joint(one.relations, table, z, one.c)
    assert float(given.log_prob_sum()) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("clusters", [None, {"a": 3, "b": 2}])
def test_sweeps_keep_the_books(clusters):
    """After many moves of every kind all sums are those of the labels."""
    one = problem(clusters=clusters)
    held = clusters_of(one.model, one.data, 3)
    held.take(labels_of(one, random_labels(one, np.random.default_rng(3))))
    for _ in range(20):
        held.sweep()
        held.split_or_merge()
    held.sweep(greedy=True)
    found, labels = held.log_joint(), held.labels
    z = {t: labels[held.of_type(n)] for n, t in enumerate(one.sizes)}
    assert found == pytest.approx(joint(one, z), rel=1e-9)
    for k in range(int(held.work.room.max())):  # what nobody is in holds nothing
        empty = (held.work.size[:, k] == 0) & ~held.prior.fixed
        assert all(k not in held.work.active[t, : held.work.number[t]] for t in np.flatnonzero(empty))


@EACH
@CLUSTERS
def test_every_single_move_is_weighed_as_the_reference_does(names, clusters):
    """In one long walk, so that what an earlier move leaves behind would be seen; new clusters included."""
    one, rng = problem(names, clusters=clusters), np.random.default_rng(7)
    held = clusters_of(one.model, one.data, 0)
    held.take(labels_of(one, random_labels(one, rng)))
    for _ in range(25):
        i = int(rng.integers(9))
        t, first = ("a", 0) if i < 5 else ("b", 5)
        held.put(np.array([i]), np.array([-1]))
        pair = rng.permutation(np.arange(one.clusters.get(t, 4)))[:2]
        held.work.target[:], held.work.chance[0] = pair, 0.0
        held._run(np.array([i]), np.array([1]), PAIR)
        z, level = {kind: held.labels[:5] if kind == "a" else held.labels[5:] for kind in one.sizes}, []
        for k in pair:
            z[t] = np.array(z[t])
            z[t][i - first] = k
            level.append(joint(one, z))
        assert held.log_joint() == pytest.approx(level[1], rel=1e-10)
        assert held.work.chance[0] == pytest.approx(level[1] - np.logaddexp(*level), abs=1e-8)
        held.sweep(order=np.array([int(rng.integers(9))]))
        for _ in range(3):
            held.sweep(greedy=True)


@pytest.mark.filterwarnings("ignore:.*without cells")
@pytest.mark.parametrize("names", [("flags", "counts"), ("triples",), ("grades",), ("sizes",), ("links", "grades"),
                                   ("links", "sizes", "counts"), tuple(TYPES)], ids="+".join)  # fmt: skip
def test_the_search_finds_the_best_of_all_partitions(names):
    for seed in range(3):
        one = problem(names, seed=seed)
        best = all_partitions(one.model, one.data)
        held = clusters_of(one.model, one.data, seed)
        held.take(best.labels[best.log_weight.argmax()])
        fit: Any = ci.fit(one.model, one.data, method="search", rounds=250, num_samples=20, seed=seed, progress=False)
        assert fit.details["log_joint"] == pytest.approx(held.log_joint(), rel=1e-10)


def test_a_greedy_sweep_is_the_best_single_move():
    """The order is known, so every choice can be checked by the reference's log joint."""
    one = problem(("links", "grades", "sizes"))
    held = clusters_of(one.model, one.data, 0)
    z = random_labels(one, np.random.default_rng(5))
    held.take(labels_of(one, z))
    for n, (t, i) in enumerate([("a", 0), ("b", 2), ("a", 4)]):
        held.sweep(greedy=True, order=np.array([i + (0 if t == "a" else 5)]))
        every = []
        for k in range(6):
            trial = {kind: np.array(v) for kind, v in z.items()}
            trial[t][i] = k
            every.append((joint(one, trial), trial))
        best, z = max(every, key=lambda pair: pair[0])
        assert held.log_joint() == pytest.approx(best, rel=1e-10), n


@pytest.mark.parametrize("clusters", [None, {"a": 2, "b": 2}, {"b": 2}])
def test_all_partitions_are_the_references(clusters):
    one = problem(("links", "grades"), clusters=clusters)
    found = all_partitions(one.model, one.data)
    every, share, evidence = reference.posterior(one.relations, one.sizes, one.c, one.clusters)
    assert found.log_evidence == pytest.approx(evidence, rel=1e-10)
    fit: Any = ci.fit(one.model, one.data, method="exact", progress=False)
    for t in one.sizes:
        together = reference.together(every, share, t)
        assert np.allclose(fit.co_assignment(t), together, atol=1e-10)
        for draws in (fit.draws[f"cluster_{t}"].numpy(), fit.to_arviz().posterior[f"cluster_{t}"].values):
            drawn = (draws[..., None] == draws[..., None, :]).mean((0, 1))
            assert np.abs(drawn - together).max() < 0.01  # systematic draws: the plain mean is right


def test_the_number_of_partitions():
    for size in range(1, 7):
        for most in range(1, size + 1):
            assert len({*partitions(size, most)}) == number_of_partitions(size, most)
    with pytest.raises(CapacityError, match=r"clusterings of 16 of 'person'"):
        example = IRM.example()
        ci.fit(example.model, example.data, method="exact", progress=False)


def test_learned_concentrations_are_integrated_out():
    model = IRM(types={"a": 7}, relations={"r": ("a",)}, priors={"concentration": dist.Gamma(2.0, 1.5)})
    prior = PartitionPrior.of([7], [0], *concentration_grid(model))
    for z in ([0] * 7, [0, 0, 1, 1, 2, 0, 0], list(range(7))):
        found = prior.log_prob(0, np.bincount(z))
        assert found == pytest.approx(reference.log_partition_learned(z, 2.0, 1.5), abs=1e-6)


@EACH
def test_tables_are_posterior_means(names):
    """The mean of the next cell, given those of its block; of real numbers by the formulas of a normal-gamma."""
    one, rng = problem(names), np.random.default_rng(4)
    z = {t: np.unique(v, return_inverse=True)[1] for t, v in random_labels(one, rng).items()}
    held = clusters_of(one.model, one.data, 0)
    held.take(labels_of(one, z))
    found = tables(one.model, held)
    for name in names:
        kind, hyper = one.relations[name][1], np.array(one.relations[name][3])
        for block, values in reference.blocks(one.relations[name], z).items():
            own = [found[site][block].numpy() for site in one.model.tables(name)]
            before = reference.log_cells_integrated(values, kind, hyper)

            def after(c, values=values, kind=kind, hyper=hyper, before=before):
                return reference.log_cells_integrated([*values, c], kind, hyper) - before

            if kind == "categorical":
                p = np.exp([after(c) for c in range(len(hyper))])
                assert np.allclose(own[0], p[1] if one.model.cells[name] == "bernoulli" else p, atol=1e-12)
            elif kind == "poisson":
                ratio = np.exp([after(c) for c in range(400)])
                assert own[0] == pytest.approx(float(ratio @ np.arange(400)), rel=1e-9)
            else:
                n, k = len(values), hyper[1] + len(values)
                mean = (hyper[1] * hyper[0] + np.sum(values)) / k
                spread = hyper[3] + 0.5 * np.sum((np.array(values) - np.mean(values)) ** 2)
                spread += hyper[1] * n * (np.mean(values) - hyper[0]) ** 2 / (2 * k)
                assert own[1] == pytest.approx(mean, rel=1e-10)
                assert own[0] == pytest.approx((hyper[2] + n / 2) / spread, rel=1e-10)
