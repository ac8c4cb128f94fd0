"""Collapsed Gibbs sampling of MMSB: its counts and law against references, and what fits by it promise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from scipy.stats import beta
from sklearn.metrics import adjusted_rand_score

import custom_inference as ci
from custom_inference import CollapsedGibbs, Fit
from custom_inference.core.posteriors import JointDirichletMixture
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.memberships.gibbs import MmsbChain, MmsbSampler
from custom_inference.families.memberships.gibbs_state import require_memory
from custom_inference.families.rows.graph import GraphRows, Neighbours
from ppl_models import MMSB, CapacityError, MethodError
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
    alpha = Dirichlet.of(model, "membership", torch.zeros(())).concentration.numpy()
    rows = GraphRows.of(model, model.prepare(x, mask=mask))
    return model, rows, x, (alpha, BETA, rho, mask if hidden else None, kind)


def observed(model, mask):
    """The observed dyads (i, j), (E,) each."""
    i, j = (part.numpy() for part in model.dyads(torch.arange(model.num_dyads())))
    seen = np.ones(len(i), bool) if mask is None else mask[i, j]
    return i[seen], j[seen]


def values(chain, i, j):
    """s, r, z of dyads, (E,), with blocks 0 where there are none."""
    s, r = chain.state.sender[i, j].astype(int), chain.state.receiver[j, i].astype(int)
    z = s == chain.fixed.background
    return np.where(z, 0, s), np.where(z, 0, r), z


def kept(fit) -> dict[str, torch.Tensor]:
    assert fit.draws is not None
    return fit.draws


def batch_error(series):
    """Standard error of a chain's mean by 40 batches, per column."""
    batches = np.stack([part.mean(0) for part in np.array_split(series, 40)])
    return batches.std(0, ddof=1) / math.sqrt(40)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_counts_and_log_joint_are_those_of_the_blocks(case, exact):
    model, rows, x, (alpha, prior, rho, mask, kind) = problem(*case, seed=1)
    chain = MmsbChain(model, rows, 3, exact=exact, passes=1)
    i, j = observed(model, mask)
    for _ in range(30):
        chain.sweep()
        s, r, z = values(chain, i, j)
        assert (s < 2).all() and (r < 2).all()
        assert (chain.state.member == reference.member_counts(s, r, i, j, len(x), 2, ~z)).all()
        assert (chain.state.taken == chain.state.member.sum(1)).all()
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
    law = [(weight[:, None] * ((first == k) & ~z)).sum(0) for k in range(4)] + [(weight[:, None] * z).sum(0)]
    law.append((weight[:, None] * ((first == second) & ~z & ~z[:, :1])).sum(0))  # two dyads alike
    expected = np.concatenate([*law, integrated.membership_mean(x, 2, alpha, prior, rho, mask, **kind).ravel()])
    chain, series, (i, j) = MmsbChain(model, rows, 5, exact=exact, passes=10), [], observed(model, mask)
    for _ in range(2000):
        chain.sweep()
        a, b, out = values(chain, i, j)
        pair, same = 2 * a + b, (2 * a + b == 2 * a[0] + b[0]) & ~out & ~out[0]
        found = [(pair == k) & ~out for k in range(4)] + [out, same]
        member = chain.state.member + alpha
        series.append(np.concatenate([*found, (member / member.sum(1, keepdims=True)).ravel()]))
    series = np.array(series, dtype=float)
    error = batch_error(series) + 1e-3
    assert np.abs((series.mean(0) - expected) / error).max() < 4.5


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("directed, sparsity", [(True, 0.2), (False, None)])
def test_globals_and_graphs_drawn_in_turn_follow_the_prior(directed, sparsity, exact):
    """Geweke (JASA 2004): a sweep of the blocks; globals and memberships given them; a graph given those, and its
    blocks: all leave the joint distribution as it is, so that the globals are draws from their prior."""
    model = MMSB(num_blocks=2, num_nodes=5, directed=directed, sparsity=sparsity)
    model = model.with_concentration(torch.tensor([0.5, 1.0])).with_priors(edge_probability=dist.Beta(2.0, 1.0))
    model = model if sparsity is not None else model.with_priors(sparsity=dist.Beta(2.0, 3.0))
    rng, (i, j), found = np.random.default_rng(7), observed(model, None), []
    x, start = np.eye(5, k=1), None
    like = GraphRows.of(model, model.prepare(x if directed else x + x.T))
    for _ in range(600):
        graph = Neighbours.of(scipy.sparse.csr_matrix(x if directed else x + x.T))
        rows = replace(like, outgoing=graph, incoming=graph)  # the sweeps read no incoming edges
        chain = MmsbChain(model, rows, int(rng.integers(2**60)), start, exact=exact, passes=1)
        chain.sweep()
        start = chain.draw()
        eta, pi = (start[site].numpy() for site in ("edge_probability", "membership"))
        rho = sparsity if sparsity is not None else float(start["sparsity"])
        x = np.zeros((5, 5))
        x[i, j] = rng.random(len(i)) < (1 - rho) * np.einsum("ea,ab,eb->e", pi[i], eta, pi[j])
        found.append([eta[0, 0], eta[0, 1], eta[1, 1], pi[0, 0], pi[4, 0], rho])
    series = np.array(found)[100:]
    laws = [(2, 1), (2, 1), (2, 1), (0.5, 1.0), (0.5, 1.0)] + ([(2, 3)] if sparsity is None else [])
    for column, law in zip(series.T, laws, strict=False):
        assert abs(column.mean() - law[0] / sum(law)) < 4.5 * batch_error(column)
        squared = (column - law[0] / sum(law)) ** 2
        assert abs(squared.mean() - beta(*law).var()) < 4.5 * batch_error(squared)


def test_large_numbers_of_blocks_and_tiles():
    """More nodes than a tile, more blocks than are drawn from tables: both moves agree."""
    model, x = sampled(150, 9, seed=2)
    rows = GraphRows.of(model, model.prepare(x))
    start, lp = MmsbSampler().propose(model, model.prepare(x), 0), {}
    for exact in (True, False):
        chain = MmsbChain(model, rows, 1, start, exact=exact)
        for _ in range(60):
            chain.sweep()
        trace = []
        for _ in range(60):
            chain.sweep()
            trace.append(chain.log_joint())
        assert chain.state.cells[1].sum() == x.sum() and chain.state.member.sum() == 2 * 150 * 149
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


@pytest.mark.parametrize("directed", [True, False])
def test_recovers_memberships(directed):
    rng = np.random.default_rng(4)
    pi = np.concatenate([np.repeat(np.eye(3), 12, 0), rng.dirichlet(np.full(3, 2.0), 12)])
    eta = np.where(np.eye(3) > 0, 0.8, 0.05)
    x = (rng.random((48, 48)) < pi @ eta @ pi.T) * (1.0 - np.eye(48))
    x = x if directed else np.triu(x) + np.triu(x).T
    model = MMSB(num_blocks=3, num_nodes=48, directed=directed)
    fit = CollapsedGibbs().fit(model, x, seed=0, progress=False)
    assert isinstance(fit.posterior, JointDirichletMixture) and "4 of 4 chains found" in fit.status
    order = ci.match_components(pi.T, fit.posterior.mean.T).order
    found = fit.params["membership"].numpy()[:, order]
    assert np.abs(found - pi).mean() < 0.08
    assert np.abs(fit.params["edge_probability"].numpy()[order][:, order] - eta).max() < 0.12
    assert kept(fit)["edge_probability"].shape == (4, 50, 3, 3) and kept(fit)["membership"].shape == (4, 50, 48, 3)
    assert torch.allclose(kept(fit)["edge_probability"].mean((0, 1)), fit.params["edge_probability"], atol=0.02)
    if not directed:
        assert torch.equal(kept(fit)["edge_probability"], kept(fit)["edge_probability"].mT)


def test_sampsons_monks(real_data):
    """The three groups from every seed, and those between them."""
    data = np.load(real_data / "sampson" / "sampson.npz", allow_pickle=True)
    x = (data["relations"][list(data["relation_names"]).index("SAMPLK3")] > 0).astype(float)
    model = MMSB(num_blocks=3, num_nodes=18)
    for seed in range(4):
        fit = CollapsedGibbs().fit(model, x, seed=seed, progress=False)
        share = fit.posterior.mean.numpy()
        assert adjusted_rand_score(data["group3"], share.argmax(1)) == 1.0
    mixed = [str(data["names"][i]) for i in share.max(1).argsort()[:6]]
    assert "Amand" in mixed and "Romauld" in mixed


def test_same_seed_same_result_whatever_the_threads_and_other_blocks_of_nodes():
    model, x = sampled(20, 2, seed=1)
    settings: Any = {"num_samples": 5, "warmup": 5, "chains": 2, "indicators": True}
    fits = [CollapsedGibbs(**settings, threads=t).fit(model, x, seed=3, progress=False) for t in (1, 2)]
    for site in ("edge_probability", "membership", "indicator"):
        assert torch.equal(kept(fits[0])[site], kept(fits[1])[site])
    assert kept(fits[0])["indicator"].shape[2:] == (2, 380) and fits[0].log_likelihood is not None
    order = np.random.default_rng(0).permutation(20)
    other = CollapsedGibbs().fit(model, x[np.ix_(order, order)], seed=3, progress=False)
    same = CollapsedGibbs().fit(model, x, seed=3, progress=False)
    matched = ci.match_components(same.posterior.mean[order].T, other.posterior.mean.T)
    assert float(matched.similarity.min()) > 0.98


def test_indicators_keep_their_marks_where_labels_are_reordered():
    model, x = sampled(12, 2, seed=1)
    model = MMSB(num_blocks=2, num_nodes=12, sparsity=0.4)
    mask = np.ones((12, 12), bool)
    mask[3, 7] = False
    fit = CollapsedGibbs(num_samples=20, warmup=5, indicators=True).fit(model, x, mask=mask, seed=0, progress=False)
    i, j = (part.numpy() for part in model.dyads(torch.arange(132)))
    found = kept(fit)["indicator"].numpy()
    hidden, edges = (i == 3) & (j == 7), x[i, j] > 0
    assert (found[..., hidden] == -1).all() and (found[..., edges & ~hidden] >= 0).all() and found.max() == 1
    assert 0.1 < (found[..., ~edges] == -1).mean() < 0.9


def test_learns_the_concentration():
    model, x = sampled(60, 3, seed=6, inside=0.9)
    fit = CollapsedGibbs(learn=True, warmup=100).fit(model.with_concentration(1.0), x, seed=0, progress=False)
    learned = Dirichlet.of(fit.model, "membership", fit.posterior.mean).concentration
    assert learned.shape == (3,) and 0.01 < float(learned.mean()) < 0.25


def test_starts_where_it_is_told_and_saves(tmp_path):
    model, x = sampled(20, 2, seed=1)
    settings: Any = {"num_samples": 5, "warmup": 5, "chains": 2}
    fit = CollapsedGibbs(**settings).fit(model, x, seed=0, progress=False)
    again = CollapsedGibbs(**settings).fit(model, x, init=fit, seed=0, progress=False)
    assert again.params["membership"].shape == (20, 2)
    loaded = Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert torch.equal(loaded.posterior.mean, fit.posterior.mean)
    assert loaded.posterior.log_prob(fit.posterior.mean).shape == (1,)


def test_refusals():
    model, x = sampled(10, 2)
    with pytest.raises(MethodError, match="under the prior of 'membership', LogisticNormal"):
        logits = dist.LogisticNormal(torch.zeros(1), torch.ones(1))
        CollapsedGibbs().fit(model.with_priors(membership=logits), x, progress=False)
    with pytest.raises(CapacityError, match=r"up to \d+ nodes would fit; use VariationalEM"):
        require_memory(10**7, 2, 1)
