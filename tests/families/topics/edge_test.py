"""Corpora and priors at the edge of what makes sense, through every method of LDA, multinomial PCA and PLSA."""

import numpy as np
import pytest
import torch

import custom_inference as ci
from ppl_models import LDA, PLSA, MethodError, MultinomialPCA
from ppl_models.data import sparse as _sparse

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
METHODS = {
    "em": ci.EM(max_iterations=5, search=None),  # its search is long
    "map": ci.VariationalEM(guide="map", max_iterations=5),
    "dirichlet": ci.VariationalEM(guide="dirichlet", max_iterations=5),
    "vb": ci.VariationalEM(guide="vb", max_iterations=5),
    "vb_stepwise": ci.VariationalEM(guide="vb", max_iterations=2, batch_size=2),
    "cvb0": ci.VariationalEM(guide="cvb0", max_iterations=5),
    "gibbs": ci.CollapsedGibbs(num_samples=3, warmup=3, chains=1),
    "svi": ci.SVI(steps=5),
    "svi_amortized": ci.SVI(guide="amortized", steps=5),
    "svi_delta": ci.SVI(guide="delta", steps=5),
}
EVERY = pytest.mark.parametrize("method", METHODS)
X = torch.tensor(
    [[2.0, 1, 0, 0, 0], [0, 0, 1, 3, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 2, 2, 1, 0], [1, 0, 0, 0, 0]]
)
NEW = torch.tensor([[1.0, 0, 0, 0, 2], [0, 0, 0, 0, 0]])


def zeros_stored(x):
    full = _sparse.from_dense(x + 1)
    return _sparse.tensor(full.crow_indices(), full.col_indices(), full.values() - 1, size=tuple(x.shape))


#: name -> (topics, data, alpha, gamma)
CASES = {
    "one topic": (1, X, 0.5, 0.5),
    "one word": (2, X[:, :1], 0.5, 0.5),
    "one word and one topic": (1, X[:, :1], 0.5, 0.5),
    "one document": (2, X[:1], 0.5, 0.5),
    "one token": (2, X[5:], 0.5, 0.5),
    "more topics than words": (7, X, 0.5, 0.5),
    "tiny alpha": (2, X, 1e-3, 0.5),
    "tiny gamma": (2, X, 0.5, 1e-3),
    "large alpha": (2, X, 1e3, 0.5),
    "large gamma": (2, X, 0.5, 1e3),
    "zeros stored": (2, zeros_stored(X), 0.5, 0.5),
    "a document ten thousand words long": (2, torch.cat([X, 2000 * X[1:2]]), 0.5, 0.5),
}


def case(name, kind=LDA):
    topics, x, alpha, gamma = CASES[name]
    return kind(num_topics=topics, vocabulary_size=x.shape[1]).with_concentration(alpha=alpha, gamma=gamma), x


@EVERY
@pytest.mark.parametrize("name", CASES)
def test_every_method_on_every_edge(name, method):
    model, x = case(name)
    if method == "em" and name.startswith("a document"):
        pytest.skip("exact sums over 10,000 tokens")
    fit = METHODS[method].fit(model, x, seed=0, progress=False)
    topic, mean = fit.params["topic"], fit.posterior.mean
    assert topic.shape == (model.num_topics, x.shape[1]) and mean.shape == (len(x), model.num_topics)
    for value in (topic, mean):
        assert torch.isfinite(value).all() and torch.allclose(value.sum(-1), torch.ones(()), atol=1e-6)
    assert torch.isfinite(fit.elbo).all()
    new = NEW[:, : x.shape[1]]
    assert torch.isfinite(fit.transform(new)).all()
    # Where a method estimates topics as points, a word of no document may have got probability 0: bound -inf, not NaN.
    bound = fit.log_likelihood(new, bound="dirichlet")
    assert not torch.isnan(bound).any() and (bound <= 1e-9).all()
    assert np.isfinite(fit.log_likelihood(x, bound="dirichlet").numpy()).all()


@EVERY
@pytest.mark.parametrize("kind", [LDA, MultinomialPCA])
def test_single_precision_agrees_with_double(kind, method):
    model, x = case("zeros stored", kind)
    types = torch.float32, torch.float64
    fits = [METHODS[method].fit(model, x, seed=0, progress=False, dtype=dtype) for dtype in types]
    assert fits[0].params["topic"].dtype == fits[0].posterior.mean.dtype == torch.float32
    bounds = [fit.log_likelihood(bound="dirichlet").double() for fit in fits]
    assert torch.isfinite(bounds[0]).all()
    if not method.startswith(("gibbs", "svi", "vb_step")):
        assert torch.allclose(*bounds, atol=1e-2)


@pytest.mark.parametrize("method", ["em", "map", "dirichlet", "svi", "svi_delta"])
def test_plsa_at_the_edge(method):
    for name in ("one topic", "one word", "one document", "zeros stored", "more topics than words"):
        _, x = case(name)
        model = PLSA(num_topics=CASES[name][0], vocabulary_size=x.shape[1])
        fit = METHODS[method].fit(model, x, seed=0, progress=False)
        assert torch.isfinite(fit.params["topic"]).all() and torch.isfinite(fit.transform(x)).all()


@EVERY
def test_dense_and_sparse_counts_give_one_result(method):
    model, x = case("tiny alpha")
    three = x, _sparse.from_dense(x), zeros_stored(x)
    fits = [METHODS[method].fit(model, one, seed=0, progress=False) for one in three]
    for fit in fits[1:]:
        assert torch.allclose(fit.params["topic"], fits[0].params["topic"], atol=1e-9)
        assert torch.allclose(fit.posterior.mean, fits[0].posterior.mean, atol=1e-9)


@pytest.mark.parametrize("guide", ["delta", "normal"])
def test_automatic_guides_of_continuous_locals_refuse_minibatches(guide):
    model, x = case("tiny alpha")
    with pytest.raises(MethodError, match="topic_proportion of every row and takes no minibatches; use"):
        ci.SVI(guide=guide, batch_size=2, steps=2).fit(model, x, progress=False)
