"""Pyro's SVI of graphs: the bound of independent blocks against sums over labelings, minibatches of dyads, fits."""

from __future__ import annotations

import itertools
import resource

import numpy as np
import pyro
import pytest
import scipy.sparse
import torch
from pyro.distributions import Beta, Dirichlet
from sklearn.metrics import adjusted_rand_score
from torch.distributions import kl_divergence

import custom_inference as ci
from custom_inference.core.dyads import estimate_bound, estimate_log_joint
from custom_inference.core.local_inference import enumerate_local
from custom_inference.core.posterior_bounds import bound_of, row_log_joint
from custom_inference.core.posteriors import CodePosterior, DirichletPosterior, kullback_leibler
from custom_inference.methods import methods_for
from custom_inference.svi.guides.bases import with_modes
from custom_inference.svi.guides.mean_field import LabellingBound, MeanField
from custom_inference.svi.initialisation import clamp_to_interior, graph_start, local_of_labels, match_partition
from ppl_models import (
    MMSB,
    MODELS,
    SBM,
    CapacityError,
    CovariateSBM,
    DegreeCorrectedSBM,
    GraphData,
    GraphModel,
    MethodError,
    PoissonSBM,
)
from ppl_models.data import sparse as _sparse
from ppl_models.distributions import Labelling
from tests.references import sbm as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
GRAPHS = {name: kind for name, kind in MODELS.items() if issubclass(kind, GraphModel)}
COVARIATES = torch.tensor([[0.5, -1.0], [1.5, 0.2], [-0.7, 0.4], [0.1, -2.0], [1.0, 1.0]])


def toy(kind, *, directed: bool = True, hidden: bool = False, size: int = 5, blocks: int = 2, seed: int = 0):
    """A random small graph, and a model of it."""
    torch.manual_seed(seed)
    settings = {"covariates": COVARIATES[:size]} if kind is CovariateSBM else {"num_nodes": size}
    model = kind(num_blocks=blocks, directed=directed, **settings)
    x = torch.poisson(torch.full((size, size), 0.6))
    x = x if model.edge_kind == "counts" else x.clamp(max=1.0)
    x = (x.triu(1) if not directed else x).fill_diagonal_(0)
    x = x if directed else x + x.T
    left_out = None
    if hidden:
        left_out = torch.tensor([[0, 1], [1, 3]])
        x[left_out[0], left_out[1]] = 0
        if not directed:
            x[left_out[1], left_out[0]] = 0
    return model, GraphData(x=_sparse.from_dense(x), directed=directed, hidden=left_out)


def drawn_globals(model, data) -> dict[str, torch.Tensor]:
    return {site: model.prior(site).sample() for site in model.global_sites}


def bound_by_labelings(model, params, data, probs) -> float:
    """sum over all labelings q of phi(q) (log p(x, q) - log phi(q)), every term from the program."""
    read, total = model.as_read(data), 0.0
    for labels in itertools.product(range(model.num_blocks), repeat=len(data)):
        log_q = float(probs[torch.arange(len(data)), list(labels)].log().sum())
        log_p = float(row_log_joint(model, params, read, torch.tensor(labels)))
        total += np.exp(log_q) * (log_p - log_q)
    return total


BLOCK_MODELS = [
    (kind, directed) for kind in (SBM, PoissonSBM, DegreeCorrectedSBM, CovariateSBM) for directed in (True, False)
]


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(("kind", "directed"), BLOCK_MODELS)
def test_bound_of_independent_blocks_is_the_sum_over_labelings(kind, directed, hidden):
    model, data = toy(kind, directed=directed, hidden=hidden, size=4, blocks=3)
    params, read = drawn_globals(model, data), model.as_read(data)
    probs = Dirichlet(torch.ones(3)).sample(torch.Size([4]))
    expected = bound_by_labelings(model, params, data, probs)
    assert np.isclose(float(estimate_bound(model, params, data, probs, batch_size=10**6)[0]), expected, rtol=1e-10)
    guide = MeanField().bind(model, data, globals_=params)
    guide.block_logit = probs.log()
    program = pyro.condition(model, data=params)
    assert np.isclose(-LabellingBound().loss(program, guide, read.x, mask=read.mask), expected, rtol=1e-10)
    posterior = guide.posterior(data, params)
    assert np.isclose(float(bound_of(model, params, read, posterior)), expected, rtol=1e-10)
    exact = enumerate_local(model, params, read)
    gap = float(exact.bound) - expected
    assert np.isclose(gap, float(kullback_leibler(posterior, exact.posterior)), rtol=1e-8)


def test_gradients_of_the_bound_are_those_of_the_sum_over_labelings():
    model, data = toy(SBM, size=3)
    params = drawn_globals(model, data)
    guide = MeanField().bind(model, data, globals_=params)
    guide.block_logit = torch.randn(3, 2)
    program = pyro.condition(model, data=params)

    def value() -> float:
        return bound_by_labelings(model, params, data, torch.softmax(guide.block_logit.detach(), -1))

    LabellingBound().loss_and_grads(program, guide, data.x)
    gradient, step = guide.block_logit.grad.clone(), 1e-5
    for place in itertools.product(range(3), range(2)):
        change = torch.zeros(3, 2)
        change[place] = step
        with torch.no_grad():
            guide.block_logit += change
            above = value()
            guide.block_logit -= 2 * change
            below = value()
            guide.block_logit += change
        assert np.isclose(-float(gradient[place]), (above - below) / (2 * step), atol=1e-7)


@pytest.mark.quick
def test_divergence_of_labelings():
    q, p = (Dirichlet(torch.ones(3)).sample(torch.Size([4])) for _ in range(2))
    every = Labelling(q).enumerate_support()
    log_q, log_p = Labelling(q).log_prob(every), Labelling(p).log_prob(every)
    assert torch.isclose(kl_divergence(Labelling(q), Labelling(p)), (log_q.exp() * (log_q - log_p)).sum())


@pytest.mark.parametrize("name", GRAPHS)
def test_starts_are_inside_the_supports_and_go_with_their_partition(name):
    example = GRAPHS[name].example()
    model, data = example.model, example.data
    start = graph_start(model, data, seed=0)
    assert set(start) == {*model.global_sites, model.local_site}
    for site in model.global_sites:
        assert model.prior(site).support.check(start[site]).all() and start[site].shape == model.shapes[site]
    params = {site: example.truth[site] for site in model.global_sites}
    labels = match_partition(model, data, params, seed=0)
    joint = [
        float(estimate_log_joint(model, params, data, local_of_labels(model, moved[labels], data), batch_size=10**6))
        for moved in map(torch.tensor, itertools.permutations(range(model.num_blocks)))
    ]
    assert joint[0] == max(joint)  # no other names of the parts suit the globals better


@pytest.mark.quick
def test_values_are_clamped_to_the_interior_of_symmetric_sites():
    model = SBM(num_blocks=2, num_nodes=4, directed=False)
    edge = torch.tensor([[1.0, 0.0], [0.0, 0.5]])
    params = {"edge_probability": edge, "block_proportion": torch.tensor([1.0, 0.0]), "block": torch.zeros(4)}
    inside = clamp_to_interior(model, params, 1e-3)
    assert torch.allclose(inside["edge_probability"], edge.clamp(1e-3, 0.999))
    assert inside["block_proportion"].min() > 0 and torch.equal(inside["block"], torch.zeros(4))


def test_unbounded_priors_of_symmetric_sites_have_modes():
    model = SBM(num_blocks=2, num_nodes=4, directed=False).with_priors(edge_probability=Beta(0.5, 0.5))
    changed = with_modes(model, model.global_sites)
    value = model.prior("edge_probability").sample()
    upper = value[torch.triu_indices(2, 2).unbind()]
    expected = model.prior("edge_probability").log_prob(value) + (upper.log() + (1 - upper).log()).sum()
    assert torch.isclose(changed.prior("edge_probability").log_prob(value), expected)


@pytest.mark.parametrize("name", GRAPHS)
def test_generic_fits_find_the_blocks_of_the_examples(name):
    example = GRAPHS[name].example()
    fit = ci.SVI(steps=60).fit(example.model, example.data, seed=0, progress=False)
    truth = example.truth[example.model.local_site]
    found = fit.posterior.mean.argmax(-1)
    if example.model.has_continuous_locals:
        assert adjusted_rand_score(truth.argmax(-1)[:16], found[:16]) == 1
        assert isinstance(fit.posterior, DirichletPosterior) and fit.params["membership"].shape == truth.shape
    else:
        assert adjusted_rand_score(truth, found) == 1
        assert isinstance(fit.posterior, CodePosterior) and torch.equal(fit.params["block"], found)
    # a prior without a mode has a posterior, not a point
    bound = "elbo (mean_field, globals dirichlet)" if name == "infinite_sbm" else "mean_field"
    assert fit.bound_name == bound and fit.local.bound.shape == (1,)
    assert float(fit.elbo[-5:].mean()) > float(fit.elbo[:5].mean())
    for site in fit.model.pair_sites if not fit.model.directed else ():
        assert torch.equal(fit.params[site], fit.params[site].transpose(0, 1))


def test_a_normal_guide_of_the_globals_bounds_the_evidence():
    model, data = toy(SBM, directed=False)
    fit = ci.SVI(steps=80, globals_="normal").fit(model, data, seed=0, progress=False)
    assert fit.bound_name == "elbo (mean_field)" and set(fit.draws) == set(model.global_sites)
    dense = data.dense().x.numpy()
    alpha, pair = np.ones(2), (1.0, 1.0)
    exact = reference.log_evidence_integrated(dense, 2, alpha, pair, None, directed=False)
    assert float(fit.elbo[-20:].mean()) < exact + 0.3  # a noisy estimate of a lower bound


def test_compared_at_given_globals_it_comes_near_the_best_of_its_family():
    """-5.354 is the evidence, -6.008 the best bound of 12 runs of L-BFGS from random starts."""
    model, data = toy(SBM, directed=False, hidden=True)
    torch.manual_seed(3)
    params = drawn_globals(model, data)
    methods = [ci.Exact(generic=True), ci.SVI(steps=60), ci.SVI(guide="delta")]
    table = ci.compare(methods, model, data, at=params).table
    assert abs(table.gap_per_row["Exact"]) < 1e-10 and abs(table.gap_per_row["SVI(delta)"]) < 1e-10
    line = table.loc["SVI(mean_field)"]
    assert line.bound > -6.1 and np.isclose(line.gap_per_row, line.kl_per_row, atol=1e-8)


def test_memberships_by_points_and_normals():
    model, data = toy(MMSB, directed=False)
    points = ci.SVI(guide="delta", steps=30).fit(model, data, seed=0, progress=False)
    assert points.bound_name == "map" and points.params["membership"].shape == (5, 2)
    assert torch.isnan(points.local.bound).all() and points.local.bound.shape == (1,)
    normals = ci.SVI(guide="normal", steps=30).fit(model, data, seed=0, progress=False)
    assert normals.draws["membership"].shape == (1, 500, 5, 2)


def test_fits_by_minibatches_of_a_graph_with_hidden_dyads_stay_sparse():
    example = SBM.example()
    hidden = torch.tensor([[0, 3, 7], [5, 9, 1]])
    x = example.data.dense().x.clone()
    x[hidden[0], hidden[1]] = 0
    data = GraphData(x=_sparse.from_dense(x), directed=True, hidden=hidden)
    fit = ci.SVI(steps=60, batch_size=200).fit(example.model, data, seed=0, progress=False)
    assert fit.data.is_sparse and fit.data.mask is None
    assert adjusted_rand_score(example.truth["block"], fit.params["block"]) == 1


def sparse_graph(size):
    """A graph in two blocks with three edges a node."""
    rng, number = np.random.default_rng(0), 3 * size
    block = np.repeat([0, 1], size // 2)
    i = rng.integers(size, size=number)
    j = np.where(rng.random(number) < 0.9, block[i] * size // 2 + rng.integers(size // 2, size=number), 0)
    place = np.stack([i, j])[:, i != j]
    ones = scipy.sparse.csr_matrix((np.ones(place.shape[1]), place), (size, size))
    return GraphData(x=_sparse.from_scipy(((ones + ones.T) > 0).astype(float), dtype=torch.float64), directed=False)


def test_a_large_sparse_graph_is_never_made_dense():
    """12,000 nodes, undirected, by MMSB: a dense matrix of doubles would be 1.1 GiB, a list of the dyads .5 GiB."""
    svi, size = ci.SVI(steps=2, batch_size=2000), 12_000
    # What is compiled and imported at the first call takes memory of its own.
    svi.fit(MMSB(num_blocks=2, num_nodes=100, directed=False), sparse_graph(100), seed=0, progress=False)
    data, model = sparse_graph(size), MMSB(num_blocks=2, num_nodes=size, directed=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fit = svi.fit(model, data, seed=0, progress=False)
    assert torch.isfinite(fit.elbo).all() and fit.params["membership"].shape == (size, 2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**10 * 350


def test_what_graphs_have_no_guide_for_is_refused():
    for name, kind in GRAPHS.items():
        listed = methods_for(kind.example().model)
        assert "svi" in listed and "amortized" not in listed and "svi_factorized" not in listed, name
    example = SBM.example()
    with pytest.raises(MethodError, match="no amortised guide of graphs.*mean_field"):
        ci.SVI(guide="amortized").fit(example.model, example.data, progress=False)
    with pytest.raises(CapacityError, match="3\\^24 labelings.*mean_field"):
        ci.SVI(guide="delta").fit(example.model, example.data, progress=False)
    small, data = toy(SBM)
    with pytest.raises(MethodError, match="no minibatches of dyads"):
        ci.SVI(guide="delta", batch_size=5).fit(small, data, progress=False)
