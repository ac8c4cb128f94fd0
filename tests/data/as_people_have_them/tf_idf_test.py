"""Entries of at least 0 that are no counts, as of tf-idf: nonnegative matrix factorisation takes them as they are."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import gammaln, xlogy
from sklearn.decomposition import NMF as SklearnNMF
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from custom_inference import SVI, fit, methods_for
from custom_inference.faces.sklearn import NMFEstimator
from ppl_models import NMF, DataError, GammaPoisson, MethodError
from ppl_models.data import sparse

QUIET = {"progress": False}


def weighted(documents=60, words=15):
    """tf-idf of documents of three topics, sparse."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(words, 0.2), 3)
    counts = np.stack([rng.multinomial(30, p @ topics) for p in rng.dirichlet([0.3] * 3, documents)])
    texts = [" ".join(np.repeat([f"w{j:02d}" for j in range(words)], row)) for row in counts]
    return texts, TfidfVectorizer().fit_transform(texts)


def divergence(x, y):
    """sum [x log(x / y) - x + y]."""
    x = x.toarray()
    return float((xlogy(x, np.where(x > 0, x, 1) / np.where(x > 0, y, 1)) - x + y).sum())


def test_the_divergence_is_as_small_as_scikit_learns():
    _, x = weighted()
    found = fit(NMF.for_data(x, 3), x, **QUIET)
    own = divergence(x, (found.params["activation"] @ found.params["loading"]).numpy())
    peers = []
    for seed, init in enumerate(("nndsvda", "random", "random")):
        settings = {"beta_loss": "kullback-leibler", "solver": "mu", "max_iter": 1000, "tol": 1e-6}
        peer = SklearnNMF(3, init=init, random_state=seed, **settings)
        peers.append(divergence(x, np.maximum(peer.fit_transform(x) @ peer.components_, 1e-300)))
    assert own < 1.005 * min(peers)
    dense = x.toarray()
    constant = (xlogy(dense, dense) - dense - gammaln(dense + 1)).sum()
    assert found.plugin_log_likelihood().sum() == pytest.approx(constant - own, rel=1e-6)
    assert sparse.is_sparse(found.data.x)


def test_the_program_is_the_divergence_and_points_climb_it():
    _, x = weighted(20)
    found = fit(NMF.for_data(x, 2), x, method=SVI(guide="delta", steps=400), **QUIET)
    best = fit(NMF.for_data(x, 2), x, **QUIET)
    assert found.elbo[-1] < best.elbo[-1] + 1e-3 * abs(best.elbo[-1])
    assert found.elbo[-1] > best.elbo[-1] - 0.1 * abs(best.elbo[-1])


def test_they_go_through_a_pipeline():
    texts, x = weighted()
    pipeline = make_pipeline(TfidfVectorizer(), NMFEstimator(3, random_state=0))
    activation = pipeline.fit_transform(texts)
    loading = pipeline[-1].components_
    assert divergence(x, activation @ loading) < 1.05 * divergence(
        x, (pipeline[-1].fit_.params["activation"] @ pipeline[-1].fit_.params["loading"]).numpy()
    )
    assert np.isfinite(pipeline.score(texts))
    with pytest.raises(MethodError, match="divergence and no probability"):
        pipeline[-1].bic(x)


def test_posteriors_of_what_is_no_count_are_refused():
    _, x = weighted(20)
    found = fit(NMF.for_data(x, 2), x, **QUIET)
    for method in ("gamma", "exact"):
        assert method not in methods_for(found.model)
        with pytest.raises(MethodError, match="no whole numbers"):
            fit(found.model, x, method=method, **QUIET)
    with pytest.raises(MethodError, match="no whole numbers"):
        found.log_likelihood()
    with pytest.raises(MethodError, match="divergence and no probability"):
        found.bic()
    assert bool(torch.isfinite(found.log_likelihood(bound="gamma")).all())
    counts = fit(found.model, scipy.sparse.csr_array(np.ceil(x.toarray())), **QUIET)
    assert np.isfinite(counts.bic())


def test_others_are_still_refused():
    _, x = weighted(20)
    with pytest.raises(DataError, match="below 0 or infinite"):
        NMF(num_components=2, num_features=x.shape[1]).prepare(-x)
    with pytest.raises(DataError, match="are no counts"):
        GammaPoisson(num_components=2, num_features=x.shape[1]).prepare(x)
