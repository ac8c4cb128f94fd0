"""Locals of fits that hold draws of the globals: averages over the draws, against direct averages in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from custom_inference import NUTS, SVI, CollapsedGibbs, Fit, posterior_draws, posterior_predictive_check
from custom_inference.core import over_draws
from custom_inference.core.local_inference import solve_local
from ppl_models import NOCA, MixtureOfBernoullis
from tests.support.array_programs import Numbers, log_joint

MODELS = pytest.mark.parametrize("kind", [Numbers, NOCA])


def drawn(kind, *, chains=2, num_samples=6):
    example = kind.example()
    start = {site: example.truth[site] for site in example.model.global_sites}
    method = NUTS(num_samples=num_samples, warmup=8, chains=chains, max_tree_depth=3)
    return method.fit(example.model, example.data, init=start, progress=False)


def averages(fit, places, **known):
    """Of the posterior means given draws, (S, N, K)."""
    flat = {site: value.flatten(0, 1) for site, value in fit.draws.items()}
    each = [{**{site: value[s] for site, value in flat.items()}, **known} for s in places]
    return torch.stack([solve_local(fit.model, params, fit.data, bound="exact").posterior.mean for params in each])


@MODELS
def test_nuts_gives_the_average_over_its_draws(kind):
    fit = drawn(kind)
    each = averages(fit, range(12))
    assert torch.allclose(fit.transform(), each.mean(0), atol=1e-10)
    at_mean = fit.local_posterior().posterior.mean
    assert float((fit.transform() - at_mean).abs().max()) > (1e-3 if kind is NOCA else 1e-5)
    assert torch.allclose(fit.transform(fit.data.x), fit.transform())
    values, log_weight = fit.posterior.table()
    assert torch.allclose(log_weight.exp() @ values, fit.transform()) and torch.allclose(
        log_weight.logsumexp(-1), torch.zeros(())
    )
    assert fit.posterior is fit.posterior, "computed once"


def test_against_numpy():
    fit = drawn(Numbers, chains=1)
    x, seen = fit.data.x.numpy(), np.ones(40, bool)
    each = [softmax(log_joint(fit.model, {k: v[0, s] for k, v in fit.draws.items()}, x, seen), -1) for s in range(6)]
    assert np.allclose(fit.transform().numpy(), np.mean(each, 0), atol=1e-12)


def test_guides_with_draws_too(monkeypatch):
    example = Numbers.example()
    fit = SVI(guide="normal", steps=60).fit(example.model, example.data, progress=False)
    total = fit.draws["share"].shape[1]
    monkeypatch.setattr(over_draws, "AVERAGED", 8)
    places = [s * total // 8 for s in range(8)]
    assert torch.allclose(fit.transform(), averages(fit, places).mean(0), atol=1e-10)


def test_saved_fits_give_the_same(tmp_path):
    fit = drawn(Numbers, num_samples=6, chains=1)
    before = fit.transform()
    loaded = Fit.load(fit.save(tmp_path / "fit"), model=Numbers)
    assert torch.allclose(loaded.transform(), before, atol=1e-12)


def test_points_and_collapsed_samplers_are_as_they_were():
    example = MixtureOfBernoullis.example()
    points = SVI(guide="delta", steps=5).fit(example.model, example.data, progress=False)
    assert points._over_draws is None
    method = CollapsedGibbs(num_samples=10, warmup=5, chains=2)
    fit = method.fit(example.model, example.data, progress=False)
    assert fit.local is not None and fit.posterior is fit.local.posterior


def test_known_globals_are_part_of_every_draw():
    """Draws of the others are draws of all: nothing takes the fit for one at points."""
    example = NOCA.example()
    model = example.model.with_priors(leak=0.03)
    start = {site: example.truth[site] for site in model.global_sites}
    method = NUTS(num_samples=6, warmup=4, chains=1, max_tree_depth=2)
    fit = method.fit(model, example.data, init=start, progress=False)
    assert "leak" not in fit.draws
    assert torch.allclose(fit.transform(), averages(fit, range(6), leak=fit.params["leak"]).mean(0), atol=1e-10)
    drawn = posterior_draws(fit, 6, independent=False)
    assert torch.equal(drawn["loading"], fit.draws["loading"][0]) and bool((drawn["leak"] == 0.03).all())
    assert drawn["source"].shape == (6, *example.truth["source"].shape)
    copies = posterior_predictive_check(fit, num_samples=3, progress=False)
    assert copies.source.startswith("globals: 3 of 6 draws")
