"""The estimators say what the fits say, and fit into scikit-learn's pipelines, grids and unions."""

import inspect
import pickle
import sys
import warnings

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import StandardScaler

import custom_inference as ci
from custom_inference.core.registry import engines_of, presentation_of
from custom_inference.faces.sklearn import (
    ESTIMATORS,
    AspectBernoulliEstimator,
    CVQEstimator,
    GraphEstimator,
    LabelEstimator,
    LDAEstimator,
    LogisticPCAEstimator,
    MixtureOfBernoullisEstimator,
    MixtureOfCategoricalsEstimator,
    MixtureOfPoissonsEstimator,
    NOCAEstimator,
    PLSAEstimator,
    RowEstimator,
)
from custom_inference.methods import default_method
from ppl_models import MODELS, NOCA, CapacityError, DataError, MethodError, ModelError
from ppl_models.core.scales import OnOwnScale
from tests.support.cases import small_computations
from tests.support.documentation import ROOT, module_for, python_blocks, run

QUICK = {"random_state": 3, "settings": {"search": ci.Search(restarts=1)}}
#: The default of ratings has sweeps, and no search.
SWEPT = {"random_state": 3}
ROWS = [name for name, kind in ESTIMATORS.items() if issubclass(kind, RowEstimator)]
#: The models whose continuous latents, Gaussian as the entries are or known, have an evidence in closed form.
INTEGRATED = {"gaussian_pca", "multinomial_regression_lda", "pmf"}
GRAPHS = [name for name in ESTIMATORS if name not in ROWS]
TEXTS = ["the river bank was steep", "a loan from the bank", "money in the bank", "the stream met the river"] * 5

pytestmark = pytest.mark.filterwarnings("ignore:.*stopped at the limit:sklearn.exceptions.ConvergenceWarning")


def example_of(name):
    example = MODELS[name].example()
    return example, example.data.dense().x.numpy()


def beside(example, rows=slice(None)):
    """What the model of an example observes or conditions on beside x."""
    others = example.data.others  # links are between the rows
    return {site: value[rows, rows] if site == "links" else value[rows] for site, value in others.items()}


def with_rows(estimator, example, rows=slice(None)):
    """What the estimator's methods of further rows take of it: labels may be left out."""
    return {s: v for s, v in beside(example, rows).items() if s in estimator._given_rows and s != "labels"}


@pytest.mark.quick
def test_every_model_has_an_estimator_named_after_it():
    assert list(ESTIMATORS) == sorted(MODELS)
    for name, kind in ESTIMATORS.items():
        assert kind.model_type is MODELS[name] and kind.__name__ == f"{MODELS[name].__name__}Estimator"
        assert next(iter(inspect.signature(kind).parameters)) == "n_components" and "max_iter" in kind().get_params()
        assert issubclass(kind, GraphEstimator) == MODELS[name].example().model.is_graph


@pytest.fixture
def brief(name):
    """Fits that cost little."""
    with small_computations(name, "default"):
        yield


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", ROWS)
def test_estimators_say_what_the_fit_says(name):
    example, x = example_of(name)
    size = example.model.sizes["component"]
    quick = SWEPT if name == "pmf" else QUICK
    estimator = ESTIMATORS[name](size, max_iter=8, **quick).fit(x[:-5], **beside(example, slice(-5)))
    own = name in ("pmf", "rtm") or isinstance(example.model, OnOwnScale)
    model = estimator.fit_.model if own else example.model  # the example's settings are given
    sampled = isinstance(default_method(model, None), ci.CollapsedGibbs)  # its draws are its iterations
    settings = {"num_samples" if sampled else "max_iterations": 8, "search": ci.Search(restarts=1)}
    settings = {"sweeps": 8} if name == "pmf" else settings
    settings |= beside(example, slice(-5))
    fit = ci.fit(model, x[:-5], seed=3, progress=False, **settings)
    for site, value in fit.params.items():
        assert torch.equal(value, estimator.fit_.params[site]), site
    held, new = x[-5:], with_rows(estimator, example, slice(-5, None))
    assert np.array_equal(estimator.transform(held, **new), fit.local_posterior(held, **new).posterior.mean.numpy())
    assert np.array_equal(estimator.components_, presentation_of(fit.model).matrix(fit.model, fit.params).numpy())
    expected = fit.log_likelihood(held, **new, bound=estimator.bound_name_).numpy()
    assert np.array_equal(estimator.score_samples(held, **new), expected) and np.isclose(
        estimator.score(held, **new), expected.mean()
    )
    closed = not model.has_continuous_locals or name in INTEGRATED
    assert (estimator.bound_name_ == "exact") == closed
    if estimator.bound_name_ != "exact" and "exact" in engines_of(model):
        assert (expected <= fit.log_likelihood(held, **new, bound="exact").numpy() + 1e-8).all()
    assert estimator.sample(4, random_state=7).shape == (4, x.shape[1])
    assert np.array_equal(estimator.sample(4, random_state=7), fit.sample(4, seed=7)["x"].numpy())
    assert estimator.n_iter_ == len(fit.elbo) and estimator.n_features_in_ == x.shape[1]
    copy = pickle.loads(pickle.dumps(estimator))
    assert np.array_equal(copy.transform(held, **new), estimator.transform(held, **new))
    unfitted = clone(estimator)
    assert unfitted.get_params() == estimator.get_params() and not hasattr(unfitted, "fit_")
    with pytest.raises(NotFittedError):
        unfitted.transform(held, **new)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", ROWS)
def test_frames_in_and_out(name):
    example, x = example_of(name)
    frame = pd.DataFrame(x, columns=[f"f{j}" for j in range(x.shape[1])])
    quick = SWEPT if name == "pmf" else QUICK
    estimator = ESTIMATORS[name](2, max_iter=2, **quick).set_output(transform="pandas").fit(frame, **beside(example))
    found = estimator.transform(frame[:4], **with_rows(estimator, example, slice(4)))
    prefix = MODELS[name].__name__.lower()
    width = 2 + len(example.model.before_components)
    assert list(found.columns) == [f"{prefix}{n}" for n in range(width)] and found.shape == (4, width)
    assert list(estimator.feature_names_in_) == list(frame.columns) == estimator.fit_.coords[example.model.feature_axis]
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.transform(frame.rename(columns={"f0": "other"}))
    if hasattr(estimator, "predict_proba") and not isinstance(estimator, LabelEstimator):
        share = estimator.predict_proba(frame)
        assert isinstance(share, np.ndarray) and np.allclose(share.sum(1), 1)
        assert np.array_equal(estimator.predict(frame), share.argmax(1))
    if hasattr(estimator, "fit_predict"):
        again = clone(estimator).set_params(random_state=3)
        assert np.array_equal(again.fit_predict(frame), estimator.predict(frame))


def test_the_score_is_the_likelihood_of_a_mixture():
    """Against NumPy: log sum_k pi_k prod_j p_kj^x (1 - p_kj)^(1 - x), missing entries left out."""
    _, x = example_of("mixture_of_bernoullis")
    x = x.copy()
    x[::7, 2] = np.nan
    prior = {"probability": dist.Beta(1.5, 1.5)}
    estimator = MixtureOfBernoullisEstimator(3, priors=prior, random_state=0).fit(x[:60])
    p, pi = (estimator.fit_.params[site].numpy() for site in ("probability", "mixing_proportion"))
    held = x[60:]
    terms = np.where(np.isnan(held)[:, None], 0.0, np.log(np.where(held[:, None] == 1, p, 1 - p)))
    joint = np.log(pi) + terms.sum(-1)
    assert np.allclose(estimator.score_samples(held), logsumexp(joint, axis=1))
    assert np.isclose(estimator.score(held), logsumexp(joint, axis=1).mean())
    assert np.allclose(estimator.predict_proba(held), np.exp(joint - logsumexp(joint, axis=1, keepdims=True)))
    assert (estimator.components_ > 0).all(), "the prior keeps off the edges"


def test_grid_search_finds_the_number_of_classes():
    """Three well separated classes; held-out scores by hand are those of the grid."""
    rng = np.random.default_rng(0)
    rate = np.array([[9.0, 1, 1, 5], [1, 9, 1, 5], [1, 1, 9, 5]])
    x = rng.poisson(rate[rng.integers(3, size=150)]).astype(float)
    folds = KFold(3, shuffle=True, random_state=0)
    grid = {"n_components": np.arange(1, 5)}
    search = GridSearchCV(MixtureOfPoissonsEstimator(**QUICK), grid, cv=folds).fit(x)
    scores = search.cv_results_["mean_test_score"]
    assert search.best_params_ == {"n_components": 3}
    assert scores[2] - scores[1] > 0.5 and scores[1] - scores[0] > 0.5
    by_hand = []
    for train, test in folds.split(x):
        model = MODELS["mixture_of_poissons"](num_components=3, num_features=4)
        fit = ci.fit(model, x[train], seed=3, progress=False, search=ci.Search(restarts=1))
        by_hand.append(float(fit.log_likelihood(x[test]).mean()))
    assert np.isclose(scores[2], np.mean(by_hand), rtol=1e-12)
    assert np.allclose(cross_val_score(MixtureOfPoissonsEstimator(3, **QUICK), x, cv=folds), by_hand)


def test_texts_through_a_pipeline():
    topics = LDAEstimator(2, doc_topic_prior=0.5, topic_word_prior=0.1, **QUICK)
    pipeline = make_pipeline(CountVectorizer(stop_words="english"), topics)
    share = pipeline.fit_transform(TEXTS)
    assert share.shape == (20, 2) and np.allclose(share.sum(1), 1)
    assert list(pipeline.get_feature_names_out()) == ["lda0", "lda1"]
    prior = pipeline[-1].fit_.model.priors
    assert (prior["topic_proportion"].concentration == 0.5).all() and (prior["topic"].concentration == 0.1).all()
    assert pipeline[-1].fit_.data.is_sparse and np.isfinite(pipeline.score(TEXTS))
    assert pipeline.transform(["river river", "unknown words"]).shape == (2, 2)


def test_scaled_reals_and_a_union():
    x = np.random.default_rng(1).normal(size=(40, 4)) + 3.0
    sources = make_pipeline(StandardScaler(), CVQEstimator(2, max_iter=3, **QUICK))
    union = FeatureUnion([("sources", sources), ("scores", LogisticPCAEstimator(2, binarize=3.0, **QUICK))])
    assert union.fit_transform(x).shape == (40, 4)
    assert list(union.get_feature_names_out()) == [
        "sources__cvq0",
        "sources__cvq1",
        "scores__logisticpca0",
        "scores__logisticpca1",
    ]


def test_columns_of_different_kinds():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            **{f"b{j}": rng.integers(2, size=50) for j in range(3)},
            **{f"c{j}": rng.integers(4, size=50) for j in range(3)},
        }
    )
    columns = ColumnTransformer([
        ("binary", MixtureOfBernoullisEstimator(2, max_iter=5, **QUICK), [f"b{j}" for j in range(3)]),
        ("answers", MixtureOfCategoricalsEstimator(3, max_iter=5, **QUICK), [f"c{j}" for j in range(3)]),
    ]).set_output(transform="pandas")  # fmt: skip
    found = columns.fit_transform(frame)
    assert list(found.columns)[::3] == ["binary__mixtureofbernoullis0", "answers__mixtureofcategoricals1"]
    assert columns.named_transformers_["answers"].fit_.model.num_categories == 4


@pytest.mark.parametrize("kind", [LDAEstimator, PLSAEstimator, MixtureOfPoissonsEstimator, AspectBernoulliEstimator])
@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_sparse_is_dense(kind):
    x = np.random.default_rng(4).poisson(0.6, (30, 7)).astype(float)
    settings = {"binarize": 0.5} if kind is AspectBernoulliEstimator else {}
    dense, sparse = (
        kind(2, max_iter=4, **settings, **QUICK).fit(container) for container in (x, scipy.sparse.csc_matrix(x))
    )
    assert np.allclose(dense.transform(x), sparse.transform(scipy.sparse.coo_array(x)), atol=1e-6)
    assert np.allclose(dense.score_samples(x), sparse.score_samples(scipy.sparse.csr_array(x)), atol=1e-6)


def test_sparse_is_refused_where_it_would_be_made_dense():
    x = scipy.sparse.random_array((20, 6), density=0.4, rng=0)
    with pytest.raises(TypeError, match="Sparse data was passed.*dense data is required"):
        NOCAEstimator(2, binarize=0.0).fit(x)
    with pytest.raises(DataError, match="binarize = -1, which would turn its zeros into ones"):
        AspectBernoulliEstimator(2, binarize=-1.0).fit(x)


@pytest.mark.quick
def test_a_threshold_makes_binary_data():
    x = np.random.default_rng(5).normal(size=(40, 5))
    x[3, 1] = np.nan
    estimator = NOCAEstimator(2, binarize=0.3, **QUICK).fit(x)
    binary = np.where(np.isnan(x), np.nan, x > 0.3)
    plain = NOCAEstimator(2, **QUICK).fit(binary)
    assert np.array_equal(estimator.transform(x), plain.transform(binary))
    assert estimator.fit_.data.mask.sum() == x.size - 1
    with pytest.raises(DataError, match="are neither 0 nor 1"):
        NOCAEstimator(2).fit(np.abs(np.nan_to_num(x)))
    with pytest.raises(ValueError, match="Negative values in data passed to X in NOCAEstimator"):
        NOCAEstimator(2).fit(np.nan_to_num(x))
    with pytest.raises(MethodError, match="binarize = 0 with total_count = 2"):
        AspectBernoulliEstimator(2, binarize=0.0, total_count=2).fit(x)


def test_counts_are_rounded_only_on_demand():
    x = np.random.default_rng(6).gamma(2.0, 1.0, (30, 4))
    with pytest.raises(DataError, match="are no counts"):
        MixtureOfPoissonsEstimator(2).fit(x)
    rounded = MixtureOfPoissonsEstimator(2, round_counts=True, **QUICK).fit(x)
    whole = MixtureOfPoissonsEstimator(2, **QUICK).fit(x.round())
    assert np.array_equal(rounded.transform(x), whole.transform(x.round()))


def test_categories_that_training_did_not_have_are_refused():
    x = np.random.default_rng(7).integers(3, size=(30, 3))
    with pytest.raises(DataError, match="none of the 3 categories"):
        MixtureOfCategoricalsEstimator(2, **QUICK).fit(x).transform(x + 1)
    known = MixtureOfCategoricalsEstimator(2, num_categories=4, **QUICK).fit(x)
    assert known.transform(x + 1).shape == (30, 2) and known.components_.shape == (2, 12)


def test_limits_that_were_reached_are_said():
    _, x = example_of("mixture_of_bernoullis")
    with pytest.warns(ConvergenceWarning, match="MixtureOfBernoullisEstimator: stopped at the limit of 2 iterations"):
        MixtureOfBernoullisEstimator(3, max_iter=2, tol=1e-9, settings={"search": None}).fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MixtureOfBernoullisEstimator(3, random_state=0).fit(x)


def test_settings_that_do_not_exist_are_refused():
    _, x = example_of("noca")
    with pytest.raises(MethodError, match="unknown setting of EM 'steps'.*; valid: "):
        NOCAEstimator(2, settings={"steps": 3}).fit(x)
    with pytest.raises(MethodError, match="unknown method of NOCA 'nonsense'"):
        NOCAEstimator(2, method="nonsense").fit(x)
    with pytest.raises(ModelError, match="unknown site of NOCA 'weight'; valid: "):
        NOCAEstimator(2, priors={"weight": None}).fit(x)
    with pytest.raises(ModelError, match="num_components = 2.5"):
        NOCAEstimator(2.5).fit(x)
    with pytest.raises(ValueError, match=r"a minimum of 9 is required by NOCAEstimator"):
        NOCAEstimator(9).fit(x)


def test_another_method_and_another_bound():
    _, x = example_of("noca")
    method = ci.VariationalEM(guide="mean_field", search=None, max_iterations=20)
    estimator = NOCAEstimator(3, method=method, bound="mean_field", random_state=0).fit(x)
    assert estimator.fit_.method_name == "VariationalEM(mean_field)" and estimator.bound_name_ == "mean_field"
    bound, exact = estimator.score(x), estimator.set_params(bound=None).score(x)
    assert bound < exact
    with pytest.raises(MethodError, match="NOCA.*'nonsense'; valid: "):
        estimator.set_params(bound="nonsense").score(x)


def test_scores_that_do_not_fit_into_memory_name_the_bounds():
    x = np.random.default_rng(8).integers(2, size=(30, 45)).astype(float)
    settings = {"max_iter": 2, "settings": {"search": None}}
    estimator = NOCAEstimator(40, method="mean_field", random_state=0, **settings).fit(x)
    with pytest.raises(CapacityError, match="Lower bounds available: bound='truncated'"):
        estimator.score(x)
    assert np.isfinite(estimator.set_params(bound="mean_field").score(x))


@pytest.mark.parametrize("state", [None, np.random.RandomState(0)])
def test_random_states(state):
    _, x = example_of("cvq")
    estimator = CVQEstimator(2, random_state=state, max_iter=2, settings={"search": None}).fit(x)
    assert isinstance(estimator.fit_.seed, int)


def test_a_model_of_ones_own():
    class Mine(RowEstimator):
        model_type = NOCA

    example, x = example_of("noca")
    assert set(inspect.signature(Mine).parameters) == {*inspect.signature(RowEstimator).parameters, "binarize"}
    found = Mine(3, random_state=0).fit(x)
    assert found.get_feature_names_out().tolist() == ["noca0", "noca1", "noca2"]
    assert engines_of(found.fit_.model) == engines_of(example.model)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_the_documentation_runs_as_printed(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "sklearn.md").read_text("utf-8")
    assert all(f"`{kind.__name__}`" in text for kind in ESTIMATORS.values())
    monkeypatch.chdir(tmp_path)
    module = module_for("sklearn_document")
    try:
        for number, block in enumerate(python_blocks("docs/sklearn.md")):
            run(block, module, f"docs/sklearn.md: block {number + 1}")
    finally:
        del sys.modules["sklearn_document"]
    printed = capsys.readouterr().out
    assert "'n_components': 3" in printed and "noca0" in printed and "lda1" in printed
    assert (tmp_path / "noca.svg").is_file()


@pytest.mark.quick
def test_inverse_transform_gives_expected_entries():
    """By the formulas: a mixture's mean, topics in their proportions, the noisy OR of sources that are there or not."""
    counts = np.random.default_rng(0).poisson(3.0, (20, 4))
    rows = np.array([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    quick = {"max_iter": 3, "settings": {"search": None}, "random_state": 0}
    with warnings.catch_warnings(action="ignore"):
        mixture = ESTIMATORS["mixture_of_poissons"](2, **quick).fit(counts)
        topics = ESTIMATORS["lda"](2, **quick).fit(counts)
        sources = ESTIMATORS["noca"](2, **quick).fit((counts > 3).astype(int))
        answers = ESTIMATORS["mixture_of_categoricals"](2, **quick).fit(counts)
    np.testing.assert_allclose(mixture.inverse_transform(rows), rows @ mixture.fit_.params["rate"].numpy())
    np.testing.assert_allclose(topics.inverse_transform(rows), rows @ topics.components_)
    bits, loading, leak = np.array([[0, 1], [1, 1]]), *(sources.fit_.params[s].numpy() for s in ("loading", "leak"))
    off = (1 - leak) * np.prod(1 - bits[:, :, None] * loading, axis=1)
    np.testing.assert_allclose(sources.inverse_transform(bits), 1 - off)
    assert mixture.inverse_transform(mixture.transform(counts)).shape == counts.shape
    with pytest.raises(DataError, match=r"latents of shape \(3, 3\); expected \(N, 2\)"):
        mixture.inverse_transform(np.ones((3, 3)))
    assert not hasattr(answers, "inverse_transform")
