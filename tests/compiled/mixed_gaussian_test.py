"""Programs of finite latents beside Gaussian ones against NumPy: sums over the finite ones of dense normals."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, poisson
from torch.distributions import biject_to, constraints

from custom_inference import EM, Fit, fit
from custom_inference.compiled.gaussian.binding import bind_gaussian
from custom_inference.compiled.gaussian.engine import CompiledGaussian
from custom_inference.compiled.gaussian.steps import gaussian_steps_of
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.structure import flatten
from custom_inference.em.loop import run_em
from ppl_models import RowBlocks, Site
from ppl_models.distributions import Flat
from tests.programs._own import ROW, observed, own_program
from tests.programs.gaussians import FactorMixture, InterceptMixture
from tests.programs.zoo import case_of

REAL, POSITIVE = constraints.real, constraints.positive
ENGINE = CompiledGaussian()


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def switching(steps):
    """A level that climbs or falls, by a hidden state of each step; what is measured of it is the noisier in one."""
    sites = {
        "stay": Site("global", ("class",), support=constraints.unit_interval),
        "drift": Site("global", ("class",), support=REAL), "step": Site("global", (), support=POSITIVE),
        "noise": Site("global", ("class",), support=POSITIVE), "x": observed(REAL, steps),
        **{f"z{t}": Site("latent", (), ROW, choice="class") for t in range(steps)},
        **{f"u{t}": Site("latent", (), ROW, REAL) for t in range(steps)},
    }  # fmt: skip
    priors = {"stay": dist.Beta(4.0, 2.0), "drift": dist.Normal(0.0, 1.0)}
    priors |= dict.fromkeys(("step", "noise"), dist.LogNormal(-1.0, 0.5))

    def program(plate, stay, drift, step, noise):
        states, level = [], torch.zeros(())
        levels = []
        for t in range(steps):
            same = stay[states[-1]] if t else torch.tensor(0.5)
            first = torch.where(states[-1] == 0, same, 1 - same) if t else same
            states.append(pyro.sample(f"z{t}", dist.Categorical(torch.stack([first, 1 - first], -1))))
            level = pyro.sample(f"u{t}", dist.Normal(level + drift[states[-1]], step))
            levels.append(level)
        return plate.observe("x", dist.Normal(torch.stack(levels, -1), torch.stack([noise[z] for z in states], -1)))

    return own_program(sites, program, priors, columns=steps, classes=2)


def two_beside_three():
    """A class and a bit beside three reals; a category and a count that depend on the finite ones alone."""
    sites = {
        "size": Site("global", ("class",), support=constraints.simplex),
        "mean": Site("global", ("class", "column"), support=REAL), "load": Site("global", ("column",), support=REAL),
        "shift": Site("global", (), support=REAL), "spread": Site("global", ("class",), support=POSITIVE),
        "noise": Site("global", (), support=POSITIVE),
        "kind": Site("global", ("class", "column"), support=constraints.simplex),
        "rate": Site("global", (), support=POSITIVE),
        "z": Site("latent", (), ROW, choice="class"), "on": Site("latent", (), ROW, constraints.boolean),
        "a": Site("latent", (), ROW, REAL), "b": Site("latent", (), ROW, REAL), "c": Site("latent", (), ROW, REAL),
        "x": observed(REAL, 4), "y": observed(constraints.integer_interval(0, 3)),
        "n": observed(constraints.nonnegative_integer),
    }  # fmt: skip
    priors = {"mean": dist.Normal(0.0, 2.0), "load": dist.Normal(0.0, 1.0), "shift": dist.Normal(0.0, 1.0)}
    priors |= {"size": dist.Dirichlet(torch.ones(3)), "kind": dist.Dirichlet(torch.ones(4)), "rate": dist.Gamma(2, 1)}
    priors |= dict.fromkeys(("spread", "noise"), dist.LogNormal(-0.5, 0.5))

    def program(plate, size, mean, load, shift, spread, noise, kind, rate, **_):
        z, on = pyro.sample("z", dist.Categorical(size)), pyro.sample("on", dist.Bernoulli(0.3))
        a = pyro.sample("a", dist.Normal(0.0, spread[z]))
        b = pyro.sample("b", dist.Normal(0.5 * a + shift * on, 1.0))
        c = pyro.sample("c", dist.Normal(0.0, 0.7))
        plate.observe("y", dist.Categorical(kind[z]))
        plate.observe("n", dist.Poisson(rate * (1 + 2 * on)))
        move = torch.stack([a, b, a + c, on * c], -1) * load
        return plate.observe("x", dist.Normal(mean[z] + move, noise))

    return own_program(sites, program, priors, columns=4, classes=3)


def brute(priors, means, x, seen):
    """log p(x_n, value), (C,), and the posterior means of the real latents given each value, by dense normals. priors:
    of each value its log probability, the mean and the covariance of the real latents; means: of each the intercept,
    slopes and variances of what is observed of the row."""
    joint, found = [], []
    for (log_prior, centre, covariance), (intercept, slope, noise) in zip(priors, means, strict=True):
        own, load = (intercept + slope @ centre)[seen], slope[seen]
        spread = load @ covariance @ load.T + np.diag(noise[seen])
        joint.append(log_prior + (multivariate_normal(own, spread).logpdf(x[seen]) if seen.any() else 0.0))
        found.append(centre + covariance @ load.T @ np.linalg.solve(spread, x[seen] - own))
    return np.array(joint), np.array(found)


def agree(rows, flat, n, joint, means):
    posterior = rows.posterior(flat)
    share = np.exp(joint - logsumexp(joint))
    places = rows.structure.units.argmax(1)
    assert float(rows.log_evidence(flat)[n]) == pytest.approx(logsumexp(joint), abs=1e-8)
    np.testing.assert_allclose(posterior.log_weight[n].exp(), share, atol=1e-9)
    np.testing.assert_allclose(posterior.mean[n, places], share @ means, atol=1e-8)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", ["intercept_mixture", "factor_mixture"])
def test_classes_are_a_sum_of_dense_normals(name, missing):
    case = case_of(name, missing=missing)
    rows = bind_gaussian(case.model, case.data)
    params = rows.structure.probe.draw_globals()
    p, width = {site: value.numpy() for site, value in params.items()}, case.data.x.shape[1]
    for n in range(6):
        if name == "factor_mixture":
            priors = [(np.log(p["size"][k]), np.zeros(1), np.eye(1)) for k in range(2)]
            means = [(p["mean"][k], p["loading"][k].T, p["scale"] ** 2) for k in range(2)]
        else:
            t, one = case.data.others["t"][n].numpy(), np.ones((width, 1))
            priors = [(np.log(p["size"][k]), np.zeros(1), np.eye(1) * p["spread"][k] ** 2) for k in range(2)]
            means = [(p["level"][k] + p["slope"][k] * t, one, p["noise"] ** 2 * one[:, 0]) for k in range(2)]
        mask = np.ones(width, bool) if case.data.mask is None else case.data.mask[n].numpy()
        agree(rows, flatten(rows, params), n, *brute(priors, means, case.data.x[n].numpy(), mask))


def test_a_switching_chain_is_a_sum_over_its_paths():
    steps, model = 3, switching(3)
    x = np.random.default_rng(0).normal(size=(5, steps))
    rows = bind_gaussian(model, model.prepare(x, dtype=torch.float64))
    params = rows.structure.probe.draw_globals()
    p = {site: value.numpy() for site, value in params.items()}
    sums, priors, means = np.tril(np.ones((steps, steps))), [], []
    for path in itertools.product(range(2), repeat=steps):
        chance = [p["stay"][a] if a == b else 1 - p["stay"][a] for a, b in itertools.pairwise(path)]
        path = list(path)
        priors.append((np.log(0.5 * np.prod(chance)), sums @ p["drift"][path], p["step"] ** 2 * sums @ sums.T))
        means.append((np.zeros(steps), np.eye(steps), p["noise"][path] ** 2))
    for n in range(5):
        agree(rows, flatten(rows, params), n, *brute(priors, means, x[n], np.ones(steps, bool)))


def both(seed=0, number=40):
    rng = np.random.default_rng(seed)
    x, kind, count = rng.normal(size=(number, 4)), rng.integers(0, 4, number), rng.poisson(2, number)
    return {"x": x, "y": kind.astype(float), "n": count.astype(float)}


def test_two_finite_latents_beside_three_real_ones_and_other_laws():
    given, model = both(), two_beside_three()
    given["y"][3] = np.nan
    rows = bind_gaussian(model, model.prepare(given["x"], y=given["y"], n=given["n"], dtype=torch.float64))
    params = rows.structure.probe.draw_globals()
    p, priors, means, of = {site: value.numpy() for site, value in params.items()}, [], [], []
    for z, on in itertools.product(range(3), range(2)):
        a = p["spread"][z] ** 2
        covariance = np.array([[a, 0.5 * a, 0], [0.5 * a, 0.25 * a + 1, 0], [0, 0, 0.49]])
        slope = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, on]]) * p["load"][:, None]
        priors.append((0.0, np.array([0, p["shift"] * on, 0]), covariance))
        means.append((p["mean"][z], slope, np.full(4, p["noise"] ** 2)))
        of.append((np.log(p["size"][z]) + np.log(0.3 if on else 0.7), np.log(p["kind"][z]), p["rate"] * (1 + 2 * on)))
    for n in range(6):
        y = given["y"][n]
        own = [
            share + (0 if np.isnan(y) else kind[int(y)]) + poisson.logpmf(given["n"][n], rate)
            for share, kind, rate in of
        ]
        each = [(one, *rest) for one, (_, *rest) in zip(own, priors, strict=True)]
        agree(rows, flatten(rows, params), n, *brute(each, means, given["x"][n], np.ones(4, bool)))


def problem(name):
    if name == "two_beside_three":
        model, given = two_beside_three(), both()
        return model, model.prepare(given["x"], y=given["y"], n=given["n"], dtype=torch.float64)
    if name == "switching":
        x = np.random.default_rng(0).normal(size=(30, 3))
        return switching(3), switching(3).prepare(x, dtype=torch.float64)
    case = case_of(name, missing=True)
    return case.model, case.data


@pytest.mark.parametrize(
    "name", ["intercept_mixture", "factor_mixture", "spike_and_slab", "two_beside_three", "switching"]
)
def test_em_climbs_to_where_the_log_posterior_has_no_slope(name):
    """Fisher's identity of the moments first; slopes by finite differences of the evidence."""
    model, data = problem(name)
    rows = ENGINE.rows(model, data)
    flat = flatten(rows, rows.structure.probe.draw_globals()).requires_grad_()
    moments, _ = rows.expect(flat.detach())
    every = zip(rows.all_blocks, moments, rows.all_parts, strict=True)
    value = torch.stack([block.expect(flat, own, part) for block, own, part in every]).sum()
    (expected,) = torch.autograd.grad(rows.log_evidence(flat).sum(), flat)
    torch.testing.assert_close(torch.autograd.grad(value, flat)[0], expected, rtol=1e-7, atol=1e-7)
    state = ENGINE.propose(model, rows, torch.Generator().manual_seed(0), 0)
    run = run_em(ENGINE, model, rows, state, max_iterations=600, tolerance=1e-11, accelerate="squarem")
    assert (np.diff(run.trace) > -1e-8).all()
    maps = {site: biject_to(model.prior(site).support) for site in model.unknown_sites}
    free = {site: maps[site].inv(run.state[site].double()) for site in maps}

    def objective(moved):
        values = {**run.state, **{site: maps[site](one) for site, one in moved.items()}}
        prior = sum(
            model.prior(site).log_prob(values[site]).sum() for site in maps if maps[site].codomain.event_dim == 0
        )
        return float(rows.log_evidence(flatten(rows, values)).sum() + prior)

    for site in maps:
        if maps[site].codomain.event_dim == 0:
            step = 1e-5 * torch.randn(free[site].shape, generator=torch.Generator().manual_seed(1)).sign()
            ends = [objective({**free, site: free[site] + sign * step}) for sign in (1, -1)]
            assert abs(ends[0] - ends[1]) / 2e-5 < 2e-2, site


def growth(number, factor=1.0, level=0.0, seed=0):
    rng = np.random.default_rng(seed)
    z, t = rng.integers(0, 3, number), rng.random((number, 4)) * 4
    mean = np.array([0, 1, -1.0])[z, None] + rng.normal(size=(number, 1)) + np.array([0, 0.9, -0.6])[z, None] * t
    return level + factor * (mean + 0.3 * rng.normal(size=(number, 4))), t, z


def test_classes_with_a_random_intercept_are_found_in_raw_units():
    """Incomes by years: the default fit ends no lower than EM from the truth, and its classes are those drawn."""
    x, t, z = growth(250, 8000.0, 40000.0)
    flat = dict.fromkeys(("level", "slope"), Flat(dist.Normal(0.0, 1.0)))
    flat |= dict.fromkeys(("spread", "noise"), Flat(dist.LogNormal(0.0, 1.0)))
    model = InterceptMixture(num_classes=3, num_times=4).with_priors(**flat)
    found = fit(model, x, t=t + 2000, progress=False)
    slope = 8000 * torch.tensor([0, 0.9, -0.6])
    truth = {
        "size": torch.ones(3) / 3, "slope": slope, "spread": torch.full((3,), 8e3), "noise": torch.tensor(2.4e3),
        "level": 40000 + 8000 * torch.tensor([0, 1, -1.0]) - 2000 * slope,
    }  # fmt: skip
    near = EM().fit(model, x, t=t + 2000, init=truth, progress=False)
    assert float(found.elbo[-1]) > float(near.elbo[-1]) - 1e-3 * len(x)
    order = found.params["slope"].argsort()
    np.testing.assert_allclose(found.params["slope"][order] / 8000, [-0.6, 0, 0.9], atol=0.06)
    chosen = order.argsort()[found.transform(x, t=t + 2000).argmax(1)]
    assert float((chosen == torch.tensor([1, 2, 0])[z]).double().mean()) > 0.9


def test_analysers_reach_what_many_starts_reach():
    rng = np.random.default_rng(2)
    z, loading = rng.integers(0, 3, 240), rng.normal(size=(3, 1, 6))
    x = (
        rng.normal(size=(3, 6))[z]
        + np.einsum("nq,nqd->nd", rng.normal(size=(240, 1)), loading[z])
        + 0.4 * rng.normal(size=(240, 6))
    )
    model = FactorMixture(num_components=3, num_features=6)
    found = fit(model, x, progress=False)
    rows = ENGINE.rows(model, model.prepare(x, dtype=torch.float64))
    starts = [ENGINE.initial(model, rows, torch.Generator().manual_seed(seed)) for seed in range(8)]
    runs = [
        run_em(ENGINE, model, rows, one, max_iterations=200, tolerance=1e-6, accelerate="squarem") for one in starts
    ]
    assert float(found.elbo[-1]) > max(float(run.objective) for run in runs) - 2e-3 * len(x)


def test_what_follows_a_fit_is_in_closed_form(tmp_path):
    x, t, _ = growth(60)
    x[::7, 1] = np.nan
    model = InterceptMixture(num_classes=2, num_times=4)
    found = fit(model, x, t=t, progress=False)
    assert found.method.name == "EM"
    assert found.local_posterior(x, t=t).what == "closed form"
    torch.testing.assert_close(found.posteriors["z"].mean, found.transform(x, t=t), atol=1e-6, rtol=0)
    draws = found.posteriors["b"].sample(2000)
    mean, spread = found.posteriors["b"].mean, found.posteriors["b"].variance.sqrt()
    assert bool(((draws.mean(0) - mean).abs() < 5 * spread / 2000**0.5).all())
    loaded = Fit.load(found.save(tmp_path / "fit"), model=InterceptMixture)
    torch.testing.assert_close(loaded.log_likelihood(x, t=t), found.log_likelihood(x, t=t))


def test_rows_in_blocks_are_those_in_memory():
    model, x = FactorMixture(num_components=2, num_features=5), case_of("factor_mixture").data.x.numpy()
    init = fit(model, x, progress=False, max_iterations=2).params
    settings = {"max_iterations": 3, "tolerance": 1e-12, "accelerate": None}
    whole = EM(**settings).fit(model, x, init=init, progress=False)
    blocks = RowBlocks(read=lambda: [x[:25], x[25:]], num_rows=len(x))
    for site, value in EM(**settings).fit(model, blocks, init=init, progress=False).params.items():
        torch.testing.assert_close(value, whole.params[site], rtol=1e-7, atol=1e-7)


def test_covariates_of_classes_have_closed_forms():
    case = case_of("intercept_mixture")
    rows = bind_gaussian(case.model, case.data)
    assert gaussian_steps_of(case.model, rows).climbing == ()


def test_others_are_refused_with_the_reason():
    model, x = switching(11), np.random.default_rng(0).normal(size=(12, 11))
    with pytest.raises(NotCompiled, match="2048 values of the finite ones together, of at most 1024"):
        bind_gaussian(model, model.prepare(x, dtype=torch.float64))
    sites = {
        "z": Site("latent", (), ROW, constraints.boolean), "b": Site("latent", (), ROW, REAL), "x": observed(REAL, 3),
        "y": observed(constraints.boolean),
    }  # fmt: skip

    def program(plate, **_):
        z, b = pyro.sample("z", dist.Bernoulli(0.5)), pyro.sample("b", dist.Normal(0.0, 1.0))
        plate.observe("y", dist.Bernoulli(torch.sigmoid(z + b)))
        return plate.observe("x", dist.Normal((z * b).unsqueeze(-1) + torch.arange(3.0), 0.5))

    model = own_program(sites, program, columns=3)
    data = model.prepare(np.zeros((9, 3)), y=np.ones(9), dtype=torch.float64)
    with pytest.raises(NotCompiled, match="'y' is drawn from Bernoulli; expected Normal"):
        bind_gaussian(model, data)
