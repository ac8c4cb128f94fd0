"""NUTS over the globals: against integrals, and where a site has nothing to sample."""

import arviz as az
import numpy as np
import pyro.distributions as dist
import pytest
import torch

from custom_inference import NUTS, posterior_draws
from custom_inference.core.diagnostics import convergence, effective_size
from ppl_models import MODELS, NOCA, AspectBernoulli, MixtureOfPoissons


def test_draws_agree_with_numerical_integration():
    """One source, one feature: posterior means of all globals by a grid, within four Monte Carlo standard errors."""
    x = torch.tensor([[1.0]] * 9 + [[0.0]] * 6)
    priors = {"leak": dist.Beta(1.0, 3.0), "source_prior": dist.Beta(2.0, 2.0)}
    model = NOCA(num_components=1, num_features=1).with_priors(**priors)
    fit = NUTS(num_samples=200, warmup=70, chains=1).fit(model, x, seed=0, progress=False)
    grid = torch.linspace(0.5 / 60, 1 - 0.5 / 60, 60)
    pi, p, p0 = torch.meshgrid(grid, grid, grid, indexing="ij")
    on = 1 - (1 - p0) * (1 - pi * p)
    log_density = 9 * on.log() + 6 * (1 - on).log()
    log_density = log_density + priors["leak"].log_prob(p0) + priors["source_prior"].log_prob(pi)
    weight = torch.softmax(log_density.flatten(), 0)
    for site, value in (("source_prior", pi), ("loading", p), ("leak", p0)):
        draws = fit.draws[site].reshape(1, 200).numpy()
        exact = float(weight @ value.flatten())
        assert az.ess(draws) > 40  # else four standard errors say little
        # With numba installed ArviZ returns an array of one element.
        assert abs(draws.mean() - exact) < 4 * np.asarray(az.mcse(draws)).item(), site
    assert "divergences" in fit.status and fit.details["ess"] > 20


@pytest.mark.parametrize(("chains", "num_samples"), [(2, 12), (1, 12), (2, 3)])
def test_the_status_says_whether_the_chains_agree(chains, num_samples):
    """The largest R-hat and the smallest effective size of all entries, those of ArviZ."""
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    method = NUTS(num_samples=num_samples, warmup=10, chains=chains)
    fit = method.fit(NOCA(num_components=1, num_features=2), x, seed=4, progress=False)
    drawn = f"drew {chains} chain{'s' if chains > 1 else ''} of {num_samples}"
    assert fit.status.startswith(f"{drawn} after 10 warm-up steps; {fit.details['divergences']} divergences; ")
    if num_samples < 4:
        assert fit.status.endswith("no R-hat: fewer than 4 draws a chain") and fit.details["r_hat"] is None
        return
    every = {**fit.draws, "log joint": fit.sample_stats["lp"]}
    sizes = [effective_size(value.numpy()) for value in every.values()]
    assert fit.details["ess"] == pytest.approx(min(each.min() for each in sizes), abs=1e-4)
    kind = "R-hat" if chains > 1 else "split R-hat"
    assert f"worst {kind} {fit.details['r_hat']:.3f} ({fit.details['r_hat_of']})" in fit.status
    assert ("one chain cannot show modes" in fit.status) == (chains == 1)
    assert ("not converged" in fit.status) == (fit.details["r_hat"] > 1.01)
    if chains > 1:  # ArviZ has no R-hat of one
        entries = [value.reshape(chains, num_samples, -1).numpy() for value in every.values()]
        found = [float(np.asarray(az.rhat(v[..., j])).item()) for v in entries for j in range(v.shape[-1])]
        assert fit.details["r_hat"] == pytest.approx(max(found), abs=1e-4)


def test_the_worst_entry_is_named_whatever_the_others_are():
    generator = np.random.default_rng(0)
    draws = generator.normal(size=(2, 200, 2, 3))
    draws[1, :, 1, 2] += 2.0
    slow = np.repeat(generator.normal(size=(2, 20)), 10, axis=1)
    found = convergence({"rate": draws, "slow": slow, "constant": np.ones((2, 200, 4))})
    assert (found.r_hat_of, found.ess_of) == ("rate[1, 2]", "rate[1, 2]") and found.r_hat > 1.1
    draws[1, :, 1, 2] -= 2.0
    found = convergence({"rate": draws, "slow": slow, "constant": np.ones((2, 200, 4))})
    assert found.ess_of == "slow" and "constant" not in str(found)
    drifting = convergence({"rate": np.linspace(0, 3, 200)[None] + generator.normal(size=(1, 200))})
    assert "not converged" in str(drifting) and "worst split R-hat" in str(drifting)
    still = convergence({"constant": np.ones((2, 200))})
    assert str(still) == "no R-hat: nothing varies" and np.isnan(still.ess)


@pytest.mark.quick
def test_the_same_seed_gives_the_same_draws():
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    method = NUTS(num_samples=5, warmup=5, chains=1)
    fits = [method.fit(NOCA(num_components=1, num_features=2), x, seed=4, progress=False) for _ in range(2)]
    assert torch.equal(fits[0].draws["loading"], fits[1].draws["loading"])


ONE_CLASS = [name for name in MODELS if name.startswith("mixture")] + ["lda", "sbm"]


@pytest.mark.parametrize("name", ONE_CLASS)
def test_one_component_is_sampled(name):
    """A simplex of one entry has no unconstrained coordinate; every other site moves."""
    example = MODELS[name].example()
    model = MODELS[name].for_data(example.data, 1)
    fit = NUTS(num_samples=4, warmup=4, chains=2, max_tree_depth=3).fit(model, example.data, progress=False)
    assert set(fit.draws) >= set(model.global_sites) and torch.isfinite(fit.sample_stats["lp"]).all()
    for site, draws in fit.draws.items():
        assert draws.shape[:2] == (2, 4) and draws.shape[2:] == model.shapes.get(site, draws.shape[2:])
        assert bool((draws == 1).all()) == ("proportion" in site)
    assert set(posterior_draws(fit, 2)) == {*model.global_sites, model.local_site}


def test_one_class_of_counts_has_gamma_posteriors():
    """Gamma(2, 1/2) rates: posterior means (2 + sum_n x_nj) / (1/2 + N), within four Monte Carlo standard errors."""
    x = np.random.default_rng(0).poisson([1.0, 4.0], (12, 2)).astype(float)
    model = MixtureOfPoissons(num_components=1, num_features=2).with_priors(rate=dist.Gamma(2.0, 0.5))
    fit = NUTS(num_samples=80, warmup=60, chains=2).fit(model, x, seed=0, progress=False)
    for j, exact in enumerate((2 + x.sum(0)) / (0.5 + len(x))):
        draws = fit.draws["rate"][:, :, 0, j].numpy()
        assert abs(draws.mean() - exact) < 4 * np.asarray(az.mcse(draws)).item()


def test_chains_begin_at_given_globals_also_where_the_locals_have_no_maximum():
    """Memberships whose Dirichlet is unbounded at the edge."""
    example = AspectBernoulli.example()
    edged = example.model.with_priors(membership=dist.Dirichlet(torch.full((3,), 0.7)))
    init = {site: example.truth[site] for site in example.model.global_sites}
    method = NUTS(num_samples=2, warmup=1, chains=1, max_tree_depth=2)
    fit = method.fit(edged, example.data, init=init, progress=False)
    assert all(torch.isfinite(value).all() for value in fit.draws.values())
