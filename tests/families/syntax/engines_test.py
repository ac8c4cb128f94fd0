"""Variational EM of topics and syntax, and the program's forward algorithm, against sums over all states."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

import custom_inference as ci
from custom_inference.families.syntax.dirichlet import SyntaxDirichlet, SyntaxVB, statistics_of, tables_of
from custom_inference.families.syntax.rows import SentenceRows
from ppl_models import LDA, LDAHMM, Data, DataError, MethodError, ModelError, sequences
from ppl_models.distributions.hidden_markov import SyntaxTokens
from tests.references import _shared
from tests.references import ldahmm as reference

X = np.array([[1.0, 4, 2, 0, 3, 5], [5, 1, 0, 0, 2, 0], [0, 0, 0, 0, 0, 0], [2, 2, 4, 1, 0, 3]])


def model_of(num_states=3, num_topics=2) -> LDAHMM:
    return LDAHMM(num_topics=num_topics, num_states=num_states, vocabulary_size=5)


def values_of(model: LDAHMM, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {site: rng.dirichlet(np.ones(shape[-1]), shape[:-1]) for site, shape in model.shapes.items()}


def tensors(values):
    return {site: torch.as_tensor(value) for site, value in values.items()}


def rows_of(model, x=X) -> SentenceRows:
    return SyntaxDirichlet().rows(model, model.prepare(x))


@pytest.mark.parametrize("num_states", [1, 2, 4])
@pytest.mark.parametrize("sparse", [False, True])
def test_passes_are_the_sums_over_all_sequences(num_states, sparse):
    """Evidence, states' probabilities and expected moves of the compiled passes, and the program's log p(x)."""
    model, proportion = model_of(num_states), np.random.default_rng(1).dirichlet([1.0, 1.0], 4)
    values, data = values_of(model), model.prepare(X)
    if sparse:
        data = model.prepare(Data(x=data.x.to_sparse_csr()))
    rows = SyntaxDirichlet().rows(model, data)
    state = np.zeros((len(rows.words[0]), num_states))
    found = rows.compute_expectations(tables_of(tensors(values)), proportion, state=state)
    expected = reference.log_likelihood(values, X, proportion)
    assert np.allclose(found.log_evidence, expected, rtol=1e-12)
    parts = [(pi, words) for pi, row in zip(proportion, X, strict=True) for words in reference.sentences(row)]
    assert np.allclose(state, np.concatenate([reference.state_posterior(values, *part) for part in parts]))
    assert np.allclose(found.transition, sum(reference.expected_transitions(values, *part) for part in parts))
    assert np.isclose(found.classes.sum(), len(state)) and np.isclose(found.initial.sum(), len(parts))
    assert np.isclose(found.topic.sum(), state[:, 0].sum()) and np.allclose(found.usage.sum(0), found.topic.sum(0))
    fixed = {**tensors(values), "topic_proportion": torch.as_tensor(proportion)}
    trace = poutine.trace(pyro.condition(model, data=fixed)).get_trace(data.x)
    trace.compute_log_prob()
    assert np.allclose(trace.nodes["x"]["log_prob"], expected, rtol=1e-12)


def test_topics_of_tokens_are_their_shares_of_content():
    """Expected tokens of words in topics: p(z = 0 | y) pi_k b_kv / sum_j pi_j b_jv, token by token."""
    model, values = model_of(), values_of(model_of())
    proportion = np.random.default_rng(1).dirichlet([1.0, 1.0], 4)
    found = rows_of(model).compute_expectations(tables_of(tensors(values)), proportion)
    topic, usage = np.zeros((5, 2)), np.zeros((4, 2))
    for n, row in enumerate(X):
        for words in reference.sentences(row):
            content = reference.state_posterior(values, proportion[n], words)[:, 0]
            for v, each in zip(words, content, strict=True):
                share = proportion[n] * values["topic"][:, v]
                topic[v] += each * share / share.sum()
                usage[n] += each * share / share.sum()
    assert np.allclose(found.topic, topic) and np.allclose(found.usage, usage)


@pytest.mark.parametrize("num_states", [1, 3])
def test_bounds_stay_below_the_evidence_and_gain_from_settling(num_states):
    """log p(y_i | globals) by quadrature over the proportions of two topics; any pi~ bounds it, a settled one best."""
    model, values, alpha = model_of(num_states), values_of(model_of(num_states)), [0.3, 0.3]
    engine, rows = SyntaxDirichlet(threshold=1e-10, cold_sweeps=500), rows_of(model)
    exact = reference.log_evidence(values, X, alpha)
    settled = engine.e_step(model, tensors(values), rows).bound.numpy()
    any_one = {"concentration": torch.tensor([[1.0, 2.0]]).expand(4, 2)}
    poor = engine.e_step(model, tensors(values), rows, any_one).bound.numpy()
    assert (settled <= exact + 1e-9).all() and (poor <= settled + 1e-9).all()
    assert poor[2] < 0 and abs(settled[2]) < 1e-9  # a document without words has its prior


def test_bound_of_variational_bayes_is_what_its_terms_add_up_to():
    """E_q[log p(y, z, q, pi, globals)] - E_q[log q] written out, over all states of all sentences."""
    model, engine, rows = model_of(), SyntaxVB(), rows_of(model_of())
    state = engine.initial(model, rows, torch.Generator().manual_seed(3))
    concentration = torch.tensor([[1.0, 2.0], [0.5, 0.6], [0.3, 0.3], [2.0, 1.0]])
    step = engine.e_step(model, state, rows, {"concentration": concentration})
    logs = {site: _shared.expected_log_dirichlet(value.numpy()) for site, value in state.sites.items()}
    share, total = np.exp(_shared.expected_log_dirichlet(concentration.numpy())), np.zeros(4)
    pseudo = {site: np.exp(value) for site, value in logs.items()}
    for n, row in enumerate(X):
        for words in reference.sentences(row):  # log Z is E[log p(y, z, q | .)] + entropy of q(z, q) at its best
            total[n] += np.logaddexp.reduce(reference.sentence_table(pseudo, share[n], words)[1])
    total -= _shared.dirichlet_divergence(concentration.numpy(), 0.3)
    assert np.allclose(step.bound, total)
    prior = {"topic": 0.05, "emission": 0.1, "transition": 1.0, "initial": 1.0}
    expected = -sum(_shared.dirichlet_divergence(v.numpy(), prior[s]).sum() for s, v in state.sites.items())
    assert np.isclose(float(engine.prior_term(model, state)), expected)


@pytest.mark.parametrize("guide", ["dirichlet", "vb"])
def test_objective_climbs(guide):
    example = LDAHMM.example()
    fit = ci.VariationalEM(guide=guide, search=None, max_iterations=40, tolerance=1e-12).fit(
        example.model, example.data, seed=1, progress=False
    )
    assert (fit.elbo.diff() >= -1e-9).all() and fit.elbo[-1] > fit.elbo[0] + 10


def test_m_step_is_a_maximum_of_the_expected_log_joint():
    model, rows = model_of(), rows_of(model_of())
    flat = model.with_priors(**{s: dist.Dirichlet(torch.full((n[-1],), 1.5)) for s, n in model.shapes.items()})
    engine, state = SyntaxDirichlet(), tensors(values_of(model))
    step = engine.e_step(flat, state, rows)
    best = engine.m_step(flat, state, step, rows)
    rng = np.random.default_rng(0)
    for site, counts in step.statistics.items():
        weight = counts + 0.5
        height = float((weight * best[site].log()).sum())
        for _ in range(5):
            other = (best[site].log() + 0.05 * torch.as_tensor(rng.standard_normal(counts.shape))).softmax(-1)
            assert float((weight * other.log()).sum()) < height, site


def test_one_state_is_lda():
    """Without classes of syntax: the bounds of documents, and of variational Bayes, are LDA's of the words' counts."""
    model, data = model_of(1), model_of(1).prepare(X)
    lda = LDA(num_topics=2, vocabulary_size=5).with_concentration(alpha=0.3, gamma=0.05)
    params = tensors(values_of(model))
    assert set(model.global_sites) == {"topic"}
    for bound in ("dirichlet",):
        solved = [
            ci.VariationalEM(guide=bound).local_posterior(one, params, x)
            for one, x in ((model, data), (lda, data.counts()))
        ]
        assert torch.allclose(solved[0].bound, solved[1].bound, atol=1e-4)
        assert torch.allclose(solved[0].posterior.mean, solved[1].posterior.mean, atol=2e-3)
    assert ci.fit(model, X[[0, 1, 3]], progress=False).params["topic"].shape == (2, 5)


def test_without_content_it_is_a_hidden_markov_model():
    """Where no move leads to state 0, the proportions and topics say nothing, and the classes are an HMM."""
    model, values = model_of(3), values_of(model_of(3))
    values["initial"] = np.array([0.0, 0.4, 0.6])
    values["transition"] = np.array([[1.0, 0, 0], [0, 0.3, 0.7], [0, 0.8, 0.2]])
    found = SyntaxDirichlet().e_step(model, tensors(values), rows_of(model))
    expected = np.zeros(4)
    for n, row in enumerate(X):
        for words in reference.sentences(row):
            forward = values["initial"][1:] * values["emission"][:, words[0]]
            for v in words[1:]:
                forward = (forward @ values["transition"][1:, 1:]) * values["emission"][:, v]
            expected[n] += np.log(forward.sum())
    assert np.allclose(found.bound, expected) and torch.allclose(found.locals["concentration"], torch.tensor(0.3))


def test_gradients_of_the_program_are_those_of_the_evidence():
    """What SVI and NUTS climb: by finite differences."""
    model, proportion = model_of(), np.random.default_rng(1).dirichlet([1.0, 1.0], 4)
    values = tensors(values_of(model))
    layout = torch.as_tensor(X != 0)

    def height(transition):
        law = SyntaxTokens(torch.as_tensor(proportion), values["topic"], values["emission"], transition,
                           values["initial"], layout)  # fmt: skip
        return law.log_prob(torch.as_tensor(X)).sum()

    assert torch.autograd.gradcheck(height, values["transition"].requires_grad_())


def test_draws_have_the_law_of_the_states():
    """The first words of sentences come from ``initial``, others by ``transition``; gaps stay."""
    values = tensors(values_of(model_of(2)))
    layout = torch.tensor([[True, True, False, True]]).expand(20000, 4)
    proportion = torch.tensor([0.25, 0.75]).expand(20000, 2)
    law = SyntaxTokens(proportion, *(values[s] for s in ("topic", "emission", "transition", "initial")), layout)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = law.sample()
    assert (x[:, 2] == 0).all() and (x[:, [0, 1, 3]] >= 1).all()
    words = torch.cat([proportion[:1] @ values["topic"], values["emission"]])
    first = values["initial"] @ words
    second = values["initial"] @ values["transition"] @ words
    for place, chance in ((0, first), (1, second), (3, first)):
        share = torch.bincount(x[:, place].long() - 1, minlength=5) / 20000
        assert ((share - chance).abs() < 5 * (chance * (1 - chance) / 20000).sqrt()).all()
    assert torch.allclose(law.mean[0], x.mean(0), atol=0.06)


def synthetic(seed: int):
    """Two topics of twenty words and two classes of five; words, states, topics."""
    rng = np.random.default_rng(seed)
    topic = np.hstack([rng.dirichlet(np.full(40, 0.1), 2), np.zeros((2, 10))])
    classes = np.zeros((2, 50))
    for c in range(2):
        classes[c, 40 + 5 * c : 45 + 5 * c] = rng.dirichlet(np.ones(5))
    moves, texts, states = np.array([[0.1, 0.6, 0.3], [0.8, 0.1, 0.1], [0.3, 0.6, 0.1]]), [], []
    for _ in range(60):
        words, document = np.vstack([rng.dirichlet([0.4, 0.4]) @ topic, classes]), []
        for _ in range(12):
            chance, sentence = np.array([0.2, 0.2, 0.6]), []
            for _ in range(rng.integers(4, 10)):
                state = rng.choice(3, p=chance)
                states.append(state)
                sentence.append(int(rng.choice(50, p=words[state])))
                chance = moves[state]
            document.append(sentence)
        texts.append(document)
    return texts, np.array(states), topic


def test_the_default_finds_states_and_topics():
    scores = []
    for seed in range(2):
        texts, states, topic = synthetic(seed)
        model = LDAHMM(num_topics=2, num_states=3, vocabulary_size=50)
        fit = ci.fit(model, texts, seed=seed, progress=False)
        found = fit.tokens()
        distance = np.abs(topic[:, None] - fit.params["topic"].numpy()[None]).sum(-1) / 2
        best = distance[linear_sum_assignment(distance)].mean()
        scores.append(
            (adjusted_rand_score(states, found["state"]), np.mean((states == 0) == (found["state"] == 0)), best)
        )
    ari, content, distance = np.transpose(scores)
    assert ari.min() > 0.9 and content.min() > 0.95 and distance.max() < 0.12


def test_tokens_are_listed_in_their_order():
    texts = [[["b", "a"], ["c"]], ["a", "c", "c"]]
    data = sequences(texts, labels=["x", "y"])
    model = LDAHMM(num_topics=2, num_states=2, vocabulary_size=3)
    fit = ci.VariationalEM(guide="vb", search=None, max_iterations=5).fit(model, data, progress=False)
    table = fit.tokens()
    assert list(table.columns) == [
        "document", "sentence", "position", "word", "state", "topic", "content_probability"
    ]  # fmt: skip
    assert list(table["word"]) == ["b", "a", "c", "a", "c", "c"] and list(table["document"]) == [*"xxxyyy"]
    assert list(table["sentence"]) == [0, 0, 1, 0, 0, 0] and list(table["position"]) == [0, 1, 0, 0, 1, 2]
    assert ((table["topic"] == -1) == (table["state"] != 0)).all()
    assert ((table["state"] == 0) == (table["content_probability"] > 0.5)).all()
    values, share = {site: value.numpy() for site, value in fit.globals.items()}, fit.transform().numpy()
    parts = [(share[0], [1, 0]), (share[0], [2]), (share[1], [0, 2, 2])]
    expected = np.concatenate([reference.state_posterior(values, *part)[:, 0] for part in parts])
    assert np.allclose(table["content_probability"], expected)
    assert list(fit.tokens([["c", "a"]])["word"]) == ["c", "a"]
    with pytest.raises(MethodError, match="does not read tokens in their order"):
        ci.VariationalEM(guide="map", search=None, max_iterations=2).fit(
            LDA.example().model, LDA.example().data, progress=False
        ).tokens()


def test_priors_that_are_no_dirichlet_are_taken():
    prior = dist.LogisticNormal(torch.zeros(4), torch.ones(4))
    fit = ci.fit(model_of().with_priors(topic=prior), X, progress=False)
    assert torch.allclose(fit.params["topic"].sum(-1), torch.ones(2).double()) and torch.isfinite(fit.elbo).all()


def test_words_in_both_roles_are_found_and_drawn():
    texts, _, _ = synthetic(0)
    names = [f"w{v}" for v in range(50)]
    data = sequences([[[names[v] for v in sentence] for sentence in one] for one in texts], names)
    model = LDAHMM(num_topics=2, num_states=3, vocabulary_size=50)
    fit = ci.VariationalEM(guide="vb", max_iterations=10).fit(model, data, progress=False)
    classes = ci.class_table(fit, 3)
    assert classes.shape == (6, 2) and set(classes["word"]) <= set(names[40:])
    cut = ci.class_table(fit, 50, mass=0.5)["probability"].groupby("state").sum()
    assert (cut >= 0.5).all() and len(ci.class_table(fit, 50, mass=0.5)) < 100
    words, table = ci.ambiguous_words(fit, least=5), fit.tokens()
    first = table[table["word"] == words.index[0]]["content_probability"]
    assert words["spread"].iloc[0] == pytest.approx(first.std()) and words["spread"].is_monotonic_decreasing
    assert set(ci.topic_table(fit, 5)["word"]) <= set(names[:40])
    figure = fit.plot("roles", word="w41", sentences=3, max_words=5)
    boxed = [text for text in figure.axes[0].texts if text.get_bbox_patch() is not None]
    assert [text.get_text() for text in boxed] == ["w41"] * 3 and len(figure.axes[0].texts) <= 15
    greys = [float(text.get_color()) for text in boxed]
    assert greys[0] >= greys[-1]
    with pytest.raises(MethodError, match="occurs nowhere"):
        fit.plot("roles", word="nothing")
    with pytest.raises(MethodError, match="no classes of syntax"):
        ci.class_table(ci.fit(model_of(1), X, method="vb", max_iterations=2, progress=False))


def test_statistics_have_the_shapes_of_the_sites():
    model, rows = model_of(), rows_of(model_of())
    found = statistics_of(
        model, rows.compute_expectations(tables_of(tensors(values_of(model))), np.ones((4, 2))), rows.like
    )
    assert {site: tuple(value.shape) for site, value in found.items()} == model.shapes


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: model_of(num_topics=0), ModelError, "num_topics = 0"),
        (lambda: model_of(num_states=0), ModelError, "num_states = 0"),
        (lambda: model_of().prepare(np.array([[1.0, 6.0]])), DataError, "no word.*vocabulary_size = 5"),
        (lambda: model_of().prepare(np.array([[1.0, 2.5]])), DataError, "no word"),
        (lambda: ci.fit(model_of(), np.zeros((3, 4)), progress=False), DataError, "no words"),
        (lambda: model_of().prepare(sequences([["a", "b"]])), DataError, "2 words where the model has"),
    ],
)
def test_what_cannot_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
