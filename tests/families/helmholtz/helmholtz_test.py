"""Helmholtz machines against sums over all states, and what learning climbs against finite differences."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engine_for
from custom_inference.families.helmholtz import search
from custom_inference.families.helmholtz.learning import ImportanceWeighted, Reinforce, ReweightedWakeSleep, WakeSleep
from custom_inference.families.helmholtz.recognition import Recognition, fantasies, log_generative
from custom_inference.families.helmholtz.search import random_start
from custom_inference.families.rows.matrix import BinaryRows
from custom_inference.methods import default_method
from ppl_models import CapacityError, HelmholtzMachine, MethodError, ModelError
from ppl_models.distributions import all_codes
from tests.references import helmholtz_machine as reference

LAYERS = [(2, 3, 4), (3, 5), (1, 2, 2, 4)]


def problem(layers: tuple[int, ...], seed: int = 0):
    rng, model = np.random.default_rng(seed), HelmholtzMachine(layers=layers)
    params = {site: rng.normal(size=shape) for site, shape in model.shapes.items()}
    x = (rng.random((9, layers[-1])) < 0.5).astype(float)
    x[4] = x[1]  # rows that are alike are computed once
    return model, params, x, rng.random(x.shape) > 0.3


def tensors(params):
    return {site: torch.as_tensor(value) for site, value in params.items()}


@pytest.mark.quick
@pytest.mark.parametrize("layers", LAYERS)
def test_evidence_and_posterior_are_sums_over_all_states(layers):
    model, params, x, mask = problem(layers)
    for observed in (None, mask):
        data = model.prepare(x, mask=observed, dtype=torch.float64)
        for local in (
            solve_local(model, tensors(params), data, bound="exact"),
            ci.Exact(generic=True).local_posterior(model, tensors(params), data),
        ):
            assert np.allclose(local.bound, reference.log_evidence(params, x, observed), atol=1e-10)
            assert np.allclose(local.posterior.mean, reference.posterior_mean(params, x, observed), atol=1e-10)


@pytest.mark.quick
@pytest.mark.parametrize("layers", LAYERS)
def test_statistics_are_the_slope_of_the_evidence(layers):
    """By Fisher's identity the slope of the expected log joint at the parameters of the E step is that of log p(x)."""
    model, params, x, mask = problem(layers, 1)
    engine, at = engine_for(model, "exact"), tensors(params)
    rows = engine.rows(model, model.prepare(x, mask=mask, dtype=torch.float64))
    step = engine.e_step(model, at, rows)
    moved = {site: value.clone().requires_grad_() for site, value in at.items()}
    counts, parents = step.statistics, [all_codes(size, dtype=torch.float64) for size in layers[:-1]]
    soft = torch.nn.functional.softplus
    value = moved["bias_0"] @ counts["top"] - counts["rows"] * soft(moved["bias_0"]).sum()
    for layer in range(1, len(layers)):
        odds = moved[f"bias_{layer}"] + parents[layer - 1] @ moved[f"weight_{layer}"]
        value = value + (odds * counts[f"children_{layer}"] - soft(odds) * counts[f"parents_{layer}"]).sum()
    slope = torch.autograd.grad(value, list(moved.values()))
    for (site, found), each in zip(params.items(), slope, strict=True):
        place = np.unravel_index(np.argmax(np.abs(each.numpy())), found.shape)
        sides = []
        for sign in (1, -1):
            other = {name: one.copy() for name, one in params.items()}
            other[site][place] += sign * 1e-5
            sides.append(reference.log_evidence(other, x, mask).sum())
        assert abs((sides[0] - sides[1]) / 2e-5 - float(each[place])) < 1e-6, site


def test_fits_climb_to_a_maximum_of_the_penalised_likelihood():
    example = HelmholtzMachine.example()
    fit = ci.fit(example.model, example.data, progress=False)
    assert float(fit.elbo.diff().min()) > -1e-6
    params = {site: value.numpy() for site, value in fit.params.items() if site in example.model.shapes}
    x = example.data.x.double().numpy()
    for site, value in params.items():
        place, sides = tuple(0 for _ in value.shape), []
        for sign in (1, -1):
            other = {name: one.copy() for name, one in params.items()}
            other[site][place] += sign * 1e-4
            penalty = sum((one**2).sum() for one in other.values()) / 200.0
            sides.append(reference.log_evidence(other, x).sum() - penalty)
        assert abs(sides[0] - sides[1]) / 2e-4 / len(x) < 1e-3, site


def test_bars_reach_the_best_known_optimum():
    """4 x 4 bars by a 1-8-16 machine (004): the divergence of a hand-built network is .056."""
    code = (np.arange(15)[:, None] >> np.arange(4)) & 1
    bars = np.concatenate([np.repeat(code, 4, axis=1), np.tile(code, 4)]).astype(float)
    machine = HelmholtzMachine(layers=(1, 8, 16))
    wide = machine.with_priors(**dict.fromkeys(machine.global_sites, dist.Normal(0.0, 500.0)))
    fit = ci.fit(wide, bars, seed=0, progress=False)
    different, count = np.unique(bars, axis=0, return_counts=True)
    share = count / count.sum()
    divergence = float((share * (np.log(share) - fit.log_likelihood(different).numpy())).sum())
    assert 0 <= divergence < 0.06


# ----- the recognition network ----------------------------------------------------------------------------------------


def network(layers, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Recognition(layers, torch.zeros((), dtype=torch.float64), generator, spread=1.0)


def test_starts_in_groups_climb_as_all_together(monkeypatch):
    model, _, x, mask = problem((2, 3, 4))
    rows = engine_for(model, "exact").rows(model, model.prepare(x, mask=mask, dtype=torch.float64))
    signs = [1.0, -1.0, 0.0, 1.0, 0.0]
    start = random_start(model, rows, torch.Generator().manual_seed(0), signs)
    found = []
    for cells in (2**24, 2 * len(rows.different.ones) * 2**3):  # all at once; two, two and one
        monkeypatch.setattr(search, "_MOST_CELLS", cells)
        found.append(search._climb(model, rows.different, start, len(x), torch.tensor(signs), "weight_2", 20, True))
    for site, value in found[0][0].items():
        assert torch.allclose(value, found[1][0][site], atol=1e-8)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-10)
    weight = found[0][0]["weight_2"]
    assert (weight[[0, 3]] >= 0).all() and (weight[1] <= 0).all()


@pytest.mark.quick
@pytest.mark.parametrize("layers", LAYERS)
def test_recognition_is_a_distribution_over_all_states(layers):
    _, params, x, _ = problem(layers)
    rows, found = torch.as_tensor(x), network(layers)
    posterior = found.posterior(rows, torch.Generator().manual_seed(0))
    assert torch.allclose(posterior.log_weight.exp().sum(1), torch.ones(len(x), dtype=torch.float64))
    # log p of the same codes is the reference's, up to the order in which these are listed
    parts = list(posterior.codes.unsqueeze(1).expand(-1, len(x), -1).split(layers[:-1], -1))
    table = log_generative(tensors(params), parts, rows)
    assert np.allclose(table.logsumexp(0), reference.log_evidence(params, x), atol=1e-10)
    draws = torch.cat(found.sample(rows, 4000, torch.Generator().manual_seed(1)), -1)
    assert float((draws.mean(0) - posterior.mean).abs().max()) < 5 * 0.5 / np.sqrt(4000)


def test_fantasies_have_the_models_moments():
    _, params, _, _ = problem((2, 3, 4))
    drawn = fantasies(tensors(params), (2, 3, 4), 20000, torch.Generator().manual_seed(0))[-1].numpy()
    codes = reference.all_codes(5)
    expected = np.exp(reference.log_hidden(params, codes)) @ reference.visible_probability(params, codes)
    assert np.abs(drawn.mean(0) - expected).max() < 5 * 0.5 / np.sqrt(20000)


@pytest.mark.parametrize("kind", [ReweightedWakeSleep, ImportanceWeighted, Reinforce])
def test_steps_have_the_slope_of_what_they_climb(kind):
    """The mean of the steps' gradients over all pairs of states, weighted by q, against the slope of the exact mean."""
    layers, settings = (1, 2, 3), kind(particles=2)
    _, params, x, _ = problem(layers)
    at = {site: torch.tensor(value, requires_grad=True) for site, value in params.items()}
    rows, found = torch.as_tensor(x[:1]), network(layers)
    every = all_codes(3, dtype=torch.float64)
    pairs = torch.cartesian_prod(torch.arange(8), torch.arange(8))
    hidden = list(every[pairs.T].split(layers[:-1], -1))  # (2, 64, n_l): every pair of draws is a row
    below = rows.expand(64, -1)
    log_p, log_q = log_generative(at, hidden, below), found.log_prob(below, hidden)
    chance = log_q.sum(0).exp()
    none = torch.zeros(1, dtype=torch.float64)
    gains = [settings.surrogate(log_p[:, [place]], log_q[:, [place]], none) for place in range(64)]
    surrogate = chance.detach() @ torch.stack(gains)
    changed = [*at.values(), *(found.parameters() if kind is not ReweightedWakeSleep else [])]
    step = torch.autograd.grad(surrogate, changed, retain_graph=True)
    f = log_p - log_q
    objective = {
        Reinforce: (chance * f.mean(0)).sum(),
        ImportanceWeighted: (chance * (f.logsumexp(0) - np.log(2.0))).sum(),
        ReweightedWakeSleep: (chance.detach() * (f.logsumexp(0) - np.log(2.0))).sum(),  # of p alone, at draws from q
    }[kind]
    for one, exact in zip(step, torch.autograd.grad(objective, changed), strict=True):
        assert torch.allclose(one, exact, atol=1e-10)


@pytest.mark.parametrize("kind", [WakeSleep, ReweightedWakeSleep, ImportanceWeighted, Reinforce])
def test_recognition_methods_learn(kind):
    """Three images, one of them on at a time: far better than independent pixels, and never above the evidence."""
    generator = torch.Generator().manual_seed(0)
    images = torch.kron(torch.eye(3), torch.ones(1, 3))
    x = images[torch.randint(3, (300,), generator=generator)]
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.05, 1 - x, x).double()
    fit = kind(steps=600, batch_size=50, learning_rate=0.03).fit(HelmholtzMachine(layers=(3, 9)), x, progress=False)
    mean = x.mean(0)
    independent = float((x * mean.log() + (1 - x) * (1 - mean).log()).sum(1).mean())
    exact = fit.log_likelihood()
    assert float(exact.mean()) > independent + 1.0
    assert bool((fit.local.bound <= exact + 1e-9).all())


def test_a_network_is_learned_at_given_globals():
    """What ``compare`` asks for: sleep alone brings q near the exact posterior."""
    example = HelmholtzMachine.example()
    truth = {site: example.truth[site].double() for site in example.model.shapes}
    data = example.model.prepare(example.data, dtype=torch.float64)
    found = ReweightedWakeSleep(steps=500, learning_rate=0.03).local_posterior(example.model, truth, data)
    exact = solve_local(example.model, truth, data, bound="exact")
    gap = float((exact.bound - found.bound).mean())
    assert 0 <= gap < 0.1


def test_steps_that_are_interrupted_are_kept(monkeypatch):
    example, calls = HelmholtzMachine.example(), []

    def stops(*arguments):
        calls.append(1)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return arguments[1].mean()

    monkeypatch.setattr(WakeSleep, "surrogate", stops)
    fit = WakeSleep(steps=20).fit(example.model, example.data, progress=False)
    assert fit.interrupted and "5 steps" in fit.status and len(fit.elbo) == 5


@pytest.mark.parametrize("layers", LAYERS)
def test_annealed_importance_sampling_finds_the_evidence_and_the_posterior(layers):
    model, params, x, mask = problem(layers, 2)
    data = model.prepare(x, mask=mask, dtype=torch.float64)
    local = ci.AIS(seconds=2.0).local_posterior(model, tensors(params), data)
    exact = reference.log_evidence(params, x, mask)
    assert local.standard_error is not None
    assert (np.abs(local.bound.numpy() - exact) < 5 * local.standard_error.numpy() + 1e-9).all()
    assert np.abs(local.posterior.mean.numpy() - reference.posterior_mean(params, x, mask)).max() < 0.15


def test_machines_beyond_exact_sums_are_learned_by_a_network(tmp_path):
    x = (torch.rand(60, 12, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    model = HelmholtzMachine(layers=(3, 15, 12))
    fit = ci.fit(model, x, steps=30, method="reweighted_wake_sleep", progress=False)
    assert type(default_method(model, None)) is ReweightedWakeSleep
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"))
    assert torch.allclose(loaded.posterior.mean, fit.posterior.mean)
    assert loaded.transform(x[:5]).shape == (5, 18) and bool(torch.isfinite(loaded.log_likelihood(x[:5])).all())


def test_a_random_start_suits_the_columns():
    x = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    model = HelmholtzMachine(layers=(2, 3))
    start = random_start(model, BinaryRows(x), torch.Generator().manual_seed(0), [1.0, -1.0, 0.0])
    assert bool((start["weight_1"][0] >= 0).all()) and bool((start["weight_1"][1] <= 0).all())
    middle = start["bias_1"][2] + 0.5 * start["weight_1"][2].sum(0)
    assert torch.allclose(torch.sigmoid(middle), (x.sum(0) + 0.5) / 3)


@pytest.mark.parametrize("layers", [(3,), (), (2, 0), (2, 1.5), (True, 3)])
def test_layers_that_are_none_are_refused(layers):
    with pytest.raises(ModelError, match="layers = .*, expected"):
        HelmholtzMachine(layers=layers)


def test_what_cannot_be_done_is_refused():
    x = (torch.arange(20)[:, None] + torch.arange(30)) % 2.0
    with pytest.raises(CapacityError, match="20 hidden units; at most 16"):
        ci.EM().fit(HelmholtzMachine(layers=(2, 18, 30)), x, progress=False)
    with pytest.raises(ModelError, match="expected the last two to be 4 components and 30 columns"):
        HelmholtzMachine.for_data(HelmholtzMachine(layers=(1, 2, 30)).prepare(x), 4, layers=(2, 3, 30))
    with pytest.raises(MethodError, match="particles = 1, expected"):
        Reinforce(particles=1)
    with pytest.raises(MethodError, match="optimizer = 'newton'"):
        WakeSleep(optimizer="newton")
