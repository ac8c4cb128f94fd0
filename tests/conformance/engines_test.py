"""Every closed-form engine of rows, driven by hand: what EM's driver, minibatches and several processes rest on."""

from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver, bounds_of
from custom_inference.core.registry import engine_for, engines_of
from ppl_models.distributions import Flat
from tests.support.cases import ROWS, globals_of, problem_of, swapped_priors

pytestmark = pytest.mark.filterwarnings(
    "ignore::ppl_models.DataWarning", "ignore:Converting a tensor with requires_grad"
)

EACH = pytest.mark.parametrize(("name", "engine"), [(n, e) for n in ROWS for e in engines_of(problem_of(n).model)])
AT_GLOBALS = [(n, e) for n in ROWS for e in bounds_of(problem_of(n).model) if n not in ("supervised_lda", "nmf", "rtm")]
#: Models of other settings and priors: label -> name, change.
CHANGED = {
    **{name: (name, lambda model: model) for name in ROWS},
    **{f"{name}, informative": (name, lambda model: informative(model)) for name in ROWS if name != "plsa"},
    "cvq, scales": ("cvq", lambda model: replace(model, per_feature_scale=True)),
    "cvq, inverse gamma": ("cvq", lambda model: model.with_priors(scale=dist.InverseGamma(3.0, 1.0))),
    "logistic_pca, flat": (
        "logistic_pca",
        lambda model: model.with_priors(**{s: Flat(dist.Normal(0.0, 1.0)) for s in model.global_sites}),
    ),
}
#: Laplace's estimate is no bound, and what EM climbs is another one.
NO_CLIMB = [("ctm", "laplace"), ("random_effects_lda", "laplace")]
#: What an iteration may cost: floors of probabilities, exponential sums, quadratures, inner optimisers.
SLACK = {"noca": 1e-6, "aspect_bernoulli": 1e-5, "logistic_pca": 1e-6, "rbm": 1e-6, "ctm": 1e-6, "supervised_lda": 1e-6}
SLACK |= {"random_effects_lda": 1e-6, "rtm": 1e-6, "replicated_softmax": 1e-6}


def informative(model):
    """Priors that tell features and components from flat ones, and have closed forms."""
    priors, _ = swapped_priors(model)
    return model.with_priors(
        **{**priors, **{site: dist.Gamma(1.7, 0.6) for site in ("rate", "activation") if site in priors}}
    )


def prepared(name, share=0.3, fill=torch.nan):
    """The model of the example, and its data with entries missing."""
    example = problem_of(name)
    mask = torch.rand(example.data.x.shape, generator=torch.Generator().manual_seed(1)) >= share
    x = torch.where(mask, example.data.x.double(), torch.tensor(fill))
    return example.model, example.model.prepare(x, mask=mask, dtype=torch.float64, **example.data.others)


def stepped(name, engine, data):
    """An E step and the globals after it, from the same start whatever the data."""
    model, complete = prepared(name, 0.0)
    start = engine.initial(model, engine.rows(model, complete), torch.Generator().manual_seed(0))
    rows = engine.rows(model, data)
    step = engine.e_step(model, start, rows, generator=torch.Generator().manual_seed(0))
    return step, engine.m_step(model, start, step, rows)


@EACH
def test_statistics_add_up_over_rows(name, engine):
    model, data = prepared(name)
    steps = engine_for(model, engine)
    if not steps.additive or engine == "cvb0":  # whose tokens see those before them
        pytest.skip("needs all rows at once")
    whole = stepped(name, steps, data)[0]
    parts = [stepped(name, steps, data.rows(part))[0] for part in (slice(0, 17), slice(17, None))]
    for key, value in whole.statistics.items():
        assert torch.allclose(value, parts[0].statistics[key] + parts[1].statistics[key], rtol=1e-8, atol=1e-8), key
    assert torch.allclose(whole.bound, torch.cat([part.bound for part in parts]), atol=1e-8)


@EACH
def test_nothing_depends_on_what_fills_a_missing_entry(name, engine):
    steps, found = engine_for(problem_of(name).model, engine), []
    for fill in (0.0, 1.0, torch.nan):
        step, state = stepped(name, steps, prepared(name, fill=fill)[1])
        values = state if isinstance(state, dict) else state.tensors()
        found.append({**step.statistics, **step.locals, **values, "bound": step.bound})
    for other in found[1:]:
        # Not to the bit: how sums are vectorised depends on where the numbers lie in memory.
        for key, value in found[0].items():
            torch.testing.assert_close(other[key], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "engine"), AT_GLOBALS)
def test_a_row_without_entries_has_the_prior(name, engine):
    example, params = problem_of(name), globals_of(problem_of(name))
    mask = torch.ones(example.data.x.shape, dtype=torch.bool)
    mask[2] = False
    data = example.model.prepare(example.data.x, mask=mask, dtype=torch.float64, **example.data.others)
    local = LocalSolver(engine=engine_for(example.model, engine)).solve(example.model, params, data)
    known = [params[site] for site in ("source_prior", "mixing_proportion", "mean", "topic_weight") if site in params]
    known = [value for value in known if value.ndim]  # of PMF the mean of all ratings
    if "input_weight" in params:
        known = [data.others["covariates"][2] @ params["input_weight"]]
    if "prevalence_weight" in params:
        known = [
            torch.softmax(params["prevalence_bias"] + data.others["covariates"][2] @ params["prevalence_weight"], -1)
        ]
    if name == "helmholtz_machine":
        known = [example.model.network(params).mean]
    if name == "random_effects_lda":
        known = [data.others["covariates"][2] @ params["mean"]]
    if engine != "map":
        assert abs(float(local.bound[2])) < 1e-8
        if name in ("rbm", "replicated_softmax"):  # what is not observed is still tied to the hidden units
            return
        expected = known[0] if known else example.model.prior(example.model.local_site).mean
        assert np.allclose(local.posterior.mean[2], expected.expand(example.model.local_shape), atol=1e-6)


@pytest.mark.parametrize(
    ("label", "share"), [(label, share) for label in CHANGED for share in (0.0, 0.3) if share or label in ROWS]
)
def test_traces_climb(label, share):
    """From a random start without a search, without missing entries and with, then under priors of every kind."""
    name, change = CHANGED[label]
    model, data = prepared(name, share)
    for engine in (e for e in engines_of(model) if e not in ("cvb0", "tempered") and (name, e) not in NO_CLIMB):
        most = 15 if name == "cvq" else 10  # steps that forget its prior go downhill late
        settings = {"search": None, "accelerate": None, "tolerance": 1e-12, "max_iterations": most}
        fit = ci.VariationalEM(guide=engine, **settings).fit(change(model), data, seed=0, progress=False)
        assert len(fit.elbo) > 1 and fit.elbo[-1] > fit.elbo[0], engine
        assert (fit.elbo.diff() >= -max(SLACK.get(name, 0.0), 1e-10 * float(fit.elbo.abs().max()))).all(), engine
