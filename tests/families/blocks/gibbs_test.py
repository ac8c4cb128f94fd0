"""Collapsed Gibbs sampling of block models: weights against brute force, chains against exact posteriors."""

from functools import partial

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import scipy.sparse.csgraph
import torch
from scipy.stats import chi2, kstest
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from custom_inference import CollapsedGibbs, Exact, align, match_blocks
from custom_inference.core.align import align_draws
from custom_inference.families.blocks.gibbs import BlockChain, PropensityChain
from custom_inference.families.blocks.partitions import best_partition
from custom_inference.families.rows.graph import GraphRows
from ppl_models import SBM, DegreeCorrectedSBM, PoissonSBM, PriorError
from ppl_models.distributions import Flat
from tests.references import degree_corrected_sbm, poisson_sbm, sbm

#: directed, self loops, hidden dyads.
CASES = [(True, False, True), (False, False, True), (True, True, False), (False, True, True)]
ALPHA = (0.7, 1.5, 1.0)


def problem(kind, directed, self_loops, hidden, *, nodes=5, blocks=3, seed=0):
    """A model with unequal priors, a random graph, its mask, and what the references need."""
    rng = np.random.default_rng(seed)
    counts = kind is not SBM
    x = rng.integers(0, 2 + 2 * counts, (nodes, nodes)) * (rng.random((nodes, nodes)) < 0.6).astype(float)
    x = x if directed else np.triu(x) + np.triu(x, 1).T
    x = x if self_loops else x - np.diag(np.diag(x))
    mask = np.ones((nodes, nodes), bool)
    if hidden:
        mask[0, 1] = mask[3, 2] = False
        mask = mask if directed else mask & mask.T
    site, prior = ("edge_rate", dist.Gamma(2.0, 1.5)) if counts else ("edge_probability", dist.Beta(2.0, 1.5))
    priors = {"block_proportion": dist.Dirichlet(torch.tensor(ALPHA[:blocks])), site: prior}
    model = kind(num_blocks=blocks, num_nodes=nodes, directed=directed, self_loops=self_loops, priors=priors)
    rows = GraphRows.of(model, model.prepare(torch.as_tensor(x), mask=torch.as_tensor(mask)))
    weigh = partial(
        (poisson_sbm if counts else sbm).log_joint_integrated, x=x, num_blocks=blocks, alpha=ALPHA[:blocks],
        prior=(2.0, 1.5), mask=mask, directed=directed, self_loops=self_loops,
    )  # fmt: skip
    return model, rows, weigh


def labelings(nodes, blocks):
    return np.stack(np.meshgrid(*[np.arange(blocks)] * nodes, indexing="ij"), -1).reshape(-1, nodes)


def begun(chain_type, model, rows, seed, labels):
    return chain_type(model, rows, seed, {"block": torch.as_tensor(labels)})


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [SBM, PoissonSBM])
def test_weight_is_the_log_joint_with_all_globals_integrated_out(kind, case):
    model, rows, weigh = problem(kind, *case)
    chain = BlockChain(model, rows, seed=1)
    for _ in range(20):  # the sums are kept up to date move by move
        chain.sweep()
        label = chain.indicators().numpy()
        assert chain.log_joint() == pytest.approx(weigh(label), abs=1e-9)
        anew = begun(BlockChain, model, rows, 0, label)
        for kept, found in zip(chain.state[1:7], anew.state[1:7], strict=True):
            np.testing.assert_allclose(kept, found, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_weight_under_degree_correction(case):
    model, rows, weigh = problem(DegreeCorrectedSBM, *case)
    chain = PropensityChain(model, rows, seed=1)
    for _ in range(20):
        chain.sweep()
        theta = {site: v.numpy() for site, v in chain.means().items() if "propensity" in site}
        pair = degree_corrected_sbm.propensities(theta, directed=case[0])
        prior = sum(-v.sum() for v in theta.values())  # Gamma(1, 1)
        expected = weigh(chain.indicators().numpy(), propensity=pair) + prior
        assert chain.log_joint() == pytest.approx(expected, abs=1e-8)


def exact_table(weigh, nodes, blocks):
    every = labelings(nodes, blocks)
    weight = np.array([weigh(one) for one in every])
    weight = np.exp(weight - weight.max())
    return every, weight / weight.sum()


def assert_drawn_from(counts, share):
    """Pearson's test, cells of few expected draws pooled."""
    expected = share * counts.sum()
    large = expected >= 10
    observed = np.append(counts[large], counts[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    statistic = ((observed - expected) ** 2 / expected.clip(1e-12)).sum()
    assert chi2.sf(statistic, len(expected) - 1) > 1e-3


@pytest.mark.parametrize("kind, case", [(SBM, CASES[0]), (SBM, CASES[3]), (PoissonSBM, CASES[1])])
def test_every_kind_of_move_leaves_the_exact_posterior_as_it_is(kind, case):
    """Labels drawn from the posterior over all 3^5 labelings have the same distribution after a move."""
    from custom_inference.families.blocks import gibbs_kernels as kernels
    from custom_inference.families.blocks import gibbs_moves as moves

    model, rows, weigh = problem(kind, *case)
    every, share = exact_table(weigh, 5, 3)
    chain, code = begun(BlockChain, model, rows, 3, every[0]), 3 ** np.arange(4, -1, -1)
    before = np.random.default_rng(0).choice(len(every), 6000, p=share)
    for move in (
        lambda: kernels.sweep(chain.graph, chain.state, 1.0, np.arange(5), np.arange(3)),
        lambda: moves.merge_split(chain.graph, chain.state, 2, 1, np.arange(3), np.empty((4, 5), np.int64)),
    ):
        counts, accepted = np.zeros(len(every)), 0
        for at in before:
            kernels.place(chain.graph, chain.state, np.arange(5), every[at])
            accepted += move()
            counts[code @ chain.state.label] += 1
        assert_drawn_from(counts, share)
        assert accepted > 1000


@pytest.mark.parametrize("kind, case", [(SBM, CASES[1]), (PoissonSBM, CASES[0])])
def test_draws_of_the_blocks_against_all_labelings(kind, case):
    model, rows, weigh = problem(kind, *case, nodes=6, blocks=2)
    every, share = exact_table(weigh, 6, 2)
    chain = BlockChain(model, rows, seed=5)
    draws = []
    for _ in range(4000):
        chain.sweep()
        draws.append(chain.indicators().numpy())
    found = np.stack(draws)[200:]
    for k in range(2):  # under unequal priors the labels are no longer interchangeable
        np.testing.assert_allclose((found == k).mean(0), share @ (every == k), atol=0.05)
    together = (found[:, :, None] == found[:, None]).mean(0)
    exact = np.einsum("c,cij->ij", share, (every[:, :, None] == every[:, None]).astype(float))
    np.testing.assert_allclose(together, exact, atol=0.05)


@pytest.mark.parametrize("case", CASES[::3])
def test_a_sweep_leaves_the_joint_distribution_with_propensities_as_it_is(case):
    """Graphs drawn with all their latents from the model: these are draws given the graph, after sweeps too."""
    directed, self_loops, _ = case
    rng, after, prior = np.random.default_rng(4), [], []
    model, rows, _ = problem(DegreeCorrectedSBM, *case, nodes=5, blocks=2)
    for seed in range(300):
        label = rng.choice(2, 5, p=rng.dirichlet(ALPHA[:2]))
        theta = {site: torch.as_tensor(rng.standard_gamma(1.0, 5)) for site in dict.fromkeys(model.propensity_sites)}
        rate = rng.standard_gamma(2.0, (2, 2)) / 1.5
        rate = rate if directed else np.triu(rate) + np.triu(rate, 1).T
        out, into = (theta[site].numpy() for site in model.propensity_sites)
        x = rng.poisson(out[:, None] * into * rate[label][:, label]).astype(float)
        x = x if directed else np.triu(x) + np.triu(x, 1).T
        x = x if self_loops else x - np.diag(np.diag(x))
        mask = rows.hidden_out.matrix.toarray() == 0
        given = GraphRows.of(model, model.prepare(torch.as_tensor(x * mask), mask=torch.as_tensor(mask)))
        chain = PropensityChain(model, given, seed, {"block": torch.as_tensor(label), **theta})
        prior.append(chain.log_joint())
        for _ in range(3):
            chain.sweep()
        last = chain.draw()
        ends = [last[site] for site in model.propensity_sites]
        after.append([*(float(end[0]) for end in ends), float(last["block"][0]), chain.log_joint()])
    found = np.array(after)
    for side in (0, 1):
        assert kstest(found[:, side], "expon").pvalue > 1e-3
    assert found[:, 2].mean() == pytest.approx(ALPHA[1] / sum(ALPHA[:2]), abs=0.1)
    assert kstest(found[:, 3], np.array(prior)).pvalue > 1e-3


def test_moves_of_many_nodes_reach_what_single_nodes_do_not():
    """Three cliques, one of them divided and the other two together: single moves stay there."""
    from custom_inference.families.blocks import gibbs_kernels as kernels

    truth = np.repeat([0, 1, 2], 60)
    rng = np.random.default_rng(0)
    x = np.triu(rng.random((180, 180)) < np.where(truth[:, None] == truth, 0.5, 0.05), 1)
    model = SBM(num_blocks=3, num_nodes=180, directed=False)
    rows = GraphRows.of(model, model.prepare(torch.as_tensor((x | x.T).astype(float))))
    start = np.repeat([0, 1, 2, 2], [30, 30, 60, 60])
    alone, chain = (begun(BlockChain, model, rows, seed, start) for seed in (0, 100))
    for _ in range(60):
        kernels.sweep(alone.graph, alone.state, 1.0, np.arange(180), np.arange(3))
        chain.sweep()
    assert adjusted_rand_score(truth, alone.state.label) < 0.8
    assert adjusted_rand_score(truth, chain.state.label) == 1.0


def test_blocks_at_given_globals_against_enumeration():
    for kind, case in ((SBM, CASES[0]), (PoissonSBM, CASES[3]), (DegreeCorrectedSBM, CASES[1])):
        example = kind.example()
        model, rows, _ = problem(kind, *case)
        globals_ = {site: torch.rand(shape) * 0.8 + 0.1 for site, shape in model.shapes.items()}
        globals_["block_proportion"] = globals_["block_proportion"] / globals_["block_proportion"].sum()
        site = model.component_site
        globals_[site] = globals_[site] if case[0] else torch.triu(globals_[site]) + torch.triu(globals_[site], 1).T
        mask = torch.as_tensor(rows.hidden_out.matrix.toarray() == 0)
        data = model.prepare(torch.as_tensor(rows.outgoing.matrix.toarray()), mask=mask)
        exact = Exact().local_posterior(model, globals_, data)
        found = CollapsedGibbs().local_posterior(model, globals_, data, seed=1)
        assert found.bound.shape == exact.bound.shape == (1,)
        torch.testing.assert_close(found.posterior.mean, exact.posterior.mean, atol=0.15, rtol=0)
        assert example.model.num_blocks >= 2


@pytest.mark.parametrize("kind", [SBM, PoissonSBM, DegreeCorrectedSBM])
def test_a_fit_of_the_example(kind):
    example = kind.example()
    method = CollapsedGibbs(num_samples=20, warmup=10, chains=2)
    fit, again = (method.fit(example.model, example.data, seed=3, progress=False) for _ in range(2))
    assert adjusted_rand_score(example.truth["block"], fit.params["block"]) == 1.0
    assert all(torch.equal(fit.params[site], again.params[site]) for site in fit.params)
    assert fit.draws is not None
    drawn, site = fit.draws["block"], example.model.component_site
    assert drawn.shape == (2, 20, example.model.num_nodes)
    assert (drawn == fit.params["block"]).double().mean() > 0.9  # every draw in the labels that are reported
    matrix = fit.draws[site]
    torch.testing.assert_close(matrix.mean((0, 1)), fit.params[site], atol=0.15, rtol=0.15)
    if not example.model.directed:
        assert torch.equal(matrix, matrix.transpose(-1, -2))
    torch.testing.assert_close(fit.posterior.mean.sum(-1), torch.ones(example.model.num_nodes))
    assert fit.local is not None and fit.local.bound.shape == (1,)


def test_improper_priors_are_refused():
    example = PoissonSBM.example()
    model = example.model.with_priors(edge_rate=Flat(dist.Gamma(1.0, 1.0)))
    with pytest.raises(PriorError, match="improper"):
        CollapsedGibbs(num_samples=2).fit(model, example.data, progress=False)


def test_blocks_are_matched_by_the_closest_permutation_or_by_their_nodes():
    rng = np.random.default_rng(0)
    for size in (3, 7, 12):
        matrix, order = torch.as_tensor(rng.random((size, size))), torch.as_tensor(rng.permutation(size))
        found = matrix[order][:, order] + 0.02 * torch.as_tensor(rng.standard_normal((size, size)))
        matched = match_blocks(matrix, found)
        assert torch.equal(order[matched.order], torch.arange(size))
        moved = matched.apply({"eta": found}, {"eta": ("component", "to_component")})["eta"]
        assert float((moved - matrix).abs().max()) < 0.2
        draws = torch.stack([matrix, found, matrix, found])[None]
        kept = align_draws({"eta": draws}, {"eta": ("component", "to_component")}, site="eta")["eta"]
        assert float((kept - kept[0, 0]).abs().max()) < 0.2
    block = torch.tensor([0, 0, 1, 2, 2, 2])
    first = {"edge_probability": torch.rand(3, 3), "block": block}
    second = {"edge_probability": torch.rand(3, 3), "block": torch.tensor([2, 0, 1])[block]}
    matched = align(second, first)
    assert torch.equal(matched.apply(second, {"block": ("node",)})["block"], block)


def test_sampson(real_data):
    """The three groups, in the union of the three waves of liking."""
    held = np.load(real_data / "sampson" / "sampson.npz")
    method = CollapsedGibbs(num_samples=50, warmup=20, chains=2)
    x = held["liking_any"].astype(float)
    fit = method.fit(SBM(num_blocks=3, num_nodes=18), x, seed=1, progress=False)
    assert adjusted_rand_score(held["group3"], fit.params["block"]) == 1.0


def test_political_blogs_need_degree_correction(real_data):
    """The partition that is searched for is near the best known; without degree correction it is one by degree."""
    held = np.load(real_data / "polblogs" / "polblogs.npz")
    edges, size = held["edges"].astype(int).T, int(held["n"])
    x = scipy.sparse.csr_matrix((np.ones(edges.shape[1]), tuple(edges)), (size, size))
    x = ((x + x.T) > 0).astype(float)
    x = (x - scipy.sparse.diags_array(x.diagonal())).tocsr()
    component = scipy.sparse.csgraph.connected_components(x)[1]
    kept = np.flatnonzero(component == np.bincount(component).argmax())
    x, truth = x[kept][:, kept], held["value"][kept]
    x.eliminate_zeros()
    model = DegreeCorrectedSBM(num_blocks=2, num_nodes=len(kept), directed=False)
    rows = GraphRows.of(model, model.prepare(x))
    found = best_partition(rows, 2, "degree_corrected", 0, 2)
    assert normalized_mutual_info_score(truth, found) > 0.7
    assert normalized_mutual_info_score(truth, best_partition(rows, 2, "bernoulli", 0, 1)) < 0.05
