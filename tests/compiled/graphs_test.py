"""Programs of graphs, compiled: against the programs themselves at all labellings, and against listed block models."""

import itertools
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp
from torch.distributions import biject_to

import custom_inference as ci
from custom_inference.compiled.graphs.engine import DyadMeanField
from custom_inference.compiled.graphs.exact import DyadExact
from custom_inference.compiled.reading import NotCompiled
from custom_inference.families.blocks.mean_field import RESPONSIBILITY
from ppl_models import DataError, DataWarning, ModelError, graph
from ppl_models.distributions import Hurdle, Labelling, Signs
from tests.programs.graphs import Affine, Blocks, Degrees, Foes, Ordered, Rates, Signed, TwoPart, Weighted, planted

SIZE, BLOCKS = 5, 2
KINDS = (Blocks, Ordered, Rates, Signed, Foes, Weighted, TwoPart, Affine, Degrees)


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def problem(kind, directed, loops=False, hidden=False, size=SIZE, seed=0):
    """A model and its data. Of hidden dyads some are unobserved."""
    model = kind(num_blocks=BLOCKS, num_nodes=size, directed=directed, self_loops=loops)
    x = planted(kind, size, BLOCKS, seed, directed=directed, loops=loops)
    if hidden:
        x[1, 3] = x[3, 1] = x[0, 2] = x[2, 0] = np.nan
        if loops:
            x[4, 4] = np.nan
    return model, model.prepare(x, dtype=torch.float64)


def draw(model, seed):
    """Values of the globals."""
    rng, found = torch.Generator().manual_seed(seed), {}
    for site, shape in model.shapes.items():
        transform = biject_to(model.prior(site).support)
        found[site] = transform(0.7 * torch.randn(transform.inverse_shape(shape), generator=rng))
    return found


def log_joint(model, data, params, label):
    """log p(x, z), by the program."""
    data = model.as_read(data)
    conditioned = pyro.condition(model, data={**params, "block": torch.as_tensor(label)})
    trace = pyro.poutine.trace(conditioned).get_trace(data.x, **data.arguments)
    trace.compute_log_prob()
    nodes: Any = trace.nodes
    return float(sum(nodes[site]["log_prob"].sum() for site in ("block", "x")))


def labellings():
    return list(itertools.product(range(BLOCKS), repeat=SIZE))


CASES = [
    (kind, directed, loops, hidden)
    for kind in KINDS
    for directed, loops, hidden in (
        (True, kind not in (Rates, Degrees), True),
        (False, kind is Rates, kind is not Blocks),
    )
]


@pytest.mark.parametrize(("kind", "directed", "loops", "hidden"), CASES)
def test_factors_are_the_program_at_all_labellings(kind, directed, loops, hidden):
    model, data = problem(kind, directed, loops, hidden)
    params = draw(model, 1)
    every = np.array([log_joint(model, data, params, label) for label in labellings()])
    exact, engine = DyadExact(), DyadMeanField()
    rows = engine.rows(model, data)
    assert np.allclose(exact.table(model, params, rows).numpy(), every, atol=1e-9)
    phi = torch.distributions.Dirichlet(torch.ones(SIZE, BLOCKS)).sample()
    q = np.array([phi[torch.arange(SIZE), list(label)].log().sum() for label in labellings()])
    bound = float(engine.bound(model, params, rows, phi))
    assert bound == pytest.approx(float((np.exp(q) * (every - q)).sum()), abs=1e-9)
    assert bound < logsumexp(every)
    step = engine.e_step(model, params, rows, {RESPONSIBILITY: phi})
    for _ in range(20):
        step = engine.e_step(model, params, rows, step.locals)
    assert bound < float(step.bound) < logsumexp(every)
    best, sought = step.locals[RESPONSIBILITY], []
    for n in range(SIZE):  # stationary: each node's responsibilities are the best given the others'
        other = best.clone()
        given = np.array([sum(best[m, label[m]].log() for m in range(SIZE) if m != n) for label in labellings()])
        for a in range(BLOCKS):
            of = np.array([label[n] == a for label in labellings()])
            other[n, a] = float((np.exp(given[of]) * every[of]).sum())
        sought.append(torch.softmax(other[n], 0))
    assert torch.allclose(best, torch.stack(sought), atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("directed", [True, False])
def test_the_m_step_is_a_maximum(kind, directed):
    model, data = problem(kind, directed, size=9)
    engine = DyadMeanField()
    rows = engine.rows(model, data)
    phi = torch.distributions.Dirichlet(torch.ones(9, BLOCKS)).sample()
    state = engine.from_responsibilities(model, phi, rows)
    for _ in range(30):  # climbs end where they are
        step = engine.e_step(model, state, rows)._replace(locals={RESPONSIBILITY: phi})
        step = step._replace(statistics={"dyads": torch.as_tensor(rows.count(phi.numpy(), np.ones((2, 9))))})
        state = engine.m_step(model, state, step, rows)

    def objective(values):
        return float(engine.bound(model, values, rows, phi)) + float(engine.prior_term(model, values))

    best = objective(state.sites)
    for site in model.unknown_sites:
        transform = biject_to(model.prior(site).support)
        free = transform.inv(state.sites[site])
        moved = []
        for number in range(free.numel()):
            for sign in (1, -1):
                other = free.clone().reshape(-1)
                other[number] += sign * 1e-3
                moved.append(objective({**state.sites, site: transform(other.reshape(free.shape))}) - best)
        # Neither side is above: the slope is 0, up to the curvature.
        assert max(moved) < 1e-8, site


def test_small_graphs_are_summed():
    model, data = problem(Blocks, False)
    params = draw(model, 2)
    every = logsumexp([log_joint(model, data, params, label) for label in labellings()])
    for exact in (ci.Exact(), ci.Exact(generic=True)):
        assert float(exact.local_posterior(model, params, data).bound) == pytest.approx(every)


class Turned(Blocks):
    """Blocks that are looked up elsewhere."""

    def __call__(self, x=None, **plate):
        values, graph = self.sample_globals(), self.graph(x, **plate)
        z = pyro.sample("block", Labelling(values["size"].expand(graph.num_nodes, -1)))
        with graph as (i, j):
            p = values["p"][z[..., i], z[..., j]] * (1 + z[..., (i + 1) % graph.num_nodes]) / BLOCKS
            return graph.observe("x", dist.Bernoulli(p))


def test_what_is_not_compiled_says_why():
    model, data = problem(Turned, True, size=8)
    with pytest.raises(NotCompiled, match="differs between dyads whose nodes have the same labels"):
        DyadMeanField().rows(model, data)
    with_loops, _ = problem(Degrees, False, loops=True)
    with pytest.raises(NotCompiled, match="is no Poisson without self loops"):
        ci.fit(with_loops, np.ones((SIZE, SIZE)) + np.eye(SIZE), method="mean_field", progress=False)
    with pytest.raises(ModelError, match="looked up elsewhere"):
        ci.SVI(guide="mean_field").fit(model, data, progress=False)


class Heavy(Weighted):
    """Weights of heavy tails."""

    def law(self, values, a, b, i, j):
        return Hurdle(dist.Laplace(values["mean"][a, b], values["spread"]), 0.5)


def test_weights_that_are_not_read_are_refused_by_name():
    model, data = problem(Heavy, True, size=8)
    with pytest.raises(NotCompiled, match="'x' has the law Hurdle of Laplace"):
        DyadMeanField().rows(model, data)
    with pytest.raises(DataError, match="'x', axis 'edge': an edge of value 2"):
        Foes(num_blocks=2, num_nodes=3).prepare(np.diag([2.0, -1.0], 1))
    with pytest.raises(DataError, match=r'kind="real"'):
        graph(np.diag([0.5, -1.0], 1))
    assert graph(np.diag([0.5, -1.0], 1), kind="real", directed=True).edge_values().tolist() == [0.5, -1.0]
    with pytest.warns(DataWarning, match="54 of 56 dyads are not stored, and 0 under a density"):
        DyadMeanField().rows(*_few_weights(1.0))
    with pytest.raises(NotCompiled, match="sums of squares are rounded"):
        DyadMeanField().rows(*_few_weights(1e9, whole=True))


def _few_weights(shift, *, whole=False):
    """Weights of two dyads of eight nodes, or of all of them."""
    x = np.zeros((8, 8)) + (shift + np.random.default_rng(0).normal(size=(8, 8)) if whole else 0.0)
    x[0, 1], x[2, 3] = shift, -shift if not whole else shift
    np.fill_diagonal(x, 0.0)
    model = Weighted(num_blocks=2, num_nodes=8)
    return model, model.prepare(x, dtype=torch.float64)


def test_a_hurdle_is_0_or_drawn_from_its_base():
    law = Hurdle(dist.Normal(torch.tensor([1.0, -2.0]), 0.5), torch.tensor([0.3, 0.8]))
    drawn = law.expand((2,)).sample((40_000,))
    assert torch.allclose((drawn != 0).double().mean(0), law.probs, atol=0.01)
    assert torch.allclose(drawn.mean(0), law.mean, atol=0.02) and torch.allclose(drawn.var(0), law.variance, rtol=0.03)
    at = torch.tensor([0.0, 0.7])
    expected = [np.log(0.7), np.log(0.8) - 0.5 * (2.7 / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))]
    assert torch.allclose(law.log_prob(at), torch.tensor(expected))
    signs = Signs(torch.tensor([0.2, 0.5, 0.3]))
    drawn = signs.expand((40_000,)).sample()
    assert float(drawn.mean()) == pytest.approx(float(signs.mean), abs=0.02)
    assert float(drawn.var()) == pytest.approx(float(signs.variance), rel=0.03)
    assert torch.allclose(signs.log_prob(torch.tensor([-1.0, 0.0, 1.0])).exp(), signs.probs)
