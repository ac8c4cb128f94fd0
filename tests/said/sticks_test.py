"""Topics of HDP stand in the order of their sticks, unless their priors say another: all parts of a fit by variational
Bayes speak of the same topics, and of the program's prior."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy.special import betaln

from custom_inference import Fit, fit
from custom_inference.core.registry import engine_for
from custom_inference.families.hdp.variational import HdpPosteriors, HdpVB
from ppl_models import HDP

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
RNG = np.random.default_rng(0)
TOPIC = RNG.dirichlet(np.full(12, 0.2), 4)
X = np.stack([RNG.multinomial(30, p) for p in RNG.dirichlet(np.full(4, 0.3), 60) @ TOPIC])
#: Of six topics the fourth and the last are known to be much like two of those that there are.
GAMMA = torch.full((6, 12), 0.05, dtype=torch.float64)
GAMMA[[3, 5]] += 20 * torch.as_tensor(TOPIC[:2])
PRIORS: dict[str, Any] = {
    "alike": {}, "many": {"stick_concentration": 20.0}, "apart": {"topic": dist.Dirichlet(GAMMA)},
}  # fmt: skip


@cache
def fitted(priors: str) -> Fit:
    model = HDP(max_topics=6, vocabulary_size=12).with_priors(**PRIORS[priors])
    return fit(model, X, seed=0, progress=False)


@pytest.mark.parametrize("priors", PRIORS)
def test_the_log_prior_is_the_programs(priors):
    found = fitted(priors)
    assert found.bound_name == "vb"
    trace = poutine.trace(pyro.condition(found.model.sample_globals, data=found.globals)).get_trace(like=found.data.x)
    trace.compute_log_prob()
    nodes: Any = trace.nodes
    expected = sum(float(nodes[site]["log_prob"].sum()) for site in found.model.unknown_sites)
    assert found.log_prior == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("priors", PRIORS)
def test_draws_of_the_posterior_have_the_divergence_that_the_bound_has(priors):
    """E_q[log q - log p] at draws as they are, within four standard errors."""
    found, gaps = fitted(priors), np.zeros(400)
    drawn: Any = {site: one.sample(400, seed=n) for n, (site, one) in enumerate(found.global_posterior.items())}
    for number in range(400):
        at: Any = {site: value[number] for site, value in drawn.items()} | found.model.known
        own = {site: found.global_posterior[site].log_prob(at[site]).sum() for site in found.model.unknown_sites}
        gaps[number] = float(sum(own.values())) - float(found.model.log_prior(at))
    assert found.prior_term is not None
    assert abs(gaps.mean() + found.prior_term) < 4 * gaps.std() / 20


@pytest.mark.parametrize("priors", PRIORS)
def test_topics_their_shares_and_the_documents_have_one_order(priors):
    found = fitted(priors)
    of_words = (found.global_posterior["topic"].concentration - (GAMMA if priors == "apart" else 0.05)).sum(1)  # pyright: ignore[reportAttributeAccessIssue]
    of_documents = found.transform().double().T @ torch.as_tensor(X.sum(1)).double()
    assert torch.allclose(of_words / X.sum(), of_documents / X.sum(), atol=0.02)
    assert torch.equal(found.params["topic_weight"], found.global_posterior["topic_weight"].mean)
    fresh = found.transform(X).double().T @ torch.as_tensor(X.sum(1)).double()
    assert torch.allclose(fresh / X.sum(), of_documents / X.sum(), atol=0.02)
    if priors == "alike":
        assert list(of_words.argsort(descending=True)[:4]) == [0, 1, 2, 3]
    if priors == "apart":  # each has the topic that its prior speaks of
        distance = torch.cdist(found.params["topic"][[3, 5]], torch.as_tensor(TOPIC), p=1)
        assert distance.argmin(1).tolist() == [0, 1]


def test_a_state_stands_for_the_topics_in_the_order_of_their_sticks():
    """The same objective with topics, their documents' tokens and their sticks renumbered, and the same values."""
    found = fitted("alike")
    model, engine = found.model, engine_for(HDP.example().model, "vb")
    rows = engine.rows(model, model.prepare(X, dtype=torch.float64))
    at = HdpPosteriors.of_posteriors(found.global_posterior)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    other = HdpPosteriors(at.topic[order], at.own, at.rest, at.place[order], at.concentration, at.stick_concentration)
    one, two = (engine.e_step(model, state, rows) for state in (at, other))
    assert engine.objective_at(model, other, two.bound) == pytest.approx(engine.objective_at(model, at, one.bound))
    state, locals_ = engine.canonical(model, other, two.locals)
    assert torch.allclose(locals_["counts"], one.locals["counts"], atol=1e-6)
    for site, value in at.values(model).items():
        assert torch.equal(other.values(model)[site], value) and torch.equal(state.values(model)[site], value)


@pytest.mark.parametrize("seed", range(8))
def test_the_order_of_the_sticks_is_the_best_of_all(seed):
    """Where c is known: E[log p] of the tables' sticks less E[log q], at the best sticks of each of all orders."""
    rng = np.random.default_rng(seed)
    size, c = 3 + seed % 3, float(10 ** rng.uniform(-1, 2))
    tables = rng.gamma(0.5, 1.0, size) * 10 ** rng.uniform(-1, 3)
    model = HDP(max_topics=size, vocabulary_size=2).with_priors(stick_concentration=c)

    def evidence(m: np.ndarray) -> float:
        """log E[prod_k weight_k^m_k] under sticks of Beta(1, c)."""
        later = m.sum() - m.cumsum()[:-1]
        return float((np.log(c) + betaln(1 + m[:-1], c + later)).sum())

    numbers = torch.tensor(tables)
    state = HdpVB()._best(model, torch.ones(size, 2).double(), numbers, numbers.sum())
    found = evidence(tables[state.place.argsort().numpy()])
    assert found == pytest.approx(max(evidence(np.array(one)) for one in itertools.permutations(tables)), abs=1e-6)
