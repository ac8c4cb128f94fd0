"""The log prior of a fit is the density that its program states; a prior term in other coordinates says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import beta, dirichlet, gamma

from custom_inference import fit
from ppl_models import LDA, MODELS, GammaPoisson, MixtureOfBernoullis, PoissonPCA

QUIET: Any = {"progress": False}


def test_densities_in_logits_and_logarithms_differ_by_the_logarithms_of_the_values():
    """Of logits q of p the density has prod_v p_v more than that of p; of log rates lambda it has lambda more."""
    sparse = LDA.example()
    found = fit(sparse.model, sparse.data, method="dirichlet", **QUIET)
    topic = found.params["topic"].double().numpy()
    concentration = np.broadcast_to(np.asarray(sparse.model.priors["topic"].concentration, float), topic.shape)
    want = sum(dirichlet.logpdf(t / t.sum(), a) for a, t in zip(concentration, topic, strict=True))
    assert found.log_prior == pytest.approx(want, rel=1e-6)
    assert found.prior_term == pytest.approx(want + np.log(topic).sum(), rel=1e-5)
    assert "bound + log prior of logits or logarithms" in repr(found)

    counts = GammaPoisson.example()
    found = fit(counts.model, counts.data, method="map", **QUIET)
    loading, prior = found.params["loading"].double().numpy(), counts.model.priors["loading"]
    shape, rate = float(prior.concentration), float(prior.rate)
    want = gamma.logpdf(loading, shape, scale=1 / rate).sum()
    assert found.log_prior == pytest.approx(want, rel=1e-5)
    assert found.prior_term == pytest.approx(want + np.log(loading).sum(), rel=1e-4)


def test_a_prior_term_in_the_coordinates_of_the_sites_is_the_log_prior():
    example = MixtureOfBernoullis.example()
    flat = dist.Dirichlet(torch.ones(3))
    model = example.model.with_priors(probability=dist.Beta(1.5, 2.0), mixing_proportion=flat)
    found = fit(model, example.data, method="em", **QUIET)
    want = beta.logpdf(found.params["probability"].double().numpy(), 1.5, 2.0).sum()
    assert found.log_prior == pytest.approx(want, rel=1e-5)
    assert found.prior_term == pytest.approx(want, rel=1e-5)
    assert "log posterior = evidence + log prior)" in repr(found)


def test_an_unreported_posterior_of_globals_is_no_log_prior():
    example = PoissonPCA.example()
    assert "divergence of the weights from their prior" in repr(fit(example.model, example.data, **QUIET))


@pytest.mark.parametrize("name", MODELS)
def test_the_log_prior_of_every_example_is_a_number(name):
    example = MODELS[name].example()
    like = {site: example.truth[site].double() for site in example.model.global_sites if site in example.truth}
    if len(like) == len(example.model.global_sites):
        assert np.isfinite(float(example.model.log_prior(like)))
