"""Annealed estimates of log p(x_n) and posteriors against exact ones, over the models, and their standard errors."""

from __future__ import annotations

import math

import pytest
import torch

import custom_inference as ci
from custom_inference.core.annealing.chains import Chains
from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.annealing.local import anneal_locals, chains_of, sandwich
from custom_inference.core.local_inference import bounds_of, log_likelihood
from custom_inference.core.predictive import sample_rows
from ppl_models import CVQ, LDA, MODELS, NOCA, Data, GaussianPCA, MethodError, Model
from tests.support.cases import ROWS

#: Rows of every model's example that are looked at, and what that may cost.
FEW, SMALL = 5, Budget(error=0.1, seconds=6.0, chains=24)
#: Programs without moves: latents with an atom; states of tokens, and of experts, summed out within.
WITHOUT = ("rtm", "spike_gamma_poisson", "multinomial_regression_lda")
#: Models of which a classification has a likelihood of its own draw long chains.
SLOW = ("supervised_lda", "discriminative_lda", "dtm", "ctm", "random_effects_lda", "gamma_poisson")


def problem(name: str, rows: int = FEW):
    example = MODELS[name].example()
    model = example.model
    data = model.as_read(model.prepare(example.data, dtype=torch.float64)).rows(torch.arange(rows))
    params = {site: value.double() for site, value in example.truth.items() if site in model.global_sites}
    return model, params, data


def annealed(model: Model, params: dict[str, torch.Tensor], data: Data) -> Chains:
    """The chains of a model that has some."""
    found = chains_of(model, params, data)
    assert isinstance(found, Chains)
    return found


@pytest.mark.parametrize("name", [name for name in ROWS if name not in (*WITHOUT, *SLOW)])
def test_estimates_are_within_their_errors_of_the_evidence(name):
    model, params, data = problem(name)
    found = anneal_locals(model, params, data, SMALL)
    assert bool((found.standard_error < 0.5).all())
    if "exact" in bounds_of(model):
        exact = log_likelihood(model, params, data, bound="exact")
        assert bool(((found.log_evidence - exact).abs() < 5 * found.standard_error + 0.02).all())
        mean = ci.Exact().local_posterior(model, params, data).posterior.mean
        assert bool(((found.mean - mean).abs() < 6 * found.mean_error + 0.05).all())


@pytest.mark.parametrize("name", ["noca", "cvq", "gaussian_pca", "lda", "mixture_of_poissons"])
def test_particles_that_are_resampled_estimate_the_same(name):
    model, params, data = problem(name)
    found = anneal_locals(model, params, data, Budget(seconds=3.0, chains=48, runs=6))
    exact = log_likelihood(model, params, data, bound="exact")
    assert bool((found.standard_error > 0).all()) and bool((found.standard_error < 0.5).all())
    assert bool(((found.log_evidence - exact).abs() < 6 * found.standard_error + 0.05).all())


@pytest.mark.parametrize("name", WITHOUT)
def test_programs_without_moves_say_which_site(name):
    model, params, data = problem(name, 30)
    with pytest.raises(MethodError, match="no moves for the latents '|depend on each other"):
        chains_of(model, params, data)


@pytest.mark.parametrize("kind", [NOCA, CVQ, GaussianPCA, LDA])
def test_three_standard_errors_hold_over_seeds(kind):
    name = next(name for name, one in MODELS.items() if one is kind)
    model, params, data = problem(name, 16)
    exact = log_likelihood(model, params, data, bound="exact")
    seeds = range(2) if kind is GaussianPCA else range(6)
    runs = [anneal_locals(model, params, data, Budget(error=0.1, seconds=2.0), seed=seed) for seed in seeds]
    z = torch.cat([(run.log_evidence - exact) / run.standard_error for run in runs])
    assert float((z.abs() < 3).double().mean()) >= 0.95 and abs(float(z.mean())) < 0.5


@pytest.mark.parametrize("name", ["noca", "cvq", "gaussian_pca", "lda", "helmholtz_machine"])
def test_rows_drawn_from_the_model_are_bounded_from_both_sides(name):
    model, params, data = problem(name, 12)
    drawn = sample_rows(model, params, len(data), seed=3, like=data)
    code = drawn[model.local_site].reshape(len(data), -1)
    given = {site: drawn[site] for site in model.sites_of("observed") if site != model.observed_site}
    fresh = model.as_read(model.prepare(drawn[model.observed_site], dtype=torch.float64, **given))
    found = sandwich(model, params, fresh, code, SMALL, 40)
    exact = log_likelihood(model, params, fresh, bound="exact")
    assert bool((found.lower - exact < 5 * found.lower_error + 0.02).all())
    assert bool((exact - found.upper < 5 * found.upper_error + 0.02).all())
    assert -0.1 < found.gap < 0.5 and found.gap_error < 0.2


def test_missing_entries_have_no_part():
    model, params, data = problem("noca", 20)
    mask = torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    missing = model.prepare(data.x.masked_fill(~mask, math.nan), dtype=torch.float64)
    found = anneal_locals(model, params, missing, SMALL)
    exact = log_likelihood(model, params, missing, bound="exact")
    assert bool(((found.log_evidence - exact).abs() < 5 * found.standard_error + 0.02).all())


def test_the_same_seed_gives_the_same_estimate():
    model, params, data = problem("noca")
    enough = Budget(error=0.5, seconds=60.0, chains=24)  # which no clock cuts short
    one, same, other = (anneal_locals(model, params, data, enough, seed=seed) for seed in (1, 1, 2))
    assert one.log_evidence.equal(same.log_evidence)
    assert not one.log_evidence.equal(other.log_evidence)


def test_a_budget_that_is_too_small_is_said():
    model, params, data = problem("noca", 20)
    with pytest.warns(UserWarning, match="give it more seconds than 0.001"):
        anneal_locals(model, params, data, Budget(error=0.001, seconds=0.001, chains=8))
