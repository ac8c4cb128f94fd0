"""Collapsed Gibbs sampling of MMSB: its counts and law against references, and what fits by it promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import kstest
from sklearn.metrics import adjusted_rand_score

from custom_inference import CollapsedGibbs
from custom_inference.gibbs._mmsb import MmsbChain, MmsbSampler
from custom_inference.gibbs._mmsb_state import require_memory
from custom_inference.posterior import JointDirichletMixture
from custom_inference.steps._graph_rows import GraphRows
from ppl_models import MMSB, CapacityError, MethodError
from ppl_models.distributions import Flat
from tests.references import mmsb as reference
from tests.references import mmsb_integrated as integrated

ALPHA = [0.6, 1.7]
BETA = (1.3, 0.8)
#: directed, nodes, dyads hidden, sparsity, self loops
CASES = [
    (True, 3, False, 0.0, False),
    (True, 3, True, 0.3, False),
    (False, 4, True, None, False),
    (False, 3, False, None, True),
    (True, 2, False, 0.2, True),
]


def problem(directed, nodes, hidden, sparsity, self_loops, seed=0, size=2):
    """(model, rows, x, what the reference takes)."""
    rng = np.random.default_rng(seed)
    x = (rng.random((nodes, nodes)) < 0.4).astype(float)
    x = x if directed else np.triu(x) + np.triu(x, 1).T
    x[0, 1], x[1, 0] = 1.0, 1.0 - directed  # no directed graph that looks undirected
    x = x if self_loops else x * (1 - np.eye(nodes))
    mask = np.ones((nodes, nodes), bool)
    if hidden:
        mask[0, -1] = mask[-1, 0] = False
    settings = {"num_blocks": size, "num_nodes": nodes, "directed": directed, "self_loops": self_loops}
    priors = {"edge_probability": dist.Beta(*BETA)} | ({"sparsity": dist.Beta(1.5, 2.5)} if sparsity is None else {})
    model = MMSB(**settings, sparsity=sparsity).with_priors(**priors)
    model = model.with_concentration(torch.tensor(ALPHA) if size == 2 else torch.linspace(0.3, 0.8, size))
    rho = ("beta", 1.5, 2.5) if sparsity is None else sparsity
    kind = {"directed": directed, "self_loops": self_loops, "drawn": False}
    alpha = model.priors["membership"].concentration.numpy()
    return model, GraphRows.of(model, model.prepare(x, mask=mask)), x, (alpha, BETA, rho, mask if hidden else None, kind)


def values(model, chain, x, mask):
    """s, r, z of the observed dyads, (E,), with blocks 0 where there are none."""
    i, j = (part.numpy() for part in model.dyads(torch.arange(model.num_dyads())))
    seen = np.ones(len(i), bool) if mask is None else mask[i, j]
    s, r = chain.indicators().numpy()[:, seen]
    return s.clip(0), r.clip(0), s < 0


def batch_error(series):
    """Standard error of a chain's mean by 40 batches, per column."""
    batches = np.stack([part.mean(0) for part in np.array_split(series, 40)])
    return batches.std(0, ddof=1) / math.sqrt(40)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_counts_and_log_joint_are_those_of_the_blocks(case, exact):
    model, rows, x, (alpha, prior, rho, mask, kind) = problem(*case, seed=1)
    chain = MmsbChain(model, rows, 3, exact=exact)
    for _ in range(30):
        chain.sweep()
        s, r, z = values(model, chain, x, mask)
        i, j = (part.numpy() for part in model.dyads(torch.arange(model.num_dyads())))
        seen = np.ones(len(i), bool) if mask is None else mask[i, j]
        i, j = i[seen], j[seen]
        assert (chain.member == reference.member_counts(s, r, i, j, len(x), 2, ~z)).all()
        assert (chain.state.taken == chain.member.sum(1)).all()
        assert chain.state.kind.tolist() == [(~z).sum(), z.sum()] and not (z & (x[i, j] > 0)).any()
        cells = np.zeros((2, 2, 2), int)
        np.add.at(cells, (x[i, j][~z].astype(int), s[~z], r[~z]), 1)
        cells = cells if model.directed else cells + cells.swapaxes(1, 2) * (1 - np.eye(2, dtype=int))
        assert (chain.state.cells == cells).all()
        expected = integrated.log_joint(s, r, z, x, 2, alpha, prior, rho, mask, **kind)
        assert chain.log_joint() == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_exact_posterior(case, exact):
    """Blocks, background, memberships and edge probabilities against the sum over all values of the indicators."""
    model, rows, x, (alpha, prior, rho, mask, kind) = problem(*case)
    (s, r, z), log_weight = integrated.table(x, 2, alpha, prior, rho, mask, **kind)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    first, second = 2 * s + r, 2 * s[:, :1] + r[:, :1]
    law = [(weight[:, None] * (((first == k) & ~z))).sum(0) for k in range(4)] + [(weight[:, None] * z).sum(0)]
    law.append((weight[:, None] * ((first == second) & ~z & ~z[:, :1])).sum(0))  # two dyads alike
    expected = np.concatenate([*law, integrated.membership_mean(x, 2, alpha, prior, rho, mask, **kind).ravel()])
    chain, series = MmsbChain(model, rows, 5, exact=exact), []
    for _ in range(100):
        chain.sweep()
    for _ in range(6000):
        chain.sweep()
        a, b, out = values(model, chain, x, mask)
        pair, same = 2 * a + b, (2 * a + b == 2 * a[0] + b[0]) & ~out & ~out[0]
        found = [(pair == k) & ~out for k in range(4)] + [out, same]
        member = chain.member + alpha
        series.append(np.concatenate([*found, (member / member.sum(1, keepdims=True)).ravel()]))
    series = np.array(series, dtype=float)
    error = batch_error(series) + 1e-3
    assert np.abs((series.mean(0) - expected) / error).max() < 4.5


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("directed, sparsity", [(True, 0.2), (False, None)])
def test_globals_and_data_drawn_in_turn_follow_the_prior(directed, sparsity, exact):
    """Geweke (2004): sweeps of the chain, and new graphs from the model at its draws, leave the prior invariant."""
    model = MMSB(num_blocks=2, num_nodes=5, directed=directed, sparsity=sparsity)
    model = model.with_concentration(torch.tensor([0.5, 1.0])).with_priors(edge_probability=dist.Beta(2.0, 1.0))
    model = model if sparsity is not None else model.with_priors(sparsity=dist.Beta(2.0, 3.0))
    rng = np.random.default_rng(7)
    i, j = (part.numpy() for part in model.dyads(torch.arange(model.num_dyads())))
    place, start, found = np.zeros((5, 5)), None, []
    for round_ in range(1500):
        rows = GraphRows.of(model, model.prepare(torch.as_tensor(place)) if round_ else drawn(model, rng))
        chain = MmsbChain(model, rows, int(rng.integers(2**60)), start, exact=exact)
        if start is None:
            chain.sweep()
        chain.sweep()
        drawn_values = chain.draw()
        eta, pi = (drawn_values[site].numpy() for site in ("edge_probability", "membership"))
        rho = sparsity if sparsity is not None else float(drawn_values["sparsity"])
        # x and the blocks anew from p(x, s, r, z | globals, pi): the next chain starts from blocks given x and those.
        p = (1 - rho) * np.einsum("ea,ab,eb->e", pi[i], eta, pi[j])
        place = np.zeros((5, 5))
        place[i, j] = rng.random(len(i)) < p
        place = place if directed else place + place.T
        start = drawn_values
        found.append([eta[0, 0], eta[0, 1], eta[1, 1], pi[0, 0], pi[4, 0], rho])
    found = np.array(found)[100:]
    thinned = found[::4]
    laws = [("beta", (2, 1)), ("beta", (2, 1)), ("beta", (2, 1)), ("beta", (0.5, 1.0)), ("beta", (0.5, 1.0))]
    for column, (name, parameters) in enumerate(laws):
        error = batch_error(found[:, column]) * math.sqrt(40) * math.sqrt(40 / 40)
        mean = parameters[0] / sum(parameters)
        assert abs(found[:, column].mean() - mean) < 4.5 * batch_error(found[:, column]), (column, error)
        assert kstest(thinned[:, column], name, args=parameters).pvalue > 1e-4
    if sparsity is None:
        assert abs(found[:, 5].mean() - 0.4) < 4.5 * batch_error(found[:, 5])


def drawn(model, rng):
    """Any graph that looks like one of the model."""
    x = np.zeros((5, 5))
    x[0, 1:3] = 1.0
    return model.prepare(x if model.directed else x + x.T)


def test_large_numbers_of_blocks_and_tiles():
    """More nodes than a tile, more blocks than are drawn from tables: both moves agree on what can be computed twice."""
    model, x = sampled(150, 9, seed=2)
    rows = GraphRows.of(model, model.prepare(x))
    lp = {}
    for exact in (True, False):
        chain = MmsbChain(model, rows, 1, start_of(model, x), exact=exact)
        for _ in range(60):
            chain.sweep()
        trace = []
        for _ in range(60):
            chain.sweep()
            trace.append(chain.log_joint())
        assert chain.state.cells[1].sum() == x.sum() and chain.member.sum() == 2 * 150 * 149
        lp[exact] = np.array(trace)
    spread = max(trace.std() for trace in lp.values())
    assert abs(lp[True].mean() - lp[False].mean()) < 4 * spread


def sampled(nodes, size, seed=0, directed=True, inside=0.5, outside=0.02):
    """A model and a graph of nodes of mostly one block."""
    rng = np.random.default_rng(seed)
    pi = rng.dirichlet(np.full(size, 0.05), nodes)
    eta = np.where(np.eye(size) > 0, inside, outside)
    x = (rng.random((nodes, nodes)) < pi @ eta @ pi.T) * (1.0 - np.eye(nodes))
    x = x if directed else np.triu(x) + np.triu(x).T
    return MMSB(num_blocks=size, num_nodes=nodes, directed=directed), x


def start_of(model, x):
    """Memberships and edge probabilities near those of :func:`sampled`."""
    return MmsbSampler().propose(model, model.prepare(x), 0)
