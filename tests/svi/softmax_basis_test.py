"""Priors without a mode: how the globals are treated, and the bases in which points have one."""

import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.svi.guides.bases import LogBasis, LogitBasis, SoftmaxBasis, with_modes
from custom_inference.svi.guides.of_globals import global_kind
from ppl_models import LDA, NOCA, PLSA, AspectBernoulli, MethodError, MixtureOfBernoullis
from tests.svi.documents_test import GAMMA, corpus, lda_model

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def test_automatic_treatment_of_the_globals():
    flat = PLSA.example().model
    assert global_kind(LDA.example().model, "auto") == "dirichlet" and global_kind(flat, "auto") == "delta"
    for kind in (NOCA, AspectBernoulli, MixtureOfBernoullis):
        assert global_kind(kind.example().model, "auto") == "delta"
    example = MixtureOfBernoullis.example()
    edged = example.model.with_priors(mixing_proportion=dist.Dirichlet(torch.full((3,), 0.5)))
    assert global_kind(edged, "auto") == "dirichlet"
    assert global_kind(edged, "delta") == "delta"
    with pytest.raises(MethodError, match="valid: auto, delta, dirichlet, normal"):
        ci.SVI(globals_="points")
    with pytest.raises(MethodError, match="for sites on the simplex"):
        ci.SVI(globals_="dirichlet", steps=1).fit(NOCA.example().model, NOCA.example().data, progress=False)


def test_softmax_basis_density():
    """p(a) of p = softmax(a, 0): the Jacobian of the map from a is the product of all probabilities."""
    gamma, a = torch.tensor([0.3, 0.8, 1.7]), torch.tensor([0.4, -1.1])

    def simplex(value):
        return torch.softmax(torch.cat([value, torch.zeros(1)]), 0)

    jacobian = torch.autograd.functional.jacobian(lambda v: simplex(v)[:2], a)
    expected = dist.Dirichlet(gamma).log_prob(simplex(a)) + torch.log(torch.linalg.det(jacobian))
    assert torch.isclose(SoftmaxBasis(gamma).log_prob(simplex(a)), expected)


def test_scalar_bases_have_their_modes_at_the_means():
    """Beta(a, b) in the logit basis at a / (a + b), Gamma(a, b) in the logarithmic one at a / b."""
    grid = torch.linspace(1e-4, 1 - 1e-4, 9999)
    assert abs(float(grid[LogitBasis(0.3, 0.9).log_prob(grid).argmax()]) - 0.25) < 2e-4
    assert abs(float(grid[LogBasis(0.4, 2.0).log_prob(grid).argmax()]) - 0.2) < 2e-4
    example = MixtureOfBernoullis.example()
    edged = with_modes(example.model.with_priors(probability=dist.Beta(0.3, 0.9)), ["probability"])
    prior, plain = edged.prior("probability"), dist.Beta(0.3, 0.9)
    value = torch.full((3, 6), 0.4)
    expected = 18 * (plain.log_prob(torch.tensor(0.4)) + torch.tensor(0.4 * 0.6).log())
    assert torch.isclose(prior.log_prob(value), expected)
    assert with_modes(example.model, example.model.global_sites) is example.model


@pytest.mark.parametrize(("model", "pseudo"), [(lda_model(1, 4), GAMMA), (PLSA(num_topics=1, vocabulary_size=4), 0.0)])
def test_points_of_one_topic_are_the_smoothed_frequencies(model, pseudo):
    """In the softmax basis under a concentration below 1, in the simplex basis from 1 on."""
    x = corpus(num_documents=9, length=8) + 1
    fit = ci.SVI(guide="delta", steps=500).fit(model, x, progress=False)
    counts = torch.tensor(x).sum(0) + pseudo
    assert torch.allclose(fit.params["topic"][0], counts / counts.sum(), atol=1e-3)
    assert fit.bound_name == "map"
