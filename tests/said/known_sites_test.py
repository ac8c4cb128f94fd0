"""Samplers hold what is known: every global of every model that has one, and topics and syntax against all states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, softmax

from custom_inference import CollapsedGibbs
from custom_inference.core.diagnostics import effective_size
from custom_inference.gibbs import sampler_of
from custom_inference.methods import methods_of, resolve_method
from ppl_models import LDAHMM, MODELS, PMF, Model, PriorError
from ppl_models.core.hierarchy import is_function
from ppl_models.core.priors import describe_prior
from tests.references import _shared

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
#: Concentrations would take a step in the fifth sweep.
SHORT: dict[str, Any] = {"num_samples": 5, "warmup": 5, "thin": 1, "chains": 1, "search": False}
#: Links and covariates count after some sweeps.
LONGER = {"rtm": {"warmup": 22}, "dirichlet_multinomial_regression": {"warmup": 60}}
SAMPLED = [name for name in MODELS if "gibbs" in methods_of(MODELS[name].example().model)]
KNOWN = [(name, site) for name in SAMPLED for site in MODELS[name].example().model.global_sites]


def value_of(name: str, site: str) -> torch.Tensor:
    """The truth of the example, or a draw of what it does not state."""
    example = MODELS[name].example()
    if site in example.truth:
        return example.truth[site]
    torch.manual_seed(0)
    prior = example.model.prior(site, values=example.truth)
    return prior.expand(example.model.shapes[site][: len(example.model.shapes[site]) - len(prior.event_shape)]).sample()


def state_all(model: Model) -> Model:
    """Say by hand what the priors are, those that are laws."""
    return model.with_priors(**{site: prior for site, prior in model.priors.items() if not is_function(prior)})


def numbers_of(model: Model) -> dict[str, torch.Tensor]:
    """The parameters of all priors that are laws."""
    found: dict[str, torch.Tensor] = {}
    for site, prior in model.priors.items():
        law: Any = getattr(prior, "base_dist", prior)
        found |= {f"{site}.{name}": getattr(law, name) for name in getattr(law, "arg_constraints", {})}
    return {name: value for name, value in found.items() if torch.is_tensor(value)}


def assert_same_priors(one: Model, other: Model) -> None:
    for site, prior in one.priors.items():
        assert describe_prior(other.priors[site]) == describe_prior(prior), site
    found, expected = numbers_of(other), numbers_of(one)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize(("name", "site"), KNOWN)
def test_a_known_global_stays_and_the_others_are_sampled(name, site):
    example = MODELS[name].example()
    value = value_of(name, site)
    model = state_all(example.model).with_priors(**{site: value})
    method = resolve_method("gibbs", model=model, **SHORT | LONGER.get(name, {}))
    fit = method.fit(model, example.data, seed=1, progress=False)
    draws: dict[str, torch.Tensor] = fit.draws
    assert torch.equal(fit.params[site], value.to(fit.params[site]).expand(model.shapes[site]))
    assert torch.equal(draws[site], fit.params[site].expand(draws[site].shape)), "draws of what is known"
    for other in model.unknown_sites:
        assert draws[other].std((0, 1)).max() > 0, other
    assert torch.isfinite(fit.elbo).all()
    assert_same_priors(model, fit.model)
    assert "learned" not in fit.status


@pytest.mark.parametrize("method", ["gibbs", "vb"])
@pytest.mark.parametrize("site", ["item", "item_bias", "item_precision", "user_mean", "item_covariance", "scale"])
def test_ratings_refuse_what_they_cannot_hold(method, site):
    """They took the value, and learned rows that had nothing to do with it."""
    model = PMF(num_components=2, num_users=6, num_items=4)
    value = torch.eye(3) if "covariance" in site else torch.ones(model.shapes[site])
    x = np.arange(24.0).reshape(6, 4) % 5
    with pytest.raises(PriorError, match=f"'{site}'"):
        resolve_method(method, model=model).fit(model.with_priors(**{site: value}), x, progress=False)
    with pytest.raises(PriorError, match="'item_bias' has a prior of its own"):
        resolve_method(method, model=model).fit(model.with_priors(item_bias=dist.Normal(0.0, 9.0)), x, progress=False)


# ----- topics and syntax: all states and topics of five tokens --------------------------------------------------------

X = np.array([[1.0, 1, 2], [2, 3, 0]])
WORDS, FIRST, DOCUMENT = np.array([0, 0, 1, 1, 2]), np.array([1, 0, 0, 1, 0], bool), np.array([0, 0, 0, 1, 1])
CONCENTRATION = {"topic": 0.6, "emission": 0.8, "initial": 1.3, "transition": 0.9, "topic_proportion": 0.7}
VALUES = {
    "topic": np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]),
    "emission": np.array([[0.15, 0.6, 0.25]]),
    "initial": np.array([0.3, 0.7]),
    "transition": np.array([[0.2, 0.8], [0.6, 0.4]]),
}
SETS = [("topic",), ("emission",), ("initial",), ("transition",), ("topic", "transition"), ("emission", "initial")]


def all_codes() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Codes (M, 5), a topic or 2 for the class, and the numbers of every code by site, (M, ...)."""
    codes = _shared.assignments(3, 5)
    tables = {"topic": np.zeros((len(codes), 2, 3)), "emission": np.zeros((len(codes), 1, 3))}
    tables |= {"initial": np.zeros((len(codes), 2)), "transition": np.zeros((len(codes), 2, 2))}
    tables["topic_proportion"] = np.zeros((len(codes), 2, 2))
    for m, code in enumerate(codes):
        for place, (q, word) in enumerate(zip(code, WORDS, strict=True)):
            if q == 2:
                tables["emission"][m, 0, word] += 1
            else:
                tables["topic"][m, q, word] += 1
                tables["topic_proportion"][m, DOCUMENT[place], q] += 1
            if FIRST[place]:
                tables["initial"][m, int(q == 2)] += 1
            else:
                tables["transition"][m, int(code[place - 1] == 2), int(q == 2)] += 1
    return codes, tables


def log_joint(tables: dict[str, np.ndarray], known: tuple[str, ...]) -> np.ndarray:
    found = np.zeros(len(tables["topic"]))
    for site, table in tables.items():
        flat = table.reshape(len(table), -1, table.shape[-1])
        if site in known:
            found += (flat * np.log(VALUES[site].reshape(flat.shape[1:]))).sum((1, 2))
            continue
        c = CONCENTRATION[site]
        found += (gammaln(c + flat) - gammaln(c)).sum((1, 2))
        total = flat.sum(2)
        found += (gammaln(c * flat.shape[2]) - gammaln(c * flat.shape[2] + total)).sum(1)
    return found


@pytest.mark.parametrize("known", SETS, ids="+".join)
def test_topics_and_syntax_with_known_sites_are_the_exact_posterior(known):
    codes, tables = all_codes()
    log = log_joint(tables, known)
    weight = softmax(log)
    shapes = {"topic": 3, "emission": 3, "initial": 2, "transition": 2, "topic_proportion": 2}
    priors: dict[str, Any] = {s: dist.Dirichlet(torch.full((n,), CONCENTRATION[s]).double()) for s, n in shapes.items()}
    priors |= {site: torch.as_tensor(VALUES[site]) for site in known}
    model = LDAHMM(num_topics=2, num_states=2, vocabulary_size=3).with_priors(**priors)
    chain: Any = sampler_of(model).chain(model, model.prepare(X, dtype=torch.float64), 2, None)
    place = {code: m for m, code in enumerate(map(tuple, codes.tolist()))}
    draws, found, means = 3000, [], {site: 0.0 for site in VALUES}
    for sweep in range(-20, draws):
        chain.sweep()
        if sweep < 0:
            continue
        found.append(place[tuple(np.where(chain.state == 1, 2, chain.topic).tolist())])
        assert sweep > 50 or np.isclose(chain.log_joint(), log[found[-1]])
        means = {site: means[site] + value.numpy() / draws for site, value in chain.means().items() if site in means}
    assert all(np.array_equal(chain.draw()[site], VALUES[site]) for site in known)
    for token in range(5):
        for code in range(3):
            series = (codes[found, token] == code).astype(float)
            exact = weight @ (codes[:, token] == code)
            error = np.sqrt(exact * (1 - exact) / float(effective_size(series[None])))
            assert abs(series.mean() - exact) < 5 * error
    for site in set(VALUES) - {*known}:
        mean = CONCENTRATION[site] + tables[site]
        mean = mean / mean.sum(-1, keepdims=True)
        assert np.abs(means[site] - np.tensordot(weight, mean, 1)).max() < 0.04


def test_classes_that_are_known_find_their_places():
    """Chains begin near a mode in which known classes of syntax have their own names."""
    example = LDAHMM.example()
    truth = {site: example.truth[site] for site in ("emission", "transition")}
    for known in (["emission"], ["transition"], ["emission", "transition"]):
        for order in ([0, 1], [1, 0]):
            states = [0, *(1 + c for c in order)]
            moved = {"emission": truth["emission"][order], "transition": truth["transition"][states][:, states]}
            model = example.model.with_priors(**{site: moved[site] for site in known})
            fit = CollapsedGibbs(num_samples=20, warmup=20, chains=1).fit(model, example.data, seed=0, progress=False)
            for site, value in moved.items():
                away = (fit.params[site] - value).abs().sum(-1).max() / 2
                assert away < 0.35, (known, order, site, away)


def test_priors_of_syntax_may_be_of_any_kind():
    example = LDAHMM.example()
    priors = {"emission": dist.LogisticNormal(torch.zeros(8), torch.ones(8)), "spread": dist.Gamma(2.0, 1.0)}
    model = example.model.with_priors(**priors, initial=lambda spread: dist.Dirichlet(spread * torch.ones(3)))
    fit: Any = CollapsedGibbs(**SHORT).fit(model, example.data, seed=0, progress=False)
    assert {"emission", "initial", "spread"} <= {*fit.draws} and "slice steps" in fit.status
    assert all(fit.draws[site].std((0, 1)).max() > 0 for site in ("emission", "initial", "spread"))
