"""Covariates and responses in any units, from any origin: fits are those of any other units, in these units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

import custom_inference as ci
from custom_inference.families.responses import MonteCarloEM, PredictionConstrained
from ppl_models import (
    CTM,
    DataError,
    DirichletMultinomialRegression,
    ModelError,
    MultinomialRegressionLDA,
    RandomEffectsLDA,
    SupervisedLDA,
)

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")

#: a, b of what is read as a x + b.
SCALES = [(0.01, 2000.0), (1e4, -3.0), (20.0, 0.0)]
#: Methods by names, as brief as they are still themselves: that no digit depends on the units, not where they end.
BRIEF: dict[str, Any] = {
    "svi": ci.SVI(guide="mean_field", steps=8),
    "svi_delta": ci.SVI(guide="delta", steps=8),
    "nuts": ci.NUTS(num_samples=2, warmup=2, chains=1),
    "gibbs": ci.CollapsedGibbs(num_samples=4, warmup=16, chains=1, search=False),
}
CONSTRAINED = {
    "prediction_constrained": PredictionConstrained(sweeps=12, begin=4, average=4, chains=1),
    "monte_carlo_em": MonteCarloEM(rounds=4, num_samples=3, warmup=2),
}
#: The closed-form engine of every model.
ENGINES = {
    DirichletMultinomialRegression: "dirichlet",
    MultinomialRegressionLDA: "exact",
    CTM: "gaussian",
    RandomEffectsLDA: "gaussian",
    SupervisedLDA: "dirichlet",
}


def brief(kind: Any, method: str) -> Any:
    em = ci.VariationalEM(guide=ENGINES[kind], search=None, max_iterations=6)
    return {"em": em, **BRIEF, **CONSTRAINED}.get(method, method)


REGRESSIONS = [
    *((DirichletMultinomialRegression, name) for name in ("em", *BRIEF)),
    *((MultinomialRegressionLDA, name) for name in ("em", "two_stage")),
    *((CTM, name) for name in ("em", "svi", "gibbs")),
    *((RandomEffectsLDA, name) for name in ("em", "svi_delta", "gibbs")),
]


def documents(seed: int = 0, size: int = 12):
    """Counts (N, 4) of two topics, and x (N,) that says how much of each."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=size)
    share = 1 / (1 + np.exp(-2 * x))[:, None]
    words = share * np.array([0.45, 0.45, 0.05, 0.05]) + (1 - share) * np.array([0.05, 0.05, 0.45, 0.45])
    return np.stack([rng.multinomial(8, p) for p in words]).astype(float), x


def regressed(kind: Any, method: Any, a: float, b: float):
    """The fit, W in units of x, and what it says of documents."""
    words, x = documents()
    given = (a * x + b)[:, None]
    if kind is RandomEffectsLDA:
        given = np.column_stack([np.ones(len(x)), given])
    model = kind(num_topics=2, vocabulary_size=4, num_covariates=given.shape[1])
    fit = ci.fit(model, words, covariates=given, method=brief(kind, method), progress=False)
    weight = fit.params["mean" if kind is RandomEffectsLDA else "prevalence_weight"][-1]
    new = a * np.linspace(-1, 1, len(x))[:, None] + b
    new = new if given.shape[1] == 1 else np.column_stack([np.ones(len(x)), new])
    return fit, a * weight.numpy(), np.asarray(fit.transform(words, covariates=new))


@pytest.mark.parametrize(("kind", "method"), REGRESSIONS, ids=lambda one: getattr(one, "__name__", one))
def test_covariates_in_any_units_from_any_origin(kind, method):
    _, weight, share = regressed(kind, method, 1.0, 0.0)
    assert np.isfinite(weight).all() and np.isfinite(share).all()
    for a, b in SCALES[:1] if method == "nuts" else SCALES:
        fit, other, moved = regressed(kind, method, a, b)
        assert bool(torch.isfinite(fit.params["topic"]).all())
        assert np.allclose(moved, share, atol=1e-4), (a, b)
        assert np.allclose(other, weight, atol=1e-3), (a, b)


# Chains of NUTS begin at noise of about 1 in whatever unit, so that only long ones agree.
@pytest.mark.parametrize("method", ["em", *(one for one in BRIEF if one != "nuts"), *CONSTRAINED])
def test_responses_in_any_units_from_any_origin(method):
    words, x = documents(1)
    words[0] = 0  # a document without tokens: nothing is known of its response
    model = SupervisedLDA(num_topics=2, vocabulary_size=4, response="real")

    def predicted(a: float, b: float):
        response = a * x + b
        response[3] = np.nan
        fit = ci.fit(model, words, response=response, method=brief(SupervisedLDA, method), progress=False)
        weight, scale = ((fit.params[f"response_{one}"].numpy() - at) / a for one, at in (("weight", b), ("scale", 0)))
        return (fit.predict(words).numpy() - b) / a, weight, scale

    first = predicted(1.0, 0.0)
    assert all(np.isfinite(one).all() for one in first)
    for a, b in SCALES:
        assert all(np.allclose(p, q, atol=1e-4) for p, q in zip(first, predicted(a, b), strict=True)), (a, b)


@pytest.mark.parametrize("several", [1, 2])
def test_the_program_of_responses_is_the_same_law_in_other_units(several):
    words, x = documents(2, 5)
    words[0] = 0
    y = np.stack([x, 3 * x[::-1]], 1)[:, :several].squeeze()
    topic, share = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]), torch.full((5, 2), 0.5)

    def log_joint(a: float, b: float) -> float:
        weight, scale = torch.tensor([[-1.0, 1.0], [2.0, 0.5]])[:several].squeeze(0), torch.tensor([0.5, 0.7])[:several]
        model: Any = SupervisedLDA(
            num_topics=2, vocabulary_size=4, response="real", num_responses=several, centre=b + a * 0.1, unit=2 * a
        )
        data = model.prepare(words, response=a * y + b, dtype=torch.float64)
        values = {"topic": topic, "topic_proportion": share, "response_weight": a * weight + b}
        values["response_scale"] = a * (scale if several > 1 else scale.squeeze(0))
        trace = poutine.trace(poutine.condition(model, values)).get_trace(data.x, response=data.others["response"])
        local = ci.VariationalEM(guide=ENGINES[type(model)]).local_posterior(
            model, {s: values[s] for s in model.global_sites}, data
        )
        evidence = float(trace.log_prob_sum(lambda site, _: site == "response"))
        return np.array([evidence, float(local.bound.sum())]) + several * len(x) * np.log(a)

    expected = log_joint(1.0, 0.0)
    for a, b in SCALES:
        assert np.allclose(log_joint(a, b), expected, atol=1e-5), (a, b)


@pytest.mark.parametrize("kind", [DirichletMultinomialRegression, MultinomialRegressionLDA, CTM, RandomEffectsLDA])
def test_the_program_of_covariates_is_the_same_law_in_other_units(kind):
    words, x = documents(2, 5)
    weight = torch.tensor([[0.8, -0.3]])

    def log_joint(a: float, b: float) -> float:
        given, centre, unit = (a * x + b)[:, None], [b + 0.2 * a], [1.5 * a]
        mean = weight / a
        if kind is RandomEffectsLDA:
            given, centre, unit = np.column_stack([np.ones(5), given]), [0.0, *centre], [1.0, *unit]
            mean = torch.cat([torch.tensor([[0.1, 0.4]]), mean])
        model = kind(num_topics=2, vocabulary_size=4, num_covariates=given.shape[1], centre=centre, unit=unit)
        data = model.prepare(words, covariates=given, dtype=torch.float64)
        values = {
            "topic": torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]),
            "prevalence_bias": torch.tensor([0.1, 0.4]),
            "prevalence_weight": weight / a,
            "mean": mean if kind is RandomEffectsLDA else torch.tensor([0.1, 0.4]),
            "covariance": torch.eye(2),
            "topic_proportion": torch.tensor([[0.3, 0.7]]).expand(5, 2),
            "topic_logit": torch.tensor([[0.3, 0.7]]).expand(5, 2),
        }
        free = {site for site in model.sites if site in values} - ({"topic_proportion"} if model.has_atoms else set())
        held = {site: values[site] for site in free}
        trace = poutine.trace(poutine.condition(model, held)).get_trace(data.x, covariates=data.others["covariates"])
        weights = 2 * np.log(a)  # of the weights' density, of x's column alone
        local = ci.VariationalEM(guide=ENGINES[type(model)]).local_posterior(
            model, {s: values[s] for s in model.global_sites}, data
        )
        return np.array([float(trace.log_prob_sum()) - weights, float(local.bound.sum())])

    expected = log_joint(1.0, 0.0)
    for a, b in SCALES:
        assert np.allclose(log_joint(a, b), expected, atol=1e-5), (a, b)


def test_codes_of_two_years_are_those_of_an_indicator():
    words, x = documents(3, 20)
    flag = (x > 0).astype(float)[:, None]
    model = DirichletMultinomialRegression(num_topics=2, vocabulary_size=4, num_covariates=1)
    fits = [
        ci.fit(model, words, covariates=u, method=brief(type(model), "em"), progress=False) for u in (flag, flag + 2000)
    ]
    assert fits[0].model.unit == fits[1].model.unit == (1.0,)
    assert np.allclose(fits[0].transform(), fits[1].transform(), atol=1e-8)


def test_far_from_all_data_proportions_are_numbers_and_go_where_the_weights_say():
    words, x = documents(4)
    model = DirichletMultinomialRegression(num_topics=2, vocabulary_size=4, num_covariates=1)
    fit = ci.fit(model, words, covariates=x[:, None], method=brief(type(model), "em"), progress=False)
    for sign in (-1, 1):
        share = fit.transform(words[:3], covariates=np.full((3, 1), sign * 1e5))
        assert torch.isfinite(share).all()
        most = int((sign * fit.params["prevalence_weight"][0]).argmax())
        assert (share[:, most] > 0.99).all()


def test_scales_are_stated_kept_and_gone_on_from(tmp_path):
    words, x = documents(5)
    year = (2000 + 3 * x)[:, None]
    model = CTM(num_topics=2, vocabulary_size=4, num_covariates=1)
    fit = ci.fit(model, words, covariates=year, method=brief(type(model), "em"), progress=False)
    assert model.centre is None and fit.model.centre == pytest.approx((year.mean(),))
    assert fit.model.unit == pytest.approx((year.std(),))
    assert float(fit.model.priors["prevalence_weight"].scale) == pytest.approx(1 / year.std())
    again = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert again.model.centre == fit.model.centre
    assert torch.allclose(
        again.transform(words[:4], covariates=year[:4]), fit.transform(words[:4], covariates=year[:4])
    )
    more = ci.fit(model, words[:8], covariates=year[:8], init=fit, method=brief(type(model), "em"), progress=False)
    assert more.model.centre == fit.model.centre and more.model.unit == fit.model.unit
    own = model.with_priors(prevalence_weight=dist.Normal(0.0, 0.5))
    held = ci.fit(own, words, covariates=year, method=brief(type(model), "em"), progress=False)
    assert float(held.model.priors["prevalence_weight"].scale) == 0.5  # a prior that is given is in the data's units


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"centre": [0.0, 1.0]}, r"centre of shape \(2,\), expected num_covariates = 1 numbers"),
        ({"unit": 0.0}, "unit = 0.0, expected positive finite numbers"),
        ({"centre": np.nan}, "centre = nan, expected finite numbers"),
        ({"unit": "years"}, "unit = 'years', expected numbers"),
    ],
)
def test_refused_scales(settings, message):
    with pytest.raises(ModelError, match=message):
        CTM(num_topics=2, vocabulary_size=4, num_covariates=1, **settings)
    with pytest.raises(ModelError, match="of binary responses; real ones have one"):
        SupervisedLDA(num_topics=2, vocabulary_size=4, unit=2.0)


def test_random_effects_without_an_intercept_keep_their_origin():
    words, x = documents(6)
    model = RandomEffectsLDA(num_topics=2, vocabulary_size=4, num_covariates=1)
    fit = ci.fit(model, words, covariates=x[:, None], method=brief(type(model), "em"), progress=False)
    assert fit.model.centre == (0.0,) and fit.model.unit == pytest.approx((np.sqrt((x**2).mean()),))
    with pytest.raises(DataError, match="all covariates of 1 documents are 0"):
        ci.fit(model, words, covariates=np.arange(12.0)[:, None], progress=False)
