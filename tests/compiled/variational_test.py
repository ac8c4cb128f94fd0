"""Variational Bayes of compiled programs: the bound against draws and references in NumPy, ascent, where it ends."""

from functools import cache

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import multivariate_normal

import custom_inference as ci
from custom_inference.compiled.bayes.engine import CompiledVB
from custom_inference.compiled.bayes.global_beliefs import GlobalBeliefs
from ppl_models import MethodError, MixtureOfBernoullis, MixtureOfPoissons, PriorError
from tests.compiled._problems import KINDS, problem, state_of
from tests.programs.zoo import as_numpy

ENGINE = CompiledVB()
#: Those in which causes, or shares of events, are hidden once more; and whose sites all have counts.
HIDDEN = ("noisy_or", "noisy_and", "added_rates", "zero_inflated")
COUNTED = [name for name in KINDS if name != "softmax"]
EVERY = [pytest.param(name, priors, id=f"{name}-{priors}") for name in KINDS for priors in ("conjugate", "other")]
PROBLEMS = pytest.mark.parametrize("name, priors", EVERY)
DRAWS = 400


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@cache
def case(name, priors):
    """The problem, its rows as the engine reads them, and a state after a few iterations."""
    one = problem(name, priors)
    torch.set_default_dtype(torch.float64)
    rows = ENGINE.rows(one.model, one.data)
    state = ENGINE.start_from(one.model, state_of(one.model, 2), rows)
    for _ in range(3):
        state = ENGINE.m_step(one.model, state, ENGINE.e_step(one.model, state, rows), rows)
    return one, rows, state


def objective(one, rows, state):
    return float(ENGINE.objective_at(one.model, state, ENGINE.e_step(one.model, state, rows).bound))


def draws_of(one, state):
    """Draws of all globals from their posteriors."""
    posteriors = state.posteriors(one.model)
    drawn = {site: q.sample(DRAWS, seed=n) for n, (site, q) in enumerate(posteriors.items())}
    return [{site: value[s] for site, value in drawn.items()} for s in range(DRAWS)], posteriors


@PROBLEMS
def test_the_bound_is_what_draws_of_the_globals_say(name, priors):
    """With E[log p(x, latents | globals)] by draws the bound of a row is the log of a sum; where causes are hidden it
    is lower. The divergence is that of draws."""
    one, rows, state = case(name, priors)
    drawn, posteriors = draws_of(one, state)
    tables = [one.reference.table(as_numpy(params), one.table)[1] for params in drawn[:200]]
    expected = logsumexp(np.mean(tables, 0), axis=0)
    # The error of the log of the sum is at most that of its largest terms.
    error = np.max(np.std(tables, 0) * (np.mean(tables, 0) > np.mean(tables, 0).max(0) - 8), axis=0) / 14
    found = ENGINE.e_step(one.model, state, rows).bound.numpy()
    assert (found < expected + 5 * error + 1e-6).all()
    if name not in HIDDEN:
        assert (found > expected - 5 * error - 1e-6).all()
    log_p = np.array([float(one.model.log_prior(params)) for params in drawn])
    log_q = np.array([
        float(sum(q.log_prob(params[site]).sum() for site, q in posteriors.items())) for params in drawn
    ])  # fmt: skip
    apart = log_q - log_p
    assert abs(float(ENGINE.prior_term(one.model, state)) + apart.mean()) < 5 * apart.std() / DRAWS**0.5 + 1e-3


@PROBLEMS
def test_the_objective_never_falls(name, priors):
    one, rows, state = case(name, priors)
    before = -np.inf
    for _ in range(12):
        after = objective(one, rows, state)
        assert after > before - 1e-8 * (1 + abs(after))
        state, before = ENGINE.m_step(one.model, state, ENGINE.e_step(one.model, state, rows), rows), after


#: In every run; the others' are slow.
ENDS = ("poisson", "normals", "predictors", "zero_inflated", "noisy_or")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ENDS)) for name in COUNTED]
)
def test_no_parameter_of_a_posterior_raises_the_bound_where_it_ends(name):
    one, rows, state = case(name, "conjugate")
    for _ in range(700):
        state = ENGINE.m_step(one.model, state, ENGINE.e_step(one.model, state, rows), rows)
    for part, value in state.parts.items():
        if "GridPosterior" in part or "covariance" in part:
            continue
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(value.shape, generator=generator, dtype=value.dtype) * (0.1 + value.abs())
        ends = [
            objective(one, rows, GlobalBeliefs({**state.parts, part: value + sign * 1e-4 * direction}))
            for sign in (1, -1)
        ]
        assert abs(ends[0] - ends[1]) / 2e-4 < 2e-3 * (1 + float(direction.norm()))


@pytest.mark.parametrize("kind", ["bernoulli", "poisson", "means", "predictors"])
def test_where_classes_are_certain_the_bound_is_the_evidence(kind):
    """With all rows in one class nothing but the globals is unknown, whose evidence has a closed form."""
    one = problem(kind, "conjugate", missing=False)
    sure = torch.tensor([1 - 2e-12, 1e-12, 1e-12])
    model, x = one.model.with_priors(weight=sure), one.data.x.numpy()
    rows = ENGINE.rows(model, one.data)
    state = ENGINE.start_from(model, {**state_of(model, 1), "weight": sure}, rows)
    for _ in range(400):
        state = ENGINE.m_step(model, state, ENGINE.e_step(model, state, rows), rows)
    total, bound = x.sum(0), float(ENGINE.objective_at(model, state, ENGINE.e_step(model, state, rows).bound))
    if kind == "bernoulli":
        evidence = (betaln(2 + total, 1.5 + len(x) - total) - betaln(2, 1.5)).sum()
    elif kind == "poisson":
        evidence = (gammaln(2 + total) - gammaln(2) + 2 * np.log(1.5) - (2 + total) * np.log(1.5 + len(x))).sum()
        evidence -= gammaln(x + 1).sum()
    elif kind == "means":
        covariance = 0.64 * np.eye(len(x)) + 1.5**2
        evidence = multivariate_normal(np.full(len(x), 0.5), covariance).logpdf(x.T).sum()
    else:
        u = one.data.others["u"].numpy().reshape(-1)
        design = np.stack([np.ones_like(u), u], 1)
        covariance = 0.64 * np.eye(len(u)) + 1.5**2 * design @ design.T
        evidence = multivariate_normal(design @ [0.5, 0.5], covariance).logpdf(x.reshape(-1))
    assert bound == pytest.approx(evidence, abs=1e-6)


@pytest.mark.parametrize("kind, name", [("bernoulli", "MixtureOfBernoullis"), ("poisson", "MixtureOfPoissons")])
def test_it_is_the_listed_engine_of_mixtures(kind, name):
    """From the same values of the globals the bound is the same after every iteration."""
    from custom_inference.families.mixtures.engines import MixtureVB

    one = problem(kind, "conjugate")
    listed_kind = {"MixtureOfBernoullis": MixtureOfBernoullis, "MixtureOfPoissons": MixtureOfPoissons}[name]
    site = {"bernoulli": "p", "poisson": "rate"}[kind]
    listed = listed_kind(num_components=3, num_features=3)
    names = {"mixing_proportion": "weight", next(s for s in listed.global_sites if s != "mixing_proportion"): site}
    listed = listed.with_priors(**{there: one.model.priors[here] for there, here in names.items()})
    start, other = state_of(one.model, 4), MixtureVB()
    rows, theirs = ENGINE.rows(one.model, one.data), other.rows(listed, one.data)
    state = ENGINE.start_from(one.model, start, rows)
    same = other.start_from(listed, {there: start[here] for there, here in names.items()}, theirs)
    for _ in range(4):
        step, again = ENGINE.e_step(one.model, state, rows), other.e_step(listed, same, theirs)
        found = ENGINE.objective_at(one.model, state, step.bound)
        assert found == pytest.approx(other.objective_at(listed, same, again.bound), rel=1e-10)
        state, same = ENGINE.m_step(one.model, state, step, rows), other.m_step(listed, same, again, theirs)


def test_a_fit_has_posteriors_and_reads_rows_again(tmp_path):
    one = problem("poisson", "conjugate", missing=False)
    fit = ci.fit(one.model, one.data.x.numpy(), method="vb", progress=False)
    assert "vb" in ci.methods_for(one.model) and fit.objective == "bound"
    assert set(fit.global_posterior) == set(one.model.global_sites)
    again = ci.Fit.load(fit.save(tmp_path / "fit"), model=type(one.model))
    new = one.data.x.numpy()[:5]
    assert np.allclose(fit.transform(new), fit.transform()[:5], atol=1e-8)
    assert np.allclose(again.transform(new), fit.transform()[:5], atol=1e-8)
    low, high = fit.global_posterior["rate"].quantiles([0.05, 0.95])
    assert (low < fit.params["rate"]).all() and (fit.params["rate"] < high).all()


def test_a_weight_is_worth_so_many_rows():
    one = problem("normals", "conjugate", missing=False)
    x, weights = one.data.x, torch.randint(1, 4, (len(one.data.x),), generator=torch.Generator().manual_seed(0))
    rows = ENGINE.rows(one.model, one.data)
    state = ENGINE.start_from(one.model, state_of(one.model, 2), rows)
    more = ENGINE.rows(one.model, one.model.prepare(x.repeat_interleave(weights, 0).numpy()))
    first = ENGINE.m_step(one.model, state, ENGINE.e_step_weighted(one.model, state, rows, weights.double()), rows)
    second = ENGINE.m_step(one.model, state, ENGINE.e_step(one.model, state, more), more)
    for part, value in first.parts.items():
        assert torch.allclose(value, second.parts[part], rtol=1e-9)


def test_what_has_no_steps_is_named():
    one = problem("categorical", "conjugate")
    model = one.model.with_priors(p=dist.RelaxedOneHotCategorical(torch.tensor(1.0), probs=torch.ones(3) / 3))
    with pytest.raises(MethodError, match="no steps for 'p'"):
        ci.fit(model, one.data, method="vb", progress=False)
    flat = problem("poisson", "flat")
    with pytest.raises(PriorError, match="'rate'.*improper"):
        ci.fit(flat.model, flat.data, method="vb", progress=False)
