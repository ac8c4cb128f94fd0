"""The engines of dynamic topics: their bound, their stationary points, their limits, what they recover."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.align import match_components
from custom_inference.core.registry import engine_for
from custom_inference.families.dynamics import cvb0
from custom_inference.families.dynamics.walks import WalkPrior
from ppl_models import DTM, LDA, Data, DataError, PriorError
from tests.references import dtm as reference

#: Of words that occur in no document.
pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def corpus(seed=0, *, words=60, topics=3, slices=6, documents=60, length=50, drift=0.09, empty=()):
    """Counts, slices and the true topics (T, K, V)."""
    rng = np.random.default_rng(seed)
    first = rng.normal(0, 2, (1, topics, words))
    logit = np.concatenate([first, rng.normal(0, drift**0.5, (slices - 1, topics, words))]).cumsum(0)
    topic = np.exp(logit) / np.exp(logit).sum(-1, keepdims=True)
    time = np.repeat([t for t in range(slices) if t not in empty], documents)
    mix = rng.dirichlet(np.full(topics, 0.2), len(time))
    x = np.stack([rng.multinomial(length, p @ topic[t]) for p, t in zip(mix, time, strict=True)])
    return x.astype(float), time, topic, mix


def fitted(x, time, method="cvb0", num_times=6, priors=None, **settings):
    model = DTM(num_topics=3, vocabulary_size=x.shape[1], num_times=num_times).with_concentration(alpha=0.2)
    model = model.with_priors(**priors) if priors else model
    return ci.fit(model, x, method=method, time=time, progress=False, **settings)


def variation(fit, topic):
    """Mean total variation over slices and topics, after one matching."""
    found = fit.model.topics(fit.globals)
    order = match_components(torch.as_tensor(topic.mean(0)), found.mean(0)).order
    return float((found[:, order] - torch.as_tensor(topic)).abs().sum(-1).mean() / 2)


def test_ten_corpora_are_recovered():
    """Topics slice by slice, closer than topics that stand still, and the drift's variance."""
    still, drifts = [], []
    for seed in range(10):
        x, time, topic, _ = corpus(seed)
        fit = fitted(x, time)
        assert variation(fit, topic) < 0.13, seed
        drifts.append(float(fit.params["drift_variance"]))
        mean = torch.softmax(fit.params["topic_logit"], -1).mean(0, keepdim=True).expand(6, -1, -1).log()
        still.append(variation(replace(fit, params={**fit.params, "topic_logit": mean}), topic) / variation(fit, topic))
    assert 0.85 < np.median(drifts) / 0.09 < 1.15
    assert min(still) > 1.2


@pytest.mark.parametrize("method", ["cvb0", "gaussian"])
def test_empty_slices_are_what_their_neighbours_say(method):
    x, time, topic, _ = corpus(1, empty=(0, 3))
    fit = fitted(x, time, method)
    posterior: Any = fit.global_posterior["topic_logit"]
    assert variation(fit, topic) < 0.17 and torch.isfinite(fit.params["topic_logit"]).all()
    logit, variance = posterior.mean, posterior.variance
    between = (logit[2] + logit[4]) / 2
    assert torch.allclose(logit[3], between, atol=0.1) and (variance[3] > variance[[2, 4]].amin(0)).all()


def test_one_slice_is_lda_and_so_is_a_walk_that_stands_still():
    """Under a flat prior of the first slice topics are those of maximum likelihood: shares of expected counts."""
    x, time, _, _ = corpus(2)
    flat = {"initial_scale": 30.0, "background": torch.zeros(60)}
    settings: Any = {"max_iterations": 400, "tolerance": 1e-8}
    one = fitted(x, np.zeros(len(x)), num_times=1, priors=flat, **settings)
    engine: Any = engine_for(one.model, "cvb0")
    rows, topic = engine.rows(one.model, one.data), torch.softmax(one.params["topic_logit"][0], -1)
    counts = cvb0.refresh_responsibilities(rows, topic.T.contiguous(), torch.full((3,), 0.2), None, 300).counts.T
    share = counts / counts.sum(-1, keepdim=True)
    assert torch.allclose(topic[counts > 1], share[counts > 1], rtol=0.02)
    start = {**one.globals, "topic_logit": one.params["topic_logit"].expand(6, -1, -1)}
    still = fitted(x, time, priors={"drift_variance": 1e-7, **flat}, init=start, **settings)
    found = torch.softmax(still.params["topic_logit"], -1)
    assert (found - topic).abs().max() < 1e-3


def test_a_walk_that_forgets_is_separate_slices():
    """At a huge drift variance every slice but the first has a flat prior: the shares of its expected counts."""
    x, time, _, _ = corpus(3)
    fit = fitted(x, time, "cvb0", priors={"drift_variance": 1e4}, search=None, max_iterations=1)
    engine: Any = engine_for(fit.model, "cvb0", momentum=0.0)
    rows = engine.rows(fit.model, fit.data)
    state = engine.initial(fit.model, rows, torch.Generator().manual_seed(0))
    step = engine.e_step(fit.model, state, rows)
    for _ in range(40):
        state = engine.m_step(fit.model, replace(state, settled=None), step, rows)
    counts = cvb0.in_slices(step.statistics["topic"], 6)[1:]
    expected = counts / counts.sum(-1, keepdim=True)
    often = counts > 1.0
    assert torch.allclose(torch.softmax(state.mean, -1)[1:][often], expected[often], rtol=0.02)


def test_newton_settles_where_nothing_has_a_slope():
    """The M step of the logits at given counts, hyper-parameters held, against finite differences of the penalised
    likelihood."""
    model = DTM(num_topics=2, vocabulary_size=4, num_times=3).with_priors(
        drift_variance=0.2, initial_scale=1.3, background=torch.randn(4)
    )
    x, time = np.random.default_rng(0).poisson(3.0, (9, 4)).astype(float), np.arange(9) // 3
    data = model.prepare(x, time=time, dtype=torch.float64)
    engine: Any = engine_for(model, "cvb0")
    rows = engine.rows(model, data)
    state = engine.initial(model, rows, torch.Generator().manual_seed(1))
    step = engine.e_step(model, state, rows)
    for _ in range(60):
        state = engine.m_step(model, replace(state, settled=None), step, rows)
    counts, prior = cvb0.in_slices(step.statistics["topic"], 3), WalkPrior(model, state.hypers)

    def penalised(logit):
        return float((counts * torch.log_softmax(logit, -1)).sum() - prior.quadratic(logit).sum() / 2)

    for place in np.ndindex(3, 2, 4):
        up, down = state.mean.clone(), state.mean.clone()
        up[place] += 1e-4
        down[place] -= 1e-4
        assert abs(penalised(up) - penalised(down)) / 2e-4 < 1e-5


def test_each_token_sees_the_others_alone():
    """The responsibilities that the E step settles at, token by token; compiled, and in blocks on any device."""
    example = DTM.example()
    model = example.model
    data = model.prepare(example.data, dtype=torch.float64)
    engine: Any = engine_for(model, "cvb0", sweeps=300)
    rows = engine.rows(model, data)
    state = engine.initial(model, rows, torch.Generator().manual_seed(0))
    step = engine.e_step(model, state, rows)
    topic = torch.softmax(state.mean, -1)
    alpha, r, place, value = 0.1, step.locals["responsibility"], 0, []
    for n, t in enumerate(data.others["time"].long()):
        cells = data.x[n].nonzero().flatten()
        own = r[place : place + len(cells)]
        total, log_p = alpha + (data.x[n, cells][:, None] * own).sum(0), 0.0
        for j, v in enumerate(cells):
            joint = (total - own[j]) * topic[t, :, v]
            assert torch.allclose(own[j], joint / joint.sum(), atol=1e-6)
            log_p += float(data.x[n, v]) * float(joint.sum().log() - (total - own[j]).sum().log())
        value.append(log_p)
        place += len(cells)
    assert np.allclose(step.bound, value, atol=1e-5)
    given = (rows, topic.transpose(0, 1).flatten(1).T.contiguous(), torch.full((3,), 0.1), r, 50)
    _, counts, missing, again = cvb0.refresh_in_blocks(*given)
    assert torch.allclose(counts, step.statistics["topic"].T, atol=1e-5) and torch.allclose(
        again, step.bound, atol=1e-5
    )
    assert torch.allclose(missing, step.statistics["missing"].T, atol=1e-5)


def test_chains_settle_at_a_maximum_of_the_bound():
    """At given counts, written out with dense Gaussians: other means and precisions are worse."""
    x, time, _, _ = corpus(5, words=4, documents=6, length=15, slices=3)
    model = DTM(num_topics=2, vocabulary_size=4, num_times=3).with_priors(
        drift_variance=0.2, initial_scale=1.3, background=torch.randn(4)
    )
    engine: Any = engine_for(model, "gaussian", rounds=200)
    rows = engine.rows(model, model.prepare(x, time=time, dtype=torch.float64))
    state = engine.initial(model, rows, torch.Generator().manual_seed(1))
    step = engine.e_step(model, state, rows)
    state = engine.m_step(model, state, step, rows)
    counts, values = cvb0.in_slices(step.statistics["topic"], 3), state.hypers
    walk = torch.tensor(reference.walk_precision(3, 1.3**2, 0.2)).expand(2, 4, 3, 3)
    centre = values["background"].expand(3, 2, 4).permute(1, 2, 0)
    prior = torch.distributions.MultivariateNormal(centre, precision_matrix=walk)
    beside = torch.eye(3).roll(1, 0).tril(-1)

    def bound(mean, diagonal):
        precision = torch.diag_embed(diagonal.permute(1, 2, 0)) - state.coupling[..., None, None] * (beside + beside.T)
        q = torch.distributions.MultivariateNormal(mean.permute(1, 2, 0), precision_matrix=precision)
        variance = q.covariance_matrix.diagonal(dim1=-2, dim2=-1).permute(2, 0, 1)
        log_sum = torch.logsumexp(mean + variance / 2, -1)
        expected = (counts * mean).sum() - (counts.sum(-1) * log_sum).sum()
        return float(expected - torch.distributions.kl_divergence(q, prior).sum())

    best = bound(state.mean, state.diagonal)
    for place in np.ndindex(3, 2, 4):
        for size in (-0.02, 0.02):
            change = torch.zeros(3, 2, 4)
            change[place] = size
            assert bound(state.mean + change, state.diagonal) < best
            assert bound(state.mean, state.diagonal * (1 + change)) < best


def test_the_bound_is_below_the_evidence():
    """On two words, one topic and two slices: log p(x | m, s, sigma^2) by quadrature over the differences of logits."""
    model = DTM(num_topics=1, vocabulary_size=2, num_times=2).with_priors(
        drift_variance=0.5, initial_scale=1.2, background=torch.tensor([0.3, -0.3])
    )
    x, time = np.array([[4.0, 1.0], [2.0, 3.0], [1.0, 5.0]]), np.array([0, 0, 1])
    fit = ci.VariationalEM(guide="gaussian", tolerance=1e-10).fit(model, x, time=time, progress=False)
    u = np.linspace(-12, 12, 801)
    first = np.exp(-((u - 0.6) ** 2) / (4 * 1.44)) / np.sqrt(4 * np.pi * 1.44)  # of the difference, variance 2 s^2
    step = np.exp(-((u[:, None] - u) ** 2) / (4 * 0.5)) / np.sqrt(4 * np.pi * 0.5)
    log_p = [x[time == t].sum(0) @ -np.logaddexp(0, np.stack([-u, u])) for t in (0, 1)]
    evidence = np.log((first * np.exp(log_p[0])) @ step @ np.exp(log_p[1]) * (u[1] - u[0]) ** 2)
    # Bounded by Jensen's inequality, E[log sum exp] pays for the variance that all words share, too.
    assert evidence - 2.5 < float(fit.elbo[-1]) <= evidence + 1e-9


def test_documents_of_known_slices_and_of_later_ones():
    x, time, _, mix = corpus(6)
    fit = fitted(x[::2], time[::2])
    order = match_components(
        torch.as_tensor(fit.params["topic_logit"].mean(0)).softmax(-1), torch.as_tensor(corpus(6)[2].mean(0))
    ).order
    known = fit.transform(x[1::2], time=time[1::2])
    assert np.abs(known.numpy() - mix[1::2][:, order]).mean() < 0.06
    late = time == 5
    with pytest.raises(DataError, match="unknown times .*: 9 of document 0.*expected one of 0, 1"):
        fit.transform(x[late], time=np.full(late.sum(), 9))
    assert torch.equal(fit.transform(x[late]), fit.transform(x[late], time=time[late]))


def test_documents_are_bounded_as_those_of_lda_at_the_topics_of_their_slice():
    example = DTM.example()
    model, data = example.model, example.model.prepare(example.data, dtype=torch.float64)
    params = {site: example.truth[site].double() for site in model.global_sites}
    few = data.rows(torch.arange(0, 60, 12))
    few = replace(few, x=(few.x / 4).round())
    bound = ci.VariationalEM(guide="gaussian").local_posterior(model, params, few).bound
    exact = reference.log_evidence({k: v.numpy() for k, v in params.items()}, few.x, few.others["time"], 0.1)
    assert (bound.numpy() <= exact + 1e-9).all()
    for n, t in enumerate(few.others["time"].long()):
        lda, topic = LDA(num_topics=3, vocabulary_size=9), {"topic": model.topics(params)[t]}
        one = ci.VariationalEM(guide="dirichlet").local_posterior(lda, topic, Data(x=few.x[[n]]))
        assert float(bound[n]) == pytest.approx(float(one.bound), abs=1e-6)


def test_priors_that_closed_forms_cannot_take_are_refused():
    import pyro.distributions as dist

    example = DTM.example()
    for site in ("background", "topic_logit"):
        model = example.model.with_priors(**{site: dist.StudentT(4.0)})
        with pytest.raises(PriorError, match=site):
            ci.VariationalEM(guide="gaussian").fit(model, example.data, progress=False)
    model = example.model.with_priors(
        rate=dist.Gamma(2.0, 20.0), drift_variance=lambda rate: dist.Exponential(1 / rate)
    )
    with pytest.raises(PriorError, match="SVI or NUTS"):
        ci.VariationalEM(guide="cvb0").fit(model, example.data, progress=False)
    few = ci.SVI(guide="mean_field", steps=2).fit(model, example.data, progress=False)
    assert set(few.globals) == {"rate", *DTM.sites} - {"time", "x", "topic_proportion"}
