"""Point estimates have no deviations, in ArviZ, tables and words; closed forms of posteriors are SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal
from scipy import stats

from custom_inference import EM, SVI, fit
from custom_inference.core.posteriors import (
    BetaPosterior,
    ContinuousPosterior,
    DirichletDraws,
    DirichletMixture,
    DirichletPosterior,
    GammaMixture,
    GammaPosterior,
    GammaTerms,
    GaussianMixturePosterior,
    GaussianPosterior,
    JointDirichletMixture,
    SticksPosterior,
    SymmetricBetaPosterior,
    SymmetricGammaPosterior,
    WalkPosterior,
)
from custom_inference.faces.command_line.report.verdict import say_how_sure
from custom_inference.graphs import block_matrix
from ppl_models import LDA, NOCA, SBM
from tests.support.arviz_calls import OLD, arviz, group

QUIET: Any = {"progress": False}
LEVELS = 0.05, 0.5, 0.95
A = torch.tensor([[0.05, 2.0, 30.0], [1.0, 0.5, 7.0]], dtype=torch.float64)
B = torch.tensor([[3.0, 0.4, 10.0], [1.0, 2.0, 0.1]], dtype=torch.float64)
PAIR = torch.tensor([[0.7, 2.0], [2.0, 9.0]], dtype=torch.float64)
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-1.0, 0.3, 0.1]], dtype=torch.float64)
COVARIANCE = (ROOT @ ROOT.T).expand(2, 3, 3)
WALK = WalkPosterior(torch.randn(4, 1, 2, dtype=torch.float64), torch.full((4, 1, 2), 3.0).double(),
                     torch.tensor([[1.0, 0.2]], dtype=torch.float64))  # fmt: skip


def of_walk() -> Any:
    """Normals by the inverse of the precision matrix of each chain, set up entry by entry."""
    variance = np.empty((4, 1, 2))
    for v, c in enumerate((1.0, 0.2)):
        variance[:, 0, v] = np.linalg.inv(3 * np.eye(4) - c * (np.eye(4, k=1) + np.eye(4, k=-1))).diagonal()
    return stats.norm(WALK.location.numpy(), np.sqrt(variance))


#: The posterior, and the marginal law of its entries.
CLOSED: dict[str, tuple[ContinuousPosterior, Any]] = {
    "gamma": (GammaPosterior(A, B), stats.gamma(A.numpy(), scale=1 / B.numpy())),
    "beta": (BetaPosterior(A, B), stats.beta(A.numpy(), B.numpy())),
    "dirichlet": (DirichletPosterior(A), stats.beta(A.numpy(), A.sum(-1, keepdim=True).numpy() - A.numpy())),
    "normal": (
        GaussianPosterior(A, COVARIANCE),
        stats.norm(A.numpy(), COVARIANCE.diagonal(dim1=-2, dim2=-1).sqrt().numpy()),
    ),
    "walk": (WALK, of_walk()),
    "symmetric gamma": (SymmetricGammaPosterior(PAIR, 1 / PAIR), stats.gamma(PAIR.numpy(), scale=PAIR.numpy())),
    "symmetric beta": (SymmetricBetaPosterior(PAIR, PAIR + 1), stats.beta(PAIR.numpy(), PAIR.numpy() + 1)),
}  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("name", CLOSED)
def test_marginals_are_those_of_scipy(name):
    posterior, law = CLOSED[name]
    np.testing.assert_allclose(posterior.mean, np.broadcast_to(law.mean(), posterior.mean.shape), rtol=1e-10)
    np.testing.assert_allclose(posterior.variance, law.var(), rtol=1e-10)
    for level, found in zip(LEVELS, posterior.quantiles(LEVELS), strict=True):
        np.testing.assert_allclose(found, law.ppf(level), rtol=1e-8, atol=1e-300)


def test_entries_without_mass_are_sure():
    edge = DirichletPosterior(torch.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0]], dtype=torch.float64))
    assert torch.equal(edge.quantiles([0.9])[0, 1], torch.tensor([0.0, 0.0, 1.0]).double())
    assert edge.quantiles([0.9])[0, 0, 0] == 0 == edge.variance[0, 0]
    none = GammaPosterior(torch.tensor([0.0, 2.0]).double(), torch.tensor([3.0, 1.0]).double())
    assert none.quantiles([0.9])[0, 0] == 0 == none.variance[0]
    assert none.quantiles([0.9])[0, 1] == pytest.approx(stats.gamma.ppf(0.9, 2.0))


WEIGHT = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64).log()
EACH = torch.stack([A, B])  # (2, 2, 3)
MIXED: dict[str, ContinuousPosterior] = {
    "sticks": SticksPosterior(A[0], B[0]),
    "dirichlet mixture": DirichletMixture(WEIGHT, A),
    "dirichlet draws": DirichletDraws(EACH),
    "joint dirichlets": JointDirichletMixture(WEIGHT[0], EACH),
    "gamma mixture": GammaMixture(WEIGHT, A, torch.tensor([2.0, 30.0]).double(), B),
    "gamma terms": GammaTerms(WEIGHT, EACH, EACH.flip(0) + 1),
    "normals": GaussianMixturePosterior(WEIGHT, EACH, COVARIANCE.expand(2, 2, 3, 3)),
}


@pytest.mark.parametrize("name", MIXED)
def test_variances_of_mixtures_and_sticks_are_those_of_many_draws(name):
    """Within six standard errors of the mean of squares, by the draws' own fourth moments."""
    posterior = MIXED[name]
    off = (posterior.sample(100_000, seed=3) - posterior.mean).square()
    error = off.std(0) / off.shape[0] ** 0.5
    assert bool(((off.mean(0) - posterior.variance).abs() < 6 * error + 1e-12).all())


def of_points_and_normals(model: Any) -> AutoGuideList:
    guide = AutoGuideList(model)
    guide.append(AutoNormal(poutine.block(model, expose=["loading"])))
    guide.append(AutoDelta(poutine.block(model, expose=["leak"])))
    return guide


def test_points_of_a_guide_beside_its_normals_and_known_sites():
    example = NOCA.example()
    model = example.model.with_priors(source_prior=0.25)
    found = SVI(guide=of_points_and_normals(model), steps=5).fit(model, example.data, **QUIET)
    assert found.point_estimates == ("leak",) and "globals: point estimates of leak" in repr(found)
    tree = found.to_arviz(num_copies=0)
    assert "loading" in tree.posterior and not {"source_prior", "leak"} & set(tree.posterior)
    assert set(tree.point_estimates) == {"leak"} and tree.constant_data["source_prior"].values.max() == 0.25
    assert "Of leak only point estimates are known" in say_how_sure(found, intervals=True)
    table = found.summary()
    assert table.loc["leak[0]"].dropna().index.tolist() == ["estimate"]
    assert table.loc["source_prior[0]"].dropna().index.tolist() == ["known"]
    assert table.loc["loading[0, 0]"].dropna().index.tolist() == ["mean", "sd", "q5", "q95"]


@pytest.mark.skipif(not OLD, reason="the columns of ArviZ 0.x")
@pytest.mark.filterwarnings("ignore")
def test_arviz_shows_no_deviation_of_points_and_one_of_what_is_drawn():
    example = NOCA.example()
    tree = EM(search=None, max_iterations=2).fit(example.model, example.data, **QUIET).to_arviz(num_draws=50)
    points: Any = arviz.summary(tree, group="point_estimates")
    unknown = points[["sd", "ess_bulk", "ess_tail", "r_hat"]].to_numpy()
    assert np.isnan(unknown).all() and not points["mean"].isna().any()
    assert (arviz.summary(tree)["sd"].to_numpy() > 0).any() and not set(group(tree, "posterior")) & {"loading", "leak"}
    documents = LDA.example()
    tree = fit(documents.model, documents.data, method="map", **QUIET).to_arviz(num_copies=0)
    assert np.isnan(arviz.summary(tree)[["sd", "ess_bulk", "r_hat"]].to_numpy()).all()  # nothing was drawn


def test_summaries_of_posteriors_are_in_closed_form():
    example = LDA.example()
    found = fit(example.model, example.data, method="vb", **QUIET)
    posterior: Any = found.global_posterior["topic"]
    alpha = posterior.concentration.numpy()
    law = stats.beta(alpha, alpha.sum(-1, keepdims=True) - alpha)
    table = found.summary()
    for name, expected in (("mean", law.mean()), ("sd", law.std()), ("q5", law.ppf(0.05)), ("q95", law.ppf(0.95))):
        np.testing.assert_allclose(table[name], expected.ravel(), rtol=1e-7, atol=1e-100)


def test_intervals_between_blocks_are_in_closed_form():
    example: Any = SBM.example()
    found = fit(example.model, example.data, method="vb", **QUIET)
    q: Any = found.global_posterior["edge_probability"]
    table = block_matrix(found, level=0.8)
    law = stats.beta(q.on.numpy(), q.off.numpy())
    kept = np.ones((3, 3), bool) if example.model.directed else np.triu(np.ones((3, 3), bool))
    np.testing.assert_allclose(table["lower"], law.ppf(0.1)[kept], rtol=1e-8)
    np.testing.assert_allclose(table["upper"], law.ppf(0.9)[kept], rtol=1e-8)
