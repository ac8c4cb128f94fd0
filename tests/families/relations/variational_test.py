"""Variational Bayes of relational models: expectations and bound against sums over all labels, and what fits say."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.progress import Progress
from custom_inference.families.relations.problem import block_sums, clusters_of
from custom_inference.families.relations.variational import Bound, soften_labels
from ppl_models import IRM
from tests.families.relations.cases import TYPES, problem
from tests.references import irm as reference


def random_logs(one, most, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = zip(one.sizes.values(), most, strict=True)
    return [torch.randn(n, k, generator=generator, dtype=torch.float64).log_softmax(-1) for n, k in sizes]


def bound_of(one) -> Bound:
    return Bound(clusters_of(one.model, one.data, 0))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("closed", [False, True])
def test_sums_are_expected_under_independent_labels(name, closed):
    """Also where one entity is on several axes of a cell: a sum over all labels."""
    one = problem((name,))
    if closed:
        x, unlisted = one.data.x, {"unlisted": torch.zeros(1, dtype=torch.float64)}
        one = one._replace(data=replace(one.data, x=x[x[:, -1] != 0], others=unlisted))  # ones, and missing cells
    logs = random_logs(one, (2, 2))
    found = bound_of(one).sums(0, [log.exp() for log in logs])
    held, expected = clusters_of(one.model, one.data, 0), np.zeros(found.shape)
    used = [t in TYPES[name] for t in one.sizes]
    each = [list(itertools.product(range(2), repeat=n)) if u else [(0,) * n]
            for n, u in zip(one.sizes.values(), used, strict=True)]  # fmt: skip
    for z in itertools.product(*each):
        share = [float(sum(log[i, k] for i, k in enumerate(part))) if u else 0.0
                 for log, part, u in zip(logs, z, used, strict=True)]  # fmt: skip
        held.take(np.concatenate(z))
        sums, number = block_sums(held, 0)
        labels = [np.unique(part) for part in z]
        at = np.ix_(*(labels[list(one.sizes).index(t)] for t in TYPES[name]))
        expected[at] += np.exp(sum(share)) * np.concatenate([sums, number[..., None]], -1)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("clusters", [None, {"a": 2, "b": 2}])
def test_at_labels_it_is_their_probability(clusters):
    """log p(x | z), and log p(z) of sticks, or of given proportions; concentrations are known."""
    one = problem(clusters=clusters)
    z = {"a": np.array([0, 0, 0, 1, 1]), "b": np.array([0, 1, 0, 0])}
    logs = [torch.nn.functional.one_hot(torch.as_tensor(part), 2).double().log() for part in z.values()]
    expected = sum(reference.log_cells_integrated(values, relation[1], relation[3])
                   for relation in one.relations.values()
                   for values in reference.blocks(relation, z).values())  # fmt: skip
    for t, label in z.items():
        m, c = np.bincount(label), one.c[t]
        if clusters:
            expected += reference.log_partition(label, c, 2)
            continue
        v = (np.arange(200_000) + 0.5) / 200_000  # of every stick the integral over its share
        for k in range(2):
            expected += np.log(np.mean(c * (1 - v) ** (c - 1) * v ** m[k] * (1 - v) ** m[k + 1 :].sum()))
    assert bound_of(one).at(logs)[0] == pytest.approx(expected, abs=2e-3 if not clusters else 1e-8)


@pytest.mark.parametrize("names", [("flags", "links"), ("triples",), ("grades", "counts", "sizes"),
                                   ("friends", "ties"), ("meets", "signs")])  # fmt: skip
@pytest.mark.parametrize("clusters", [None, {"a": 2, "b": 2}])
def test_it_is_below_the_evidence_and_rises(names, clusters):
    one = problem(names, clusters=clusters)
    evidence, bound = reference.posterior(one.relations, one.sizes, one.c, one.clusters)[2], bound_of(one)
    for seed in range(2):
        logs = random_logs(one, (2, 2) if clusters else (3, 4), seed)
        logs, trace = bound.maximise(logs, 200, 1e-8, Progress(None, "", enabled=False))
        assert trace[-1] <= evidence and (np.diff(trace) >= -1e-9).all() and trace[-1] > trace[0]
        # Where it ends no change of one entity's shares raises it.
        generator = torch.Generator().manual_seed(seed)
        for t, log in enumerate(logs):
            other = list(logs)
            other[t] = (log + 1e-2 * torch.randn(log.shape, generator=generator, dtype=log.dtype)).log_softmax(-1)
            assert bound.at(other)[0] <= trace[-1] + 1e-6


def test_fits_bound_the_evidence_and_agree_with_it_where_clusters_are_clear():
    example: Any = IRM.example()
    fit: Any = ci.fit(example.model, example.data, method="vb", rounds=20, seed=1, progress=False)
    for t in example.model.types:
        found, truth = (np.asarray(one[f"cluster_{t}"]) for one in (fit.params, example.truth))
        assert (np.equal.outer(found, found) == np.equal.outer(truth, truth)).all()
    assert fit.objective == "bound" and fit.draws["cluster_film"].shape == (1, 200, 10)
    assert fit.elbo[-1] >= fit.details["log_joint"] - 20 and fit.predict("likes").shape == (16, 10)
    again: Any = ci.fit(example.model, example.data, method="vb", init=fit, starts=1, seed=2, progress=False)
    assert float(again.elbo[-1]) == pytest.approx(float(fit.elbo[-1]), abs=1e-2)
    one = problem(("links", "grades"))
    toy: Any = ci.fit(one.model, one.data, method="vb", seed=3, progress=False)
    listed: Any = ci.fit(one.model, one.data, method="exact", progress=False)
    assert float(toy.elbo[-1]) <= listed.details["log_evidence"]
    first, second = soften_labels(clusters_of(one.model, one.data, 0), np.array([3] * 5 + [1, 0, 0, 7]), 2)
    assert first.shape == (5, 2) and second.argmax(-1).tolist() == [1, 0, 0, 2]
