"""The weight of prediction-constrained training: what is held out, how weights are scored, what the default says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.method import refusal
from custom_inference.families.responses.constrained import (
    SHARES,
    PredictionConstrained,
    choose,
    hold_out,
    score_weights,
)
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
    length = x.sum() / len(x)
    assert fit.details["weight"] in [length * share for share in SHARES]
    assert [*fit.details["held_out"]] == [f"{length * share:.4g}" for share in SHARES]
    assert f"weight {fit.details['weight']:.4g}, chosen" in fit.status and "not a posterior" in fit.status
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


def test_scores_do_not_depend_on_the_number_of_threads(monkeypatch):
    model, x, response = documents("binary", 24)
    data = model.prepare(x, response=response, dtype=torch.float64)
    model, found = model.on_scale_of(data), []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        found.append(score_weights(model, data, 7, None, 4))
        found.append(ci.fit(model, data, weight=10.0, progress=False, **SHORT).params["topic"])
    assert found[0] == found[2] and torch.equal(found[1], found[3])


def test_the_least_weight_is_chosen_that_chance_does_not_tell_from_the_best():
    """Ten documents: the third weight is the best; the second is worse by .1 in a document, the first in all."""
    errors = torch.full((10, 4), 0.5, dtype=torch.float64)
    errors[:, 0] += 0.1
    errors[0, 1] += 0.1  # a gap of .1 with a standard error of .1, sqrt(10 / 9 * (.09^2 + 9 * .01^2))
    errors[:, 3] += 0.01
    assert choose(errors) == 1
    errors[1, 1] += 0.1  # .2 with sqrt(10 / 9 * (2 * .08^2 + 8 * .02^2)) = .133
    assert choose(errors) == 2
    errors[:, 0] = errors[:, 2] + torch.tensor([0.3, -0.3] * 5)  # no gap but noise
    assert choose(errors) == 0


def test_words_that_say_nothing_are_given_no_weight():
    """Responses that are noise: what is above 0 fits it, and predicts no better."""
    rng, chosen = np.random.default_rng(0), []
    for seed in range(2):
        model, x, _ = documents("binary")
        data = model.prepare(x, response=1.0 * (rng.random(60) < 0.5), dtype=torch.float64)
        chosen.append(score_weights(model, data, seed, None, 4).chosen)
    assert chosen == [0.0, 0.0]


def test_errors_are_those_of_an_average_of_as_many_chains_as_the_fit_has():
    """Of more chains they are less by the variance of what the short ones predict, and of two what is seen."""
    model, x, response = documents("binary", 30)
    data = model.prepare(x, response=response, dtype=torch.float64)
    two, four, many = (np.array([*score_weights(model, data, 7, None, n).held_out.values()]) for n in (2, 4, 10**9))
    assert (two <= four + 1e-12).all() and np.allclose(many - two, 2 * (four - two))


def test_priors_that_are_not_read_are_refused_and_others_fit_in_its_place():
    model, x, response = documents("real")
    prior = model.with_priors(response_scale=dist.LogNormal(0.0, 1.0))
    assert isinstance(refusal(PredictionConstrained(), prior), PriorError)
    assert "the default refuses" in ci.fit(prior, x[:12], response=response[:12], progress=False).status
    rows = torch.rand(2, 8, dtype=torch.float64) + 0.5
    unequal = model.with_priors(topic=dist.Dirichlet(rows))
    assert isinstance(refusal(PredictionConstrained(), unequal), MethodError)
