"""Room to spare does no harm: topics of HDP without tokens add nothing to its bound, which lies below the evidence."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats
from scipy.special import digamma, gammaln

from custom_inference import Fit, Search, VariationalEM, fit, perplexity
from custom_inference.core.registry import engine_for
from custom_inference.families.hdp.variational import HdpPosteriors
from ppl_models import HDP
from tests.references import hdp as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
QUIET: Any = {"progress": False}
#: Enough where a bound is asked for, not the best one.
ONE_START = VariationalEM(guide="vb", search=Search(restarts=1, random=0))


def documents(seed: int, number: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Documents of four topics over forty words, to fit and to score."""
    rng = np.random.default_rng(seed)
    topic, share = rng.dirichlet(np.full(40, 0.1), 4), rng.dirichlet(np.full(4, 0.3), 2 * number)
    x = np.stack([rng.multinomial(50, p) for p in share @ topic])
    return x[:number], x[number:]


@cache
def fitted(most: int) -> Fit:
    return fit(HDP(max_topics=most, vocabulary_size=40), documents(0)[0], seed=0, **QUIET)


def objective(most: int, state: HdpPosteriors, steps: int) -> float:
    """The objective at a state, or after some iterations from it."""
    model, engine = HDP(max_topics=most, vocabulary_size=40), engine_for(HDP.example().model, "vb")
    rows = engine.rows(model, model.prepare(documents(0)[0], dtype=torch.float64))
    step = engine.e_step(model, state, rows)
    for _ in range(steps):
        state = engine.m_step(model, state, step, rows)
        step = engine.e_step(model, state, rows, step.locals)
    return float(step.bound.sum() + engine.prior_term(model, state))


@pytest.mark.quick
@pytest.mark.parametrize("more", [1, 300])
def test_topics_without_tokens_add_nothing_to_the_bound(more):
    """Added to a fitted state as their priors have them, at the end or between those in use."""
    found = fitted(10)
    old = HdpPosteriors.of_posteriors(found.global_posterior)
    c, one = old.stick_concentration[0] / old.stick_concentration[1], old.own.new_ones(more)
    empty = torch.full((more, 40), 0.05, dtype=torch.float64)
    own, rest = torch.cat([old.own, one]), torch.cat([old.rest, c * one])
    place = torch.arange(10.0 + more)
    new = HdpPosteriors(torch.cat([old.topic, empty]), own, rest, place, old.concentration, old.stick_concentration)
    order = torch.randperm(10 + more, generator=torch.Generator().manual_seed(0))
    mixed = HdpPosteriors(new.topic[order], own, rest, place[order], old.concentration, old.stick_concentration)
    for steps in (0, 5):
        expected = objective(10, old, steps)
        for state in (new, mixed):
            assert objective(10 + more, state, steps) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_fits_are_the_same_however_many_topics_there_are():
    """Of 10 and of 60 at most: the four that there are, and the same predictions."""
    fresh, scores = documents(0)[1], []
    for most in (10, 60):
        found = fitted(most)
        tokens = found.transform().sum(0)
        assert int((tokens > 0.01 * tokens.sum()).sum()) == 4
        scores.append(perplexity(found, fresh))
    assert max(scores) < 1.05 * min(scores)
    bounds = [float(fitted(most).elbo[-1]) for most in (10, 60)]
    assert max(bounds) - min(bounds) < 1e-3 * abs(bounds[0])


def test_the_divergence_of_the_globals_is_that_of_the_sticks_in_use():
    """KL of c, of the sticks given c and of the topics by quadrature and SciPy; those after the last in use have their
    priors, given c, in the posterior, too, and cancel."""
    found = fitted(10)
    assert found.prior_term is not None
    q: dict[str, Any] = dict(found.global_posterior)
    sticks, used = q["topic_weight"], int((q["topic_weight"].own > 1 + 1e-9).sum())
    assert used == 4 and found.model.max_topics == 10  # pyright: ignore[reportAttributeAccessIssue]
    total = 0.0
    for site in ("concentration", "stick_concentration"):
        shape, rate = float(q[site].shape), float(q[site].rate)
        law: Any = stats.gamma(shape, scale=1 / rate)
        prior: Any = stats.gamma(1.0)

        def density(v: float, law: Any = law, prior: Any = prior) -> float:
            return float(law.pdf(v) * (law.logpdf(v) - prior.logpdf(v)))

        total += integrate.quad(density, law.ppf(1e-12), law.ppf(1 - 1e-12), limit=200)[0]
    c: Any = stats.gamma(float(q["stick_concentration"].shape), scale=1 / float(q["stick_concentration"].rate))
    for on, off in zip(sticks.own[:used].tolist(), sticks.rest[:used].tolist(), strict=True):
        law = stats.beta(on, off)
        # E_c [KL(Beta(on, off) || Beta(1, c))], with E[log c + (c - 1) log(1 - v)] apart.
        log_left = digamma(off) - digamma(on + off)
        expected_log_c = integrate.quad(lambda v: c.pdf(v) * np.log(v), c.ppf(1e-12), c.ppf(1 - 1e-12), limit=200)[0]
        total += -law.entropy() - expected_log_c - (c.mean() - 1) * log_left
    for alpha in q["topic"].concentration.numpy():
        each = digamma(alpha) - digamma(alpha.sum())
        own = gammaln(alpha.sum()) - gammaln(alpha).sum() + ((alpha - 1) * each).sum()
        total += own - (gammaln(2.0) - 40 * gammaln(0.05) + ((0.05 - 1) * each).sum())
    assert found.prior_term == pytest.approx(-total, rel=1e-6)


TOYS = [[[2, 1, 0], [0, 1, 2]], [[3, 0, 0], [0, 0, 2]], [[1, 1, 1], [1, 1, 0]], [[4, 0, 0]]]


def evidence(x: np.ndarray, a: float, c: float) -> float:
    """log p(x) without a limit of topics, by the sum over all partitions of the tokens."""
    pairs = [(i, v) for i, row in enumerate(x) for v, n in enumerate(row) for _ in range(n)]
    document, word = (np.array(one) for one in zip(*pairs, strict=True))
    orders = float((gammaln(x.sum(1) + 1) - gammaln(x + 1).sum(1)).sum())
    return reference.posterior(document, word, np.full(3, 0.6), a, c)[2] + orders


@pytest.mark.parametrize(("x", "most"), [*((x, 12) for x in TOYS[:3]), (TOYS[2], 3), (TOYS[3], 3)])
def test_the_bound_is_below_the_evidence_where_a_and_c_are_known(x, most):
    counts = np.array(x)
    for a, c in ((1.3, 0.9), (0.2, 3.0), (5.0, 0.3)):
        priors: Any = {"topic": dist.Dirichlet(torch.full((3,), 0.6)), "concentration": a, "stick_concentration": c}
        model = HDP(max_topics=most, vocabulary_size=3).with_priors(**priors)
        found = fit(model, counts.astype(float), method=ONE_START, seed=0, **QUIET)
        used = int((found.transform().sum(0) > 1e-6).sum())
        if used < most:  # the bound is then one of every limit above it
            assert float(found.elbo[-1]) < evidence(counts, a, c)


def test_the_bound_is_below_the_evidence_where_a_and_c_are_not_known():
    """By quadrature over both, Gamma(1, 1) each: at the middles of cells of equal mass, whose mean is exact to 1e-2."""
    counts = np.array([[2, 0, 0], [0, 1, 1]])
    model = HDP(max_topics=8, vocabulary_size=3).with_priors(topic=dist.Dirichlet(torch.full((3,), 0.6)))
    found = fit(model, counts.astype(float), method=ONE_START, seed=0, **QUIET)
    values = [-np.log(1 - (i + 0.5) / 12) for i in range(12)]
    every = [evidence(counts, a, c) for a in values for c in values]
    assert float(found.elbo[-1]) < float(np.logaddexp.reduce(every)) - np.log(len(every)) - 0.01
