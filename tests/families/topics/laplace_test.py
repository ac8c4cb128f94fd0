"""Fits under priors of memberships that are no Dirichlets: the default, its steps, SVI, NUTS, files, programs."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from pyro import poutine
from scipy.special import softmax

import custom_inference as ci
from custom_inference.core.draws import PosteriorDraws
from custom_inference.core.posteriors import LogisticNormalPosterior
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.core.store_priors import prior_from_json
from ppl_models import LDA, MMSB, MODELS, AspectBernoulli, FileFormatError, MethodError, ModelError, SupervisedLDA
from ppl_models.distributions import TopicMeanBernoulli
from tests.families.common.laplace_test import PRIORS, sticks

#: Models with independent rows and memberships, each with one of the priors.
FITTED = {
    "lda": "logistic",
    "plsa": "independent",
    "multinomial_pca": "two normals",
    "user_rating_profile": "dirichlets",
    "aspect_bernoulli": "logistic",
}


def swapped(name: str, prior: str):
    """The example's model under a prior of its memberships, and its data."""
    example = MODELS[name].example()
    model = example.model
    return model.with_priors(**{model.local_site: PRIORS[prior](model.local_shape[0])}), example


@pytest.mark.parametrize("name", FITTED)
def test_the_default_is_laplace_and_finds_the_components(name, tmp_path):
    model, example = swapped(name, FITTED[name])
    assert list(engines_of(model)) == ["laplace"]
    assert ci.methods_for(model) == ["default", "laplace", "svi", "amortized", "svi_delta", "svi_normal", "nuts"]
    assert "laplace" not in ci.methods_for(example.model)
    fit = ci.fit(model, example.data, progress=False)
    assert (fit.method_name, fit.bound_name) == ("VariationalEM(laplace)", "laplace") and "converged" in fit.status
    assert float(ci.align(fit, example.truth).similarity.min()) > 0.9
    assert float(fit.elbo.diff().min()) > -1e-3  # the nodes follow the modes
    assert torch.allclose(fit.transform(), fit.transform(example.data.x), atol=1e-4)
    assert torch.allclose(fit.log_likelihood(bound="laplace"), fit.local.bound, atol=1e-4)
    with pytest.raises(MethodError, match="no closed form here.*bound='laplace'"):
        fit.log_likelihood()
    assert np.isfinite([fit.bic(), fit.aic()]).all()
    assert fit.to_arviz().point_estimates[model.component_site].shape[-2:] == model.shapes[model.component_site][-2:]
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert isinstance(loaded.posterior, LogisticNormalPosterior)
    assert torch.equal(loaded.transform(), fit.transform()) and repr(loaded.model) == repr(fit.model)
    assert torch.allclose(loaded.transform(example.data.x[:4]), fit.transform(example.data.x[:4]))
    local = loaded.posterior.sample(2, seed=1)[0]
    priors = [one.model.prior(model.local_site, like=local) for one in (loaded, fit)]
    assert torch.allclose(*(prior.log_prob(local) for prior in priors))


def test_settings_of_the_guide_are_saved(tmp_path):
    model, example = swapped("aspect_bernoulli", "logistic")
    fit = ci.VariationalEM(guide=ci.Laplace(draws=1), max_iterations=5).fit(model, example.data, progress=False)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    x = example.data.x[:5]
    torch.testing.assert_close(loaded.transform(x), fit.transform(x), atol=1e-10, rtol=0)
    usual = ci.VariationalEM(guide="laplace").local_posterior(model, fit.globals, model.prepare(x))
    assert not torch.allclose(usual.posterior.mean, fit.transform(x), atol=1e-4)
    with pytest.raises(MethodError, match="draws = 0, expected a whole number of at least 1"):
        engine_for(model, "laplace", draws=0)


@pytest.mark.parametrize(("name", "prior"), [("lda", "logistic"), ("aspect_bernoulli", "dirichlets")])
def test_the_end_is_stationary_in_the_components(name, prior):
    """The objective has no slope in random directions, as it has a tenth of the way to even components."""
    model, example = swapped(name, prior)
    site = model.component_site
    method = ci.VariationalEM(guide="laplace", tolerance=1e-8, max_iterations=1000, search=ci.Search(restarts=1))
    fit = method.fit(model, example.data, progress=False)
    engine, data = method.engine(model), model.prepare(example.data, dtype=torch.float64)
    rows = engine.rows(model, data)

    def objective(value):
        step = engine.e_step(model, {site: value}, rows)
        return engine.objective_at(model, {site: value}, step.bound)

    def slope(value, way):
        """In logits: of words, or of probabilities."""

        def moved(size):
            if name == "lda":
                return torch.softmax(value.log() + size * way, -1)
            return torch.sigmoid(torch.logit(value) + size * way)

        return (objective(moved(1e-4)) - objective(moved(-1e-4))) / 2e-4

    generator = torch.Generator().manual_seed(0)
    value, even = fit.params[site], fit.params[site].mean(-1, keepdim=True).expand_as(fit.params[site])
    for _ in range(4):
        way = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        assert abs(slope(value, way)) < 0.05
    assert max(abs(slope(0.9 * value + 0.1 * even, way)), abs(slope(0.9 * value + 0.1 * even, even))) > 0.2


def test_sparse_counts_masks_and_minibatches():
    model, example = swapped("lda", "logistic")
    x = example.data.x.double()
    start = {"topic": example.truth["topic"]}
    few = ci.VariationalEM(guide="laplace", max_iterations=5)

    def fitted(data, **settings):
        return few.fit(model, data, init=start, progress=False, **settings).params["topic"]

    dense = few.fit(model, x, init=start, progress=False)
    assert torch.allclose(fitted(scipy.sparse.csr_matrix(x.numpy())), dense.params["topic"], atol=1e-10)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) > 0.2
    hidden = fitted(torch.where(mask, x, 7.0), mask=mask)
    assert torch.allclose(hidden, fitted(x * mask), atol=1e-10)
    method = ci.VariationalEM(guide="laplace", batch_size=15, max_iterations=15)
    stepwise = method.fit(model, x, init=dense, progress=False)
    assert float((stepwise.params["topic"] - dense.params["topic"]).abs().max()) < 0.1


def test_a_fit_agrees_with_nuts_and_svi():
    """Two topics and one coordinate a document: means and spreads of proportions, and of the points the topics."""
    rng = np.random.default_rng(1)
    topic = np.array([[0.6, 0.3, 0.05, 0.05], [0.05, 0.05, 0.3, 0.6]])
    share = 1 / (1 + np.exp(-rng.normal(0, 1.2, 6)))
    x = np.stack([rng.multinomial(80, p * topic[0] + (1 - p) * topic[1]) for p in share])
    prior = dist.LogisticNormal(torch.zeros(1), 1.2 * torch.ones(1))
    sharp = dist.Dirichlet(torch.tensor(500 * topic))  # of known topics, almost
    model = LDA(num_topics=2, vocabulary_size=4).with_priors(topic_proportion=prior, topic=sharp)
    fit = ci.fit(model, x, progress=False)
    svi = ci.SVI(steps=250, globals_="delta").fit(model, x, init=fit, progress=False)
    nuts = ci.NUTS(num_samples=70, warmup=30, chains=1, max_tree_depth=3).fit(model, x, progress=False)
    spread = fit.posterior.sample(4000).std(0)
    assert isinstance(svi.posterior, LogisticNormalPosterior)
    assert float((svi.transform() - fit.transform()).abs().max()) < 0.05
    assert float((svi.posterior.sample(4000).std(0) / spread - 1).abs().max()) < 0.35
    assert abs(float(svi.local.bound.sum() - fit.local.bound.sum())) < 1.0
    draws = nuts.draws["topic_proportion"][0]
    assert float((draws.mean(0) - fit.transform()).abs().max()) < 0.08
    assert float((draws.std(0) / spread - 1).abs().mean()) < 0.25
    assert float((nuts.params["topic"] - fit.params["topic"]).abs().max()) < 0.05


def test_nodes_of_a_graph_by_svi_and_nuts():
    rng = np.random.default_rng(1)
    membership = np.array([[0.9, 0.1]] * 3 + [[0.1, 0.9]] * 3 + [[0.5, 0.5]] * 2)
    chance = np.array([[0.9, 0.1], [0.1, 0.9]])
    x = ((rng.random((8, 8)) < membership @ chance @ membership.T) & ~np.eye(8, dtype=bool)).astype(float)
    prior = dist.LogisticNormal(torch.zeros(1), 1.5 * torch.ones(1))
    known = dist.Beta(100 * torch.tensor(chance), 100 * torch.tensor(1 - chance))
    model = MMSB(num_blocks=2, num_nodes=8, directed=True).with_priors(membership=prior, edge_probability=known)
    assert ci.methods_for(model) == ["default", "svi", "svi_delta", "svi_normal", "nuts"]
    fit = ci.fit(model, x, steps=250, progress=False)
    nuts = ci.NUTS(num_samples=70, warmup=30, chains=1, max_tree_depth=3).fit(model, x, progress=False)
    assert fit.method_name == "SVI(mean_field)" and isinstance(fit.posterior, LogisticNormalPosterior)
    draws = nuts.draws["membership"][0]
    mean, spread = draws.mean(0), draws.std(0)
    # The blocks may have changed places: nothing tells them apart.
    mean = mean if float((mean - fit.transform()).abs().max()) < 0.5 else mean.flip(-1)
    assert float((mean - fit.transform()).abs().max()) < 0.15
    assert float((spread / fit.posterior.sample(4000).std(0) - 1).abs().mean()) < 0.3


@pytest.mark.slow
def test_responses_are_predicted_from_the_words_alone():
    model, example = swapped("supervised_lda", "logistic")
    two = SupervisedLDA(num_topics=2, vocabulary_size=9).with_priors(topic_proportion=PRIORS["logistic"](2))
    x, response = example.data.x[:12].double(), example.data.others["response"][:12]
    fit = ci.SVI(steps=2).fit(two, x, response=response, progress=False)
    assert "gibbs" not in ci.methods_for(two) and engines_of(model) == {}
    u = torch.linspace(-7, 7, 71, dtype=torch.float64)
    share = torch.tensor(sticks(u[:, None].numpy())[0])
    prior, found = PRIORS["logistic"](2).base_dist.log_prob(u[:, None]), []
    for drawn in PosteriorDraws(fit, 100, fit.seed).globals_alone():
        topic, weight = drawn["topic"].double(), drawn["response_weight"].double()
        each = softmax((x @ (share @ topic).log().T + prior).numpy(), axis=1)
        chance = torch.stack([TopicMeanBernoulli(one.expand(len(x), -1), topic, x, weight).mean for one in share], 1)
        found.append((each * chance.numpy()).sum(1))
    assert np.allclose(fit.predict(x), np.mean(found, 0), atol=0.02)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("name", [*FITTED, "mmsb", "supervised_lda"])
def test_programs_draw_score_and_subsample(name, prior):
    """In single precision too, whatever the prior was made in; and unbiased from minibatches."""
    model, example = swapped(name, prior)
    rows = {} if name == "mmsb" else {"num_rows": 4}
    drawn = poutine.trace(model).get_trace(**rows).nodes[model.local_site]["value"]
    assert torch.allclose(drawn.sum(-1), torch.ones_like(drawn[..., 0]))
    for dtype in (torch.float32, torch.float64):
        data = model.prepare(example.data, dtype=dtype)
        trace = poutine.trace(model).get_trace(data.x, **data.arguments)
        local = trace.nodes[model.local_site]
        assert local["value"].dtype == dtype and bool(torch.isfinite(trace.log_prob_sum()))
        scored = local["fn"].log_prob(local["value"])
        assert scored.shape == local["value"].shape[:-1] and scored.dtype == dtype
    if name != "mmsb":
        part = poutine.trace(model).get_trace(data.x, batch_size=5, **data.arguments)
        assert part.nodes[model.local_site]["value"].shape[0] == 5
        assert part.nodes[model.local_site]["scale"] == len(data) / 5


def test_priors_that_are_not_on_the_simplex_are_refused():
    two = dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2, 3), 1.0).to_event(1))
    with pytest.raises(ModelError, match="point of the simplex of 3; expected a Dirichlet or the like"):
        AspectBernoulli(num_components=3, num_features=4).with_priors(membership=two)


NORMAL = {"distribution": "Normal", "arguments": {"loc": [0.0, 1.0], "scale": [1.0, 2.0]}}


@pytest.mark.parametrize(
    "entry",
    [
        {"mixture": []},
        {"mixture": 3},
        {"mixture": [NORMAL, NORMAL]},
        {"sticks": None},
        {"sticks": {"distribution": "Normal", "arguments": {"loc": 0.0, "scale": 1.0}}},
        {"sticks": [NORMAL]},
        {"independent": NORMAL, "axes": "one"},
        {"independent": NORMAL, "axes": 3},
    ],
)
def test_priors_in_files_that_are_none_are_refused(entry):
    with pytest.raises(FileFormatError):
        prior_from_json(entry, torch.float64, most=10)
    whole = {"sticks": {"independent": NORMAL, "axes": 1}}
    assert prior_from_json(whole, torch.float64, most=10).event_shape == (3,)
