"""The default of a model without closed-form steps, from several starts."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import torch

import custom_inference as ci
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.quadrature import integrate
from custom_inference.methods import default_method
from ppl_models import LDA, NOCA, SBM, MixtureOfPoissons
from tests.programs.zoo import case_of
from tests.support.noisy_and import log_evidence, planted


def test_both_components_of_a_noisy_and_are_found():
    """By the evidence: no lower than where the climb from the truth ends. One of the eight starts ends .8 below it."""
    seed = 2
    problem = planted(seed)
    truth = {site: problem.truth[site] for site in problem.model.global_sites}
    at_truth = ci.SVI(guide="delta", optimizer="lbfgs").fit(problem.model, problem.data, init=truth, progress=False)
    fit = ci.fit(problem.model, problem.data, seed=seed, progress=False)
    assert float(fit.evidence.sum()) > float(at_truth.evidence.sum()) - 0.05
    assert ci.recovered(fit.params["veto"], truth["veto"], threshold=0.9) == 2
    assert np.isclose(float(fit.elbo[-1]), log_evidence(fit.params, problem.data.x), rtol=1e-8)
    assert "starts came within" in fit.status and 4 <= len(fit.details["start_scores"]) <= 8


def test_the_default_follows_the_sites():
    """Finite locals are summed out by EM of what is compiled from the program, shares have variational Bayes, others a
    guide."""

    def chosen(model, **priors):
        own = type(f"Own{type(model).__name__}", (type(model),), {"__call__": type(model).__call__})
        return default_method(own(**model.settings()).with_priors(**priors), None)

    assert chosen(NOCA(num_components=5, num_features=20)) == ci.EM()
    assert chosen(MixtureOfPoissons.example().model) == ci.EM()
    hierarchical = {"scale": dist.Gamma(2.0, 1.0), "rate": lambda scale: dist.Gamma(1.0, scale)}
    assert chosen(MixtureOfPoissons.example().model, **hierarchical).optimizer == "lbfgs"
    assert chosen(LDA.example().model).guide == "vb"
    assert chosen(SBM.example().model).guide == "mean_field"


def test_large_data_start_on_some_rows_and_go_on_in_minibatches(monkeypatch):
    problem = planted(0)
    monkeypatch.setattr(
        "custom_inference.svi.minibatches.OfRows.batch", lambda self, data: 50 if self.batch_size else None
    )
    method = ci.SVI(guide="delta", optimizer="lbfgs", restarts=2, steps=30, learning_rate=0.01)
    fit = method.fit(problem.model, problem.data, seed=0, progress=False)
    assert "from a start on 50 rows" in fit.status and len(fit.elbo) == 30
    assert np.isclose(float(fit.elbo[-1]), log_evidence(fit.params, problem.data.x), rtol=1e-8)


def test_restarts_keep_the_best_and_depend_on_the_seed_alone():
    problem = planted(1)
    settings = {"guide": "delta", "optimizer": "lbfgs", "restarts": 2, "steps": 12}
    fits = [ci.SVI(**settings).fit(problem.model, problem.data, seed=seed, progress=False) for seed in (0, 0, 1)]
    scores = [fit.details["start_scores"] for fit in fits]
    assert scores[0] == scores[1] != scores[2] and torch.equal(fits[0].params["veto"], fits[1].params["veto"])
    assert float(fits[0].elbo[-1]) / len(problem.data) >= max(scores[0]) - 1e-9
    noisy = ci.SVI(guide="mean_field", restarts=2, steps=20).fit(problem.model, problem.data, progress=False)
    assert len(noisy.details["start_scores"]) == 2 and len(noisy.elbo) == 40
    given = ci.SVI(**settings).fit(problem.model, problem.data, init=fits[0], progress=False)
    assert "start_scores" not in given.details


def test_slopes_are_finite_where_latents_are_as_small_as_numbers_get():
    """Frailties of exp(-800) are 0; the logarithm of 0 times a rate has a value beside a count of 0, but no slope."""
    case = case_of("frailty")
    density = RowDensity.of(case.model, {"rate": torch.tensor([0.2, 3.0, 1.4, 1.6]), "shape": torch.tensor(0.8)},
                            case.data).double()  # fmt: skip
    rate = density.params["rate"].requires_grad_()
    integrate(density).log_evidence.sum().backward()
    assert rate.grad is not None and rate.grad.isfinite().all()
