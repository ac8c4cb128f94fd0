"""LDA by variational Bayes: the bound, its ascent, learned priors, and the default fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import custom_inference as ci
from custom_inference import Fit, VariationalEM
from custom_inference.core.align import match_components
from custom_inference.core.local_inference import bounds_of
from custom_inference.core.registry import engine_for
from custom_inference.core.states import move_state
from custom_inference.em.guides import VariationalBayes
from custom_inference.em.loop import run_em
from custom_inference.families.conjugate import learn as _learn
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.topics.propose import TopicProposals
from custom_inference.families.topics.vb import LdaVB, TopicPosteriors
from ppl_models import LDA, PLSA, Data, MethodError, MixtureOfBernoullis
from tests.references import _collapsed

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
LEARN = pytest.mark.parametrize("learn", [None, "alpha", "gamma", "both"])


def corpus(seed=0, num_documents=12, vocabulary_size=9, num_topics=3, length=14):
    """Counts (N, V): the first document is empty, the last word never occurs."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.4), num_topics)
    words = rng.dirichlet(np.full(num_topics, 0.5), num_documents) @ topic
    x = np.array([rng.multinomial(rng.integers(2, length + 1), p) for p in words], dtype=float)
    x[0], x[:, -1] = 0, 0
    return x


def model_of(x, num_topics=3, kind=LDA, alpha=0.4, gamma=0.3):
    return kind(num_topics=num_topics, vocabulary_size=x.shape[1]).with_concentration(alpha=alpha, gamma=gamma)


def exact_steps(model, **settings):
    """VB whose E step is the fixed point to rounding."""
    return replace(engine_for(model, "vb"), threshold=1e-13, cold_sweeps=5000, sweeps=5000, **settings)


def climbed(model, x, seed=0, iterations=300, **settings):
    steps = exact_steps(model, **settings)
    rows = steps.rows(model, Data(x=torch.tensor(x)))
    start = steps.initial(model, rows, torch.Generator().manual_seed(seed))
    return steps, rows, run_em(steps, model, rows, start, max_iterations=iterations, tolerance=1e-13)


@given(seed=st.integers(0, 10**6), num_topics=st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_the_bound_is_below_the_evidence_of_all_assignments(seed, num_topics):
    """log p(x) with topics and proportions integrated: a sum over the topics of all tokens."""
    rng = np.random.default_rng(seed)
    documents = [rng.integers(0, 3, n) for n in (3, 2, 2)]
    x = np.array([np.bincount(words, minlength=3) for words in documents], dtype=float)
    alpha = np.linspace(0.3, 0.9, num_topics)
    model = model_of(x, num_topics, alpha=torch.tensor(alpha), gamma=0.6)
    evidence = _collapsed.log_evidence(documents, num_topics, 3, alpha, 0.6)
    run = climbed(model, x, seed)[2]
    assert max(run.trace) <= evidence + 1e-9
    if num_topics == 1:
        assert run.objective == pytest.approx(evidence)


@LEARN
@given(seed=st.integers(0, 10**6), num_topics=st.integers(1, 4), sweeps=st.sampled_from([1, 3, 50]))
@settings(max_examples=6, deadline=None)
def test_every_iteration_climbs(learn, seed, num_topics, sweeps):
    x = corpus(seed, num_topics=num_topics)
    model = model_of(x, num_topics)
    steps = replace(engine_for(model, "vb"), sweeps=sweeps, cold_sweeps=sweeps, threshold=1e-12, learn=learn)
    rows = steps.rows(model, Data(x=torch.tensor(x)))
    start = steps.initial(model, rows, torch.Generator().manual_seed(seed))
    trace = torch.tensor(run_em(steps, model, rows, start, max_iterations=40, tolerance=1e-12).trace)
    assert bool((trace.diff() >= -1e-9 * trace.abs().max()).all())


def bound(x, topic, concentration, alpha, gamma):
    """F in torch, for its gradients."""
    score = Dirichlet(concentration).expected()[:, :, None] + Dirichlet(topic).expected()[None]
    likelihood = (x * score.logsumexp(1)).sum()
    local = Dirichlet(concentration).kl(alpha).sum()
    return likelihood - local - Dirichlet(topic).kl(gamma).sum()


def test_a_converged_fit_is_stationary_in_all_it_learned():
    """The gradient of F by b~, pi~, alpha and the strength of gamma, by autograd and by finite differences."""
    x = torch.tensor(corpus(5, num_documents=30))
    model = model_of(x, gamma=torch.linspace(0.2, 0.6, 9))
    _, _, run = climbed(model, x.numpy(), iterations=4000, learn="both")
    values = [run.state.concentration, run.step.locals["concentration"], run.state.alpha, torch.ones(())]
    topic, concentration, alpha, strength = (value.clone().requires_grad_() for value in values)
    free = (alpha > 1.01 * _learn.LEAST).double()  # at the floor only the gradient's sign is known

    def value(alpha, strength):
        return bound(x, topic, concentration, alpha, strength * run.state.gamma)

    total = value(alpha, strength)
    assert float(total.detach()) == pytest.approx(run.objective)
    slopes = torch.autograd.grad(total, (topic, concentration, alpha, strength))
    topic, concentration, alpha, strength = (value.detach() for value in (topic, concentration, alpha, strength))
    assert float((slopes[0] * topic).abs().max()) < 1e-3
    assert float(slopes[1].abs().max()) < 1e-5
    assert float((slopes[2] * alpha * free).abs().max()) < 2e-2
    assert bool((slopes[2][free == 0] < 0).all())
    assert float(slopes[3].abs()) < 2e-2
    step = 1e-5
    with torch.no_grad():
        for k in range(3):
            moved = step * torch.eye(3)[k]
            slope = (value(alpha + moved, strength) - value(alpha - moved, strength)) / (2 * step)
            assert float(slope) == pytest.approx(float(slopes[2][k]), abs=1e-4)
        slope = (value(alpha, strength + step) - value(alpha, strength - step)) / (2 * step)
        assert float(slope) == pytest.approx(float(slopes[3]), abs=1e-4)


def test_learned_priors_are_in_the_model_and_come_close_to_the_truth(tmp_path):
    rng = np.random.default_rng(0)
    alpha, topic = np.array([0.8, 0.3, 0.1]), rng.dirichlet(np.full(60, 0.1), 3)
    x = np.array([rng.multinomial(80, p) for p in rng.dirichlet(alpha, 400) @ topic], dtype=float)
    model = model_of(x, alpha=1.0, gamma=1.0)
    plain = VariationalEM(guide="vb").fit(model, x, progress=False)
    fit = VariationalEM(guide=VariationalBayes(learn="both")).fit(model, x, progress=False)
    assert float(fit.elbo[-1]) > float(plain.elbo[-1]) + 50
    order = match_components(topic, fit.params["topic"]).order
    learned = fit.model.priors["topic_proportion"].concentration[order].numpy()
    assert learned == pytest.approx(alpha, rel=0.35)
    gamma = fit.model.priors["topic"].concentration
    assert bool((gamma == gamma[0]).all())
    assert float(gamma[0]) == pytest.approx(0.1, rel=0.35)
    assert set(fit.params) == {"topic"}
    assert fit.solver is not None
    again = Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert torch.allclose(again.transform(x[:4]), fit.transform(x[:4]))
    before, after = (one.model.priors["topic_proportion"].concentration for one in (fit, again))
    assert torch.equal(before, after)


def test_learning_what_cannot_be_learned_is_refused():
    x = corpus()
    with pytest.raises(MethodError, match="'beta'.*alpha"):
        VariationalEM(guide=VariationalBayes(learn="beta")).fit(model_of(x), x, progress=False)
    with pytest.raises(MethodError, match="PLSA has no priors that are learned"):
        VariationalBayes(learn="alpha").engine(PLSA(num_topics=2, vocabulary_size=4))
    with pytest.raises(MethodError, match="MixtureOfBernoullis has no priors"):
        VariationalBayes(learn="gamma").engine(MixtureOfBernoullis(num_components=2, num_features=4))


def test_fits_have_posteriors_of_the_topics():
    example = LDA.example()
    fit = ci.fit(example.model, example.data, method="vb", progress=False)
    assert (fit.bound_name, fit.method_name) == ("vb", "VariationalEM(vb)")
    q = fit.global_posterior["topic"]
    assert torch.allclose(q.mean, fit.params["topic"])
    assert float(q.concentration.sum()) == pytest.approx(float(example.data.x.sum()) + 27 * 0.05)
    assert bool((fit.elbo.diff() >= -1e-7 * fit.elbo.abs().max()).all())
    assert float(match_components(example.truth["topic"], fit.params["topic"]).similarity.min()) > 0.8
    assert "starts found these components" in fit.status
    assert "vb" not in bounds_of(example.model)
    assert bool((fit.log_likelihood(bound="dirichlet") <= fit.evidence + 1e-9).all())


@pytest.mark.parametrize("learn", [None, "both"])
def test_same_seed_same_fit_and_init_goes_on(learn):
    example = LDA.example()
    method = VariationalEM(guide=VariationalBayes(learn=learn), max_iterations=20)
    first, second = (method.fit(example.model, example.data, seed=3, progress=False) for _ in range(2))
    assert torch.equal(first.params["topic"], second.params["topic"])
    after = method.fit(example.model, example.data, init=first, progress=False)
    random = replace(method, search=None).fit(example.model, example.data, progress=False)
    assert float(after.elbo[0]) > float(random.elbo[0]) + 50
    assert float(after.elbo[-1]) == pytest.approx(float(first.elbo[-1]), rel=3e-3)


def test_one_topic_has_the_exact_posterior():
    x = corpus(2)
    fit = ci.fit(model_of(x, 1), x, progress=False)
    assert torch.allclose(fit.global_posterior["topic"].concentration, torch.tensor(x.sum(0) + 0.3))
    assert torch.equal(fit.transform(), torch.ones(len(x), 1))


def test_empty_documents_stay_at_the_prior():
    x = corpus(2)
    fit = ci.fit(model_of(x), x, progress=False)
    assert fit.transform()[0].tolist() == pytest.approx([1 / 3] * 3)
    assert torch.allclose(fit.posterior.rows(slice(0, 1)).concentration, torch.full((1, 3), 0.4))


@LEARN
def test_single_precision_follows_double(learn):
    x = corpus(7, num_documents=40)
    model = model_of(x)
    steps = replace(engine_for(model, "vb"), learn=learn)
    rows = steps.rows(model, Data(x=torch.tensor(x)))
    start = steps.initial(model, rows, torch.Generator().manual_seed(0))
    double = run_em(steps, model, rows, start, max_iterations=15, tolerance=1e-12)
    half = move_state(start, torch.float32)
    single = run_em(steps, model, rows.to(torch.float32), half, max_iterations=15, tolerance=1e-12)
    assert all(value.dtype == torch.float32 for value in single.state.tensors().values())
    assert single.trace == pytest.approx(double.trace, rel=1e-4)


def test_starting_from_topics_keeps_them():
    """b~ from given topics: its means are those topics' posterior after one look at the documents."""
    example = LDA.example()
    steps = engine_for(example.model, "vb")
    rows = steps.rows(example.model, example.data)
    start = steps.start_from(example.model, {"topic": example.truth["topic"]}, rows)
    assert float(match_components(example.truth["topic"], start.concentration).similarity.min()) > 0.8
    assert float(start.concentration.sum()) == pytest.approx(float(example.data.x.sum()) + 27 * 0.05)


def test_relabelled_topics_are_the_same_solution():
    model, topic = LDA(num_topics=3, vocabulary_size=9), torch.eye(3, 9) * 20 + 0.1
    proposals, state = TopicProposals(LdaVB()), TopicPosteriors(topic)
    assert proposals.same_solution(model, state, TopicPosteriors(topic[[2, 0, 1]] * 2))
    assert not proposals.same_solution(model, state, TopicPosteriors(topic.roll(1, -1)))


@pytest.mark.parametrize("accelerate", ["squarem", "anderson"])
def test_leaps_move_concentrations_not_probabilities(accelerate):
    """Extrapolated b~ are no points of a simplex; the objective never falls."""
    x = corpus(8, num_documents=40)
    settings = {"guide": VariationalBayes(learn="both"), "search": None, "tolerance": 1e-8, "max_iterations": 400}
    fit = VariationalEM(**settings, accelerate=accelerate).fit(model_of(x), x, progress=False)
    plain = VariationalEM(**settings, accelerate=None).fit(model_of(x), x, progress=False)
    assert bool((fit.elbo.diff() >= -1e-9 * fit.elbo.abs().max()).all())
    assert float(fit.global_posterior["topic"].concentration.sum()) > x.sum()
    assert len(fit.elbo) < len(plain.elbo)


def test_the_default_ends_where_it_would_from_a_fit_with_topics_integrated_out():
    """Ten topics of 200 words: from sampled topics alone it ends below."""
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        topic, mix = rng.dirichlet(np.full(200, 0.05), 10), rng.dirichlet(np.full(10, 0.1), 300)
        x = np.array([rng.multinomial(50, p) for p in mix @ topic], dtype=float)
        model = model_of(x, 10, alpha=0.1, gamma=0.05)
        collapsed = ci.fit(model, x, method="cvb0", progress=False)
        settled = VariationalEM(guide="vb").fit(model, x, init=collapsed, progress=False)
        found.append(float(ci.fit(model, x, progress=False).elbo[-1] - settled.elbo[-1]))
    assert sum(found) > 0
