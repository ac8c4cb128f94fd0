"""scikit-learn's own names: perplexity, bic and aic, partial_fit, and the parameters of LatentDirichletAllocation."""

import copy
import pickle

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, logsumexp
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

import custom_inference as ci
from custom_inference.documents import held_out
from custom_inference.faces.sklearn import (
    CTMEstimator,
    LDAEstimator,
    MixtureOfMultinomialsEstimator,
    MixtureOfPoissonsEstimator,
    NOCAEstimator,
    PLSAEstimator,
    SBMEstimator,
    UserRatingProfileEstimator,
)
from ppl_models import LDA, MethodError, MixtureOfPoissons
from tests.faces.sklearn.estimators_test import QUICK, TEXTS, example_of

pytestmark = pytest.mark.filterwarnings("ignore:.*stopped at the limit:sklearn.exceptions.ConvergenceWarning")

#: One start, drawn at random.
PLAIN = {"search": None, "accelerate": None}


def poisson_log_joint(estimator, x):
    """log pi_k + sum_j log Poisson(x_j; rate_kj), (N, K)."""
    rate, pi = (estimator.fit_.params[site].numpy() for site in ("rate", "mixing_proportion"))
    return np.log(pi) + (x[:, None] * np.log(rate) - rate - gammaln(x + 1)[:, None]).sum(-1)


def test_criteria_count_the_likelihood_and_the_parameters_of_a_mixture():
    _, x = example_of("mixture_of_poissons")
    estimator = MixtureOfPoissonsEstimator(3, max_iter=4, **QUICK).fit(x[:-20])
    held = x[-20:]
    log_p = logsumexp(poisson_log_joint(estimator, held), axis=1).sum()
    psi = 2 + 3 * x.shape[1]
    assert np.isclose(estimator.bic(held), -2 * log_p + psi * np.log(len(held)))
    assert np.isclose(estimator.aic(held), -2 * log_p + 2 * psi)
    assert np.isclose(estimator.bic(x[:-20]), estimator.fit_.bic())


def test_perplexity_is_that_of_the_tokens():
    _, x = example_of("mixture_of_multinomials")
    mixture = MixtureOfMultinomialsEstimator(2, max_iter=5, **QUICK).fit(x[:30])
    topic, pi = (mixture.fit_.params[site].numpy() for site in ("topic", "mixing_proportion"))
    log_q = logsumexp(np.log(pi) + np.where(x[30:, None] > 0, x[30:, None] * np.log(topic), 0).sum(-1), axis=1)
    assert np.isclose(mixture.perplexity(x[30:]), np.exp(-log_q.sum() / x[30:].sum()))
    _, words = example_of("lda")
    lda = LDAEstimator(3, max_iter=5, **QUICK).fit(words)
    assert lda.perplexity(words) == lda.bound_ == pytest.approx(held_out(lda.fit_, words, how="dirichlet").perplexity())
    assert np.isclose(lda.perplexity(words), np.exp(-lda.score_samples(words).sum() / words.sum()))
    assert not hasattr(NOCAEstimator(), "perplexity")


def stepwise_poissons(state, minibatches, total, delay, forgetting):
    """Stepwise EM of a mixture of Poissons under flat priors, in NumPy: (pi, rate) after each minibatch."""
    pi, rate = state
    statistics, found, seen = None, [], 0
    for count, x in enumerate(minibatches):
        joint = np.log(pi) + (x[:, None] * np.log(rate) - rate).sum(-1)
        r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        before, seen = seen, seen + len(x)
        size = total or seen
        new = [part * size / len(x) for part in (r.sum(0), r.T @ x)]
        if statistics is None:
            statistics = new
        else:
            rho = min(1.0, (count + delay) ** -forgetting)
            kept = [part * size / (total or before) for part in statistics]
            statistics = [(1 - rho) * one + rho * other for one, other in zip(kept, new, strict=True)]
        pi, rate = statistics[0] / statistics[0].sum(), statistics[1] / statistics[0][:, None]
        found.append((pi, rate))
    return found


@pytest.mark.parametrize("total", [None, 500])
def test_partial_fit_is_stepwise_em(total):
    """Against NumPy from the same start, which is where the first minibatch's iteration would begin."""
    rng = np.random.default_rng(3)
    x = rng.poisson(np.array([[9.0, 1, 1, 5], [1, 9, 1, 5]])[rng.integers(2, size=90)]).astype(float)
    parts = [x[:40], x[40:55], x[55:]]
    flat = {"rate": dist.Gamma(1.0, 1e-12), "mixing_proportion": dist.Dirichlet(torch.ones(2))}
    settings = {**PLAIN, "delay": 3.0, "forgetting": 0.8}
    estimator = MixtureOfPoissonsEstimator(2, method="em", priors=flat, settings=settings, random_state=5)
    estimator.set_params(total_samples=total)
    model = MixtureOfPoissons(num_components=2, num_features=4).with_priors(**flat)
    engine = ci.EM().engine(model)
    rows = engine.rows(model, model.prepare(parts[0]))
    start = engine.initial(model, rows, torch.Generator().manual_seed(5))
    state = start["mixing_proportion"].numpy(), start["rate"].numpy()
    for number, (pi, rate) in enumerate(stepwise_poissons(state, parts, total, 3.0, 0.8)):
        estimator.partial_fit(parts[number])
        assert np.allclose(estimator.fit_.params["rate"], rate, rtol=1e-8)
        assert np.allclose(estimator.fit_.params["mixing_proportion"], pi, rtol=1e-8)
        assert estimator.n_iter_ == number + 1 and np.array_equal(estimator.components_, estimator.fit_.params["rate"])
    assert "3 minibatches of 90 rows" in estimator.fit_.status and len(estimator.fit_.data) == 35


def test_partial_fit_goes_on_where_it_was():
    _, x = example_of("mixture_of_bernoullis")
    estimator = NOCAEstimator(2, method="em", settings=PLAIN, random_state=0).partial_fit(x[:30])
    copies = [pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator)]
    for one in (estimator, *copies):
        one.partial_fit(x[30:])
        assert np.array_equal(one.components_, estimator.components_)
    fresh = clone(estimator)
    assert not hasattr(fresh, "fit_")
    assert np.array_equal(fresh.partial_fit(x[:30]).partial_fit(x[30:]).components_, estimator.components_)
    assert np.array_equal(estimator.fit(x).components_, clone(estimator).fit(x).components_), "fit starts anew"
    with pytest.raises(ValueError, match="features"):
        estimator.partial_fit(x[:, 1:])


def test_partial_fit_goes_on_from_a_fit():
    """All rows once more, at the rate at which they were seen: a maximum stays where it is."""
    _, x = example_of("mixture_of_poissons")
    estimator = MixtureOfPoissonsEstimator(3, tol=1e-10, random_state=0, total_samples=len(x)).fit(x)
    before = estimator.components_
    assert np.allclose(estimator.partial_fit(x).components_, before, rtol=1e-3)
    _, answers = example_of("user_rating_profile")
    profiles = UserRatingProfileEstimator(2, tol=1e-8, total_samples=len(answers), **QUICK).fit(answers)
    score = profiles.score(answers)
    assert profiles.partial_fit(answers).score(answers) == pytest.approx(score, abs=1e-2)


def test_partial_fit_is_there_where_minibatches_are_taken():
    assert not hasattr(SBMEstimator(), "partial_fit") and hasattr(PLSAEstimator(), "partial_fit")
    _, x = example_of("noca")
    with pytest.raises(MethodError, match=r"partial_fit by NUTS.*expected EM or variational EM"):
        NOCAEstimator(2, method="nuts").partial_fit(x)
    with pytest.raises(MethodError, match="total_samples = 0, expected at least 1"):
        NOCAEstimator(2, total_samples=0, settings=PLAIN).partial_fit(x)
    with pytest.raises(MethodError, match="batch_size = 0"):
        NOCAEstimator(2, settings={**PLAIN, "batch_size": 0}).partial_fit(x)
    with pytest.raises(MethodError, match="needs every row at once"):
        NOCAEstimator(2, method="factorized").partial_fit(x)


def planted(seed, documents):
    """Documents of two of three planted topics with three words each."""
    rng = np.random.default_rng(seed)
    topic = np.kron(np.eye(3), np.full(3, 1 / 3))
    return np.stack([rng.multinomial(40, share @ topic) for share in rng.dirichlet([0.3] * 3, documents)])


def test_lda_learns_online():
    x = planted(0, 200)
    online = LDAEstimator(3, learning_method="online", batch_size=50, max_iter=5, random_state=0).fit(x)
    model = LDA(num_topics=3, vocabulary_size=9)
    same = {"batch_size": 50, "delay": 10.0, "forgetting": 0.7, "max_iterations": 5}
    assert torch.equal(online.fit_.params["topic"], ci.fit(model, x, seed=0, progress=False, **same).params["topic"])
    parts = LDAEstimator(3, batch_size=20, total_samples=200, random_state=0)
    for start in range(0, 200, 40):
        parts.partial_fit(x[start : start + 40])
    assert len(parts.fit_.details["rows_seen"]) == 10
    for found in (online, parts):
        words = {tuple(np.sort(row.argsort()[-3:])) for row in found.components_}
        assert words == {(0, 1, 2), (3, 4, 5), (6, 7, 8)}
        assert abs(found.score(planted(1, 50)) - online.score(planted(1, 50))) < 1.0
    with pytest.raises(MethodError, match="learning_method.*'stochastic'; valid: batch, online"):
        LDAEstimator(learning_method="stochastic").fit(x)


def test_parameters_of_latent_dirichlet_allocation(capsys):
    _, x = example_of("lda")
    threads = torch.get_num_threads()
    settings = {"doc_topic_prior": 0.5, "topic_word_prior": 0.1, "n_jobs": 2, "evaluate_every": 2, "verbose": True}
    estimator = LDAEstimator(3, max_iter=4, tol=1e-12, settings=PLAIN, random_state=0, **settings).fit(x)
    assert torch.get_num_threads() == threads
    priors = estimator.fit_.model.priors
    assert (priors["topic_proportion"].concentration == 0.5).all() and (priors["topic"].concentration == 0.1).all()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"iteration: {n} of max_iter: 4" for n in (1, 2, 3, 4)]
    shown = [float(line.rpartition(" ")[2]) for line in lines if "perplexity" in line]
    assert np.allclose(shown, np.exp(-estimator.fit_.elbo[1::2].numpy() / x.sum()), atol=1e-4)
    concentration = estimator.transform(x, normalize=False)
    assert np.allclose(concentration.sum(1), 1.5 + x.sum(1))
    assert np.allclose(concentration / concentration.sum(1, keepdims=True), estimator.transform(x))
    with pytest.raises(MethodError, match="normalize=False"):
        LDAEstimator(3, method="map", settings=PLAIN, max_iter=2).fit(x).transform(x, normalize=False)
    names = PLSAEstimator().get_params().keys() & CTMEstimator().get_params().keys() & {"doc_topic_prior"}
    assert not names and "doc_topic_prior" in PLSAEstimator().get_params()


def test_texts_from_the_vectoriser_to_frames_and_a_grid():
    steps = [("words", CountVectorizer(stop_words="english")), ("topics", LDAEstimator(max_iter=5, **QUICK))]
    grid = GridSearchCV(Pipeline(steps), {"topics__n_components": [1, 2]}, cv=2).fit(TEXTS)
    best = grid.best_estimator_
    assert (
        best["topics"].fit_.data.is_sparse and best["topics"].n_components == grid.best_params_["topics__n_components"]
    )
    assert best["topics"].n_features_in_ == len(best["words"].vocabulary_)
    pipeline = Pipeline(steps)
    frame = (
        pipeline.set_params(topics__n_components=2)
        .fit(TEXTS)[-1]
        .set_output(transform="pandas")
        .transform(pipeline["words"].transform(TEXTS))
    )
    assert isinstance(frame, pd.DataFrame) and list(frame.columns) == ["lda0", "lda1"]


def test_limits_of_methods_have_one_name():
    _, x = example_of("noca")
    fit = NOCAEstimator(2, method="svi", max_iter=7, random_state=0).fit(x).fit_
    assert len(fit.elbo) == 7
    with pytest.raises(MethodError, match=r"tol = 0.1, but SVI\(mean_field\) has no such limit"):
        NOCAEstimator(2, method="svi", tol=0.1).fit(x)
    with pytest.raises(MethodError, match="max_iter = 3, but NUTS has no such limit"):
        NOCAEstimator(2, method="nuts", max_iter=3).fit(x)
