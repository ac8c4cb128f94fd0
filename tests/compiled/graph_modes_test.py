"""Programs of two-mode graphs: against the formulas at all labellings, and what is found in a planted table."""

import itertools

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.special import logsumexp

import custom_inference as ci
from custom_inference.compiled.graphs.engine import DyadMeanField
from custom_inference.compiled.graphs.exact import DyadExact
from ppl_models import DataError, ModelError
from tests.programs.graphs import Readers


def test_factors_are_those_of_all_pairs_of_modes():
    rng = np.random.default_rng(0)
    table = (rng.random((3, 4)) < 0.5).astype(float)
    table[1, 2] = np.nan
    model = Readers(num_blocks=2, num_nodes=7, num_first=3)
    data = model.prepare(table, dtype=torch.float64)
    p, size, sort = rng.random((2, 2)), rng.dirichlet([1, 1]), rng.dirichlet([1, 1])
    params = {"p": p, "size": size, "sort_size": sort}
    every = []
    for label in itertools.product(range(2), repeat=7):
        z, w = np.array(label[:3]), np.array(label[3:])
        chance = p[z][:, w]
        terms = np.where(table == 1, np.log(chance), np.log(1 - chance))[~np.isnan(table)]
        every.append(terms.sum() + np.log(size[z]).sum() + np.log(sort[w]).sum())
    params = {site: torch.as_tensor(value) for site, value in params.items()}
    exact, engine = DyadExact(), DyadMeanField()
    rows = engine.rows(model, data)
    assert np.allclose(exact.table(model, params, rows).numpy(), every, atol=1e-9)
    phi = torch.distributions.Dirichlet(torch.ones(7, 2, dtype=torch.float64)).sample()
    q = [phi[torch.arange(7), list(label)].log().sum() for label in itertools.product(range(2), repeat=7)]
    bound = float(engine.bound(model, params, rows, phi))
    assert bound == pytest.approx(float((np.exp(q) * (np.array(every) - q)).sum()), abs=1e-9)
    step = engine.e_step(model, params, rows)
    assert bound < float(step.bound) < logsumexp(every)


def test_sorts_of_both_modes_are_found():
    rng = np.random.default_rng(1)
    z, w = np.arange(30) % 3, np.arange(24) % 3
    chance = np.array([[0.8, 0.1, 0.4], [0.1, 0.7, 0.7], [0.5, 0.5, 0.05]])
    table = (rng.random((30, 24)) < chance[z][:, w]).astype(float)
    model = Readers(num_blocks=3, num_nodes=54, num_first=30)
    found = ci.fit(model, table, progress=False)
    assert found.bound_name == "mean_field"
    label = found.transform().argmax(1).numpy()
    for own, truth in ((label[:30], z), (label[30:], w)):
        usual = [np.bincount(own[truth == sort], minlength=3).argmax() for sort in range(3)]
        assert len(set(usual)) == 3 and (own == np.array(usual)[truth]).mean() > 0.9
    drawn = found.sample()["x"]
    assert drawn.shape == (54, 54) and not drawn[30:].any() and not drawn[:, :30].any()
    chains = ci.fit(model, table, method="gibbs", num_samples=10, warmup=10, chains=1, progress=False)
    assert (chains.transform().argmax(1).numpy()[:30, None] == chains.transform().argmax(1).numpy()[:30]).sum() > 200


def test_tables_and_edges_are_read_alike():
    model, table = Readers(num_blocks=2, num_nodes=7, num_first=3), np.zeros((3, 4))
    table[[0, 1, 2], [1, 3, 1]] = 1.0
    edges = [(0, 4), (1, 6), (2, 4)]
    read = [model.prepare(one).edges().tolist() for one in (table, table.tolist(), csr_matrix(table), edges)]
    assert all(one == [[0, 1, 2], [4, 6, 4]] for one in read)


def test_what_is_no_two_mode_graph_is_refused():
    with pytest.raises(ModelError, match="num_first = 7 of 7 nodes"):
        Readers(num_blocks=2, num_nodes=7, num_first=7)
    with pytest.raises(ModelError, match="undirected"):
        Readers(num_blocks=2, num_nodes=7, num_first=3, directed=False)
    with pytest.raises(DataError, match="an edge from 0 to 1"):
        Readers(num_blocks=2, num_nodes=7, num_first=3).prepare([(0, 1), (0, 4), (5, 2)])
