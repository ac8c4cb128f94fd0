"""The relational topic model: pairs, bounds, samplers and predictions against sums over all topics of the tokens."""

from __future__ import annotations

import itertools
from typing import Any

import networkx
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from pyro import poutine
from scipy import stats

import custom_inference as ci
from custom_inference.core.posterior_bounds import row_log_joint
from custom_inference.families.links.gibbs import LinkChain, regression_mode
from custom_inference.families.links.pairs import LinkedRows, LinkPairs
from custom_inference.families.links.sampler import LinkSampler
from custom_inference.families.links.variational import LinkedDirichlet, expand_bound
from ppl_models import RTM, DataError, MethodError, ModelError
from ppl_models.rtm import LINKS
from tests.families.links.cases import ALPHA, GAMMA, PARAMS, X, toy
from tests.references import rtm as reference
from tests.support.cases import at_subsample

KINDS = pytest.mark.parametrize("kind", LINKS)


@KINDS
@pytest.mark.parametrize(("directed", "unknown"), [(False, False), (False, True), (True, True)])
def test_pairs_have_the_probability_of_the_links(kind, directed, unknown):
    model, data, links, params, _ = toy(kind, directed, unknown)
    share = np.random.default_rng(0).dirichlet([1.0, 1.0], 3)
    pairs = LinkPairs.of(model, data)
    found = pairs.log_prob(kind, share, params["link_weight"], params["link_bias"])
    assert np.isclose(found, reference.log_links(params, share, links, kind, directed), rtol=1e-12)


def test_pairs_of_a_part_of_the_documents():
    model, data, links, params, _ = toy("sigmoid")
    share, chosen = np.random.default_rng(0).dirichlet([1.0, 1.0], 3), np.array([2, 0])
    found = LinkPairs.of(model, data).among(chosen).log_prob("sigmoid", share[chosen], params["link_weight"], -1.0)
    assert np.isclose(found, reference.log_links(params, share[chosen], links[np.ix_(chosen, chosen)]), rtol=1e-12)


def test_a_sample_of_unlinked_pairs_stands_for_all():
    rng = np.random.default_rng(0)
    upper = np.triu(rng.random((40, 40)) < 0.05, 1)
    links, words = (upper | upper.T).astype(float), rng.poisson(1.0, (40, 6)) + 1.0
    model = RTM(num_topics=2, vocabulary_size=6, link="sigmoid", negatives=3)
    pairs = LinkPairs.of(model, model.prepare(words, links=scipy.sparse.csr_matrix(links)))
    unlinked = pairs.y == 0
    assert unlinked.sum() == 3 * upper.sum() and (links[pairs.first, pairs.second] == pairs.y).all()
    assert np.isclose(pairs.e[unlinked].sum(), 40 * 39 / 2 - upper.sum()) and (pairs.e[~unlinked] == 1).all()
    assert len(np.unique(pairs.first * 40 + pairs.second)) == len(pairs.y)


def test_links_come_in_every_form():
    edges = [(0, 1), (1, 2)]
    dense = np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
    graph = networkx.Graph(edges)
    model = RTM(num_topics=2, vocabulary_size=3)
    for given in (dense, torch.tensor(dense), scipy.sparse.csr_matrix(dense), edges, np.array(edges), graph):
        links = model.prepare(X, links=given).others["links"]
        assert np.array_equal(np.asarray(links.to_dense() if links.layout == torch.sparse_csr else links), dense)
    named = model.prepare(X, links=np.where(np.eye(3)[::-1] > 0, np.nan, dense)).others["links"]
    assert float(named[0, 2]) == -1


@pytest.mark.parametrize(
    ("links", "error", "message"),
    [
        ([(0, 7)], DataError, "links"),
        (np.zeros((3, 3)), DataError, "no links"),
        (np.full((3, 3), 0.5), DataError, "whole numbers"),
        (np.eye(5), DataError, "shape"),
        (np.triu(np.ones((3, 3)), 1), DataError, "directed=True"),
        (None, DataError, "no links"),
    ],
)
def test_bad_links_are_refused(links, error, message):
    model = RTM(num_topics=2, vocabulary_size=3)
    with pytest.raises(error, match=message):
        ci.fit(model, X, links=links, progress=False)


def test_bad_settings_are_refused():
    with pytest.raises(ModelError, match="link"):
        RTM(num_topics=2, vocabulary_size=3, link="probit")
    with pytest.raises(MethodError, match="no variational bound"):
        model, data, *_ = toy("additive")
        ci.VariationalEM(guide="dirichlet").fit(model, data, progress=False)


@pytest.mark.parametrize("kind", ["sigmoid", "exponential"])
def test_expansions_are_bounds_that_touch(kind):
    model, data, *_ = toy(kind)
    pairs = LinkPairs.of(model, data)
    number, most, at = len(pairs.y), 1.0, -0.4
    bound = expand_bound(kind, pairs, np.full(number, at), np.full(number, at**2), most)
    for score in np.linspace(-6, most + 0.5, 40):
        normaliser = np.logaddexp(0, score) if kind == "sigmoid" else np.exp(score)
        exact = pairs.y * score - pairs.e * normaliser
        lower = bound.constant + bound.slope * score - bound.curvature * score**2 / 2
        assert (lower <= exact + 1e-12).all()
    normaliser = np.logaddexp(0, at) if kind == "sigmoid" else np.exp(at)
    touching = bound.constant + bound.slope * at - bound.curvature * at**2 / 2
    assert np.allclose(touching, pairs.y * at - pairs.e * normaliser, atol=1e-12)


@pytest.mark.parametrize("kind", ["sigmoid", "exponential"])
@pytest.mark.parametrize("directed", [False, True])
def test_the_bound_is_below_the_evidence(kind, directed):
    model, data, links, params, settings = toy(kind, directed)
    state = {**{name: torch.as_tensor(value) for name, value in PARAMS.items()}, **model.known}
    engine = LinkedDirichlet()
    rows = engine.rows(model, data)
    step, before = engine.e_step(model, state, rows), -np.inf
    exact = reference.log_evidence(params, X, links, ALPHA, **settings)
    for _ in range(5):
        found = float(step.bound.sum())
        assert before - 1e-9 * (kind == "sigmoid") - 1e-2 * (kind != "sigmoid") <= found <= exact
        step, before = engine.e_step(model, state, rows, step.locals), found
    assert exact - before < 3.0  # at equal shares, without any inference, it is further off


@KINDS
@pytest.mark.parametrize(("directed", "unknown", "copies"), [(False, True, 2), (True, False, 1)])
def test_the_sampler_has_the_exact_posterior(kind, directed, unknown, copies):
    """Which tokens share a topic, and the log joint, against all 2^8 topics of the tokens; topics integrated out."""
    model, data, links, params, settings = toy(kind, directed, unknown, copies)
    chain = LinkSampler().chain(model, data, 5, None)
    assert isinstance(chain, LinkChain)
    chain.plain_sweeps = 0
    q = np.array(list(itertools.product(range(2), repeat=8)))
    table = np.array([reference.log_joint_of_topics(X, one, links, params, ALPHA, GAMMA, **settings) for one in q])
    weight = np.exp(table - table.max())
    weight /= weight.sum()
    same = (q[:, :, None] == q[:, None, :]).astype(float)
    exact, total, number = np.tensordot(weight, same, 1), np.zeros((8, 8)), 10000
    for sweep in range(number):
        chain.sweep()
        topic = chain.topic
        total += topic[:, None] == topic[None, :]
        if sweep % 2500 == 0:
            assert np.isclose(
                chain.log_joint(), reference.log_joint_of_topics(X, topic, links, params, ALPHA, GAMMA, **settings)
            )
    assert np.abs(total / number - exact).max() < 0.04
    alone = np.array([reference.log_joint_of_topics(X, one, links * np.nan, params, ALPHA, GAMMA) for one in q])
    plain = np.exp(alone - alone.max())
    assert np.abs(np.tensordot(plain / plain.sum(), same, 1) - exact).max() > 0.06  # the links matter


def test_tokens_of_one_word_have_topics_of_their_own():
    model, data, *_ = toy("additive")
    chain: Any = LinkSampler().chain(model, data, 0, None)
    apart = 0
    for _ in range(200):
        chain.sweep()
        apart += chain.topic[0] != chain.topic[1]  # the two tokens of word 0 in document 0
    assert 0 < apart < 200


@KINDS
def test_weights_are_drawn_given_the_topics(kind):
    """The mean of w given qbar, one topic and the bias known, against quadrature under a prior of another family."""
    prior = dist.Gamma(2.0, 3.0) if kind == "additive" else dist.StudentT(4.0, 0.5, 1.0)
    model, data, links, params, _ = toy(kind, link_weight=prior)
    chain = LinkChain(model, LinkedRows.with_links(model, data), 3, None, alpha=ALPHA, gamma=GAMMA)
    share, grid = (
        np.array([[0.9, 0.0], [0.7, 0.0], [0.4, 0.0]]),
        np.linspace(1e-3 if kind == "additive" else -9, 12, 1000),
    )
    scores = [
        reference.log_links({**params, "link_weight": np.array([w, 0.0])}, share, links, kind)
        + float(prior.log_prob(torch.tensor(w)))
        for w in grid
    ]
    density = np.exp(np.array(scores) - max(scores))
    exact, drawn = (grid * density).sum() / density.sum(), []
    for _ in range(2000):
        chain.move_links(share)
        drawn.append(float(chain.weights.value[0]))
    spread = np.sqrt((grid**2 * density).sum() / density.sum() - exact**2)
    assert abs(np.mean(drawn) - exact) < 0.1 * spread


def test_the_mode_of_the_weights_is_stationary():
    model, data, *_ = toy("sigmoid")
    pairs, rng = LinkPairs.of(model, data), np.random.default_rng(0)
    inputs = np.column_stack([rng.random((len(pairs.y), 2)), np.ones(len(pairs.y))])
    centre, tight = np.array([0.5, -0.2, 0.0]), np.array([0.01, 2.0, 0.3])
    mode, precision = regression_mode("sigmoid", pairs, inputs, np.zeros(3), np.ones(3, bool), 1, centre, tight)

    def objective(w):
        return (stats.logistic.logcdf((2 * pairs.y - 1) * (inputs @ w))).sum() - 0.5 * tight @ (w - centre) ** 2

    for k in range(3):
        step = 1e-4 * np.eye(3)[k]
        assert abs(objective(mode + step) - objective(mode - step)) / 2e-4 < 1e-4
        curvature = (2 * objective(mode) - objective(mode + step) - objective(mode - step)) / 1e-8
        assert np.isclose(curvature, precision[k, k], rtol=1e-3)


@pytest.mark.parametrize("directed", [False, True])
def test_minibatches_of_documents_are_unbiased(directed):
    """The mean over all of three documents out of five, of links on the proportions, which a minibatch states alone."""
    rng = np.random.default_rng(1)
    links = np.triu(rng.poisson(0.5, (5, 5)), 1).astype(float)
    links = torch.tensor(links + (rng.poisson(0.5, (5, 5)) * np.tri(5, k=-1) if directed else links.T))
    model = RTM(num_topics=2, vocabulary_size=3, link_on="proportions", directed=directed)
    x, local = torch.tensor(rng.poisson(2.0, (5, 3)) + 1.0), torch.tensor(rng.dirichlet([1.0, 1.0], 5))
    state = {
        "topic": torch.tensor(PARAMS["topic"]),
        "link_weight": torch.tensor([1.5, 0.4]),
        "link_bias": torch.tensor(0.2),
    }

    def joint(program, values, **settings):
        trace = poutine.trace(pyro.condition(program, data={**state, "topic_proportion": values}))
        return float(trace.get_trace(x, links=links, **settings).log_prob_sum())

    parts = [
        joint(at_subsample(model, torch.tensor(index)), local[list(index)], batch_size=3)
        for index in itertools.combinations(range(5), 3)
    ]
    assert np.isclose(np.mean(parts), joint(model, local), rtol=1e-10)


@pytest.mark.parametrize("link", ["sigmoid", "additive"])
def test_links_on_the_proportions_are_fitted_by_svi(link):
    """The bound of a fit is the mean of all that the program states, of pairs too, less the log of the guide."""
    example = RTM.example()
    model = RTM(num_topics=3, vocabulary_size=9, link=link, link_on="proportions", link_copies=1, negatives=10)
    fit = ci.SVI(guide="mean_field", steps=3).fit(model, example.data, progress=False)
    assert "topic_share" not in model.sites and fit.params["link_weight"].shape == (3,)
    local, state = fit.transform(), {name: fit.params[name] for name in model.global_sites}
    program = pyro.condition(model, data={**state, "topic_proportion": local})
    links = example.data.others["links"]
    trace: Any = poutine.trace(program).get_trace(example.data.x, links=links)
    trace.compute_log_prob()
    stated = ("topic_proportion", "x", "links")
    expected = sum(float(trace.nodes[site]["log_prob"].sum()) for site in stated)
    assert np.isclose(float(row_log_joint(model, state, example.data, local).sum()), expected)
    with pytest.raises(MethodError, match="no collapsed sampler"):
        ci.CollapsedGibbs(chains=1, num_samples=2, warmup=2).fit(model, example.data, progress=False)


@pytest.fixture(scope="module")
def linked():
    """Forty documents of two topics, linked within these, and their fit by the additive link."""
    rng = np.random.default_rng(0)
    own = np.repeat([0, 1], 20)
    words = np.stack([rng.multinomial(12, np.where(np.arange(8) // 4 == k, 0.23, 0.02)) for k in own]).astype(float)
    chance = np.where(own[:, None] == own[None, :], 0.3, 0.01)
    upper = np.triu(rng.random((40, 40)) < chance, 1)
    links = scipy.sparse.csr_matrix((upper | upper.T).astype(float))
    model = RTM(num_topics=2, vocabulary_size=8)
    method = ci.CollapsedGibbs(chains=1, warmup=40, num_samples=10)
    return own, words, method.fit(model, words, links=links, seed=0, progress=False)


def test_links_are_predicted_from_words_and_words_from_links(linked):
    own, words, fit = linked
    every = fit.predict(None)
    same = own[:, None] == own[None, :]
    assert every.shape == (40, 40) and float(every[same].mean()) > 5 * float(every[~same].mean())
    assert torch.allclose(fit.predict((np.array([3, 0]), np.array([7, 30]))), every[[3, 0], [7, 30]])
    new = fit.predict(words[[1, 38]])
    assert new.shape == (2, 40) and float(new[0, :20].mean()) > 5 * float(new[0, 20:].mean())
    links = np.zeros((2, 40))
    links[0, [2, 5]], links[1, [25, 31]] = 1, 1
    found = fit.predict(None, links=links)
    assert torch.allclose(found.sum(1), torch.ones(2).to(found)) and (found[0, :4] > found[1, :4]).all()
    with pytest.raises(DataError, match="links"):
        fit.predict((np.array([0]), np.array([40])))


def test_sparse_links_are_saved(linked, tmp_path):
    fit = linked[2]
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"))
    before, after = (one.data.others["links"].to_dense() for one in (fit, loaded))
    assert torch.equal(before, after) and torch.allclose(loaded.predict(None), fit.predict(None))
