"""Exact ascent after chains: tables of hidden states, slopes, coordinates and moves against the reference."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp

import custom_inference as ci
from custom_inference.core.method import Call
from custom_inference.families.boltzmann import search, table
from custom_inference.families.boltzmann.ascent import Ascent, Coordinates
from custom_inference.families.boltzmann.priors import priors_of
from custom_inference.families.boltzmann.search import losses, maximum, with_new_unit
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence, PersistentCD
from custom_inference.families.boltzmann.table import Table
from custom_inference.families.boltzmann.training import Training
from ppl_models import RBM, MethodError
from tests.references import rbm as reference
from tests.references._shared import all_codes

SITES = ("weight", "visible_bias", "hidden_bias")


def weights(hidden, visible, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (hidden, visible), "visible_bias": (visible,), "hidden_bias": (hidden,)}
    return {
        site: scale * torch.randn(shape, generator=generator, dtype=torch.float64) for site, shape in shapes.items()
    }


def rows_of(number, visible, seed=1):
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(3, visible, generator=generator)[torch.randint(3, (number,), generator=generator)]
    return torch.bernoulli(chance, generator=generator)


def ascent_of(hidden=4, visible=6, priors=None, number=60):
    model = RBM(num_hidden=hidden, num_features=visible).with_priors(**(priors or {}))
    rows = rows_of(number, visible)
    found = priors_of(model, None, number, rows.double())
    assert found is not None
    return model, Ascent(rows.float(), found)


def moments_of(params):
    """log Z, E[h v'], E[v], E[h] and Cov[v], by every code of the hidden layer."""
    weight, visible, hidden = (params[site].numpy() for site in SITES)
    codes = all_codes(len(hidden))
    eta = visible + codes @ weight
    log_w = codes @ hidden + np.logaddexp(0, eta).sum(1)
    chance, mean = np.exp(log_w - logsumexp(log_w)), 1 / (1 + np.exp(-eta))
    second = (chance[:, None] * mean).T @ mean + np.diag(chance @ (mean * (1 - mean)))
    centre = chance @ mean
    return (
        logsumexp(log_w),
        (chance[:, None] * codes).T @ mean,
        centre,
        chance @ codes,
        second - np.outer(centre, centre),
    )


@pytest.mark.parametrize(("hidden", "visible", "scale", "kind"), [
    (3, 5, 1.0, None), (10, 37, 1.0, np.float32), (11, 6, 1.5, np.float32), (10, 12, 8.0, np.float64),
    (10, 12, 60.0, None),
])  # fmt: skip
def test_tables_hold_all_hidden_states(hidden, visible, scale, kind):
    """By halves where there are many, in double precision where odds are large; as a whole where they leave that."""
    params = weights(hidden, visible, 3, scale)
    found, expected = Table.of(*(params[site] for site in SITES)), moments_of(params)
    assert (None if found.odds is None else found.odds[0].dtype) == kind
    assert abs(found.log_z - expected[0]) < 1e-5 * abs(expected[0])
    for ours, theirs in zip((*found.moments(), found.visible_covariance()), expected[1:], strict=True):
        assert np.abs(ours - theirs).max() < 2e-4
    assert abs(found.chance.sum() - 1) < 1e-5


PRIORS = {
    "default": {},
    "means": {"weight": dist.Normal(0.3, 0.5), "hidden_bias": dist.Normal(-1.0, 0.7)},
    "matrix": {"weight": dist.MultivariateNormal(torch.linspace(-1, 1, 6), precision_matrix=torch.eye(6) + 0.5)},
}


@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_slopes_are_those_of_the_log_posterior(prior):
    """Values against the reference and the model's own priors; slopes by differences, in weights and in coordinates."""
    model, ascent = ascent_of(priors=prior)
    rows, number = ascent.rows.double().numpy(), len(ascent.rows)

    def log_posterior(at):
        values = {site: value.numpy() for site, value in at.items()}
        return (reference.log_evidence(values, rows).sum() + float(model.log_prior(at))) / number

    at, other = weights(4, 6, 5), weights(4, 6, 6)
    value, slope = ascent.value(at)
    difference = log_posterior(other) - log_posterior(at)
    assert abs(float(ascent.value(other)[0] - value) - difference) < 1e-5
    own = Coordinates.near(ascent, at)
    z, direction = own.of_weights(at), own.of_weights(other)
    for site, part in own.to_weights(z).items():
        torch.testing.assert_close(part, at[site])
    h = 1e-4
    ends = [log_posterior({site: at[site] + step * other[site] for site in SITES}) for step in (h, -h)]
    assert abs((ends[0] - ends[1]) / (2 * h) - float(sum((slope[site] * other[site]).sum() for site in SITES))) < 1e-5
    ends = [log_posterior(own.to_weights({site: z[site] + step * direction[site] for site in z})) for step in (h, -h)]
    along = sum((part * direction[site]).sum() for site, part in own.slope(slope).items())
    assert abs((ends[0] - ends[1]) / (2 * h) - float(along)) < 1e-5


def test_ascent_ends_at_a_maximum():
    """It only rises, and the slope vanishes there."""
    _, ascent = ascent_of()
    at, values = weights(4, 6, 5, 0.1), []
    for _ in range(6):
        at, value = ascent.maximise(at, 40)
        values.append(value)
    assert all(later >= sooner - 1e-7 for sooner, later in pairwise(values))
    slope = ascent.value(at)[1]
    assert max(float(part.abs().max()) for part in slope.values()) < 1e-3


def test_losses_are_those_of_machines_without_each_unit():
    _, ascent = ascent_of()
    at, rows = weights(4, 6, 8), ascent_of()[1].rows.double().numpy()
    whole = reference.log_evidence({site: value.numpy() for site, value in at.items()}, rows).mean()
    loss, on = losses(ascent, at)
    for k in range(4):
        others = [j for j in range(4) if j != k]
        ends = [
            whole - reference.log_evidence({
                "weight": at["weight"][others].numpy(), "hidden_bias": at["hidden_bias"][others].numpy(),
                "visible_bias": (at["visible_bias"] + kept * at["weight"][k]).numpy(),
            }, rows).mean()
            for kept in (0, 1)
        ]  # fmt: skip
        assert abs(float(loss[k]) - min(ends)) < 1e-4 and bool(on[k]) == (ends[1] < ends[0])


def test_new_units_explain_what_the_others_leave(monkeypatch):
    """Two groups of columns that go together; the machine has one of them: the new unit ties the other."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.bernoulli(torch.full((400, 2), 0.5), generator=generator).repeat_interleave(3, 1)
    rows = torch.where(torch.rand(400, 6, generator=generator) < 0.05, 1 - groups, groups)
    model = RBM(num_hidden=2, num_features=6)
    priors = priors_of(model, None, 400, rows.double())
    assert priors is not None
    weight = torch.tensor([[5.0, 5, 5, 0, 0, 0], [0.01, 0, 0, 0, 0, 0]], dtype=torch.float64)
    bias = torch.tensor([-7.5, 0.0], dtype=torch.float64)
    at = {"weight": weight, "visible_bias": -0.5 * weight.sum(0), "hidden_bias": bias}
    ascent = Ascent(rows.float(), priors)
    assert int(losses(ascent, at)[0].argmin()) == 1
    monkeypatch.setattr(search, "_rank", lambda mean, most, generator: 0)
    new = with_new_unit(ascent, at, torch.Generator().manual_seed(0))["weight"][1]
    assert float(new[3:].abs().min()) > 0.8 and float(new[:3].abs().max()) < 0.4


def test_the_best_of_the_machines_and_moves_is_found():
    """Never below what any of the machines climbs to."""
    _, ascent = ascent_of(number=200)
    machines = [weights(4, 6, seed, 0.5) for seed in range(3)]
    best, ended = maximum(ascent, machines, torch.Generator().manual_seed(0))
    most = max(ascent.maximise(one, 40)[1] for one in machines)
    assert ended and float(ascent.value(best)[0]) >= most - 1e-9
    lost = {site: value * torch.nan for site, value in machines[0].items()}
    again = maximum(ascent, [lost, *machines], torch.Generator().manual_seed(0))[0]
    assert torch.equal(again["weight"], best["weight"])


def test_an_interrupted_search_keeps_the_best_so_far(monkeypatch):
    _, ascent = ascent_of()
    machines = [weights(4, 6, seed, 0.5) for seed in range(3)]
    values, climbed = [], Ascent.maximise

    def interrupted(self, at, iterations):
        if len(values) == 2:
            raise KeyboardInterrupt
        found = climbed(self, at, iterations)
        values.append(found)
        return found

    monkeypatch.setattr(Ascent, "maximise", interrupted)
    best, ended = maximum(ascent, machines, torch.Generator().manual_seed(0))
    assert not ended and torch.equal(best["weight"], max(values, key=lambda one: one[1])[0]["weight"])


def test_fits_say_how_they_ended(monkeypatch):
    """Interrupted in the search, or with weights that left the finite numbers."""
    x, model = rows_of(40, 6), RBM(num_hidden=3, num_features=6)
    with pytest.raises(MethodError, match="finite"):
        ci.fit(model, x, method="pcd", max_iterations=30, learning_rate=1e38, progress=False)

    def interrupted(self, at, iterations):
        raise KeyboardInterrupt

    monkeypatch.setattr(Ascent, "maximise", interrupted)
    fit = ci.fit(model, x, method="pcd", max_iterations=5, progress=False)
    assert fit.status.startswith("interrupted after 5 passes, then exact gradients")


def test_persistent_chains_go_on_to_the_maximum():
    """To where exact gradients lead from many starts; without ascent the fit ends below."""
    example = RBM.example()
    exact = ci.fit(example.model, example.data, progress=False)

    def log_posterior(fit):
        return float(fit.log_likelihood().sum()) + float(fit.model.log_prior(fit.globals))

    found = ci.fit(example.model, example.data, method="pcd", max_iterations=300, progress=False)
    assert "then exact gradients" in found.status and log_posterior(found) > log_posterior(exact) - 0.05
    short = ci.fit(example.model, example.data, method="pcd", ascent=False, max_iterations=30, progress=False)
    assert "exact" not in short.status and log_posterior(short) < log_posterior(found)
    decayed = ci.fit(example.model, example.data, method="pcd", weight_decay=0.1, max_iterations=30, progress=False)
    assert "then exact gradients" in decayed.status
    assert float(decayed.params["weight"].norm()) < 0.8 * float(found.params["weight"].norm())


def test_ascent_is_for_machines_with_few_hidden_states():
    x = rows_of(40, 6)
    plain = RBM(num_hidden=3, num_features=6)
    cases = [
        (plain, x, PersistentCD(), True), (plain, x, PersistentCD(ascent=False), False),
        (plain, x, PersistentCD(validation=0.3), False), (plain, x, ContrastiveDivergence(), False),
        (plain.with_priors(weight=dist.Laplace(0.0, 1.0)), x, PersistentCD(), False),
        (RBM(num_hidden=8, num_features=6), x, PersistentCD(), False),
        (RBM(num_hidden=17, num_features=30), rows_of(40, 30), PersistentCD(), False),
        (RBM(num_hidden=16, num_features=64), rows_of(40, 64), PersistentCD(), True),
        (RBM(num_hidden=16, num_features=200), rows_of(40, 200), PersistentCD(), False),
    ]  # fmt: skip
    for model, rows, method, ascends in cases:
        data = model.prepare(rows, dtype=torch.float64)
        assert Training(method, model, data, Call(0, None, False, torch.float64, None)).ascends == ascends
    with pytest.raises(MethodError, match="at most 16 hidden units"):
        ci.fit(RBM(num_hidden=17, num_features=30), rows_of(40, 30), method="pcd", ascent=True, progress=False)
    with pytest.raises(MethodError, match="ascent = 'yes'"):
        ci.fit(plain, x, method="pcd", ascent="yes", progress=False)


def test_a_stronger_prior_of_the_weights_pulls_them_more():
    """Of W alone, and a matrix as much as numbers."""
    matrix = dist.MultivariateNormal(torch.zeros(6).double(), precision_matrix=2 * torch.eye(6).double())
    for prior in (dist.Normal(0.0, 0.5**0.5), matrix):
        model = RBM(num_hidden=3, num_features=6).with_priors(weight=prior)
        data = model.prepare(rows_of(40, 6), dtype=torch.float64)
        state = Training(PersistentCD(restarts=1), model, data, Call(0, weights(3, 6), False, torch.float64, None))
        slopes, index = state.slopes, torch.arange(40)
        found = []
        for strength in (1.0, 5.0):
            random, chains = state.generator.get_state(), slopes.chains.state.clone()
            found.append(state.weights.parts(slopes.of_posterior(index, strength=strength).clone()))
            state.generator.set_state(random)
            slopes.chains.state.copy_(chains)
        pulled = found[1]["weight"] - found[0]["weight"]
        torch.testing.assert_close(pulled, -4 * 2 * state.weights.at["weight"] / 40, rtol=1e-3, atol=1e-5)
        assert torch.allclose(found[0]["visible_bias"], found[1]["visible_bias"])


def test_many_features_have_several_products(monkeypatch):
    """Odds of more features than one product in double precision holds."""
    params = weights(10, 40, 2)
    whole = Table.of(*(params[site] for site in SITES)).log_z
    monkeypatch.setattr(table, "_PRODUCT", 20.0)
    assert abs(Table.of(*(params[site] for site in SITES)).log_z - whole) < 1e-5 * abs(whole)
