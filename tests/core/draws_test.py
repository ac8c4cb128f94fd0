"""Draws from a fit's posterior: which they are, that sites are independent, and that everything draws the same ones."""

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core import draws as drawing
from custom_inference.core.draws import PosteriorDraws
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import BernoulliPosterior, BetaPosterior
from ppl_models import LDA, MODELS, NOCA, SBM, Data, MethodError, MixtureOfPoissons
from tests.support.fits import given

pytestmark = pytest.mark.quick

#: Statistical assertions have to miss by more than this many standard errors to fail.
SIGMA = 4.0


def test_globals_and_locals_are_drawn_jointly_where_a_fit_has_joint_draws():
    """Gibbs draws of topics and proportions: each pair is one state of the chain."""
    example = LDA.example()
    fit = ci.CollapsedGibbs(num_samples=10, warmup=10, chains=2).fit(example.model, example.data, progress=False)
    assert fit.draws is not None
    chains, length = fit.draws["topic"].shape[:2]
    for number, (params, local) in enumerate(PosteriorDraws(fit, chains * length)):
        chain, draw = divmod(number, length)
        assert torch.equal(params["topic"], fit.draws["topic"][chain, draw])
        assert torch.equal(local, fit.draws["topic_proportion"][chain, draw])
    draws = PosteriorDraws(fit, 20)
    assert draws.markov and draws.source.endswith("drawn with the globals")


def test_locals_are_inferred_at_every_draw_where_only_globals_were_drawn():
    example = MixtureOfPoissons.example()
    fit = ci.CollapsedGibbs(num_samples=5, warmup=5, chains=2).fit(example.model, example.data, progress=False)
    draws = PosteriorDraws(fit, 10)
    assert "given each draw" in draws.source
    params, local = list(draws)[3]
    assert torch.equal(params["rate"], fit.draws["rate"][0, 3]) and local.shape == (60, 3)
    assert torch.allclose(local.sum(-1), torch.ones(60))


def test_draws_of_an_approximate_posterior_have_its_moments():
    """Two sites of equal shapes: means and variances within 5 standard errors, and no correlation between sites."""
    example = SBM.example()
    fit = ci.VariationalEM(guide="vb").fit(example.model, example.data, progress=False)
    pairs = list(PosteriorDraws(fit, 2000))
    assert "approximate posterior" in PosteriorDraws(fit, 2).source
    drawn = {site: torch.stack([params[site] for params, _ in pairs]) for site in fit.globals}
    for site, value in drawn.items():
        error = value.std(0) / 2000**0.5
        assert ((value.mean(0) - fit.global_posterior[site].mean).abs() < 5 * error).all()
    both = torch.corrcoef(torch.cat([value.flatten(1) for value in drawn.values()], 1).T)
    assert float(both[:3, 3:].abs().max()) < 5 / 2000**0.5


def test_a_point_estimate_is_plugged_in_and_says_so():
    brief = {"max_iterations": 3, "search": None}
    noca, plsa = (MODELS[name].example() for name in ("noca", "plsa"))
    fit = ci.EM(**brief).fit(noca.model, noca.data, progress=False)
    assert "plugged in" in PosteriorDraws(fit, 2).source
    fit = ci.VariationalEM(guide="map", **brief).fit(plsa.model, plsa.data, progress=False)
    assert "locals: point estimates" in PosteriorDraws(fit, 2).source


@pytest.fixture
def alike():
    """A fit whose globals of equal shapes have equal posteriors: what one random stream would make equal."""
    model = NOCA(num_components=3, num_features=3)
    beta = {site: BetaPosterior(*(2.0 * torch.ones(2, *shape))) for site, shape in model.shapes.items()}
    local = Local(BernoulliPosterior(torch.full((3, 3), 0.5)), torch.zeros(3))
    params, settings = {site: q.mean for site, q in beta.items()}, {"bound_name": "mean_field", "seed": 5}
    return given(model, params, Data(x=torch.zeros(3, 3)), local=local, global_posterior=beta, **settings)


def test_sites_of_equal_posteriors_are_drawn_independently(alike):
    """No correlation of any two entries: of the 18 * 17 / 2 the largest is within 5 standard errors of 0."""
    drawn = ci.posterior_draws(alike, 2000)
    assert not torch.equal(drawn["leak"], drawn["source_prior"])
    entries = torch.cat([value.flatten(1) for site, value in drawn.items() if site != "loading"], 1)
    both = torch.corrcoef(entries.T) - torch.eye(entries.shape[1])
    assert float(both.abs().max()) < 5 / 2000**0.5


def test_every_door_gives_the_same_draws(alike, monkeypatch):
    """At the fit's own seed those of ArviZ, one by one or together, and of chunks again; another seed gives others."""
    drawn = ci.posterior_draws(alike, 9, seed=5)
    group = alike.to_arviz(num_draws=9).posterior
    for site, value in drawn.items():
        np.testing.assert_allclose(group[site].values[0], value, rtol=1e-12)
        assert torch.equal(value, ci.posterior_draws(alike, 9, seed=5)[site])
        assert not torch.equal(value, ci.posterior_draws(alike, 9, seed=6)[site])
    for number, (params, local) in enumerate(PosteriorDraws(alike, 9, 5)):
        assert all(torch.allclose(drawn[site][number], value, rtol=1e-12) for site, value in params.items())
        assert torch.equal(drawn["source"][number], local)
    monkeypatch.setattr(drawing, "_ENTRIES", 4 * 3)  # four draws of a vector at once, one of a matrix
    first, again = (ci.posterior_draws(alike, 9, seed=5) for _ in range(2))
    assert all(torch.equal(first[site], again[site]) and len(first[site]) == 9 for site in drawn)
    assert len(torch.unique(first["leak"][:, 0])) == 9


def test_locals_given_draws_are_the_same_for_arviz():
    example = MixtureOfPoissons.example()
    fit = ci.CollapsedGibbs(num_samples=3, warmup=3, chains=2).fit(example.model, example.data, progress=False)
    values = fit.to_arviz().posterior["assignment"].values
    every = ci.posterior_draws(fit, 6, seed=fit.seed, independent=False)["assignment"]
    assert np.array_equal(values.reshape(every.shape), every)
    few = fit.to_arviz(max_rows=7).posterior["assignment"]
    assert few.shape == (2, 3, 7, 3) and (few.sum("component") == 1).all()


def test_copies_of_the_data_do_not_share_the_stream_of_the_locals(alike):
    """Nothing turns x on but the leak, so that it is independent of the sources that it is drawn beside."""
    params = {"source_prior": torch.full((3,), 0.5), "loading": torch.zeros(3, 3), "leak": torch.full((3,), 0.5)}
    local = Local(BernoulliPosterior(torch.full((4000, 3), 0.5)), torch.zeros(4000))
    fit = given(alike.model, params, Data(x=torch.zeros(4000, 3)), bound_name="mean_field", local=local)
    copy, source = fit.predictive(1, seed=7)[0], fit.posterior.sample(1, seed=7)[0]
    assert abs(float(torch.corrcoef(torch.stack([copy[:, 0], source[:, 0]]))[0, 1])) < SIGMA / 4000**0.5
    assert torch.equal(copy, fit.predictive(2, seed=7)[0])


def test_draws_of_variational_posteriors_are_of_independent_sites():
    example = MixtureOfPoissons.example()
    fit = ci.VariationalEM(guide="vb", search=None).fit(example.model, example.data, progress=False)
    draws = ci.posterior_draws(fit, 2000, seed=1)
    assert {s: v.shape[1:] for s, v in draws.items() if s != "assignment"} == example.model.shapes
    assert draws["assignment"].shape == (2000, len(example.data), 3)
    for site, value in fit.params.items():
        error = draws[site].std(0) / len(draws[site]) ** 0.5
        assert ((draws[site].mean(0) - value).abs() < 5 * error).all()
    both = torch.corrcoef(torch.stack([draws["rate"][:, 0, 0], draws["mixing_proportion"][:, 0]]))
    assert abs(float(both[0, 1])) < SIGMA / 2000**0.5  # one random state for both would make them dependent
    assert not torch.equal(ci.posterior_draws(fit, 3, seed=2)["rate"], ci.posterior_draws(fit, 3, seed=3)["rate"])
    drawn = fit.to_arviz(num_draws=2000).posterior
    both = np.corrcoef(drawn["rate"].values[0, :, 0, 0], drawn["mixing_proportion"].values[0, :, 0])
    assert abs(float(both[0, 1])) < SIGMA / 2000**0.5


def test_draws_of_chains_are_thinned_to_their_effective_size():
    example = MixtureOfPoissons.example()
    model, size = example.model, 3000
    generator = torch.Generator().manual_seed(0)
    walk = torch.zeros(1, size, 3, example.data.num_features)
    for t in range(1, size):  # an autoregression: one independent draw in (1 + .9) / (1 - .9) = 19
        walk[:, t] = 0.9 * walk[:, t - 1] + torch.randn(walk[:, t].shape, generator=generator)
    draws = {"rate": 50 + walk, "mixing_proportion": torch.full((1, size, 3), 1 / 3)}
    params = {site: value.mean((0, 1)) for site, value in draws.items()}
    fit = given(model, params, example.data, bound_name="", draws=draws)
    independent = ci.posterior_draws(fit, 200, locals_=False)
    assert set(independent) == {"rate", "mixing_proportion"} and 80 < len(independent["rate"]) < 160
    every = ci.posterior_draws(fit, 10**6, independent=False, locals_=False)
    assert torch.equal(every["rate"], draws["rate"][0])
    assert ci.posterior_draws(fit, 7)["assignment"].shape == (7, len(example.data), 3)


def test_points_have_no_draws():
    example = LDA.example()
    fit = ci.VariationalEM(guide="map", max_iterations=3, search=None).fit(example.model, example.data, progress=False)
    with pytest.raises(MethodError, match="points of topic.*NUTS"):
        ci.posterior_draws(fit)
    with pytest.raises(MethodError, match="num_draws = 0"):
        ci.posterior_draws(fit, 0)
