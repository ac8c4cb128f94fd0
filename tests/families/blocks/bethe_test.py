"""Belief propagation of block models: exact on trees, stationary, near the evidence of small graphs, at the limit."""

import itertools
from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import custom_inference as ci
from custom_inference import VariationalEM
from custom_inference.core.local_inference import solve_local
from custom_inference.core.states import PointsWithLocals
from custom_inference.families.blocks.bethe import MESSAGE, SbmBethe
from custom_inference.families.blocks.bethe_starts import by_degree, hessian_labels, is_overdispersed
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.mean_field import RESPONSIBILITY
from custom_inference.graphs import bethe_evidence, choose_num_blocks
from ppl_models import SBM, DegreeCorrectedSBM, MethodError, PoissonSBM
from ppl_models.datasets import sample_sbm
from tests.references import _graphs
from tests.references.bethe import Bethe
from tests.support.sbm_cases import KINDS, case

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
EACH = pytest.mark.parametrize(("kind", "directed", "loops"), KINDS)


def reference(one):
    """The reference; under degree correction exposures count by independent ends."""
    apart = None
    if isinstance(one.model, DegreeCorrectedSBM):
        out, into = (one.params[site].numpy() for site in one.model.propensity_sites)
        rate = one.params["edge_rate"].numpy()
        apart = -(out[one.graph.i] * into[one.graph.j])[:, None, None] * rate
    return Bethe.of(one.graph, one.x * one.mask, apart)


def converged(one, params=None, sweeps=3000):
    """Rows, and an E step of many sweeps from the case's shares."""
    engine = SbmBethe(sweeps=sweeps)
    rows = engine.rows(one.model, one.data)
    state = PointsWithLocals(params or one.params, {RESPONSIBILITY: torch.as_tensor(one.shares)})
    return rows, state, engine.e_step(one.model, state, rows)


def messages_of(rows, step):
    value = step.locals[MESSAGE].double().numpy()
    slots = zip(rows.pairs.node.tolist(), rows.pairs.owner.tolist(), value, strict=True)
    return {(i, j): said / said.sum() for i, j, said in slots}


@EACH
def test_messages_are_stationary_and_log_z_is_the_references(kind, directed, loops):
    for seed in range(2):
        one = case(kind, directed, loops, size=7, blocks=3, seed=seed)
        rows, _, step = converged(one)
        plain, said = reference(one), messages_of(rows, step)
        psi = step.locals[RESPONSIBILITY].double().numpy()
        np.testing.assert_allclose(psi.sum(1), 1, atol=1e-9)
        again, beliefs = plain.updated(said, psi)
        np.testing.assert_allclose(beliefs, psi, atol=1e-6)
        assert again.keys() == said.keys()
        for pair, value in again.items():
            np.testing.assert_allclose(value, said[pair], atol=1e-6)
        for (i, j), both in plain.together(said).items():  # pairs and nodes say the same
            np.testing.assert_allclose(both.sum(1), psi[i], atol=1e-6)
            np.testing.assert_allclose(both.sum(0), psi[j], atol=1e-6)
        assert float(step.bound) == pytest.approx(plain.log_z(said, psi), abs=1e-5)


def tree(kind, directed, seed, nodes=8, blocks=3):
    """A random tree: its pairs are the observed dyads, each with an edge in at least one direction."""
    rng = np.random.default_rng(seed)
    x, mask = np.zeros((nodes, nodes)), np.eye(nodes, dtype=bool)
    for i in range(1, nodes):
        j = rng.integers(i)
        high = 2 if kind is SBM else 4
        x[i, j] = rng.integers(1, high)
        x[j, i] = x[i, j] if not directed else rng.integers(high)
        mask[i, j] = mask[j, i] = True
    value = rng.uniform(0.05, 0.95, (blocks, blocks))
    value = value if directed else np.triu(value) + np.triu(value, 1).T
    site = "edge_probability" if kind is SBM else "edge_rate"
    params = {"block_proportion": torch.as_tensor(rng.dirichlet(np.ones(blocks))), site: torch.as_tensor(value)}
    model = kind(num_blocks=blocks, num_nodes=nodes, directed=directed)
    return model, params, model.prepare(torch.as_tensor(x), mask=torch.as_tensor(mask), dtype=torch.float64)


@pytest.mark.parametrize("kind", [SBM, PoissonSBM])
@pytest.mark.parametrize("directed", [True, False])
def test_exact_on_trees(kind, directed):
    for seed in range(3):
        model, params, data = tree(kind, directed, seed, nodes=7)
        exact = ci.Exact().local_posterior(model, params, data)
        found = solve_local(model, params, data, bound="bethe")
        torch.testing.assert_close(found.bound, exact.bound, atol=1e-8, rtol=0)
        torch.testing.assert_close(found.posterior.mean, exact.posterior.mean, atol=1e-7, rtol=0)
        assert found.what == "estimate"


def test_small_graphs_are_near_the_evidence():
    """On ten nodes with loops all over log Z is within 2 nats of the evidence, marginals within .2: an estimate. (Where
    blocks are alike it describes one of the equal modes.)"""
    gaps = []
    for seed in range(6):
        generated = sample_sbm(np.array([[0.6, 0.2], [0.2, 0.1]]), sizes=[5, 5], directed=False, seed=seed)
        model = SBM(num_blocks=2, num_nodes=10, directed=False)
        data = model.prepare(generated.graph, dtype=torch.float64)
        params = {
            "block_proportion": torch.tensor([0.6, 0.4], dtype=torch.float64),
            "edge_probability": torch.tensor([[0.6, 0.2], [0.2, 0.1]], dtype=torch.float64),
        }
        exact = ci.Exact().local_posterior(model, params, data)
        found = solve_local(model, params, data, bound="bethe")
        gaps.append(float(found.bound - exact.bound))
        assert float((found.posterior.mean - exact.posterior.mean).abs().max()) < 0.2
    assert np.abs(gaps).max() < 2


@EACH
def test_statistics_are_the_slopes_of_log_z(kind, directed, loops):
    """d log Z / d eta_ab = m_ab A'_ab + n_ab B'_ab, and d log Z / d log pi_a = sum_i psi_ia, at a fixed point."""
    one = case(kind, directed, loops, size=7, blocks=2, seed=3)
    rows, _, step = converged(one)
    matrix = likelihood_of(one.model)
    edges, exposure = (step.statistics[name].numpy() for name in ("edges", "exposure"))
    value = one.params[matrix.site].double().numpy()

    def log_z(params):
        at = PointsWithLocals(params, step.locals)
        return float(SbmBethe(sweeps=3000).e_step(one.model, at, rows).bound)

    for a, b in [(0, 0), (0, 1), (1, 1)]:
        ends = []
        for sign in (1, -1):
            moved = value.copy()
            moved[a, b] += sign * 1e-4
            if not directed:
                moved[b, a] = moved[a, b]
            ends.append(log_z({**one.params, matrix.site: torch.as_tensor(moved)}))
        eta = value[a, b]
        if kind is SBM:
            slope = edges[a, b] / eta - (exposure[a, b] - edges[a, b]) / (1 - eta)
        else:
            slope = edges[a, b] / eta - exposure[a, b]
        assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(slope, abs=2e-3)
    pi, ends = one.params["block_proportion"].double(), []
    for sign in (1, -1):
        moved = pi * torch.exp(torch.tensor([sign * 1e-4, 0.0], dtype=torch.float64))
        ends.append(log_z({**one.params, "block_proportion": moved}))
    assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(float(step.statistics["size"][0]), abs=2e-3)


@pytest.mark.parametrize("kind", [SBM, PoissonSBM, DegreeCorrectedSBM])
def test_a_settled_fit_is_stationary_in_its_globals(kind):
    """The M step, by finite differences of log Z plus log prior at the end of a fit: informative priors."""
    site = "edge_probability" if kind is SBM else "edge_rate"
    prior = dist.Beta(2.0, 3.0) if kind is SBM else dist.Gamma(2.0, 1.0)
    example = kind.example() if kind is not SBM else PoissonSBM.example()
    x = example.data.dense().x.clamp(max=1) if kind is SBM else example.data
    nodes = len(example.data)
    model = kind(num_blocks=2, num_nodes=nodes, directed=False, priors={site: prior})
    method = VariationalEM(guide="bethe", tolerance=1e-13, max_iterations=3000)
    fit = method.fit(model, x, seed=0, progress=False, dtype=torch.float64)
    engine = SbmBethe(sweeps=3000)
    rows = engine.rows(model, fit.data)

    def value(params):
        state = PointsWithLocals(params, {RESPONSIBILITY: fit.posterior.mean})
        return engine.objective_at(model, state, engine.e_step(model, state, rows).bound)

    globals_ = {name: fit.params[name] for name in model.global_sites}
    for name, entries in ((site, [(0, 0), (0, 1), (1, 1)]), ("propensity", [(0,), (7,)])):
        for entry in entries if name in globals_ else ():
            ends = []
            for sign in (1, -1):
                moved = globals_[name].clone()
                moved[entry] *= np.exp(sign * 1e-4)
                if name == site:
                    moved[entry[::-1]] = moved[entry]
                ends.append(value({**globals_, name: moved}))
            assert abs(ends[0] - ends[1]) / 2e-4 < 5e-3, (name, entry)


def planted(nodes, groups, degree, ratio, seed):
    within = groups * degree / (1 + (groups - 1) * ratio) / nodes
    rate = within * (ratio + (1 - ratio) * np.eye(groups))
    return sample_sbm(rate, sizes=np.full(groups, nodes // groups), directed=False, seed=seed)


def overlap(found, truth, groups):
    table = np.zeros((groups, groups))
    np.add.at(table, (np.asarray(found), np.asarray(truth)), 1)
    right = table[linear_sum_assignment(-table)].sum() / table.sum()
    return (right - 1 / groups) / (1 - 1 / groups)


@pytest.mark.parametrize("problem", [(1000, 2, 5, 0.2), (1000, 4, 16, 0.3)])
def test_fits_reach_the_limit(problem):
    """What belief propagation at the true globals from the truth gives, and the default is belief propagation."""
    generated = planted(*problem, seed=1)
    truth, groups = generated.truth["block"], problem[1]
    model = SBM(num_blocks=groups, num_nodes=problem[0], directed=False)
    fit = ci.fit(model, generated.graph, progress=False)
    assert (fit.bound_name, fit.objective) == ("bethe", "estimate")
    engine = SbmBethe(sweeps=200)
    rows = engine.rows(model, fit.data)
    known = {name: generated.truth[name].double() for name in model.global_sites}
    codes = torch.nn.functional.one_hot(truth.long(), groups).double()
    step = engine.e_step(model, PointsWithLocals(known, {RESPONSIBILITY: codes}), rows)
    limit = overlap(step.locals[RESPONSIBILITY].argmax(1), truth, groups)
    assert overlap(fit.posterior.mean.argmax(1), truth, groups) > limit - 0.025 > 0.5


@pytest.mark.parametrize("directed", [True, False])
def test_blocks_of_other_shapes(directed):
    """A ring of blocks, and blocks with edges only between them."""
    ring = np.full((3, 3), 0.01) + 0.14 * np.roll(np.eye(3), 1, 1)
    matrix = ring if directed else np.array([[0.01, 0.15, 0.08], [0.15, 0.01, 0.02], [0.08, 0.02, 0.2]])
    generated = sample_sbm(matrix, sizes=[80, 60, 60], directed=directed, seed=0)
    model = SBM(num_blocks=3, num_nodes=200, directed=directed)
    fit = VariationalEM(guide="bethe").fit(model, generated.graph, progress=False)
    assert overlap(fit.posterior.mean.argmax(1), generated.truth["block"], 3) > 0.95


def test_one_block_has_nothing_to_tell():
    """Beliefs are certain: log Z is the likelihood."""
    example = PoissonSBM.example()
    model = PoissonSBM(num_blocks=1, num_nodes=22, directed=False)
    fit = VariationalEM(guide="bethe").fit(model, example.data, progress=False, dtype=torch.float64)
    x = example.data.dense().x.double().numpy()
    values = _graphs.dyads(x, directed=False)[2]
    rate = float(fit.params["edge_rate"])
    plain = values * np.log(rate) - rate - torch.lgamma(torch.as_tensor(values) + 1).numpy()
    prior = float(model.log_prior(fit.globals))
    assert float(fit.elbo[-1]) == pytest.approx(plain.sum() + prior, abs=1e-6)


def test_starts():
    """Communities by the spectrum; degrees by their spread."""
    generated = planted(600, 3, 12, 0.1, 0)
    model = SBM(num_blocks=3, num_nodes=600, directed=False)
    rows = SbmBethe().rows(model, model.prepare(generated.graph))
    label = hessian_labels(rows, 3, np.random.default_rng(0))
    assert overlap(label, generated.truth["block"], 3) > 0.6
    assert not is_overdispersed(rows)
    hub = sample_sbm(np.array([[0.2, 0.05], [0.05, 0.0]]), sizes=[50, 250], directed=False, seed=0)
    other = SBM(num_blocks=2, num_nodes=300, directed=False)
    rows = SbmBethe().rows(other, other.prepare(hub.graph))
    assert is_overdispersed(rows)
    degree = rows.degrees[0]
    label = by_degree(rows, 2, np.random.default_rng(0))
    assert np.bincount(label).tolist() == [150, 150] and degree[label == 0].max() <= degree[label == 1].min()


def test_a_fit_goes_on_from_values_and_scores_other_graphs():
    generated = planted(300, 2, 8, 0.1, 0)
    model = SBM(num_blocks=2, num_nodes=300, directed=False)
    fit = VariationalEM(guide="bethe").fit(model, generated.graph, progress=False, dtype=torch.float64)
    again = VariationalEM(guide="bethe").fit(model, generated.graph, init=fit, progress=False, dtype=torch.float64)
    assert float(again.elbo[-1]) == pytest.approx(float(fit.elbo[-1]), abs=0.1)
    scored = fit.log_likelihood(bound="bethe")
    assert scored.shape == (1,)
    assert float(scored) + float(model.log_prior(fit.globals)) == pytest.approx(float(fit.elbo[-1]), abs=0.1)
    for kind, dtype in itertools.product(("squarem", "anderson"), (torch.float32, torch.float64)):
        quick = VariationalEM(guide="bethe", accelerate=kind).fit(model, generated.graph, progress=False, dtype=dtype)
        assert float(quick.elbo[-1]) == pytest.approx(float(fit.elbo[-1]), abs=1.0)


def test_the_number_of_blocks_by_log_z():
    generated = planted(300, 3, 12, 0.05, 0)
    model = SBM(num_blocks=1, num_nodes=300, directed=False)
    names = ("bethe", "icl", "evidence")
    choice = choose_num_blocks(model, generated.graph, range(1, 5), criterion=names, progress=False)
    assert choice.best == 3 and (choice.table["score"] == choice.table["bethe"]).all()
    assert all(int(choice.table[name].to_numpy(float).argmax()) == 2 for name in names)
    fit = VariationalEM(guide="bethe").fit(replace(model, num_blocks=3, priors={}), generated.graph, progress=False)
    price = 0.5 * 2 * np.log(300) + 0.5 * 6 * np.log(300 * 299 / 2)
    assert fit.local is not None
    assert bethe_evidence(fit) == pytest.approx(float(fit.local.bound) - price)
    other = VariationalEM(guide="vb").fit(model, generated.graph, progress=False)
    with pytest.raises(MethodError, match="no log Z"):
        bethe_evidence(other)
