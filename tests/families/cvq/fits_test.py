"""CVQ as users meet it: starts that find the good optimum, what is refused, priors, generators."""

import math
from dataclasses import replace

import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.families.cvq.engines import CvqExact, CvqMeanField
from custom_inference.families.cvq.propose import Climber, birth, leading, split, upright
from ppl_models import CVQ, DataError, DataWarning, ModelError
from ppl_models.datasets import bars, mixed_images
from ppl_models.distributions import Flat
from tests.families.cvq.steps_test import PRIORS, brute_force, problem


def test_leading_directions_are_eigenvectors():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(200, 5, generator=generator) * torch.tensor([4.0, 2.0, 1.0, 0.5, 0.2])
    weight = torch.rand(200, 2, generator=generator)
    found = leading(x, weight, 2, iterations=60)
    for k in range(2):
        wanted = torch.linalg.eigh((x * weight[:, k : k + 1]).T @ x).eigenvectors[:, [-1, -2]]
        assert torch.allclose((found[k] * wanted).sum(0).abs(), torch.ones(2), atol=1e-6)


def test_a_birth_finds_the_source_in_the_residuals_and_a_split_undoes_a_merger():
    generator = torch.Generator().manual_seed(3)
    on = torch.bernoulli(torch.full((400, 2), 0.2), generator=generator)
    pictures = torch.tensor([[3.0, 3.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])
    noise = torch.randn(400, 4, generator=generator)
    mean = torch.full((400, 3), 0.5)
    born = birth(on[:, :1] @ pictures[:1] + noise, None, mean, 1)
    assert ((born[:, 1] > 0.5) == (on[:, 0] > 0)).double().mean() > 0.97
    assert torch.equal(born[:, [0, 2]], mean[:, [0, 2]])
    merged = torch.stack([on.amax(1), torch.zeros(400)], 1)  # one source, on where either is
    residual = on @ pictures + noise - merged[:, :1] * pictures.mean(0)
    halves = split(residual, merged, 1)
    single = on.sum(1) == 1
    agreement = ((halves[single] > 0.5) == (on[single] > 0)).double().mean()
    assert max(agreement, 1 - agreement) > 0.95


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_jumps_repair_what_em_cannot(missing):
    """Two sources on one bar, and the mean of two bars for two others: EM stays there, the climber does not."""
    generated = bars(500, 0, side=6, source_prior=0.15)
    model = CVQ(num_components=12, num_features=36)
    mask = torch.rand(generated.x.shape, generator=torch.Generator().manual_seed(0)) >= missing if missing else None
    climber = Climber(model, CvqMeanField().rows(model, model.prepare(generated.x, mask=mask)))
    truth = {site: generated.truth[site] for site in model.shapes}
    weight = truth["weight"].clone()
    weight[1], weight[2], weight[3] = weight[0], weight[2:4].mean(0), 0.0
    stuck, step = climber.climb({**truth, "weight": weight}, 60)
    best = climber.climb(truth, 100)[1].bound.mean()
    assert ci.recovered(stuck["weight"], truth["weight"]) < 12 and step.bound.mean() < best - 0.5
    freed, step = climber.climb(climber.start(stuck), 60)
    assert ci.recovered(freed["weight"], truth["weight"]) == 12
    assert torch.isclose(step.bound.mean(), best, atol=1e-6)


def test_a_baseline_takes_a_source_of_its_own():
    """Data around 3 in place of 0: one source is always on, and the others are the bars, none of them upside down."""
    generated = bars(600, 0, side=5)
    model = CVQ(num_components=11, num_features=25)
    x = generated.x + 3.0 + torch.randn(25, generator=torch.Generator().manual_seed(0))
    search = ci.Search(restarts=2)  # the second has the baseline
    fit = ci.VariationalEM(guide="mean_field", search=search).fit(model, x, seed=0, progress=False)
    assert ci.recovered(fit.params["weight"], generated.truth["weight"]) == 10
    assert float(fit.params["source_prior"].max()) > 0.999 and int((fit.params["source_prior"] > 0.5).sum()) == 1


def test_turning_sources_upright_keeps_the_density():
    _, params, data = problem(7, 3, 5, 20, missing=0.2)
    params["source_prior"] = torch.tensor([0.8, 1 - 1e-12, 0.3])
    turned = upright(params)
    assert torch.allclose(turned["source_prior"], torch.tensor([0.2, 1.0, 0.3]))
    before, after = (brute_force(p, data).logsumexp(1) for p in (params, turned))
    assert torch.allclose(before, after, atol=1e-6)
    assert upright(turned) is turned


def test_default_fit_finds_the_bars():
    """5x5: exact EM; 6x6 with 12 sources: truncated."""
    for side in (5, 6):
        generated = bars(1000, side, side=side, scale=0.5)
        model = CVQ(num_components=2 * side, num_features=side**2)
        fit = ci.fit(model, generated.x, seed=0, progress=False)
        truth = {site: generated.truth[site] for site in model.shapes}
        assert ci.recovered(fit.params["weight"], truth["weight"]) == 2 * side
        gain = (
            fit.log_likelihood().mean() - CvqExact().log_evidence(model, truth, CvqExact().rows(model, fit.data)).mean()
        )
        assert 0 < gain < 0.5


def test_bad_input_is_refused_in_words():
    model = CVQ(num_components=2, num_features=3)
    x = torch.randn(20, 3)
    with pytest.raises(DataError, match=r"infinite.*row 4, column 1"):
        model.prepare(x.index_put((torch.tensor(4), torch.tensor(1)), torch.tensor(math.inf)))
    constant = x.index_fill(1, torch.tensor([1]), 2.0)
    with pytest.warns(DataWarning, match=r"1 of 3 columns are constant \(the first: 1\)"):
        ci.fit(model, constant, seed=0, progress=False)
    with pytest.raises(DataError, match="unbounded"):
        ci.fit(replace(model, per_feature_scale=True), constant, seed=0, progress=False)
    with pytest.raises(DataError, match="at least one column that varies"):
        ci.fit(model, torch.ones(20, 3), seed=0, progress=False)
    with pytest.raises(DataError, match="without any observed entry"):
        ci.fit(model, x.index_fill(1, torch.tensor([2]), math.nan), seed=0, progress=False)
    with pytest.raises(DataError, match="4 columns where the model has num_features = 3"):
        model.prepare(torch.randn(5, 4))


def test_bad_settings_are_refused_in_words():
    with pytest.raises(ModelError, match="num_components = 0"):
        CVQ(num_components=0, num_features=3)
    with pytest.raises(ModelError, match="per_feature_scale = 1"):
        CVQ(num_components=1, num_features=3, per_feature_scale=1)  # pyright: ignore[reportArgumentType]
    model = CVQ(num_components=2, num_features=3)
    with pytest.raises(ModelError, match="'scale' is positive"):
        model.with_priors(scale=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="'source_prior' is a probability"):
        model.with_priors(source_prior=dist.Normal(0.0, 1.0))
    x = torch.randn(20, 3)
    for site, prior in {"weight": dist.Laplace(0.0, 1.0), "scale": dist.HalfNormal(1.0)}.items():
        fit = ci.EM(max_iterations=5).fit(model.with_priors(**{site: prior}), x, seed=0, progress=False)
        assert f"numerical M steps of {site}" in fit.status


def test_flat_priors_leave_the_likelihood_alone_and_generate():
    example = CVQ.example()
    params = {site: example.truth[site] for site in example.model.shapes}
    assert float(example.model.log_prior(params)) == 0
    flat = Flat(dist.LogNormal(-1.0, 0.5)).expand([4])
    assert torch.equal(flat.log_prob(torch.tensor([0.1, 1.0, 10.0, 100.0])), torch.zeros(4))
    assert (flat.sample((3,)) > 0).all() and flat.sample((3,)).shape == (3, 4)
    single = example.model.prior("weight", like=torch.zeros((), dtype=torch.float32))
    assert single.sample().dtype == torch.float32 and single.log_prob(single.sample()).shape == ()


def test_fits_with_every_kind_of_prior_are_saved(tmp_path):
    example = CVQ.example()
    for priors in PRIORS.values():
        model = example.model.with_priors(**priors)
        fit = ci.fit(model, example.data, seed=0, search=None, max_iterations=5, progress=False)
        loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
        assert torch.equal(loaded.model.log_prior(fit.params), model.log_prior(fit.params))


def test_generators():
    generated = bars(50, 3, side=4)
    weight = generated.truth["weight"]
    assert weight.shape == (8, 16) and torch.equal(weight[:4].sum(0), weight[4:].sum(0))
    assert torch.equal(weight.sum(1), torch.full((8,), 4.0)) and generated.image_shape == (4, 4)
    assert torch.equal(generated.x, bars(50, 3, side=4).x) and not torch.equal(generated.x, bars(50, 4, side=4).x)
    residual = generated.x - generated.truth["source"] @ weight
    assert abs(float(residual.std()) - 0.5) < 0.05
    pictures = mixed_images(10, 0)
    assert pictures.truth["weight"].shape == (6, 24 * 24) and float(pictures.truth["weight"].min()) >= 0
    assert float(pictures.truth["weight"].max()) <= 1
    for wrong in ({"side": 1}, {"scale": 0.0}):
        with pytest.raises(ModelError):
            bars(10, 0, **wrong)
