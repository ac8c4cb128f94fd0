"""Moves leave tempered densities as they are; densities of chains of families are those of the programs."""

from __future__ import annotations

import itertools

import pytest
import torch

from custom_inference.checks.calibration.labels import prior_draw
from custom_inference.core.annealing.chains import Product, Tuning
from custom_inference.core.annealing.program import ProgramChains
from custom_inference.core.annealing.tempering import lay_out_path, refine
from custom_inference.core.programs.density import RowDensity
from ppl_models import HelmholtzMachine
from tests.core.annealing.estimate_test import annealed, problem


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("larger", [1.0, 300.0])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", ["noca", "cvq", "helmholtz_machine"])
def test_densities_of_bits_are_those_of_the_program(name, missing, larger):
    """Of Helmholtz machines with one hidden layer only: others have the program's chains. Weights that are larger have
    odds that are no numbers."""
    model, params, data = problem(name)
    if name == "helmholtz_machine":
        model = HelmholtzMachine(layers=(4, model.layers[-1]))
        params = {site: value.double() for site, value in prior_draw(model, 0).items()}
        params["weight_1"] = larger * params["weight_1"]
    if missing:
        mask = torch.rand(data.x.shape, generator=generator()) < 0.7
        data = model.as_read(model.prepare(data.x, mask=mask, dtype=torch.float64))
    own, program = annealed(model, params, data), ProgramChains(RowDensity.of(model, params, data))
    state = own.begin(7, generator())
    for _ in range(3):
        same = program.at(own.code(state), generator())
        assert torch.allclose(state.joint, same.joint, atol=1e-9) and torch.allclose(state.base, same.base, atol=1e-9)
        state, _ = own.move(state, torch.full((len(own),), 0.6, dtype=torch.float64), NONE, generator(1))


NONE = Tuning(torch.zeros(0), torch.zeros(0, 0))


@pytest.mark.parametrize("name", ["noca", "mixture_of_bernoullis"])
def test_moves_leave_a_tempered_density_as_it_is(name):
    """The mean of the log ratio of the ends, by chains, against the sum over all values of a row's finite elements."""
    model, params, data = problem(name, 2)
    chains = annealed(model, params, data)
    power, number = torch.tensor([0.4, 1.0], dtype=torch.float64), 4000
    state, gains = chains.begin(number, generator()), []
    for _ in range(12):
        state, _ = chains.move(state, power, NONE, generator(len(gains)))
        gains.append(state.gain.mean(0))
    every = torch.tensor(list(itertools.product(*[range(size) for size in chains.options.tolist()])))
    every = every[:, None].expand(-1, len(chains), -1)
    table = evaluate(chains, every)
    weight = torch.softmax(table.temper(power), 0)
    exact = (weight * torch.where(weight > 0, table.gain, 0.0)).sum(0)
    spread = (weight * (torch.where(weight > 0, table.gain, 0.0) - exact).square()).sum(0).sqrt()
    assert bool(((torch.stack(gains[4:]).mean(0) - exact).abs() < 6 * spread / number**0.5 + 1e-9).all())


def evaluate(chains, place):
    if hasattr(chains, "kind"):
        return chains.at(place.double(), generator())
    return chains._evaluate(place, torch.zeros(*place.shape[:2], 0, dtype=torch.float64))


def test_real_numbers_come_from_the_tempered_density():
    """Between the prior N(0, I) and a Gaussian posterior of precision I + W W' / s^2 the precision at b has b in front
    of the second term."""
    model, params, data = problem("gaussian_pca")
    chains, power = annealed(model, params, data), torch.full((5,), 0.5, dtype=torch.float64)
    weight = params["weight"] / params["scale"]
    precision = torch.eye(2).double() + 0.5 * weight @ weight.T
    target = (data.x - params["bias"]) / params["scale"]
    mean = torch.linalg.solve(precision, 0.5 * (target @ weight.T).T).T
    state = chains.begin(3000, generator())
    tuning = Tuning(torch.full((5,), 0.4).double(), torch.ones(5, 2).double())
    for step in range(25):
        state, accepted = chains.move(state, power, tuning, generator(step))
    assert float(accepted.min()) > 0.6
    assert torch.allclose(state.reals.mean(0), mean, atol=0.1)
    assert torch.allclose(torch.cov(state.reals[:, 0].T), torch.linalg.inv(precision), atol=0.1)


def test_products_are_normalised_and_drawn_from():
    table = torch.log_softmax(torch.randn(2, 3, 4, generator=generator(), dtype=torch.float64), -1)
    root = torch.tensor([[[1.0, 0.0], [0.5, 2.0]]] * 2, dtype=torch.float64)
    product = Product(table, torch.tensor([[1.0, -1.0]] * 2, dtype=torch.float64), root)
    place, reals = product.draw(20_000, generator(1))
    shares = torch.nn.functional.one_hot(place, 4).double().mean(0)
    assert torch.allclose(shares, table.exp(), atol=0.02)
    assert torch.allclose(reals.mean(0), product.centre, atol=0.1)
    normal = torch.distributions.MultivariateNormal(product.centre, scale_tril=root)
    expected = table.gather(-1, place[:5].movedim(0, -1)).sum(1).T + normal.log_prob(reals[:5])
    assert torch.allclose(product.log_prob(place[:5], reals[:5]), expected)


def test_paths_lead_from_the_base_to_the_joint_and_can_be_cut_finer():
    chains = annealed(*problem("noca"))
    path = lay_out_path(chains, 32, generator())
    assert bool((path.powers[0] == 0).all()) and bool((path.powers[-1] == 1).all())
    assert bool((path.powers.diff(dim=0) >= 0).all())
    powers, tunings = refine(path, 3)
    assert len(powers) == 3 * len(path.tunings) + 1 == len(tunings) + 1
    assert torch.allclose(powers[::3], path.powers)
