"""Gaussian latents behind bits against NumPy: grids, the bound from its mathematics, slopes, the listed model."""

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch.distributions import biject_to, constraints

from custom_inference import Fit, VariationalEM, fit, methods_for
from custom_inference.compiled.gaussian.binding import bind_gaussian
from custom_inference.compiled.gaussian.bits import CompiledBits, find_xi
from custom_inference.compiled.gaussian.matched import CompiledMatched
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.structure import flatten
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.em.loop import run_em
from custom_inference.methods import default_method
from ppl_models import LogisticPCA, RowBlocks, Site
from ppl_models.distributions import Flat
from tests.programs._own import ROW, observed, own_program

REAL, POSITIVE, BIT = constraints.real, constraints.positive, constraints.boolean
ENGINE, BEST = CompiledBits(), CompiledMatched()


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def sigmoid(value):
    return 1 / (1 + np.exp(-value))


def factors(size, columns, link=None, support=REAL):
    """x_nd ~ Bernoulli(logits = bias_d + f_n weight_d): abilities and items, where slopes are positive."""
    sites = {
        "weight": Site("global", ("class", "column"), support=support),
        "bias": Site("global", ("column",), support=REAL), "f": Site("latent", ("class",), ROW, REAL),
        "x": observed(BIT, columns),
    }  # fmt: skip

    def program(plate, weight, bias):
        f = pyro.sample("f", dist.Normal(torch.zeros(size).to(bias), 1.0).to_event(1))
        odds = bias + f @ weight
        return plate.observe("x", dist.Bernoulli(logits=odds) if link is None else dist.Bernoulli(link(odds)))

    slope = dist.Normal(0.0, 1.5) if support is REAL else dist.LogNormal(0.0, 0.5)
    return own_program(sites, program, {"weight": slope, "bias": dist.Normal(0.0, 3.0)}, columns=columns, classes=size)


def growth(columns, slopes=True):
    """Answers at given times, with an intercept, and where ``slopes`` a slope, of each row."""
    sites = {
        **{site: Site("global", (), support=REAL) for site in ("base", "slope")},
        **{site: Site("global", (), support=POSITIVE) for site in ("spread", *(["apart"] if slopes else []))},
        "t": Site("given", ("column",), ROW, REAL), "u": Site("latent", (), ROW, REAL),
        **({"v": Site("latent", (), ROW, REAL)} if slopes else {}), "x": observed(BIT, columns),
    }  # fmt: skip

    def program(plate, base, slope, spread, t, apart=None):
        u = pyro.sample("u", dist.Normal(0.0, spread)).unsqueeze(-1)
        own = slope if apart is None else slope + pyro.sample("v", dist.Normal(0.0, apart)).unsqueeze(-1)
        return plate.observe("x", dist.Bernoulli(logits=base + u + own * plate.of(t)))

    flat = dict.fromkeys(("base", "slope"), Flat(dist.Normal(0.0, 1.0)))
    flat |= {site: Flat(dist.LogNormal(0.0, 1.0)) for site in ("spread", "apart") if site in sites}
    return own_program(sites, program, flat, columns=columns)


def chain(steps):
    sites = {
        "start": Site("global", (), support=REAL), "move": Site("global", (), support=POSITIVE),
        **{f"u{t}": Site("latent", (), ROW, REAL) for t in range(steps)}, "x": observed(BIT, steps),
    }  # fmt: skip

    def program(plate, start, move):
        level = [pyro.sample("u0", dist.Normal(start, 1.0))]
        for t in range(1, steps):
            level.append(pyro.sample(f"u{t}", dist.Normal(level[-1], move)))
        return plate.observe("x", dist.Bernoulli(logits=torch.stack(level, -1)))

    return own_program(
        sites, program, {"start": dist.Normal(0.0, 3.0), "move": dist.LogNormal(0.0, 0.5)}, columns=steps
    )


def beside_numbers():
    """A factor behind four measurements and a bit."""
    sites = {
        "slope": Site("global", ("column",), support=REAL), "noise": Site("global", (), support=POSITIVE),
        "odds": Site("global", (), support=REAL), "f": Site("latent", (), ROW, REAL),
        "g": Site("latent", (), ROW, REAL), "x": observed(REAL, 4), "y": observed(BIT),
    }  # fmt: skip

    def program(plate, slope, noise, odds, **_):
        f, g = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "fg")
        plate.observe("y", dist.Bernoulli(logits=odds + f - g))
        return plate.observe("x", dist.Normal(slope * f.unsqueeze(-1) + g.unsqueeze(-1), noise))

    priors = {"slope": dist.Normal(0.0, 1.0), "noise": dist.LogNormal(0.0, 1.0), "odds": dist.Normal(0.0, 2.0)}
    return own_program(sites, program, priors, columns=4)


def holes(x, part=0.15, seed=9):
    return np.where(np.random.default_rng(seed).random(x.shape) < part, np.nan, x)


def draw_factors(number, size, columns, seed=0):
    rng = np.random.default_rng(seed)
    weight, bias = 1.2 * rng.normal(size=(size, columns)), rng.normal(size=columns)
    odds = bias + rng.normal(size=(number, size)) @ weight
    return (rng.random(odds.shape) < sigmoid(odds)).astype(float)


def draw_growth(number, columns, apart=0.7, seed=0):
    rng = np.random.default_rng(seed)
    t = rng.normal(size=(number, columns))
    own = np.array([-0.5, 1.0]) + rng.normal(size=(number, 2)) * [0.6, apart]
    return (rng.random(t.shape) < sigmoid(own[:, :1] + own[:, 1:] * t)).astype(float), t


def problem(name):
    rng = np.random.default_rng(4)
    if name == "factors":
        model, given = factors(3, 6), {"x": holes(draw_factors(80, 3, 6))}
    elif name == "items":
        model, given = factors(2, 6, support=POSITIVE), {"x": draw_factors(80, 2, 6)}
    elif name == "growth":
        x, t = draw_growth(60, 8)
        spreads = dict.fromkeys(("spread", "apart"), dist.LogNormal(-0.5, 0.3))
        model, given = growth(8).with_priors(**spreads), {"x": holes(x), "t": t}
    elif name == "chain":
        levels = rng.normal(size=(60, 6)).cumsum(1)
        model, given = chain(6), {"x": (rng.random((60, 6)) < sigmoid(levels)).astype(float)}
    else:
        f, g = rng.normal(size=(2, 60, 1))
        x, y = f * [1.0, -1.0, 0.5, 2.0] + g + 0.5 * rng.normal(size=(60, 4)), rng.random(60) < sigmoid(1 + f - g)[:, 0]
        model, given = beside_numbers(), {"x": holes(x), "y": np.where(rng.random(60) < 0.1, np.nan, y)}
    return model, model.prepare(given.pop("x"), dtype=torch.float64, **given)


def solve(model, data, params, engine=ENGINE):
    """The bound of every row at its best, and the posterior."""
    return LocalSolver(engine=engine, tolerance=1e-11).solve(model, params, data)


def as_slopes(name, params, data, n):
    """Intercepts (D,) and slopes (D, R) of the log-odds of a row, and the mean and covariance of its latents."""
    p = {site: value.numpy() for site, value in params.items()}
    if name == "factors":
        return p["bias"], p["weight"].T, np.zeros(3), np.eye(3)
    if name == "growth":
        t = data.others["t"][n].numpy()
        slopes = np.stack([np.ones_like(t), t], 1)
        return p["base"] + p["slope"] * t, slopes, np.zeros(2), np.diag([p["spread"], p["apart"]]) ** 2
    sums = np.tril(np.ones((6, 6)))
    moves = np.diag(np.r_[1.0, np.full(5, p["move"] ** 2)])
    return np.zeros(6), np.eye(6), np.full(6, p["start"]), sums @ moves @ sums.T


def best_bound(x, intercept, slopes, mean, covariance):
    """The bound of Jaakkola and Jordan at its best, and the posterior, written with dense matrices."""
    seen = np.isfinite(x)
    x, b, a, prior = x[seen], intercept[seen], slopes[seen], np.linalg.inv(covariance)
    m, v = mean, covariance
    for _ in range(3000):
        xi = np.sqrt((b + a @ m) ** 2 + np.einsum("di,ij,dj->d", a, v, a))
        lam = np.tanh(xi / 2) / (4 * xi)
        v = np.linalg.inv(prior + 2 * (a.T * lam) @ a)
        m = v @ (prior @ mean + a.T @ (x - 0.5 - 2 * lam * b))
    odds, apart = b + a @ m, m - mean
    fitted = np.log(sigmoid(xi)) + (2 * x - 1) * odds / 2 - xi / 2  # where the quadratic term is 0 on average
    sizes = np.linalg.slogdet(covariance)[1] - np.linalg.slogdet(v)[1] - len(m)
    return fitted.sum() - 0.5 * (np.trace(prior @ v) + apart @ prior @ apart + sizes), m, v


@pytest.mark.parametrize("name", ["factors", "growth", "chain"])
def test_bound_and_posterior_are_those_written_with_dense_matrices(name):
    model, data = problem(name)
    params = bind_gaussian(model, data).structure.probe.draw_globals()
    found = solve(model, data, params)
    assert isinstance(found.posterior, GaussianPosterior)
    x = data.x.numpy() if data.mask is None else np.where(data.mask.numpy(), data.x.numpy(), np.nan)
    for n in range(6):
        bound, mean, covariance = best_bound(x[n], *as_slopes(name, params, data, n))
        assert float(found.bound[n]) == pytest.approx(bound, abs=1e-6)
        np.testing.assert_allclose(found.posterior.mean[n], mean, atol=1e-3)
        np.testing.assert_allclose(found.posterior.covariance[n], covariance, atol=1e-3)


@pytest.mark.parametrize("size", [1, 2])
def test_bound_is_below_the_evidence_by_a_grid_and_near_it(size):
    model, x = factors(size, 5), holes(draw_factors(12, size, 5, seed=3))
    data, rng = model.prepare(x, dtype=torch.float64), np.random.default_rng(1)
    weight, bias = rng.normal(size=(size, 5)), rng.normal(size=5)
    axis = np.linspace(-9, 9, 181)
    nodes = np.array(list(itertools.product(axis, repeat=size)))
    odds = bias + nodes @ weight
    log_prior = -0.5 * (nodes**2).sum(1) + size * np.log((axis[1] - axis[0]) / np.sqrt(2 * np.pi))
    each = np.where(np.isnan(x)[:, None], 0.0, -np.logaddexp(0, np.where(x[:, None] == 1, -1, 1) * odds))
    evidence = np.asarray(logsumexp(each.sum(2) + log_prior, axis=1))
    params = {"weight": torch.as_tensor(weight), "bias": torch.as_tensor(bias)}
    found, best = (np.asarray(solve(model, data, params, engine).bound) for engine in (ENGINE, BEST))
    assert (found < best + 1e-9).all()
    assert (best < evidence + 1e-6).all()  # whose expectations are sums over nodes
    assert (found > evidence - 0.25 * size).all()
    assert (best > evidence - 0.05 * size).all()


def negative_elbo(free, x, bias, weight):
    """-E_q log p(x, f) - H(q), q with the mean and the root of the covariance in ``free``, by 60 nodes."""
    size, seen = len(weight), np.isfinite(x)
    m, root = free[:size], np.zeros((size, size))
    root[np.tril_indices(size)] = free[size:]
    node, share = np.polynomial.hermite_e.hermegauss(60)
    odds = (bias + m @ weight)[:, None] + np.linalg.norm(root.T @ weight, axis=0)[:, None] * node
    expected = -np.logaddexp(0, -(2 * x[seen, None] - 1) * odds[seen]) @ (share / share.sum())
    entropy = np.log(np.abs(np.diag(root))).sum() + size / 2
    return -(expected.sum() - 0.5 * (m @ m + (root**2).sum()) + entropy)


def test_the_best_gaussians_are_those_of_an_optimiser():
    model, x = factors(2, 5), holes(draw_factors(6, 2, 5, seed=3))
    rng = np.random.default_rng(1)
    weight, bias = 1.5 * rng.normal(size=(2, 5)), rng.normal(size=5)
    params = {"weight": torch.as_tensor(weight), "bias": torch.as_tensor(bias)}
    found = solve(model, model.prepare(x, dtype=torch.float64), params, BEST)
    for n in range(6):
        best = minimize(negative_elbo, np.r_[0, 0, 1, 0, 1.0], args=(x[n], bias, weight), tol=1e-10)
        assert float(found.bound[n]) == pytest.approx(-best.fun, abs=1e-4)
        np.testing.assert_allclose(found.posterior.mean[n], best.x[:2], atol=5e-3)


def test_the_bound_is_that_of_the_listed_model():
    """Logistic PCA, whose engine is written for it alone."""
    x, model = holes(draw_factors(60, 3, 7)), factors(3, 7)
    listed, rng = LogisticPCA(num_components=3, num_features=7), np.random.default_rng(2)
    params = {"weight": torch.as_tensor(rng.normal(size=(3, 7))), "bias": torch.as_tensor(rng.normal(size=7))}
    own = solve(model, model.prepare(x, dtype=torch.float64), params)
    want = VariationalEM(guide="gaussian").local_posterior(listed, params, listed.prepare(x, dtype=torch.float64))
    torch.testing.assert_close(own.bound, want.bound, atol=1e-5, rtol=0)


@pytest.mark.parametrize("engine", [ENGINE, BEST])
@pytest.mark.parametrize("name", ["factors", "items", "growth", "chain", "beside_numbers"])
def test_em_climbs_to_where_the_bound_has_no_slope(name, engine):
    """Central differences of the bound at its best, with the log prior, over the globals on unconstrained scales."""
    model, data = problem(name)
    rows = engine.rows(model, data)
    state = engine.propose(model, rows, torch.Generator().manual_seed(0), 0)
    run = run_em(engine, model, rows, state, max_iterations=1500, tolerance=1e-11, accelerate="squarem")
    assert (np.diff(run.trace) > -1e-7).all()
    maps = {site: biject_to(model.prior(site).support) for site in model.unknown_sites}
    free = {site: maps[site].inv(run.state[site].double()) for site in maps}

    def objective(moved):
        values = {site: maps[site](one) for site, one in moved.items()}
        return float(solve(model, data, values, engine).bound.sum() + model.log_prior(values))

    for site in maps:
        step = 1e-3 * torch.randn(free[site].shape, generator=torch.Generator().manual_seed(1)).sign()
        ends = [objective({**free, site: free[site] + sign * step}) for sign in (1, -1)]
        assert abs(ends[0] - ends[1]) / 2e-3 < 2e-2, site


def test_counts_of_successes_are_as_many_bits():
    """A binomial of three trials is three bits of the same log-odds, in any order; no trials say nothing."""
    rng = np.random.default_rng(0)
    x, trials = rng.integers(0, 4, (20, 4)).astype(float), np.full(4, 3.0)
    sites = {"weight": Site("global", ("column",), support=REAL), "f": Site("latent", (), ROW, REAL)}
    prior = {"weight": dist.Normal(0.0, 1.0)}

    def counts(plate, weight):
        f = pyro.sample("f", dist.Normal(0.0, 1.0)).unsqueeze(-1)
        return plate.observe("x", dist.Binomial(torch.tensor([3.0, 3.0, 3.0, 3.0, 0.0]), logits=weight * f))

    def bits(plate, weight):
        f = pyro.sample("f", dist.Normal(0.0, 1.0)).unsqueeze(-1)
        return plate.observe("x", dist.Bernoulli(logits=weight.repeat_interleave(3) * f))

    five = own_program({**sites, "x": observed(constraints.integer_interval(0, 3), 5)}, counts, prior, columns=5)
    wide = {**sites, "weight": Site("global", ("class",), support=REAL), "x": observed(BIT, 12)}
    many = own_program(wide, bits, prior, columns=12, classes=4)
    weight = torch.as_tensor(rng.normal(size=4))
    ones = (np.arange(3) < x[..., None]).reshape(20, 12).astype(float)
    given = five.prepare(np.hstack([x, np.zeros((20, 1))]), dtype=torch.float64)
    found = solve(five, given, {"weight": torch.cat([weight, torch.ones(1)])}).bound
    want = solve(many, many.prepare(ones, dtype=torch.float64), {"weight": weight}).bound
    orders = torch.lgamma(torch.as_tensor(trials + 1)) - torch.lgamma(torch.as_tensor(x + 1))
    orders = (orders - torch.lgamma(torch.as_tensor(trials - x + 1))).sum(1)
    torch.testing.assert_close(found, want + orders, atol=1e-8, rtol=0)


def test_planted_slopes_are_found_in_raw_units():
    """Answers by years: a random intercept, whose spread the bound of every bit takes for smaller than it is."""
    x, t = draw_growth(500, 8, apart=0.0)
    model = growth(8, slopes=False)
    best = fit(model, holes(x), t=t, method="variational", progress=False)
    assert float(best.params["spread"]) == pytest.approx(0.6, abs=0.12)
    found = fit(model, holes(x), t=t, method="conjugate", progress=False)
    assert float(found.params["slope"]) == pytest.approx(1.0, abs=0.12)
    assert float(found.params["base"]) == pytest.approx(-0.5, abs=0.12)
    assert 0.25 < float(found.params["spread"]) < 0.75
    years = fit(model, holes(x), t=2000 + 5 * t, method="conjugate", progress=False)
    assert float(years.params["slope"]) == pytest.approx(float(found.params["slope"]) / 5, rel=2e-2)
    assert float(years.elbo[-1]) == pytest.approx(float(found.elbo[-1]), abs=1e-3 * len(x))


def test_the_default_and_what_follows(tmp_path):
    x = draw_factors(150, 3, 8)
    model = factors(3, 8)
    found = fit(model, x, progress=False)
    assert (found.method.name, found.objective) == ("VariationalEM(variational)", "bound")
    assert found.bound_name == "variational"
    assert {"conjugate", "variational"} <= set(methods_for(model))
    assert float(found.elbo[-1]) > float(fit(model, x, method="conjugate", progress=False).elbo[-1])
    loaded = Fit.load(found.save(tmp_path / "fit"), model=type(model))
    bound = found.log_likelihood(x, bound="variational")
    torch.testing.assert_close(loaded.log_likelihood(x, bound="variational"), bound)
    assert float(bound.sum()) == pytest.approx(float(found.elbo[-1] - found.log_prior), abs=1e-2)
    mean, spread = found.posteriors["f"].mean, found.posteriors["f"].variance
    assert mean.shape == spread.shape == (150, 3)
    # One latent is integrated.
    assert default_method(factors(1, 8), None).name.startswith("SVI")
    assert default_method(factors(2, 8), None).name == "VariationalEM(variational)"


@pytest.mark.parametrize("guide", ["conjugate", "variational"])
def test_weights_are_repeated_rows_and_blocks_are_rows(guide):
    x, model = draw_factors(40, 2, 5), factors(2, 5)
    weights = np.random.default_rng(0).integers(1, 4, 40)
    settings = {"guide": guide, "max_iterations": 3, "tolerance": 1e-12, "accelerate": None}
    method = VariationalEM(**settings)
    init = fit(model, x, progress=False, method="conjugate", max_iterations=2).params
    whole = method.fit(model, np.repeat(x, weights, 0), init=init, progress=False).params
    weighed = method.fit(model, x, init=init, weights=torch.as_tensor(weights, dtype=torch.float64), progress=False)
    ends = np.repeat(x, weights, 0)
    blocks = RowBlocks(read=lambda: [ends[:25], ends[25:]], num_rows=len(ends))
    streamed = method.fit(model, blocks, init=init, progress=False)
    for site, value in whole.items():
        torch.testing.assert_close(weighed.params[site], value, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(streamed.params[site], value, rtol=1e-7, atol=1e-7)


def test_updates_of_where_bounds_touch_never_lower_them():
    model, data = problem("factors")
    rows = bind_gaussian(model, data)
    params = rows.structure.probe.draw_globals()
    flat, step = flatten(rows, params), ENGINE.e_step(model, params, rows)
    xi = torch.full_like(step.locals["xi"], 3.0)
    for _ in range(5):
        after = find_xi(rows, flat, xi, 1)
        before, now = (ENGINE.infer(params, rows, None, {"xi": one}, 1.0).bound for one in (xi, after))
        assert (now > before - 1e-9).all()
        xi = after


@pytest.mark.parametrize("link", [torch.special.ndtr, torch.sigmoid])
def test_other_links_are_refused_by_name_and_fitted_otherwise(link):
    model, x = factors(3, 2, link), draw_factors(9, 1, 2)
    reason = "'x' is drawn from Bernoulli by probs; expected Normal, or Bernoulli or Binomial by logits"
    with pytest.raises(NotCompiled, match=reason):
        VariationalEM(guide="conjugate").fit(model, x, progress=False)
    if link is torch.special.ndtr:
        found = fit(model, x, progress=False)
        assert found.bound_name == "gaussian"
        assert reason in found.status


def test_log_odds_that_bend_are_refused():
    sites = {"weight": Site("global", (), support=REAL), "f": Site("latent", (), ROW, REAL), "x": observed(BIT, 3)}

    def program(plate, weight):
        f = pyro.sample("f", dist.Normal(0.0, 1.0)).unsqueeze(-1)
        return plate.observe("x", dist.Bernoulli(logits=(weight * f**2).expand(*f.shape[:-1], 3)))

    model = own_program(sites, program, {"weight": dist.Normal(0.0, 1.0)}, columns=3)
    with pytest.raises(NotCompiled, match="mean of 'x' is not affine"):
        bind_gaussian(model, model.prepare(draw_factors(20, 1, 3), dtype=torch.float64))
