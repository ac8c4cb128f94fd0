"""Scores of graph models against plain sums over dyads."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import betaln, gammaln

from custom_inference import (
    best_match_f1,
    block_matrix,
    choose_num_blocks,
    communities,
    hold_out_dyads,
    integrated_likelihood,
    link_prediction,
    link_probability,
)
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import GammaPosterior, LabellingPosterior
from custom_inference.graphs.blocks import pair_counts
from ppl_models import (
    MMSB,
    NOCA,
    SBM,
    CapacityError,
    DataError,
    DegreeCorrectedSBM,
    MethodError,
    PoissonSBM,
    datasets,
    graph,
)
from tests.support.fits import given_graph, one_hot

pytestmark = pytest.mark.quick

ETA = torch.tensor([[0.7, 0.2], [0.1, 0.6]], dtype=torch.float64)


def _drawn(directed: bool = True, size: int = 30, seed: int = 0, **settings):
    eta = ETA if directed else (ETA + ETA.T) / 2
    return datasets.sample_sbm(eta, size, directed=directed, seed=seed, **settings)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("stratified", [True, False])
def test_held_out_dyads(directed, stratified):
    full = _drawn(directed).graph
    full = full.without(full.edges()[:, :3])
    seen, held = hold_out_dyads(full, 0.2, 1, stratified=stratified)
    assert seen.num_hidden == 3 + len(held.i) and len(held.i) == pytest.approx(0.2 * full.num_dyads, abs=2)
    assert bool(full.is_observed(held.i, held.j).all()) and not bool(seen.is_observed(held.i, held.j).any())
    assert torch.equal(full.observed_value(held.i, held.j), held.value)
    assert seen.num_edges + int((held.value > 0).sum()) == full.num_edges
    assert directed or bool((held.i < held.j).all())
    assert len(torch.unique(held.i * len(full) + held.j)) == len(held.i)
    if stratified:
        assert int((held.value > 0).sum()) == round(0.2 * full.num_edges)
    again = hold_out_dyads(full, 0.2, 1, stratified=stratified)[1]
    assert torch.equal(again.i, held.i) and torch.equal(again.j, held.j)


def test_every_dyad_is_held_out_alike():
    full, count = graph([(0, 1), (1, 2), (3, 4)], nodes=5, directed=False), np.zeros((5, 5))
    for seed in range(600):
        held = hold_out_dyads(full, 0.34, seed)[1]
        np.add.at(count, (held.i.numpy(), held.j.numpy()), 1)
    upper = np.triu_indices(5, 1)
    edge = full.dense().x.numpy()[upper] > 0
    for kind, chance in ((edge, 1 / 3), (~edge, 2 / 7)):
        error = np.abs(count[upper][kind] / 600 - chance) / math.sqrt(chance * (1 - chance) / 600)
        assert error.max() < 4


def test_refused_shares():
    full = _drawn().graph
    with pytest.raises(DataError, match="share = 1.5"):
        hold_out_dyads(full, 1.5)
    with pytest.raises(DataError, match="to hold out"):
        hold_out_dyads(graph([(0, 1)], nodes=3), 0.01)
    with pytest.raises(CapacityError, match="a smaller share"):
        hold_out_dyads(full, 0.5, max_dyads=10)


def test_link_probability_of_block_models():
    rng, full = np.random.default_rng(0), _drawn(size=6).graph
    mean = torch.as_tensor(rng.dirichlet([1, 1], 6))
    i, j = (torch.tensor(part) for part in zip(*itertools.permutations(range(6), 2), strict=True))
    theta = {"out_propensity": torch.rand(6), "in_propensity": torch.rand(6)}
    cases = [
        (SBM(num_blocks=2, num_nodes=6), {"edge_probability": ETA}, lambda a, b, m, n: ETA[a, b]),
        (PoissonSBM(num_blocks=2, num_nodes=6), {"edge_rate": ETA}, lambda a, b, m, n: 1 - torch.exp(-ETA[a, b])),
        (
            DegreeCorrectedSBM(num_blocks=2, num_nodes=6), {"edge_rate": ETA, **theta},
            lambda a, b, m, n: 1 - torch.exp(-ETA[a, b] * theta["out_propensity"][m] * theta["in_propensity"][n]),
        ),
    ]  # fmt: skip
    pairs = list(itertools.product(range(2), repeat=2))
    for model, params, chance in cases:
        found = link_probability(given_graph(model, full, mean, params), i, j)
        for place, (m, n) in enumerate(zip(i.tolist(), j.tolist(), strict=True)):
            wanted = sum(mean[m, a] * mean[n, b] * chance(a, b, m, n) for a, b in pairs)
            assert float(found[place]) == pytest.approx(float(wanted), abs=1e-12)
    mixed = given_graph(MMSB(num_blocks=2, num_nodes=6, sparsity=0.3), full, mean, {"edge_probability": ETA})
    assert torch.allclose(link_probability(mixed, i, j), 0.7 * (mean @ ETA @ mean.T)[i, j])
    with pytest.raises(DataError, match=r"1 unknown nodes \(the first: 6\)"):
        link_probability(mixed, [0], [6])
    with pytest.raises(MethodError, match="no model of graphs"):
        link_probability(given_graph(NOCA.example().model, full, mean, {}), [0], [1])


def test_link_probability_over_draws_and_labelings():
    full, model = _drawn(size=5).graph, SBM(num_blocks=2, num_nodes=5)
    labels = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 1]])
    weight = torch.tensor([0.3, 0.7])
    i, j = torch.tensor([0, 2, 4]), torch.tensor([1, 3, 0])
    exact = Local(LabellingPosterior(labels, weight.log(), torch.tensor(2)), torch.zeros(1))
    fit = given_graph(model, full, one_hot(labels[0], 2), {"edge_probability": ETA}, local=exact)
    wanted = 0.3 * ETA[labels[0][i], labels[0][j]] + 0.7 * ETA[labels[1][i], labels[1][j]]
    assert torch.allclose(link_probability(fit, i, j), wanted)
    # Draws with their labels exchanged are the same state: the probability is that of either.
    swapped = torch.stack([labels[0], 1 - labels[0]])
    draws = {"edge_probability": torch.stack([ETA, ETA.flip(0, 1)])[None], "block_proportion": torch.rand(1, 2, 2)}
    local = Local(LabellingPosterior.of_draws(swapped, 2), torch.zeros(1))
    fit = given_graph(model, full, one_hot(labels[0], 2), {"edge_probability": ETA}, local=local, draws=draws)
    assert torch.allclose(link_probability(fit, i, j), ETA[labels[0][i], labels[0][j]])


def test_link_prediction():
    drawn = datasets.ring_graph(80, 4, high=0.6, low=0.02, seed=1)
    seen, held = hold_out_dyads(drawn.graph, 0.1, 0)
    model, eta = SBM(num_blocks=4, num_nodes=80), drawn.truth["edge_probability"]
    fit = given_graph(model, seen, one_hot(drawn.truth["block"], 4), {"edge_probability": eta})
    table = link_prediction(fit, held)
    assert list(table.index) == ["model", "density", "degree product"] and table.loc["density", "auc"] == 0.5
    share = seen.num_edges / seen.num_dyads
    edge = held.value.numpy() > 0
    assert table.loc["density", "log_loss"] == pytest.approx(-np.where(edge, np.log(share), np.log1p(-share)).mean())
    assert table.loc["density", "average_precision"] == pytest.approx(edge.mean())
    p = link_probability(fit, held.i, held.j).numpy()
    ahead = (p[edge][:, None] > p[~edge]).mean() + 0.5 * (p[edge][:, None] == p[~edge]).mean()
    assert table.loc["model", "auc"] == pytest.approx(ahead)
    assert table.loc["model"].drop("log_loss").min() > 0.5 and table["log_loss"].idxmin() == "model"
    with pytest.raises(DataError, match="held dyads have an edge"):
        link_prediction(fit, type(held)(held.i[edge], held.j[edge], held.value[edge]))


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("loops", [True, False])
def test_pair_counts(directed, loops):
    rng = np.random.default_rng(3)
    x = rng.poisson(0.7, (7, 7)).astype(float)
    x = x if directed else np.triu(x) + np.triu(x, 1).T
    x[[1, 2], [2, 1]] = np.nan
    if loops:
        x[3, 3] = np.nan
    else:
        np.fill_diagonal(x, 0)
    data = graph(x, directed=directed, self_loops=loops)
    block = torch.as_tensor(rng.integers(0, 3, 7))
    model = SBM(num_blocks=3, num_nodes=7, directed=directed, self_loops=loops)
    found = pair_counts(model, data, one_hot(block, 3))
    edges, dyads = np.zeros((3, 3)), np.zeros((3, 3))
    for i, j in itertools.product(range(7), repeat=2):
        if (i == j and not loops) or (not directed and i > j) or np.isnan(x[i, j]):
            continue
        a, b = int(block[i]), int(block[j])
        for p, q in {(a, b)} if directed else {(a, b), (b, a)}:
            edges[p, q] += x[i, j]
            dyads[p, q] += 1
    assert np.allclose(found.edges, edges) and np.allclose(found.exposure, dyads)


def test_block_matrix():
    drawn = _drawn(False, 40)
    model, block = SBM(num_blocks=2, num_nodes=40, directed=False), one_hot(drawn.truth["block"], 2)
    eta = drawn.truth["edge_probability"]
    table = block_matrix(given_graph(model, drawn.graph, block, {"edge_probability": eta}))
    assert list(table.index) == [(0, 0), (0, 1), (1, 1)] and table["edges"].sum() == drawn.graph.num_edges
    assert table["dyads"].sum() == drawn.graph.num_dyads and table["lower"].isna().all()
    draws = {"edge_probability": torch.linspace(0, 1, 101)[None, :, None, None].expand(1, 101, 2, 2)}
    table = block_matrix(given_graph(model, drawn.graph, block, {"edge_probability": eta}, draws=draws))
    assert np.allclose(table["lower"], 0.05) and np.allclose(table["upper"], 0.95)
    rate = {"edge_rate": GammaPosterior(torch.full((2, 2), 100.0), torch.full((2, 2), 100.0))}
    counts = PoissonSBM(num_blocks=2, num_nodes=40, directed=False)
    table = block_matrix(given_graph(counts, drawn.graph, block, {"edge_rate": eta}, global_posterior=rate), level=0.5)
    assert ((table["lower"] < 1) & (table["upper"] > 1) & (table["upper"] - table["lower"] < 0.2)).all()
    with pytest.raises(MethodError, match="level"):
        block_matrix(given_graph(model, drawn.graph, block, {"edge_probability": eta}), level=2)


@pytest.mark.parametrize("directed", [True, False])
def test_integrated_likelihood(directed):
    drawn = _drawn(directed, 9)
    block = drawn.truth["block"]
    model = SBM(num_blocks=2, num_nodes=9, directed=directed)
    fit = given_graph(model, drawn.graph, one_hot(block, 2), {"edge_probability": ETA})
    counts = pair_counts(model, drawn.graph, one_hot(block, 2))
    pairs = [(a, b) for a in range(2) for b in range(2) if directed or a <= b]
    size = np.bincount(block.numpy(), minlength=2)
    wanted = gammaln(2) - gammaln(11) + gammaln(1 + size).sum()
    for a, b in pairs:
        m, n = float(counts.edges[a, b]), float(counts.exposure[a, b])
        wanted += betaln(1 + m, 1 + n - m)
    assert integrated_likelihood(fit) == pytest.approx(wanted)
    poisson = PoissonSBM(num_blocks=2, num_nodes=9, directed=directed)
    fit = given_graph(poisson, drawn.graph, one_hot(block, 2), {"edge_rate": ETA})
    wanted = gammaln(2) - gammaln(11) + gammaln(1 + size).sum()
    for a, b in pairs:
        m, n = float(counts.edges[a, b]), float(counts.exposure[a, b])
        wanted += gammaln(1 + m) - (1 + m) * np.log(1 + n)
    assert integrated_likelihood(fit) == pytest.approx(wanted)
    mixed = given_graph(MMSB(num_blocks=2, num_nodes=9), drawn.graph, one_hot(block, 2), {"edge_probability": ETA})
    with pytest.raises(MethodError, match="no exact integrated likelihood"):
        integrated_likelihood(mixed)


def test_number_of_blocks(monkeypatch):
    drawn = datasets.ring_graph(60, 3, seed=2)

    def planted(model, data, *, seed, method="vb"):
        """The blocks that there are, split further or put together."""
        block = (drawn.truth["block"] * model.num_blocks) // 3 if model.num_blocks < 3 else drawn.truth["block"].clone()
        block[: 10 * (model.num_blocks > 3)] = 3
        mean = one_hot(block, model.num_blocks)
        counts = pair_counts(model, data, mean)
        eta = torch.as_tensor((1 + counts.edges) / (2 + counts.exposure))
        elbo = torch.tensor([-float((model.num_blocks - 3) ** 2)])
        return given_graph(model, data, mean, {"edge_probability": eta}, elbo=elbo)

    monkeypatch.setattr("custom_inference.graphs.choice.default_fit", planted)
    for criterion in ("icl", "evidence", "held_out"):
        shared = SBM(num_blocks=1, num_nodes=60)
        choice = choose_num_blocks(shared, drawn.graph, range(1, 5), criterion=criterion)
        assert choice.best == 3 and list(choice.table.index) == [1, 2, 3, 4] and choice.table.loc[4, "used"] == 4
    made = choose_num_blocks(lambda k: SBM(num_blocks=k, num_nodes=60), drawn.graph, [3, 1])
    assert made.best == 3
    with pytest.raises(MethodError, match="unknown criterion 'bic'"):
        choose_num_blocks(shared, drawn.graph, [1], criterion="bic")


def test_communities_and_f1():
    mean = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.05, 0.95, 0.0]])
    fit = given_graph(
        MMSB(num_blocks=3, num_nodes=3), graph([(0, 1), (1, 2)]), mean, {"edge_probability": torch.rand(3, 3)}
    )
    assert communities(fit, 0.3) == [[0, 1], [1, 2]] and communities(fit, 0.02) == [[0, 1, 2], [0, 1, 2]]
    assert communities(fit, 0.99) == [[0, 1], [2]] or communities(fit, 0.99) == [[0], [1, 2]]
    assert best_match_f1([[0, 1], [1, 2]], [[2, 1], [1, 0]]) == 1
    # F1 of {0, 1, 2, 3} with {0, 1} and {2, 3} is 2/3 each, all ways round.
    assert best_match_f1([[0, 1, 2, 3]], [[0, 1], [2, 3]]) == pytest.approx(2 / 3)
    assert best_match_f1([["a"], ["b", "c"]], [["a"]]) == pytest.approx((1 + (1 + 0) / 2) / 2)
    with pytest.raises(DataError, match="empty"):
        best_match_f1([[]], [[1]])
    with pytest.raises(MethodError, match="threshold"):
        communities(fit, 1.5)
