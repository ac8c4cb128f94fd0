"""The weight of prediction-constrained training: what is held out, how weights are scored, what the default says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.method import refusal
from custom_inference.families.responses.choice import WEIGHTS, hold_out, score_weights
from custom_inference.families.responses.constrained import PredictionConstrained
from custom_inference.methods import default_method
from ppl_models import MethodError, PriorError, SupervisedLDA

KINDS = ("binary", "categorical", "real", "counts")
SHORT = {"sweeps": 12, "begin": 4, "average": 6, "chains": 2}


def documents(kind: str, number: int = 60) -> tuple[SupervisedLDA, np.ndarray, np.ndarray]:
    """Documents of two topics, whose first they respond to."""
    rng = np.random.default_rng(3)
    share = rng.dirichlet([0.4, 0.4], number)
    x = np.stack([rng.multinomial(20, p) for p in share @ np.kron(np.eye(2), np.full(4, 0.25))])
    eta = 6 * share[:, 0] - 3
    response = {
        "binary": lambda: rng.random(number) < 1 / (1 + np.exp(-eta)),
        "categorical": lambda: (eta > -1).astype(int) + (eta > 1),
        "real": lambda: 50 + 10 * eta + rng.normal(size=number),
        "counts": lambda: rng.poisson(np.exp(eta / 2)),
    }[kind]()
    classes: dict[str, Any] = {"num_classes": 3} if kind == "categorical" else {}
    return SupervisedLDA(num_topics=2, vocabulary_size=8, response=kind, **classes), x, np.asarray(response, float)


@pytest.mark.parametrize("kind", KINDS)
def test_the_default_fit_chooses_says_so_and_predicts(kind):
    model, x, response = documents(kind)
    assert type(default_method(model, None)) is PredictionConstrained
    fit = ci.fit(model, x, response=response, progress=False, **SHORT)
    assert fit.details["weight"] in WEIGHTS and len(fit.details["held_out"]) == len(WEIGHTS)
    assert fit.details["held_out"][f"{fit.details['weight']:g}"] == max(fit.details["held_out"].values())
    assert f"weight {fit.details['weight']:g}, chosen" in fit.status and "not a posterior" in fit.status
    found = fit.predict(x).numpy()
    if kind == "categorical":
        assert (found.argmax(1) == response).mean() > 0.75
    else:
        assert np.corrcoef(found, response)[0, 1] > 0.6


def test_a_third_of_the_known_responses_is_held_out_and_what_is_held_is_not_read():
    model, x, response = documents("real")
    response[:12] = np.nan
    data = model.prepare(x, response=response, dtype=torch.float64)
    model = model.on_scale_of(data)
    part, held = hold_out(model, data, 5)
    given = part.others["response"]
    known = ~torch.isnan(held[:, 0])
    assert int(known.sum()) == 16 and bool(torch.isnan(given[known]).all())
    assert int((~torch.isnan(given)).sum()) == 32 and len(part) == 60
    centre, unit = model.scale_of_columns(held)
    back = held[known, 0] * unit[0] + centre[0]
    both = torch.cat([back, given[~torch.isnan(given)]]).sort().values
    assert torch.allclose(both, torch.as_tensor(np.sort(response[12:])))


@pytest.mark.parametrize("kind", ["binary", "real"])
def test_scores_do_not_depend_on_the_number_of_threads(kind, monkeypatch):
    model, x, response = documents(kind)
    data = model.prepare(x, response=response, dtype=torch.float64)
    model, found = model.on_scale_of(data), []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(score_weights(model, data, 7, None))
        found.append(ci.fit(model, data, weight=10.0, progress=False, **SHORT).params["topic"])
    assert found[0] == found[2] and torch.equal(found[1], found[3])


def test_words_that_say_nothing_are_given_no_weight():
    """Responses that are noise: every weight above 0 fits it, and predicts worse."""
    rng, worse = np.random.default_rng(0), []
    for seed in range(2):
        model, x, _ = documents("real", 90)
        data = model.prepare(x, response=rng.normal(size=90), dtype=torch.float64)
        scores = score_weights(model.on_scale_of(data), data, seed, None)
        worse.append(scores[0.0] - scores[300.0])
    assert np.mean(worse) > 0


def test_priors_that_are_not_read_are_refused_and_others_fit_in_its_place():
    model, x, response = documents("real")
    prior = model.with_priors(response_scale=dist.LogNormal(0.0, 1.0))
    assert isinstance(refusal(PredictionConstrained(), prior), PriorError)
    assert "the default refuses" in ci.fit(prior, x[:12], response=response[:12], progress=False).status
    rows = torch.rand(2, 8, dtype=torch.float64) + 0.5
    unequal = model.with_priors(topic=dist.Dirichlet(rows))
    assert isinstance(refusal(PredictionConstrained(), unequal), MethodError)
