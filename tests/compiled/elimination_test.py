"""Sums over variables by elimination against those over all values together, written in NumPy."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from custom_inference.compiled.elimination import Plan
from custom_inference.core.posteriors.protocol import draw_slots

pytestmark = pytest.mark.quick

ROWS = 4


def graph(seed):
    """Sizes of variables, scopes of factors, and their tables, of some factors the same in all rows."""
    rng = np.random.default_rng(seed)
    sizes = tuple(int(s) for s in rng.integers(1, 5, rng.integers(1, 7)))
    number = rng.integers(len(sizes), 2 * len(sizes) + 2)
    scopes = [tuple(int(v) for v in rng.permutation(len(sizes))[: rng.integers(0, 4)]) for _ in range(number)]
    scopes += [(v,) for v in range(len(sizes)) if not any(v in scope for scope in scopes)]
    shared = rng.random(len(scopes)) < 0.5
    shared[-1] = False
    tables = [
        2 * rng.standard_normal((1 if one else ROWS, *(sizes[v] for v in scope)))
        for scope, one in zip(scopes, shared, strict=True)
    ]
    return sizes, scopes, tables


def chain(seed):
    """A chain whose tables of data are of rows, and whose moves are of all rows together."""
    rng = np.random.default_rng(seed)
    sizes = (3, 2, 4, 3, 2, 3)
    pairs = list(itertools.pairwise(range(6)))
    scopes = [(0,), *pairs, *((v,) for v in range(6))]
    return sizes, scopes, [
        2 * rng.standard_normal((1 if place <= len(pairs) else ROWS, *(sizes[v] for v in scope)))
        for place, scope in enumerate(scopes)
    ]  # fmt: skip


GRAPHS = pytest.mark.parametrize("made", [*(graph(seed) for seed in range(25)), *(chain(seed) for seed in range(3))])


def joint_of(sizes, scopes, tables):
    """The logarithms (N, *sizes) of the product at all values."""
    total = np.zeros((ROWS, *sizes))
    for values in itertools.product(*map(range, sizes)):
        for scope, table in zip(scopes, tables, strict=True):
            total[(slice(None), *values)] += table[(slice(None), *(values[v] for v in scope))]
    return total


def margin(probability, scope):
    """Sum (N, *sizes) over all but a scope."""
    rest = tuple(1 + v for v in range(probability.ndim - 1) if v not in scope)
    kept = sorted(scope)
    return probability.sum(rest).transpose(0, *(1 + kept.index(v) for v in scope))


def tensors(tables):
    return [torch.as_tensor(table) for table in tables]


@GRAPHS
def test_totals_and_largest_terms(made):
    sizes, scopes, tables = made
    plan, joint = Plan.of(scopes, sizes), joint_of(*made).reshape(ROWS, -1)
    assert np.allclose(plan.total(tensors(tables)), logsumexp(joint, axis=1), rtol=0, atol=1e-10)
    assert np.allclose(plan.total(tensors(tables), "max"), joint.max(1), rtol=0, atol=1e-10)
    assert plan.width <= np.prod(sizes, dtype=float)


@GRAPHS
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_marginals(made, weighted):
    """Of factors of rows those of each, of others their sum over rows; both by the rows' weights."""
    sizes, scopes, tables = made
    joint = joint_of(*made)
    evidence = logsumexp(joint.reshape(ROWS, -1), axis=1)
    weight = np.array([0.5, 2.0, 0.0, 1.5]) if weighted else np.ones(ROWS)
    probability = np.exp(joint - evidence.reshape(-1, *[1] * len(sizes)))
    total, found = Plan.of(scopes, sizes).marginals(tensors(tables), torch.as_tensor(weight) if weighted else None)
    assert np.allclose(total, evidence, rtol=0, atol=1e-10)
    for scope, table, own in zip(scopes, tables, found, strict=True):
        each = margin(probability, scope) * weight.reshape(-1, *[1] * len(scope))
        expected = each if len(table) > 1 else each.sum(0, keepdims=True)
        assert own.shape == table.shape and np.allclose(own, expected, rtol=0, atol=1e-10), scope


@GRAPHS
def test_the_most_probable_values_have_the_largest_term(made):
    sizes, scopes, tables = made
    joint = joint_of(*made)
    values = Plan.of(scopes, sizes).decode(tensors(tables), lambda weight: weight.argmax(-1), "max")
    assert values.shape == (ROWS, len(sizes))
    own = joint[(np.arange(ROWS), *values.T.numpy())]
    assert np.allclose(own, joint.reshape(ROWS, -1).max(1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("made", [*(graph(seed) for seed in (1, 4, 7)), chain(0)])
def test_draws_have_the_frequencies_of_the_values(made):
    """Of every pair of variables, within five standard errors."""
    sizes, scopes, tables = made
    joint, number = joint_of(*made), 4000
    probability = np.exp(joint - logsumexp(joint.reshape(ROWS, -1), axis=1).reshape(-1, *[1] * len(sizes)))
    generator = torch.Generator().manual_seed(0)

    def choose(weight):
        return draw_slots(torch.log_softmax(weight, -1), 1, generator)[:, 0]

    plan = Plan.of(scopes, sizes)
    drawn = plan.decode(tensors(tables), choose, "sum", number).reshape(number, ROWS, -1).numpy()
    for pair in itertools.combinations(range(len(sizes)), min(2, len(sizes))):
        expected = margin(probability, pair)
        for row in range(ROWS):
            share = np.zeros(expected.shape[1:])
            np.add.at(share, tuple(drawn[:, row, v] for v in pair), 1 / number)
            error = np.sqrt(expected[row] * (1 - expected[row]) / number)
            assert np.all(np.abs(share - expected[row]) < 5 * error + 2 / number), pair
    single = plan.decode(tensors(tables), choose, "sum")
    assert single.shape == (ROWS, len(sizes)) and bool((single < torch.tensor(sizes)).all())


@pytest.mark.parametrize("gap", [700.0, 720.0, 744.0, 900.0, 1e4])
def test_what_probabilities_are_too_small_for_is_summed_in_logarithms(gap):
    """The only state that explains the first step cannot move but with probability exp(-gap)."""
    first = np.tile([0.0, -2 * gap - 50], (ROWS, 1))
    move, step = np.array([[[-gap, 0.0], [0.0, -1.0]]]), np.log([[[0.3, 0.7], [0.6, 0.4]]])
    second = np.tile([0.0, -3 * gap - 70], (ROWS, 1))
    made = (2, 2, 2), [(0,), (0, 1), (1,), (1, 2)], [first, move, second, step]
    plan, joint = Plan.of(made[1], made[0]), joint_of(*made)
    expected = logsumexp(joint.reshape(ROWS, -1), axis=1)
    total, found = plan.marginals(tensors(made[2]))
    assert np.allclose(total, expected, rtol=1e-13, atol=0)
    assert np.allclose(plan.total(tensors(made[2])), expected, rtol=1e-13, atol=0)
    probability = np.exp(joint - expected[:, None, None, None])
    for scope, own in zip(made[1], found, strict=True):
        each = margin(probability, scope)
        assert np.allclose(own, each if len(own) > 1 else each.sum(0, keepdims=True), rtol=0, atol=1e-12)


def test_single_precision_falls_back_as_well():
    first, move = torch.tensor([[0.0, -300.0]]).expand(ROWS, 2), torch.tensor([[[-100.0, 0.0], [0.0, -1.0]]])
    second, step = torch.tensor([[0.0, -400.0]]).expand(ROWS, 2), torch.full((1, 2, 2), 0.5).log()
    total = Plan.of([(0,), (0, 1), (1,), (1, 2)], (2, 2, 2)).total([first, move, second, step])
    assert torch.allclose(total, torch.full((ROWS,), -100.0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("nothing", [-np.inf, -1e30])
@pytest.mark.parametrize("seed", range(3))
def test_what_cannot_be_has_no_probability(seed, nothing):
    """Of moves and of values in single rows, also where nothing leads on from a value."""
    sizes, scopes, tables = chain(seed)
    tables[1][0, 1, :] = tables[2][0, :, 0] = nothing
    for table in tables[len(scopes) - len(sizes) :]:
        table[0, 0] = nothing
    joint = joint_of(sizes, scopes, tables)
    evidence = logsumexp(joint.reshape(ROWS, -1), axis=1)
    probability = np.exp(joint - evidence.reshape(-1, *[1] * len(sizes)))
    total, found = Plan.of(scopes, sizes).marginals(tensors(tables))
    assert np.isfinite(evidence).all() and np.allclose(total, evidence, rtol=0, atol=1e-10)
    for scope, own in zip(scopes, found, strict=True):
        each = margin(probability, scope)
        assert np.allclose(own, each if len(own) > 1 else each.sum(0, keepdims=True), rtol=0, atol=1e-10), scope
