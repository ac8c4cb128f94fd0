"""CD, persistent CD, parallel tempering and annealed importance sampling against exact sums."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.method import Call
from custom_inference.core.progress import Progress
from custom_inference.families.boltzmann.annealing import estimate_log_partition, log_pseudo_likelihood
from custom_inference.families.boltzmann.chains import Chains
from custom_inference.families.boltzmann.common import HarmoniumRows
from custom_inference.families.boltzmann.slopes import BinarySlopes, UniformNumbers
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence, ParallelTempering, PersistentCD
from custom_inference.families.boltzmann.training import Training
from ppl_models import RBM, MethodError, ReplicatedSoftmax
from tests.references import rbm as reference
from tests.references._shared import all_codes
from tests.support.fits import given

SITES = ("weight", "visible_bias", "hidden_bias")


def machine(hidden, visible, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (hidden, visible), "visible_bias": (visible,), "hidden_bias": (hidden,)}
    params = {
        site: scale * torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in shapes.items()
    }
    return RBM(num_hidden=hidden, num_features=visible), params


def training(method, model, data, params, seed=0):
    """What a fit by the method begins with, at given parameters."""
    return Training(method, model, data, Call(seed, params, False, torch.float64, None))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("kind", [PersistentCD, ParallelTempering])
def test_slopes_of_long_chains_are_exact(kind, centred):
    """Many chains after many sweeps: the reference's gradient, turned by what centring does to it."""
    model, params = machine(3, 5, 0)
    x = torch.bernoulli(torch.full((40, 5), 0.4), generator=torch.Generator().manual_seed(1))
    data = model.prepare(x, dtype=torch.float64)
    method = kind(chains=8000, sweeps=25, batch_size=40, centred=centred, weight_decay=0.0)
    state = training(method, model, data, params)
    found = state.weights.parts(state.slopes.of_posterior(torch.arange(40)))
    exact = reference.gradient({site: value.numpy() for site, value in params.items()}, x.numpy())
    if centred:
        mu, level = x.mean(0).numpy(), np.full(3, 0.5)
        weight = exact["weight"] - np.outer(level, exact["visible_bias"]) - np.outer(exact["hidden_bias"], mu)
        exact = {
            "weight": weight,
            "visible_bias": exact["visible_bias"] - level @ weight,
            "hidden_bias": exact["hidden_bias"] - weight @ mu,
        }
    for site in SITES:
        assert np.abs(found[site].numpy() - exact[site]).max() < 0.05, site


def test_contrastive_divergence_goes_from_the_rows():
    """The expected CD-1 slope, by all codes of both layers (algorithm 27.3)."""
    model, params = machine(2, 3, 3)
    x = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]).repeat(10000, 1)
    state = training(ContrastiveDivergence(batch_size=20000, centred=False), model, model.prepare(x), params)
    found = state.weights.parts(state.slopes.of_likelihood(torch.arange(20000)))
    values = {site: value.numpy() for site, value in params.items()}
    hidden, visible, expected = all_codes(2), all_codes(3), np.zeros((2, 3))
    for row in x[:2].numpy():
        mean = reference.hidden_probability(values, row[None])[0]
        expected += np.outer(mean, row) / 2
        for h in hidden:
            p_h = np.prod(np.where(h == 1, mean, 1 - mean))
            on = 1 / (1 + np.exp(-(values["visible_bias"] + h @ values["weight"])))
            for v in visible:
                p_v = np.prod(np.where(v == 1, on, 1 - on))
                expected -= p_h * p_v * np.outer(reference.hidden_probability(values, v[None])[0], v) / 2
    assert np.abs(found["weight"].numpy() - expected).max() < 0.02


def test_tempered_chains_reach_both_modes():
    """Two far modes: single chains that start in one stay there; tempered ones have the machine's share of each."""
    weight = torch.full((1, 8), 12.0)
    params = {"weight": weight, "visible_bias": torch.full((8,), -6.0), "hidden_bias": torch.full((1,), -48.0)}
    model = RBM(num_hidden=1, num_features=8)
    energy, share = model.energy(params), {}
    empty = HarmoniumRows(torch.zeros(1, 8), torch.zeros(1))
    for kind, temperatures in (("pcd", 1), ("pt", 8)):
        generator = torch.Generator().manual_seed(0)
        chains = Chains.of(kind, 600, 300, temperatures, energy, torch.zeros(8), empty, generator)
        chains.state = torch.ones_like(chains.state)
        share[kind] = float(chains.negative(energy, empty.statistic, torch.zeros(1, dtype=torch.long)).mean())
    assert share["pcd"] > 0.97 and abs(share["pt"] - 0.5) < 0.15


@cache
def exactly_fitted():
    example = RBM.example()
    return ci.fit(example.model, example.data, progress=False)


@pytest.mark.parametrize("method", ["cd", "pcd", "parallel_tempering"])
def test_stochastic_fits_come_near_the_exact_one(method):
    example, exact = RBM.example(), exactly_fitted()
    fit = ci.fit(example.model, example.data, method=method, max_iterations=600, progress=False)
    assert float(fit.log_likelihood().mean()) > float(exact.log_likelihood().mean()) - (
        0.08 if method == "cd" else 0.04
    )
    assert len(fit.elbo) >= 15 and fit.objective == "estimate"


@pytest.mark.parametrize("settings", [{"visible": "gaussian"}, {"visible": "categorical", "num_categories": 3},
                                      {"hidden": "gaussian"}, {"missing": "absent"}, {}])  # fmt: skip
@pytest.mark.parametrize("method", ["cd", "pcd", "parallel_tempering"])
def test_all_kinds_of_rows_are_learned(settings, method):
    """From random weights the likelihood rises; with entries missing, too."""
    generator = torch.Generator().manual_seed(4)
    factor = torch.randn(80, 1, generator=generator, dtype=torch.float64)
    real = factor + 0.5 * torch.randn(80, 4, generator=generator, dtype=torch.float64)
    kind = settings.get("visible", "binary")
    x = real if kind == "gaussian" else (real > 0).double() + (real > 1).double() * (kind == "categorical")
    mask = torch.rand(x.shape, generator=generator) > (0.0 if "hidden" in settings else 0.2)
    model = RBM(num_hidden=2, num_features=4, **settings)
    more = {"max_iterations": 200, "learning_rate": 0.1} if "gaussian" in settings.values() else {"max_iterations": 120}
    fit = ci.fit(model, x, mask=mask, method=method, batch_size=20, progress=False, **more)
    start = given(model, {site: torch.zeros(shape, dtype=torch.float64) for site, shape in model.shapes.items()},
                  fit.data, bound_name="exact")  # fmt: skip
    if "hidden" not in settings or bool(mask.all()):
        assert float(fit.log_likelihood().mean()) > float(start.log_likelihood().mean()) + 0.1
    assert torch.isfinite(fit.transform()).all()


def test_documents_are_learned():
    example = ReplicatedSoftmax.example()
    exact = ci.fit(example.model, example.data, method="em", progress=False).log_likelihood().mean()
    for method in ("cd", "pcd"):
        fit = ci.fit(example.model, example.data, method=method, max_iterations=80, batch_size=20, progress=False)
        assert float(fit.log_likelihood().mean()) > float(exact) - 0.3, method


def test_rows_held_out_decide_and_stop():
    example = RBM.example()
    settings = {"validation": 0.3, "max_iterations": 400, "patience": 2, "learning_rate": 1.0, "weight_decay": 0.0}
    fit = ci.fit(example.model, example.data, method="pcd", progress=False, **settings)
    watched = fit.details["watched"]
    assert len(watched["held_out"]) == len(watched["free_energy_gap"]) == len(fit.elbo)
    held = fit.data.rows(torch.randperm(200, generator=torch.Generator().manual_seed(0))[:60])
    assert np.isclose(float(fit.log_likelihood(held).mean()), max(watched["held_out"]), atol=1e-4)


def test_an_interrupt_keeps_what_is_there(monkeypatch):
    example, steps = RBM.example(), []

    def update(self, index, share):
        steps.append(share)
        if len(steps) > 30:
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "_update", update)
    fit = ci.fit(example.model, example.data, method="cd", progress=False)
    assert fit.interrupted and "after 15 passes" in fit.status


def test_other_priors_are_differentiated():
    example = RBM.example()
    strong = example.model.with_priors(weight=dist.Laplace(0.0, 0.03))
    fit = ci.fit(strong, example.data, method="pcd", max_iterations=40, centred=False, progress=False)
    free = ci.fit(example.model, example.data, method="pcd", max_iterations=40, centred=False, progress=False)
    assert float(fit.params["weight"].abs().mean()) < 0.6 * float(free.params["weight"].abs().mean())
    with pytest.raises(MethodError, match="'hidden_bias' is fixed"):
        ci.fit(example.model.with_priors(hidden_bias=0.0), example.data, method="pcd", progress=False)
    with pytest.raises(MethodError, match="sweeps = 0"):
        ContrastiveDivergence(sweeps=0)


@pytest.mark.parametrize("seed", range(4))
def test_annealing_from_both_ends_brackets_log_z(seed):
    for hidden, visible in ((3, 5), (6, 4), (5, 9), (8, 6), (10, 8)):
        model, params = machine(hidden, visible, seed)
        energy = model.energy(params)
        exact = float(energy.log_partition())
        generator = torch.Generator().manual_seed(seed)
        found = estimate_log_partition(
            energy, params["visible_bias"] * 0, temperatures=300, reverse=True, generator=generator
        )
        assert found.value - 4 * found.standard_error - 0.01 < exact < found.reverse + 4 * found.reverse_error + 0.01
        assert abs(float(found.value) - exact) < 5 * float(found.standard_error) + 0.01


def test_the_likelihood_of_large_machines_is_an_estimate_by_name():
    generator = torch.Generator().manual_seed(0)
    model = RBM(num_hidden=24, num_features=26)
    params = {
        site: 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in model.shapes.items()
    }
    params["weight"][8:] = 0  # the sum over the units without weights has a closed form
    x = torch.bernoulli(torch.full((30, 26), 0.5), generator=generator)
    fit = given(model, params, model.prepare(x, dtype=torch.float64), bound_name="exact")
    small = RBM(num_hidden=8, num_features=26)
    few = {site: value if site == "visible_bias" else value[:8] for site, value in params.items()}
    exact = given(small, few, fit.data, bound_name="exact").log_likelihood()
    assert np.allclose(fit.log_likelihood(), exact, atol=0.05) and np.isfinite(fit.bic())
    assert torch.allclose(fit.transform()[:, :8], given(small, few, fit.data, bound_name="exact").transform())
    found = ci.log_partition(fit, temperatures=500)
    assert float(found.reverse - found.value) < 0.2


def test_pseudo_likelihood_is_the_conditionals():
    """Averaged over which unit is drawn: sum_d log p(x_d | the others), by the reference."""
    model, params = machine(3, 4, 7)
    x = np.array([[1.0, 0.0, 1.0, 1.0]])
    values = {site: value.numpy() for site, value in params.items()}
    expected = 0.0
    for d in range(4):
        both = np.repeat(x, 2, 0)
        both[:, d] = [0, 1]
        each = reference.log_evidence(values, both)
        expected += each[int(x[0, d])] - np.logaddexp(*each)
    rows = HarmoniumRows.of(model, model.prepare(np.repeat(x, 20000, 0), dtype=torch.float64))
    found = log_pseudo_likelihood(model.energy(params), rows, torch.Generator().manual_seed(0))
    assert abs(float(found.mean()) - expected) < 5 * float(found.std()) / np.sqrt(20000)


def test_the_best_of_several_runs_after_one_another_is_kept():
    """By log p(x) + log p(theta), exact."""
    model = RBM(num_hidden=3, num_features=5)
    x = torch.bernoulli(torch.rand(30, 5, generator=torch.Generator().manual_seed(2)))
    method = ParallelTempering(restarts=3, max_iterations=3, batch_size=10)
    fit = method.fit(model, x.double(), progress=False)
    runs, scores = [], []
    for attempt in range(3):
        state = Training(method, model, fit.data, Call(0, None, False, torch.float64, None), attempt)
        state.run(Progress(None, "", enabled=False))
        runs.append({site: value.double() for site, value in state.final_params().items()})
        values = {site: value.numpy() for site, value in runs[-1].items()}
        scores.append(reference.log_evidence(values, x.numpy()).sum() + float(model.log_prior(runs[-1])))
    assert "the best of 3 runs" in fit.status and len(set(scores)) == 3
    assert torch.allclose(fit.params["weight"], runs[int(np.argmax(scores))]["weight"], atol=1e-6)
    assert (
        "best of 2" in ci.fit(model, x.double(), method="parallel_tempering", max_iterations=1, progress=False).status
    )


def test_the_best_of_several_machines_side_by_side_is_kept():
    """By log p(x) + log p(theta), exact; the estimates end with that of the machine kept."""
    model = RBM(num_hidden=3, num_features=5)
    x = torch.bernoulli(torch.rand(30, 5, generator=torch.Generator().manual_seed(2)))
    method = PersistentCD(restarts=3, max_iterations=3, batch_size=10, ascent=False)
    fit = method.fit(model, x.double(), progress=False)
    state = training(method, model, fit.data, None)
    averages, watch = [], state._watch

    def look(again=False):
        if not again:
            averages.append(state._averages().clone())
        return watch(again)

    state._watch = look
    state.run(Progress(None, "", enabled=False))
    machines = [{site: value.double() for site, value in state.weights.parts(one).items()} for one in averages[-1]]
    values = [{site: value.numpy() for site, value in one.items()} for one in machines]
    scores = [
        reference.log_evidence(value, x.numpy()).sum() + float(model.log_prior(one))
        for one, value in zip(machines, values, strict=True)
    ]
    best = int(np.argmax(scores))
    assert "the best of 3 runs" in fit.status and len(set(scores)) == 3
    assert torch.allclose(fit.params["weight"], machines[best]["weight"], atol=1e-6)
    assert (
        len(fit.elbo) == 3 and abs(float(fit.elbo[-1]) - reference.log_evidence(values[best], x.numpy()).sum()) < 1e-3
    )
    assert "best of 12" in ci.fit(model, x.double(), method="pcd", max_iterations=1, progress=False).status
    assert "best of" not in ci.fit(model, x.double(), method="pcd", max_iterations=1, init=fit, progress=False).status


def test_slopes_of_machines_side_by_side_are_exact():
    """Many chains after many sweeps, at other weights each."""
    model, _ = machine(3, 5, 0)
    x = torch.bernoulli(torch.full((40, 5), 0.4), generator=torch.Generator().manual_seed(1))
    method = PersistentCD(chains=8000, sweeps=25, batch_size=40, restarts=3)
    state = training(method, model, model.prepare(x, dtype=torch.float64), None)
    each = [machine(3, 5, seed)[1] for seed in range(3)]
    state.weights.theta.copy_(state.weights.join({site: torch.stack([one[site] for one in each]) for site in SITES}))
    found = state.weights.parts(state.slopes.of_likelihood(torch.arange(40)))
    for number, params in enumerate(each):
        exact = reference.gradient({site: value.numpy() for site, value in params.items()}, x.numpy())
        for site in SITES:
            assert np.abs(found[site][number].numpy() - exact[site]).max() < 0.05, site


def test_the_quick_slopes_are_for_binary_units_alone():
    """Elsewhere the general ones: entries that miss, other layers, priors that are not Normal, other settings."""
    x = torch.bernoulli(torch.rand(30, 5, generator=torch.Generator().manual_seed(2)))
    holes = torch.where(torch.arange(150).view(30, 5) % 7 == 0, torch.nan, x)
    plain = RBM(num_hidden=3, num_features=5)
    cases = [
        (plain, x, {}, True), (plain, x, {"validation": 0.3}, True), (plain, holes, {}, False),
        (plain, x, {"centred": True}, False), (plain, x, {"optimizer": "adam"}, False),
        (RBM(num_hidden=3, num_features=5, hidden="gaussian"), x, {}, False),
        (plain.with_priors(weight=dist.Laplace(0.0, 1.0)), x, {}, False),
        (plain.with_priors(weight=dist.Laplace(0.0, 1.0)), x, {"weight_decay": 0.01}, True),
    ]  # fmt: skip
    for model, rows, settings, quick in cases:
        state = training(PersistentCD(**settings), model, model.prepare(rows, dtype=torch.float64), None)
        assert isinstance(state.slopes, BinarySlopes) == quick
        assert state.machines == (12 if quick and "validation" not in settings else 1)


def test_uniform_numbers():
    """Midpoints of 2^16 parts of (0, 1), as often each."""
    numbers = UniformNumbers(100_002, torch.zeros(1), torch.Generator().manual_seed(0))
    first = numbers.draw().double().clone()
    assert torch.equal((first * 2**16 - 0.5).frac(), torch.zeros(100_002, dtype=torch.float64))
    assert 0 < float(first.min()) < 1e-3 and 1 - 1e-3 < float(first.max()) < 1
    counts = torch.histc(first, 20, 0.0, 1.0) / 5000.1 - 1
    assert float(counts.abs().max()) < 0.07
    second = numbers.draw().double()
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.02
