"""Guides that the caller wrote or made by Pyro: functions, modules, automatic guides and their classes."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value
from torch.distributions import SigmoidTransform

import custom_inference as ci
from custom_inference.svi.guides import own
from ppl_models import LDA, NOCA, CapacityError, MethodError
from ppl_models.distributions import BernoulliVector
from tests.references import noca as reference
from tests.support.cases import problem_of

EXAMPLE = NOCA.example


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(own, "_DRAWS", 30)


def logit_normals(x):
    """Independent logit-normals of all globals; returns nothing."""
    for name, shape in EXAMPLE().model.shapes.items():
        location = pyro.param(f"{name}_location", lambda shape=shape: torch.randn(shape) - 0.5)
        base = dist.Normal(location, 0.1)
        pyro.sample(name, dist.TransformedDistribution(base, [SigmoidTransform()]).to_event(len(shape)))


class Points(pyro.nn.PyroModule):
    def __init__(self):
        super().__init__()
        for name, shape in EXAMPLE().model.shapes.items():
            setattr(self, f"{name}_at", pyro.nn.PyroParam(torch.rand(shape), constraint=dist.constraints.unit_interval))

    def forward(self, *arguments, **keywords):
        for name in EXAMPLE().model.shapes:
            value = getattr(self, f"{name}_at")
            pyro.sample(name, dist.Delta(value, event_dim=value.ndim))


def evidence_and_prior(params, x):
    """log p(x, globals), codes summed out, in NumPy."""
    given = {site: value.numpy() for site, value in params.items()}
    return float(np.logaddexp.reduce(reference.log_joint_table(given, x.numpy()), -1).sum())  # the priors are flat


def test_elbo_of_a_guide_of_the_globals_sums_the_codes_out():
    """At a guide that is known in closed form: E_q[log p(x | globals) + log p(globals) - log q], by NumPy."""
    example = EXAMPLE()
    start = {site: example.truth[site].clamp(0.05, 0.95) for site in example.model.global_sites}
    guide = AutoMultivariateNormal(
        poutine.block(example.model, hide=["source"]), init_loc_fn=init_to_value(values=start), init_scale=0.1
    )
    method = ci.SVI(guide=guide, steps=1, learning_rate=1e-9, num_particles=40)
    fit = method.fit(example.model, example.data, progress=False)
    generator, values = np.random.default_rng(0), []
    for _ in range(500):
        noise = {site: generator.normal(size=value.shape) for site, value in start.items()}
        at = {site: torch.logit(value) + 0.1 * torch.tensor(noise[site]) for site, value in start.items()}
        params = {site: torch.sigmoid(value) for site, value in at.items()}
        log_q = sum(-0.5 * (z**2).sum() - z.size * np.log(0.1 * np.sqrt(2 * np.pi)) for z in noise.values())
        volume = sum(float((p * (1 - p)).log().sum()) for p in params.values())
        values.append(evidence_and_prior(params, example.data.x) - (log_q - volume))
    error = np.hypot(np.std(values) / np.sqrt(500), fit.details["objective_standard_error"])
    assert abs(float(fit.elbo[-1]) - np.mean(values)) < 4 * error < 2.0
    assert fit.bound_name == "elbo (codes summed out)"


@pytest.mark.parametrize(
    "kind",
    [
        AutoNormal,
        AutoDelta,
        AutoMultivariateNormal,
        functools.partial(AutoLowRankMultivariateNormal, rank=2),
        AutoIAFNormal,
        AutoLaplaceApproximation,
    ],
)
def test_automatic_guides_by_their_class(kind):
    check_automatic(kind, "class")


@pytest.mark.parametrize("kind", [AutoDelta, AutoMultivariateNormal])
@pytest.mark.parametrize("make", ["of the model", "of a block"])
def test_automatic_guides_that_the_caller_made(kind, make):
    check_automatic(kind, make)


def check_automatic(kind, make):
    example = EXAMPLE()
    shown = {"class": None, "of the model": example.model, "of a block": poutine.block(example.model, hide=["source"])}
    guide = kind if make == "class" else kind(shown[make])
    fit = ci.SVI(guide=guide, steps=25).fit(example.model, example.data, progress=False)
    points = kind is AutoDelta
    assert {site: tuple(value.shape) for site, value in fit.params.items()} == example.model.shapes
    assert (fit.draws is None) == points and torch.isfinite(fit.elbo).all()
    assert fit.transform().shape == (60, 3) and fit.bound_name == ("exact" if points else "elbo (codes summed out)")
    assert points or float(fit.draws["loading"].var(1).min()) > 0


def test_laplace_is_the_inverse_hessian_at_the_maximum():
    """Covariance of a leak in unconstrained coordinates against finite differences of the log joint, in NumPy."""
    model, data = EXAMPLE().model, EXAMPLE().data
    fit = ci.SVI(guide=AutoLaplaceApproximation, steps=100).fit(model, data, progress=False)
    found, sizes = fit.guide.get_posterior(), [int(np.prod(shape)) for shape in model.shapes.values()]

    def log_joint(u):
        parts = torch.as_tensor(u).split(sizes)
        named = zip(model.shapes.items(), parts, strict=True)
        params = {site: torch.sigmoid(part).reshape(shape) for (site, shape), part in named}
        return evidence_and_prior(params, data.x) + sum(float((p * (1 - p)).log().sum()) for p in params.values())

    at, step = found.mean.detach().numpy(), 1e-3
    directions = np.eye(len(at)) * step
    assert max(abs(log_joint(at + e) - log_joint(at - e)) / (2 * step) for e in directions) < 1e-2, "not the maximum"
    precision = torch.linalg.inv(found.covariance_matrix.detach()).numpy()
    for i, j in ((0, 0), (0, 5), (26, 26), (3, 25)):
        a, b = directions[i], directions[j]
        corners = [log_joint(at + s * a + t * b) * s * t for s in (1, -1) for t in (1, -1)]
        assert np.isclose(-sum(corners) / (4 * step**2), precision[i, j], atol=1e-3, rtol=1e-3)
    assert "Laplace's Gaussian" in fit.status


def test_functions_and_modules():
    example = EXAMPLE()
    fit = ci.SVI(guide=logit_normals, steps=80).fit(example.model, example.data, progress=False)
    assert fit.draws is not None and fit.draws["leak"].shape == (1, 30, 6)
    assert not list(pyro.get_param_store().keys())
    again = [poutine.trace(fit.guide).get_trace(example.data.x).nodes["leak"]["value"] for _ in range(200)]
    assert torch.allclose(torch.stack(again).mean(0), fit.params["leak"], atol=0.1), "it holds what was learned"
    module = Points()
    before = module.leak_at.detach().clone()
    points = ci.SVI(guide=module, steps=80).fit(example.model, example.data, progress=False)
    assert points.draws is None and points.bound_name == "exact" and torch.equal(module.leak_at, before)
    assert torch.equal(points.guide.leak_at, points.params["leak"])
    expected = evidence_and_prior(points.params, example.data.x)
    assert np.isclose(float(points.elbo[-1]), expected), "the objective is that of the result"


def test_one_guide_twice_gives_the_same():
    example = EXAMPLE()
    guide = AutoGuideList(example.model)
    guide.append(AutoNormal(poutine.block(example.model, expose=["loading", "leak"]), init_loc_fn=init_to_sample))
    guide.append(AutoDelta(poutine.block(example.model, expose=["source_prior"])))
    method = ci.SVI(guide=guide, steps=15, restarts=2)
    fits = [method.fit(example.model, example.data, progress=False) for _ in range(2)]
    assert torch.equal(fits[0].elbo, fits[1].elbo) and "of 2 starts" in fits[0].status


def codes_in_a_plate(x, mask=None, batch_size=None):
    logit_normals(x)
    mean = pyro.param("mean", lambda: torch.full((len(x), 3), 0.5), constraint=dist.constraints.unit_interval)
    with pyro.plate("data", len(x), subsample_size=batch_size, dim=-1) as rows:
        pyro.sample("source", BernoulliVector(mean[rows]))


def test_minibatches_of_own_guides():
    """A plate of rows takes them; a guide that holds the rows that it first saw has all rows, or is refused."""
    example, documents = EXAMPLE(), LDA.example()
    fit = ci.SVI(guide=codes_in_a_plate, steps=40, batch_size=16).fit(example.model, example.data, progress=False)
    assert fit.params["source"].shape == (60, 3) and fit.bound_name == "elbo"
    model, data = documents.model, documents.data
    whole = ci.SVI(guide=AutoNormal(model), steps=10).fit(model, data, progress=False)
    assert whole.params["topic_proportion"].shape == (len(data), 3)
    few = replace(whole, draws={site: value[:, :3] for site, value in whole.draws.items()})
    posterior = few.to_arviz().posterior
    assert posterior["topic_proportion"].shape == (1, 3, len(data), 3) and posterior["topic"].shape == (1, 3, 3, 9)
    with pytest.raises(MethodError, match="topic_proportion of all rows, whatever the minibatch"):
        ci.SVI(guide=AutoNormal(model), steps=10, batch_size=16).fit(model, data, progress=False)


def test_what_is_drawn_of_all_rows_can_be_loaded_again(tmp_path):
    documents = LDA.example()
    fit = ci.SVI(guide=AutoNormal(documents.model), steps=5).fit(documents.model, documents.data, progress=False)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"))
    assert torch.equal(loaded.params["topic_proportion"], fit.params["topic_proportion"])


def with_extra(x):
    logit_normals(x)
    pyro.sample("weight", dist.Normal(0.0, 1.0))


def with_wrong_shape(x):
    poutine.block(logit_normals, hide=["leak"])(x)
    pyro.sample("leak", dist.Beta(torch.ones(5), 1.0).to_event(1))


def with_wrong_support(x):
    poutine.block(logit_normals, hide=["leak"])(x)
    pyro.sample("leak", dist.Normal(torch.full((6,), 5.0), 0.1).to_event(1))


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (poutine.block(logit_normals, hide=["leak"]), "leaves out 'leak' of NOCA"),
        (AutoNormal(poutine.block(EXAMPLE().model, hide=["source", "loading"])), "leaves out 'loading'"),
        (with_extra, "samples 'weight', which is no latent site of NOCA"),
        (with_wrong_shape, r"'leak': the guide's values have shape \(5,\), the model's \(6,\)"),
        (with_wrong_support, "'leak': the guide draws values that the model's prior excludes"),
    ],
)
def test_guides_that_do_not_fit_the_model_are_named(guide, message):
    example = EXAMPLE()
    with pytest.raises(MethodError, match=message):
        ci.SVI(guide=guide, steps=10**9).fit(example.model, example.data, progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guide": Points}, "the class Points, expected an instance"),
        ({"guide": 3}, "guide = 3"),
        ({"optimizer": torch.optim.LBFGS}, 'use optimizer="lbfgs"'),
        ({"optimizer": torch.optim.Adam([torch.zeros(1)])}, "with parameters already"),
        ({"optimizer": 0.1}, "optimizer = 0.1"),
        ({"optimizer": "lbfgs", "batch_size": 3}, "takes all rows"),
        ({"loss": dist.Normal}, "no ELBO"),
        ({"loss": pyro.infer.Trace_ELBO(), "num_particles": 4}, "those of the loss object"),
        ({"restarts": 0}, "restarts = 0"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(MethodError, match=message):
        ci.SVI(**settings)


def test_what_cannot_be_run_is_refused():
    example, graph = EXAMPLE(), problem_of("sbm")
    with pytest.raises(MethodError, match="differs between two evaluations"):
        ci.SVI(guide="normal", optimizer="lbfgs").fit(example.model, example.data, progress=False)
    with pytest.raises(MethodError, match="init= is for"):
        ci.SVI(guide=logit_normals).fit(example.model, example.data, init=example.truth, progress=False)
    wide = NOCA(num_components=40, num_features=40)
    with pytest.raises(CapacityError, match="2\\^40"):
        ci.SVI(guide=AutoNormal).fit(wide, torch.bernoulli(torch.full((20, 40), 0.3)), progress=False)
    fit = ci.SVI(guide=AutoNormal(graph.model), steps=5).fit(graph.model, graph.data, progress=False)
    assert fit.bound_name == "elbo (codes summed out)"


def test_guides_that_start_elsewhere_refuse_values_to_start_from():
    """Flows begin at noise; a guide's own start, or the values of one that has run, would win in silence."""
    example = NOCA.example()
    start = {site: example.truth[site] for site in example.model.global_sites}
    ran = AutoNormal(poutine.block(example.model, expose=["source_prior", "loading", "leak"]))
    ran(example.data.x)
    own_start = functools.partial(AutoNormal, init_loc_fn=init_to_sample)
    flow = functools.partial(AutoIAFNormal, hidden_dim=[30])
    for guide, message in (
        (ran, "that have not run"),
        (own_start, "its own init_loc_fn|own init_loc_fn"),
        (flow, "AutoIAF"),
    ):
        with pytest.raises(MethodError, match=message):
            ci.SVI(guide=guide, steps=2).fit(example.model, example.data, init=start, progress=False)
