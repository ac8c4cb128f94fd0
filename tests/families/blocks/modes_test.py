"""Searches and samplers of block models near the limit of what can be found: modes by their evidence, trivial ones."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp, xlogy

import custom_inference as ci
from custom_inference import CollapsedGibbs, VariationalEM
from custom_inference.core.registry import engine_for
from custom_inference.families.blocks.evidence import correlate_pairs, mode_evidence
from custom_inference.families.blocks.gibbs import BlockChain
from custom_inference.families.blocks.planted import propose_planted
from custom_inference.families.blocks.rows import SbmRows
from custom_inference.gibbs.chains import left_out, rank_modes
from ppl_models import SBM, DegreeCorrectedSBM, PoissonSBM
from ppl_models.datasets import sample_sbm

pytestmark = pytest.mark.filterwarnings("ignore:.*have no edge.*")
KINDS = [(SBM, False), (SBM, True), (PoissonSBM, False), (DegreeCorrectedSBM, True)]


def overlap(found, truth, groups):
    table = np.zeros((groups, groups))
    np.add.at(table, (np.asarray(found), np.asarray(truth)), 1)
    right = table[linear_sum_assignment(-table)].sum() / table.sum()
    return (right - 1 / groups) / (1 - 1 / groups)


def partition(nodes, groups, degree, ratio, seed):
    """A graph of equal groups, and the model with as many blocks."""
    within = groups * degree / (1 + (groups - 1) * ratio) / nodes
    rate = within * (ratio + (1 - ratio) * np.eye(groups))
    drawn = sample_sbm(rate, sizes=np.full(groups, nodes // groups), directed=False, seed=seed)
    return SBM(num_blocks=groups, num_nodes=nodes, directed=False), drawn.graph, drawn.truth["block"].numpy()


def tree(kind, directed):
    """A model of six nodes whose observed dyads, all with edges, form a tree; globals."""
    pairs = [(0, 1), (1, 2), (1, 3), (3, 4), (3, 5)]
    x, seen, rng = np.zeros((6, 6)), np.eye(6, dtype=bool), np.random.default_rng(3)
    for number, (i, j) in enumerate(pairs):
        if not directed or number != 1:
            x[i, j], seen[i, j] = (1 if kind is SBM else 1 + number % 2), True
        if not directed or number in (1, 2):
            x[j, i], seen[j, i] = (x[i, j] if not directed else 1), True
    model = kind(num_blocks=2, num_nodes=6, directed=directed)
    params = {site: torch.as_tensor(rng.uniform(0.2, 0.8, shape)) for site, shape in model.shapes.items()}
    params["block_proportion"] = torch.tensor([0.3, 0.7])
    if not directed:
        params[model.component_site] = (params[model.component_site] + params[model.component_site].T) / 2
    data = model.prepare(torch.as_tensor(x), mask=torch.as_tensor(seen))
    return model, SbmRows.of(model, data), params, x, seen


def weights_of_labellings(model, params, x, seen):
    """All 2^6 labellings, and p(z | x) of each by the model's own density of the dyads."""
    labels = np.array(list(itertools.product(range(2), repeat=6)))
    matrix = params[model.component_site].numpy()
    ends = [params[site].numpy() for site in getattr(model, "propensity_sites", ())] or [np.ones(6)] * 2
    log = np.log(params["block_proportion"].numpy())[labels].sum(1)
    for i, j in np.argwhere(seen & ~np.eye(6, dtype=bool)):
        if model.directed or i < j:
            rate = ends[0][i] * ends[-1][j] * matrix[labels[:, i], labels[:, j]]
            log += x[i, j] * np.log(rate) - (0 if isinstance(model, SBM) else rate)
    return labels, np.exp(log - logsumexp(log))


@pytest.mark.quick
@pytest.mark.parametrize("kind, directed", KINDS)
def test_correlations_of_neighbours_are_exact_on_trees(kind, directed):
    """Entropy of the labels and expected edges between blocks, against the sum over all labellings."""
    model, rows, params, x, seen = tree(kind, directed)
    labels, share = weights_of_labellings(model, params, x, seen)
    phi = np.stack([share @ (labels == k) for k in range(2)], 1)
    at = engine_for(model, "mean_field").compute_expectations(model, params, rows)
    pairs = correlate_pairs(rows, phi, at)
    entropy = -xlogy(phi, phi).sum() - pairs.information
    assert entropy == pytest.approx(-xlogy(share, share).sum(), abs=1e-5)
    expected = sum(p * rows.counts(np.eye(2)[z], at.weights).edges for z, p in zip(labels, share, strict=True))
    np.testing.assert_allclose(rows.counts(phi, at.weights).edges + pairs.edges, expected, atol=1e-5)
    exposure = sum(p * rows.counts(np.eye(2)[z], at.weights).exposure for z, p in zip(labels, share, strict=True))
    np.testing.assert_allclose(rows.counts(phi, at.weights).exposure + pairs.exposure, exposure, atol=1e-5)


def test_probabilities_of_a_chain_are_ratios_of_its_law():
    model, graph, _ = partition(40, 2, 6, 0.2, 0)
    chain = BlockChain(model, SbmRows.of(model, graph), 1)
    chain.sweep()
    share, label = chain.profile()[:, :-1].T.numpy(), chain.indicators()
    for node in (0, 7, 31):
        moved = [torch.where(torch.arange(40) == node, k, label) for k in range(2)]
        law = [BlockChain(model, chain.rows, 1, {"block": one}).log_joint() for one in moved]
        np.testing.assert_allclose(share[node], np.exp(law - logsumexp(law)), atol=1e-10)
    assert torch.equal(chain.indicators(), label)


def settled(model, rows, share, name="vb"):
    engine = engine_for(model, name)
    state, value = engine.from_responsibilities(model, torch.as_tensor(share), rows), None
    for _ in range(20):
        step = engine.e_step(model, state, rows)
        value, state = float(engine.objective_at(model, state, step.bound)), engine.m_step(model, state, step, rows)
    return engine, state, value


def test_evidence_sees_the_mode_that_the_bound_does_not():
    """The bound is higher with all nodes in one block; the evidence, with or without the globals, is not."""
    model, graph, truth = partition(600, 2, 10, 0.37, 1)
    rows = SbmRows.of(model, graph)
    share = propose_planted(model, rows, 0, 0)
    assert overlap(share.argmax(1), truth, 2) > 0.6
    trivial = np.eye(2)[np.zeros(600, int)]
    values = {}
    for name, start in (("good", share), ("trivial", trivial)):
        engine, state, bound = settled(model, rows, start)
        values[name] = bound, mode_evidence(engine, model, state, rows, bound, seed=0)
    assert values["trivial"][0] > values["good"][0] - 5
    assert values["good"][1] > values["trivial"][1] + 5
    assert values["trivial"][1] == values["trivial"][0]


def test_evidence_of_a_graph_without_blocks_is_in_one_block():
    model, graph, _ = partition(400, 2, 8, 1.0, 0)
    rows = SbmRows.of(model, graph)
    _, _, alone = settled(model, rows, np.eye(2)[np.zeros(400, int)])
    for seed in range(3):
        engine, state, bound = settled(model, rows, propose_planted(model, rows, seed, 0))
        assert mode_evidence(engine, model, state, rows, bound, seed) < alone


@pytest.mark.parametrize("method", ["default", "mean_field", "gibbs"])
def test_finds_groups_near_the_limit(method):
    """Where samplers from divisions of high likelihood end in one block."""
    model, graph, truth = partition(600, 2, 10, 0.37, 1)
    fit = ci.fit(model, graph, seed=0, progress=False, **({} if method == "default" else {"method": method}))
    assert overlap(fit.posterior.mean.argmax(-1), truth, 2) > 0.6
    assert "of 4 chains found these components" in fit.status or method != "gibbs"


def test_a_mode_that_divides_nothing_is_named():
    model, graph, _ = partition(200, 2, 5, 1.0, 0)
    for method in (VariationalEM(guide="vb"), CollapsedGibbs(num_samples=10, warmup=10, thin=1, chains=2)):
        fit = method.fit(model, graph, seed=0, progress=False)
        assert len(fit.posterior.mean.argmax(-1).unique()) == 1
        assert "a trivial mode: all nodes in one of 2 blocks" in fit.status


def stub(lp, evidence=None, remark=""):
    chain = SimpleNamespace(evidence=lambda: evidence, remark=lambda: remark)
    return SimpleNamespace(chain=chain, lp=list(lp))


def test_chains_are_compared_by_evidence_where_there_is_one():
    """A low log joint with many states beats a high one with a single state."""
    noise = np.random.default_rng(0).normal(0, 3, 40)
    trivial = stub(-100 + 0.1 * noise, -100.0, "a trivial mode")
    drifting, good = stub(-180 + np.linspace(-60, 60, 40), -62.0), stub(-180 + noise, -63.0)
    modes = rank_modes([trivial, drifting, good])
    assert [mode.record for mode in modes] == [good, drifting, trivial]
    assert left_out(modes[0], modes[2:]) == ["1 left out: a trivial mode (log evidence 37.0 lower)"]
    assert left_out(modes[2], []) == ["a trivial mode"]


def test_chains_without_evidence_are_compared_by_their_log_joint():
    noise = np.random.default_rng(0).normal(0, 3, 40)
    low, near, high = stub(-150 + noise), stub(-100.5 + noise[::-1]), stub(-100 + noise)
    modes = rank_modes([low, near, high])
    assert [mode.record for mode in modes] == [high, near, low]
    found = left_out(modes[0], modes[1:])[0]
    assert found.startswith("2 left out: other components (log p(x, q) 0.5 lower, within the chains' spread)")
    assert found.endswith("other components (log p(x, q) 50.0 lower)")
