"""Chains of latents, whose values together are beyond any table, by the sums of their factors: in all that is fitted
and asked for, against the forward and the Viterbi recursion."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

from custom_inference import (
    NUTS,
    SVI,
    Exact,
    Fit,
    bootstrap,
    fit,
    marginal_likelihood,
    methods_for,
    observed_information,
)
from custom_inference.compiled.derive import structure_of
from custom_inference.compiled.labels import find_places, reorder, reorder_draws
from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.core.local_inference import is_feasible, solve_local
from custom_inference.core.over_draws import FactorMixture
from custom_inference.core.posterior_bounds import bound_of
from custom_inference.core.posteriors.finite import kullback_leibler
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import bind_rows, enumerate_table, row_evidence
from ppl_models import MethodError, RowModel
from ppl_models.core.sites import Site
from tests.programs._own import ROW

STATES, SYMBOLS = 3, 4
SIMPLEX = constraints.simplex


def chain_of(length: int, prior: float = 2.0) -> RowModel:
    """A hidden Markov chain a row: a latent a step."""

    @dataclass(frozen=True, kw_only=True, eq=False)
    class Chain(RowModel):
        """States that are not seen, and a symbol of each."""

        num_states: int = STATES
        num_symbols: int = SYMBOLS
        num_steps: int = length

        axes: ClassVar = {"state": "num_states", "to_state": "num_states", "symbol": "num_symbols", "step": "num_steps"}
        sites: ClassVar = {
            "start": Site("global", ("state",), support=SIMPLEX),
            "move": Site("global", ("state", "to_state"), support=SIMPLEX),
            "emit": Site("global", ("state", "symbol"), support=SIMPLEX),
            **{f"z{t}": Site("latent", (), plates=ROW, choice="state") for t in range(length)},
            "x": Site("observed", ("step",), plates=ROW, support=constraints.nonnegative_integer),
        }

        def default_priors(self):
            sizes = {"start": STATES, "move": STATES, "emit": SYMBOLS}
            return {site: dist.Dirichlet(torch.full((size,), prior)) for site, size in sizes.items()}

        def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
            start, move, emit = self.sample("start"), self.sample("move"), self.sample("emit")
            with self.rows(x, mask, batch_size, num_rows) as rows:
                every = [pyro.sample("z0", dist.Categorical(start))]
                for t in range(1, self.num_steps):
                    every.append(pyro.sample(f"z{t}", dist.Categorical(move[every[-1]])))
                return rows.observe("x", dist.Categorical(torch.stack([emit[z] for z in every], -2)))

    return Chain()


def globals_of(seed: int) -> dict[str, torch.Tensor]:
    generator = np.random.default_rng(seed)
    parts = {"start": (STATES,), "move": (STATES, STATES), "emit": (STATES, SYMBOLS)}
    return {s: torch.as_tensor(generator.dirichlet(np.ones(n[-1]), n[:-1])).reshape(n) for s, n in parts.items()}


def rows_of(number: int, length: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    move, emit = 0.8 * np.eye(STATES) + 0.2 / STATES, generator.dirichlet(np.full(SYMBOLS, 0.3), STATES)
    x = np.zeros((number, length))
    for row in x:
        state = generator.integers(STATES)
        for t in range(length):
            row[t] = generator.choice(SYMBOLS, p=emit[state])
            state = generator.choice(STATES, p=move[state])
    return x


def forward(params, x: np.ndarray) -> np.ndarray:
    """log p(x_n), by the forward recursion."""
    start, move, emit = (np.log(np.asarray(params[s], float)) for s in ("start", "move", "emit"))
    level = start + emit[:, x[:, 0].astype(int)].T
    for t in range(1, x.shape[1]):
        level = np.logaddexp.reduce(level[:, :, None] + move, 1) + emit[:, x[:, t].astype(int)].T
    return np.logaddexp.reduce(level, 1)


def marginals(params, x: np.ndarray) -> np.ndarray:
    """p(z_t | x_n) (N, T, S), by the forward and the backward recursion."""
    start, move, emit = (np.asarray(params[s], float) for s in ("start", "move", "emit"))
    seen = emit[:, x.astype(int)].transpose(1, 2, 0)
    ahead, behind = [start * seen[:, 0]], [np.ones((len(x), STATES))]
    for t in range(1, x.shape[1]):
        ahead.append((ahead[-1] @ move) * seen[:, t])
        behind.append((behind[-1] * seen[:, -t]) @ move.T)
    joint = np.stack(ahead, 1) * np.stack(behind[::-1], 1)
    return joint / joint.sum(-1, keepdims=True)


def viterbi(params, x: np.ndarray) -> np.ndarray:
    """The most probable path (N, T)."""
    start, move, emit = (np.log(np.asarray(params[s], float)) for s in ("start", "move", "emit"))
    level, back = start + emit[:, x[:, 0].astype(int)].T, []
    for t in range(1, x.shape[1]):
        each = level[:, :, None] + move
        back.append(each.argmax(1))
        level = each.max(1) + emit[:, x[:, t].astype(int)].T
    path = [level.argmax(1)]
    for came in back[::-1]:
        path.append(came[np.arange(len(x)), path[-1]])
    return np.stack(path[::-1], 1)


LONG = chain_of(40)
LONG_ROWS = rows_of(25, 40)


@pytest.fixture(scope="module")
def long_fit() -> Fit:
    return fit(LONG, LONG_ROWS, init=globals_of(3), max_iterations=20, progress=False)


def test_the_evidence_and_its_gradient_are_those_of_the_table():
    model, x, params = chain_of(5), rows_of(12, 5), globals_of(0)
    density = RowDensity.of(model, params, model.prepare(x).to(dtype=torch.float64))
    leaves = [{s: v.clone().requires_grad_() for s, v in params.items()} for _ in range(2)]
    found, expected = row_evidence(density)(leaves[0]), enumerate_table(density.at(leaves[1])).log_joint.logsumexp(-1)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    for site in params:
        torch.testing.assert_close(leaves[0][site].grad, leaves[1][site].grad)
    many = torch.stack([v["start"] for v in (globals_of(n) for n in range(4))])
    evaluate = row_evidence(density)
    together = torch.vmap(lambda start: evaluate({**params, "start": start}))(many)
    torch.testing.assert_close(together, torch.stack([evaluate({**params, "start": one}) for one in many]))


@pytest.mark.parametrize("guide", ["delta", "normal"])
def test_points_and_normals_of_the_globals_are_learned_with_the_chain_summed_out(guide):
    x = rows_of(20, 12)
    found = SVI(guide=guide, steps=15).fit(chain_of(12), x, progress=False)
    np.testing.assert_allclose(found.log_likelihood(), forward(found.params, x), rtol=1e-5)
    if guide == "delta":
        assert abs(found.data_term - forward(found.params, x).sum()) < 1e-3 * len(x)


def test_chains_of_globals_are_drawn_with_the_latents_summed_out_and_averaged_over():
    x = rows_of(8, 12)
    found = NUTS(num_samples=4, warmup=4, chains=1, max_tree_depth=3).fit(
        chain_of(12), x, init=globals_of(1), progress=False, dtype=torch.float64
    )
    assert found.draws is not None
    draws = [{site: value[0, n] for site, value in found.draws.items()} for n in range(4)]
    posterior = found.posterior
    assert isinstance(posterior, FactorMixture)
    expected = np.mean([marginals(one, x) for one in draws], 0)
    np.testing.assert_allclose(posterior.mean.reshape(8, 12, STATES), expected, atol=1e-9)
    values, log_weight = found.posteriors["z7"].table()
    np.testing.assert_allclose(log_weight.exp() @ values, expected[:, 7], atol=1e-9)
    path = viterbi(draws[2], x)
    code = torch.nn.functional.one_hot(torch.as_tensor(path), STATES).double().flatten(1)
    each = [_log_joint(one, x, path) - forward(one, x) for one in draws]
    np.testing.assert_allclose(posterior.log_prob(code), np.logaddexp.reduce(each, 0) - np.log(4), rtol=1e-8)
    assert bool((posterior.log_prob(posterior.mode) >= posterior.log_prob(code) - 1e-9).all())
    drawn = posterior.sample(3)
    assert torch.equal(drawn.reshape(3, 8, 12, STATES).sum(-1), torch.ones(3, 8, 12).double())


def _log_joint(params, x: np.ndarray, path: np.ndarray) -> np.ndarray:
    start, move, emit = (np.log(np.asarray(params[s], float)) for s in ("start", "move", "emit"))
    total = start[path[:, 0]] + emit[path, x.astype(int)].sum(1)
    return total + move[path[:, :-1], path[:, 1:]].sum(1)


@pytest.mark.parametrize(("globals_", "learner"), [("nuts", "NUTS"), ("normal", "SVI(normal)")])
def test_exact_learns_the_globals_of_chains_in_every_way(globals_, learner, monkeypatch):
    made = {"nuts": NUTS(num_samples=2, warmup=2, chains=1, max_tree_depth=2), "normal": SVI(guide="normal", steps=10)}
    monkeypatch.setattr(Exact, "_learner", lambda self, model: made[self.globals_])
    x = rows_of(6, 12)
    found = Exact(globals_=globals_).fit(chain_of(12), x, init=globals_of(1), progress=False)
    assert found.method_name == f"Exact({learner})"
    np.testing.assert_allclose(found.log_likelihood(), forward(found.params, x), rtol=1e-5)


def test_the_marginal_likelihood_of_a_chain_with_known_globals_is_the_recursion():
    x, params = rows_of(6, 12), globals_of(2)
    found = marginal_likelihood(chain_of(12).with_priors(**params), x, progress=False)
    assert abs(found.log_evidence - forward(params, x).sum()) < 1e-3


def test_standard_errors_are_the_curvature_of_the_recursion():
    x, params = rows_of(60, 12), globals_of(2)
    model = chain_of(12).with_priors(start=params["start"], emit=params["emit"])
    found = fit(model, x, tolerance=1e-12, max_iterations=2000, dtype=torch.float64, progress=False)
    errors = observed_information(found).standard_error["move"]
    centre, free = np.asarray(found.params["move"]), STATES * (STATES - 1)

    def objective(logits):
        move = np.exp(np.concatenate([logits.reshape(STATES, -1), np.zeros((STATES, 1))], 1))
        move /= move.sum(1, keepdims=True)
        return forward({**params, "move": move}, x).sum() + np.log(move).sum(), move  # Dirichlet(2)

    at, step = np.log(centre[:, :-1] / centre[:, -1:]).ravel(), 1e-4
    bend, slope = np.zeros((free, free)), np.zeros((free, centre.size))
    for i, j in itertools.product(range(free), repeat=2):
        signs = [(a, b) for a in (1, -1) for b in (1, -1)]
        moves = [a * step * np.eye(free)[i] + b * step * np.eye(free)[j] for a, b in signs]
        bend[i, j] = sum(a * b * objective(at + d)[0] for (a, b), d in zip(signs, moves, strict=True)) / (4 * step**2)
    for i in range(free):
        d = step * np.eye(free)[i]
        slope[i] = ((objective(at + d)[1] - objective(at - d)[1]) / (2 * step)).ravel()
    expected = np.sqrt(np.einsum("im,ij,jm->m", slope, np.linalg.inv(-bend), slope)).reshape(centre.shape)
    np.testing.assert_allclose(errors, expected, rtol=1e-3)


def test_a_long_chain_has_its_posterior_by_factors(long_fit):
    assert is_feasible(LONG, long_fit.data)
    expected, posteriors = marginals(long_fit.params, LONG_ROWS), long_fit.posteriors
    path = viterbi(long_fit.params, LONG_ROWS)
    np.testing.assert_allclose(long_fit.log_likelihood(), forward(long_fit.params, LONG_ROWS), rtol=1e-5)
    assert isinstance(long_fit.posterior, FactorPosterior)
    found = long_fit.posterior.mode.reshape(-1, 40, STATES).argmax(-1)
    np.testing.assert_allclose(
        _log_joint(long_fit.params, LONG_ROWS, np.asarray(found)),
        _log_joint(long_fit.params, LONG_ROWS, path), rtol=1e-6,
    )  # fmt: skip
    one = posteriors["z5"]
    np.testing.assert_allclose(one.mean, expected[:, 5], atol=1e-5)
    np.testing.assert_allclose(one.variance, expected[:, 5] * (1 - expected[:, 5]), atol=1e-5)
    assert torch.equal(one.mode.argmax(-1), one.mean.argmax(-1))
    np.testing.assert_allclose(one.log_prob(one.mode), np.log(expected[:, 5].max(-1)), atol=1e-5)
    often = one.sample(400).mean(0)
    assert float((often - torch.as_tensor(expected[:, 5])).abs().max()) < 6 * 0.5 / 20


def test_codes_that_are_no_values_have_no_probability(long_fit):
    code = long_fit.posterior.mode.clone()
    code[0, :STATES] = 1
    found = long_fit.posterior.log_prob(torch.stack([code, long_fit.posterior.mode]))
    assert found[0, 0] == -torch.inf
    assert bool(torch.isfinite(found[1]).all())


def test_bounds_and_divergences_of_chains_are_differences_of_their_evidences(long_fit):
    data, other = long_fit.data.to(dtype=torch.float64), globals_of(9)
    params = {site: value.double() for site, value in long_fit.globals.items()}
    own, of_other = (solve_local(LONG, one, data).posterior for one in (params, other))
    np.testing.assert_allclose(bound_of(LONG, params, data, own), forward(params, LONG_ROWS), rtol=1e-9)
    divergence = kullback_leibler(own, of_other)
    draws = own.sample(300)
    each = own.log_prob(draws) - of_other.log_prob(draws)
    error = each.std(0) / 300**0.5
    assert bool(((each.mean(0) - divergence).abs() <= 6 * error + 1e-9).all())
    assert float(kullback_leibler(own, own).abs().max()) < 1e-9


def test_divergences_of_short_chains_by_factors_are_those_of_tables():
    model, x = chain_of(4), rows_of(7, 4)
    data = model.prepare(x).to(dtype=torch.float64)
    tables = [solve_local(model, globals_of(n), data).posterior for n in (0, 1)]
    bound = bind_rows(RowDensity.of(model, globals_of(0), data))
    assert bound is not None
    factors = [FactorPosterior(bound, bound.structure.entries.flatten(globals_of(n))) for n in (0, 1)]
    expected = kullback_leibler(*tables)
    torch.testing.assert_close(kullback_leibler(*factors), expected)
    torch.testing.assert_close(kullback_leibler(tables[0], factors[1]), expected)


def test_guides_of_all_values_of_a_chain_refuse_it_and_are_not_offered():
    assert not {"mean_field", "amortized"} & set(methods_for(LONG))
    with pytest.raises(MethodError, match=r"EM\(\)"):
        SVI(guide="mean_field").fit(LONG, LONG_ROWS, progress=False)


def test_states_that_change_places_between_draws_are_brought_into_one_order(long_fit):
    generator = torch.Generator().manual_seed(0)
    centre = {site: value.double() for site, value in long_fit.globals.items()}
    orders = [torch.randperm(STATES, generator=generator) for _ in range(12)]
    noise = [torch.randn(1, generator=generator) * 1e-3 for _ in orders]

    def named(order, shift):
        moved = {site: value[order] for site, value in centre.items()}
        moved["move"] = moved["move"][:, order]
        return {site: value * (1 + float(shift)) for site, value in moved.items()}

    each = [named(*pair) for pair in zip(orders, noise, strict=True)]
    draws = {site: torch.stack([one[site] for one in each]).unflatten(0, (2, 6)) for site in centre}
    found = reorder_draws(LONG, draws)
    last = orders[5]
    for site, value in found.items():
        spread = value / (1 + torch.stack(noise).reshape(2, 6, *[1] * (value.ndim - 2)))
        torch.testing.assert_close(spread, spread[:1, :1].expand_as(spread), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(spread[0, 0], named(last, 0.0)[site], rtol=1e-6, atol=1e-9)


def test_latents_follow_the_order_of_their_states(long_fit):
    params = {site: value.double() for site, value in long_fit.globals.items()}
    order = torch.tensor([2, 0, 1])
    moved = {site: value[order] for site, value in params.items()}
    moved["move"] = moved["move"][:, order]
    path = torch.as_tensor(viterbi(params, LONG_ROWS))
    renamed = {f"z{t}": torch.argsort(order)[path[:, t]] for t in range(40)}
    found = reorder(LONG, moved | renamed, params)
    for site, value in params.items():
        torch.testing.assert_close(found[site], value)
    assert all(torch.equal(found[f"z{t}"], path[:, t]) for t in range(40))


def test_priors_that_tell_states_apart_keep_them_in_place():
    lopsided = dist.Dirichlet(torch.tensor([5.0, 1.0, 1.0]))
    x = rows_of(6, 4)
    for model, number in ((chain_of(4), 1), (chain_of(4).with_priors(start=lopsided), 0)):
        structure_of(model, model.prepare(x))
        assert len(find_places(model)) == number


def test_refits_of_resampled_rows_are_in_the_order_of_the_fit():
    x = rows_of(40, 6)
    own = fit(chain_of(6), x, init=globals_of(3), max_iterations=30, progress=False)
    found = bootstrap(own, draws=3, progress=False)
    assert set(found.standard_error) == {"start", "move", "emit"}
    reference = own.globals
    for number in range(3):
        one = {site: value[number] for site, value in found.draws.items()}
        again = reorder(own.model, one, reference)
        assert all(torch.equal(again[site], one[site]) for site in one)
