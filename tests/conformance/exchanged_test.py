"""What users exchange and pass in: priors that an engine has no steps for, NumPy's numbers, settings out of range."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import transforms

import custom_inference as ci
from custom_inference import NUTS, VariationalEM
from ppl_models import CTM, LDA, MODELS, NOCA, SBM, AspectBernoulli, MethodError


def test_the_default_takes_priors_without_closed_form_steps():
    example = NOCA.example()
    model = example.model.with_priors(loading=dist.Kumaraswamy(2.0, 3.0))
    fit = ci.fit(model, example.data, progress=False)
    assert fit.status.endswith("numerical M steps of loading") and fit.method_name == "EM"

    def log_joint(loading: torch.Tensor) -> float:
        params = {**fit.globals, "loading": loading}
        evidence = ci.Exact(generic=True).local_posterior(model, params, example.data).bound.sum()
        return float(evidence + model.log_prior(params))

    best, loading = log_joint(fit.params["loading"]), fit.params["loading"]
    for step in (0.05, -0.05):
        assert log_joint((loading + step).clamp(0.001, 0.999)) < best


def test_the_default_takes_any_prior_of_a_covariance():
    """The sampler has no steps for it; the status says which method fits instead, and why."""
    example = CTM.example()
    size = example.model.num_topics
    model = example.model.with_priors(covariance=dist.Wishart(torch.tensor(size + 2.0), torch.eye(size)))
    fit = ci.fit(model, example.data, progress=False)
    assert "since the default refuses" in fit.status and "numerical M steps of covariance" in fit.status


def test_the_default_takes_another_engine_before_it_leaves_closed_forms():
    example = AspectBernoulli.example()
    size = example.model.local_shape[0]
    model = example.model.with_priors(membership=dist.Dirichlet(torch.full((size,), 0.5)))
    fit = ci.fit(model, example.data, progress=False)
    assert "since the default refuses: the Dirichlet prior of 'membership'" in fit.status and not fit.guide
    few = ci.fit(model, example.data, max_iterations=9, progress=False)
    assert "since the default refuses" in few.status and len(few.elbo) <= 9, "settings are those of what fits instead"


def test_a_stick_breaking_prior_of_blocks():
    example = SBM.example()
    sticks = dist.Normal(torch.zeros(example.model.num_blocks - 1), 1.0).to_event(1)
    prior = dist.TransformedDistribution(sticks, [transforms.StickBreakingTransform()])
    fit = ci.fit(example.model.with_priors(block_proportion=prior), example.data, progress=False)
    assert float(fit.params["block_proportion"].sum()) == pytest.approx(1.0)


def test_seeds_are_whole_numbers_of_any_type():
    example = LDA.example()
    method = VariationalEM(guide="map", search=None, max_iterations=3)
    one, other = (method.fit(example.model, example.data, seed=seed, progress=False) for seed in (3, np.int64(3)))
    assert torch.equal(one.params["topic"], other.params["topic"]) and type(other.seed) is int
    for seed in (1.5, "3", -1, None):
        with pytest.raises(MethodError, match="seed = "):
            method.fit(example.model, example.data, seed=seed, progress=False)


@pytest.mark.parametrize("settings", [{"chains": 0}, {"num_samples": 0}, {"warmup": -1}, {"max_tree_depth": 1.5}])
def test_settings_of_nuts_out_of_range_are_refused(settings):
    with pytest.raises(MethodError, match=f"{next(iter(settings))} = "):
        NUTS(**settings)


def test_a_fit_of_a_graph_draws_graphs_of_its_size():
    example = SBM.example()
    fit = VariationalEM(guide="mean_field", search=None, max_iterations=2).fit(
        example.model, example.data, progress=False
    )
    drawn = fit.sample(seed=1)
    assert drawn["x"].shape == (len(fit.data),) * 2 and drawn["block"].shape == (len(fit.data),)
    assert fit.sample(5)["x"].shape == (5, 5)
    with pytest.raises(MethodError, match="num_rows = 1, expected at least 2"):
        fit.sample(1)


@pytest.mark.parametrize("name", MODELS)
def test_models_are_printed_with_the_numbers_of_their_priors(name):
    model = MODELS[name].example().model
    text = repr(model)
    assert text.startswith(f"{type(model).__name__}(") and all(f"{site}: " in text for site in model.priors)
    assert "()" not in text.replace("_priors", "")
    if name == "noca":
        assert repr(model.with_priors(leak=dist.Beta(2.0, 9.5))).endswith("leak: Beta(2, 9.5))")


def test_the_status_of_a_single_iteration_has_no_gain():
    example = NOCA.example()
    fit = ci.EM(search=None, max_iterations=1).fit(example.model, example.data, progress=False)
    assert "nan" not in fit.status and "1 iterations" in fit.status
