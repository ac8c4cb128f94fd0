"""Mixture of Bernoullis: the exact steps against sums over the classes, ascent, stationarity, starts, and refusals."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import beta as beta_density
from scipy.stats import dirichlet as dirichlet_density

from custom_inference import EM, Search
from custom_inference.core.capabilities import objective_at
from custom_inference.families.mixtures.bernoullis import FLOOR, MixtureOfBernoullisExact
from ppl_models import Data, DataError, MethodError, MixtureOfBernoullis, ModelError

STEPS = MixtureOfBernoullisExact()


def problem(seed: int, num_components: int = 3, num_features: int = 5, num_rows: int = 8, missing: float = 0.0):
    rng = np.random.default_rng(seed)
    params = {
        "mixing_proportion": rng.dirichlet(np.ones(num_components)),
        "probability": rng.uniform(0.02, 0.98, (num_components, num_features)),
    }
    x = (rng.random((num_rows, num_features)) < 0.5).astype(float)
    mask = rng.random(x.shape) > missing if missing else np.ones_like(x, dtype=bool)
    tensors = {site: torch.tensor(value) for site, value in params.items()}
    return params, tensors, x, mask, Data(x=torch.tensor(x), mask=torch.tensor(mask) if missing else None)


def model_of(tensors) -> MixtureOfBernoullis:
    num_components, num_features = tensors["probability"].shape
    return MixtureOfBernoullis(num_components=num_components, num_features=num_features)


def log_joint(params, x, mask):
    """log p(x_n, z_n = k), entry by entry."""
    table = np.zeros((len(x), len(params["mixing_proportion"])))
    for n, k in np.ndindex(table.shape):
        p = params["probability"][k]
        terms = np.where(x[n] == 1, np.log(p), np.log(1 - p))
        table[n, k] = np.log(params["mixing_proportion"][k]) + terms[mask[n]].sum()
    return table


def planted(num_rows: int = 600, num_components: int = 6, num_features: int = 30, seed: int = 0):
    rng = np.random.default_rng(seed)
    probability = rng.choice([0.1, 0.85], (num_components, num_features))
    label = rng.integers(num_components, size=num_rows)
    return probability, label, (rng.random((num_rows, num_features)) < probability[label]).astype(float)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_evidence_and_posterior_are_sums_over_the_classes(missing):
    params, tensors, x, mask, data = problem(0, missing=missing)
    model = model_of(tensors)
    rows = STEPS.rows(model, data)
    table = log_joint(params, x, mask)
    assert np.allclose(STEPS.log_evidence(model, tensors, rows), logsumexp(table, 1), atol=1e-12)
    step = STEPS.e_step(model, tensors, rows)
    assert np.allclose(step.bound, logsumexp(table, 1), atol=1e-12)
    share = np.exp(table - logsumexp(table, 1)[:, None])
    assert np.allclose(STEPS.posterior(model, tensors, rows).mean, share, atol=1e-12)
    assert np.allclose(step.statistics["ones"], share.T @ (x * mask), atol=1e-12)


def test_an_all_missing_row_has_the_prior_as_posterior_and_evidence_one():
    _, tensors, x, _, _ = problem(1)
    model = model_of(tensors)
    mask = torch.ones(x.shape, dtype=torch.bool)
    mask[2] = False
    rows = STEPS.rows(model, Data(x=torch.tensor(x), mask=mask))
    assert torch.allclose(STEPS.posterior(model, tensors, rows).mean[2], tensors["mixing_proportion"])
    assert abs(float(STEPS.log_evidence(model, tensors, rows)[2])) < 1e-12


def test_statistics_are_additive_over_rows():
    _, tensors, _, _, data = problem(2, num_rows=11, missing=0.3)
    model = model_of(tensors)
    whole = STEPS.e_step(model, tensors, STEPS.rows(model, data))
    parts = [STEPS.e_step(model, tensors, STEPS.rows(model, data.rows(part))) for part in (slice(0, 4), slice(4, 11))]
    for name, value in whole.statistics.items():
        assert torch.allclose(value, parts[0].statistics[name] + parts[1].statistics[name], atol=1e-12), name


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("priors", ["flat", "proper"])
def test_em_never_lowers_its_objective(priors, missing):
    example = MixtureOfBernoullis.example()
    model = example.model
    if priors == "proper":
        beta, dirichlet = dist.Beta(1.5, 2.0), dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0]))
        model = model.with_priors(probability=beta, mixing_proportion=dirichlet)
    mask = torch.rand(example.data.x.shape, generator=torch.Generator().manual_seed(1)) > missing if missing else None
    data = model.prepare(example.data.x, mask=mask, dtype=torch.float64)
    rows = STEPS.rows(model, data)
    params, trace = STEPS.initial(model, rows, torch.Generator().manual_seed(0)), []
    for _ in range(80):
        step = STEPS.e_step(model, params, rows)
        trace.append(objective_at(STEPS, model, params, step.bound))
        params = STEPS.m_step(model, params, step, rows)
    # The floor on the probabilities may cost FLOOR an entry, and no more.
    assert np.diff(trace).min() > -data.x.numel() * FLOOR
    assert trace[-1] > trace[0] + 1


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_em_ends_at_a_stationary_point_of_the_log_posterior(missing):
    """Finite differences of log p(x | params) + log prior, by sums over the classes, vanish (along the simplex)."""
    _, tensors, x, mask, data = problem(3, num_components=2, num_features=4, num_rows=40, missing=missing)
    alpha, (a, b) = np.array([2.0, 3.0]), (2.0, 1.5)
    model = MixtureOfBernoullis(num_components=2, num_features=4).with_priors(
        mixing_proportion=dist.Dirichlet(torch.tensor(alpha)), probability=dist.Beta(a, b)
    )
    rows, params = STEPS.rows(model, data), tensors
    for _ in range(4000):
        params = STEPS.m_step(model, params, STEPS.e_step(model, params, rows), rows)
    found = {site: value.numpy() for site, value in params.items()}

    def objective(share, probability):
        values = {"mixing_proportion": np.array([share, 1 - share]), "probability": probability}
        prior = beta_density.logpdf(probability, a, b).sum()
        prior += dirichlet_density.logpdf(values["mixing_proportion"], alpha)
        return logsumexp(log_joint(values, x, mask), 1).sum() + prior

    share, probability, h = found["mixing_proportion"][0], found["probability"], 1e-5
    slopes = [(objective(share + h, probability) - objective(share - h, probability)) / (2 * h)]
    for index in np.ndindex(probability.shape):
        shift = np.zeros_like(probability)
        shift[index] = h
        slopes.append((objective(share, probability + shift) - objective(share, probability - shift)) / (2 * h))
    assert np.abs(slopes).max() < 1e-4


def test_nothing_depends_on_what_fills_a_missing_entry():
    _, tensors, x, mask, _ = problem(4, missing=0.4)
    model = MixtureOfBernoullis(num_components=3, num_features=5)
    steps = []
    for fill in (0.0, 1.0):
        data = model.prepare(np.where(mask, x, fill), mask=mask, dtype=torch.float64)
        steps.append(STEPS.e_step(model, tensors, STEPS.rows(model, data)))
    assert torch.equal(steps[0].bound, steps[1].bound)
    assert all(torch.equal(steps[0].statistics[k], steps[1].statistics[k]) for k in steps[0].statistics)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_planted_classes_are_found_and_starts_agree(dtype):
    probability, label, x = planted()
    model = MixtureOfBernoullis(num_components=6, num_features=30)
    fit = EM().fit(model, x, seed=0, progress=False, dtype=dtype)
    assert fit.params["probability"].dtype == dtype
    found = fit.transform().argmax(-1).numpy()
    table = np.zeros((6, 6))
    np.add.at(table, (label, found), 1)
    assert table.max(1).sum() > 0.97 * len(x), "each planted class is one found class"
    assert len(set(table.argmax(1))) == 6
    truth = {"mixing_proportion": torch.full((6,), 1 / 6), "probability": torch.tensor(probability)}
    assert STEPS.same_solution(model, {k: v.double() for k, v in fit.params.items()}, truth)


def test_informed_starts_beat_random_ones():
    """One start each: the k-means++-like ones find all six classes more often than uniform random ones."""
    _, _, x = planted(seed=5)
    model, wins = MixtureOfBernoullis(num_components=6, num_features=30), {}
    for informed in (True, False):
        search = Search(restarts=1, informed=informed, settle=30)
        fits = [EM(search=search).fit(model, x, seed=seed, progress=False) for seed in range(6)]
        wins[informed] = [float(fit.elbo[-1]) for fit in fits]
    best = max(wins[True] + wins[False])
    count = {informed: sum(value > best - 1 for value in values) for informed, values in wins.items()}
    assert count[True] >= 5 and count[True] > count[False], count


def test_same_solution_tells_solutions_apart():
    _, tensors, _, _, _ = problem(6)
    model = model_of(tensors)
    other = {**tensors, "probability": tensors["probability"].flip(0), "mixing_proportion": tensors[
        "mixing_proportion"].flip(0)}
    assert STEPS.same_solution(model, tensors, other), "the order of the classes means nothing"
    changed = tensors["probability"].clone()
    changed[0] = changed[1]
    assert not STEPS.same_solution(model, tensors, {**tensors, "probability": changed})


def test_one_class_is_the_column_means():
    _, _, x = planted(num_rows=200)
    fit = EM().fit(MixtureOfBernoullis(num_components=1, num_features=30), x, progress=False)
    assert np.allclose(fit.params["probability"][0], x.mean(0), atol=1e-9)


def test_free_parameters_and_prominence():
    model = MixtureOfBernoullis(num_components=3, num_features=5)
    assert model.num_parameters(10**6) == 17
    _, tensors, _, _, _ = problem(0)
    assert torch.equal(model.prominence(tensors), tensors["mixing_proportion"])


def test_bad_input_is_refused():
    with pytest.raises(ModelError, match="num_components = 0"):
        MixtureOfBernoullis(num_components=0, num_features=5)
    model = MixtureOfBernoullis(num_components=2, num_features=3)
    with pytest.raises(ModelError, match="is a probability"):
        model.with_priors(probability=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="simplex|batch shape"):
        model.with_priors(mixing_proportion=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="simplex"):
        model.with_priors(mixing_proportion=dist.Beta(torch.ones(2), torch.ones(2)).to_event(1))
    with pytest.raises(DataError, match="neither 0 nor 1"):
        EM().fit(model, np.array([[0.5, 1.0, 0.0], [1.0, 0.0, 1.0]]), progress=False)
    rows = STEPS.rows(model, model.prepare(np.eye(3)))
    for prior, match in (
        ({"probability": dist.Uniform(0.1, 0.9)}, "need a Beta prior"),
        ({"probability": dist.Beta(0.5, 1.0)}, "concentration below 1"),
        ({"mixing_proportion": dist.Dirichlet(torch.tensor([0.5, 1.0]))}, "concentration below 1"),
    ):
        with pytest.raises(MethodError, match=match):
            STEPS.check(model.with_priors(**prior), rows)
