"""Fits of the aspect Bernoulli model: sparse and odd data, whole fits, new rows, refusals."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO

import custom_inference as ci
from custom_inference.core.registry import proposals_for
from custom_inference.em.loop import run_em
from custom_inference.families.aspects.map import AspectMap
from ppl_models import AspectBernoulli, AspectBernoulliIndicator, DataError, MethodError, ModelError
from tests.families.aspects.map_test import UPDATES, problem


def test_indicators_summed_out_leave_the_model():
    example = AspectBernoulli.example()
    kept = AspectBernoulliIndicator(num_components=3, num_features=9)
    for mask in (None, torch.rand(example.data.x.shape) > 0.3):
        trace = poutine.trace(pyro.condition(example.model, data=example.truth)).get_trace(example.data.x, mask=mask)
        program = pyro.condition(kept, data=example.truth)
        elbo = TraceEnum_ELBO(max_plate_nesting=2)
        enumerated = -elbo.loss(program, lambda *args, **kwargs: None, example.data.x, mask=mask)
        assert enumerated == pytest.approx(float(trace.log_prob_sum()), abs=1e-10)


def test_refusals():
    model, data, _, _ = problem(0)
    pole = model.with_priors(membership=dist.Dirichlet(torch.tensor([0.5, 1.0, 1.0])))
    with pytest.raises(MethodError, match="below 1"):
        ci.VariationalEM(guide="map").fit(pole, data, progress=False)
    with pytest.raises(ModelError, match="simplex"):
        model.with_priors(membership=dist.Beta(torch.ones(3), torch.ones(3)))
    with pytest.raises(ModelError, match="expected 1"):
        AspectBernoulliIndicator(num_components=2, num_features=3, total_count=2)
    with pytest.raises(ModelError, match="total_count"):
        AspectBernoulli(num_components=2, num_features=3, total_count=0)
    with pytest.raises(DataError, match="neither 0 nor 1"):
        model.prepare(np.full((2, 6), 0.5))
    counts = AspectBernoulli(num_components=2, num_features=3, total_count=2)
    with pytest.raises(DataError, match=r"not whole numbers from 0 to 2 \(the first: 0.5 in row 1, column 2\)"):
        counts.prepare(np.array([[0, 1, 2], [2, 2, 0.5]]))
    assert counts.prepare(np.array([[0, 1, np.nan]])).mask.tolist() == [[True, True, False]]
    with pytest.raises(MethodError, match="unknown acceleration"):
        example, steps = problem(1), AspectMap()
        run_em(
            steps, example[0], steps.rows(model, example[1]), example[2], max_iterations=2, tolerance=1, accelerate="x"
        )


@pytest.mark.quick
@pytest.mark.parametrize("total_count", [1, 2])
def test_sparse_rows_give_what_dense_ones_do(total_count, monkeypatch):
    monkeypatch.setattr("custom_inference.families.rows.counts._BLOCK_ENTRIES", 100)
    monkeypatch.setattr("custom_inference.families.rows.counts._TILE_ROWS", 20)
    model, dense, params, s = problem(6, num_rows=50, total_count=total_count)
    sparse = model.prepare(scipy.sparse.csr_matrix(dense.x.numpy()))
    assert sparse.is_sparse
    steps = AspectMap()
    ends = []
    for data in (dense, sparse):
        rows = steps.rows(model, data)
        step = steps.e_step(model, params, rows, {"membership": s})
        ends.append([step.bound, steps.m_step(model, params, step, rows)["aspect_probability"]])
        start = proposals_for(model, steps).propose(model, rows, torch.Generator().manual_seed(0), 0)
        ends[-1].append(start["aspect_probability"])
        assert steps.rows(model, data).to(torch.float32).select(torch.tensor([3, 1])).draws.dtype == torch.float32
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


def test_whole_fit_of_sparse_data():
    example = AspectBernoulli.example()
    dense = ci.fit(example.model, example.data, progress=False)
    sparse = ci.fit(example.model, scipy.sparse.csr_matrix(example.data.x.numpy()), progress=False)
    assert torch.allclose(dense.params["aspect_probability"], sparse.params["aspect_probability"], atol=1e-6)
    assert sparse.params["membership"].shape == (60, 3) and sparse.bound_name == "map"


@pytest.mark.parametrize(("num_components", "num_features", "num_rows"), [(1, 5, 20), (4, 3, 20), (3, 6, 2), (2, 1, 9)])
def test_small_and_odd_sizes(num_components, num_features, num_rows):
    model, data, _, _ = problem(2, num_components=num_components, num_features=num_features, num_rows=num_rows)
    for update in UPDATES:
        steps = AspectMap(update=update)
        rows = steps.rows(model, data)
        start = proposals_for(model, steps).propose(model, rows, torch.Generator().manual_seed(0), 0)
        run = run_em(steps, model, rows, start, max_iterations=50, tolerance=1e-9, accelerate="anderson")
        assert (np.diff(run.trace) >= -1e-10).all() and math.isfinite(run.objective)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("settings_", [{}, {"batch_size": 20, "max_iterations": 20}, {"accelerate": None}])
def test_whole_fits(dtype, settings_):
    example = AspectBernoulli.example()
    fit = ci.fit(example.model, example.data.x, progress=False, dtype=dtype, **settings_)
    truth = torch.distributions.Bernoulli(example.truth["membership"] @ example.truth["aspect_probability"])
    assert float(fit.plugin_log_likelihood().sum()) > float(truth.log_prob(example.data.x).sum())
    assert fit.params["membership"].dtype == dtype
    again = ci.fit(example.model, example.data.x, progress=False, dtype=dtype, **settings_)
    assert torch.equal(again.params["aspect_probability"], fit.params["aspect_probability"])


def test_new_rows_are_inferred_to_the_optimum():
    """At fixed aspects the problem is concave: memberships of the training rows come out at least as good."""
    example = AspectBernoulli.example()
    fit = ci.fit(example.model, example.data.x, progress=False)
    aspect, x = fit.params["aspect_probability"], example.data.x
    found = fit.transform(x)
    gain = torch.distributions.Bernoulli(found @ aspect).log_prob(x).sum(1) - fit.plugin_log_likelihood()
    assert float(gain.min()) > -1e-6
    nothing = fit.transform(torch.full((1, 9), torch.nan))
    assert torch.allclose(nothing, torch.full((1, 3), 1 / 3))
    with pytest.raises(MethodError, match="unknown acceleration"):
        ci.VariationalEM(guide="map", accelerate="warp")


def test_everything_a_fit_offers_works_on_sparse_rows():
    """The same answers as on dense rows, whatever is asked."""
    example = AspectBernoulli.example()
    model, x = AspectBernoulli(num_components=2, num_features=9), example.data.x
    sparse = scipy.sparse.csr_matrix(x.numpy())
    for method in (ci.VariationalEM(guide="map"), ci.VariationalEM(guide="dirichlet"), ci.EM(), ci.SVI(steps=3)):
        fits = [method.fit(model, data, progress=False) for data in (x, sparse)]
        for site in fits[0].params:
            assert torch.allclose(fits[0].params[site], fits[1].params[site], atol=1e-6), (method.name, site)
    dense = ci.VariationalEM(guide="map").fit(model, x, progress=False)
    fit = ci.VariationalEM(guide="map").fit(model, sparse, progress=False)
    assert fit.data.is_sparse
    for ask in (
        lambda f: f.evidence,
        lambda f: f.plugin_log_likelihood(),
        lambda f: f.log_likelihood(bound="dirichlet"),
        lambda f: f.transform(f.data.x),
        lambda f: f.transform(f.data.x, bound="exact"),
        lambda f: f.reconstruct(),
        lambda f: torch.as_tensor(ci.attribute(f).to_numpy()),
        lambda f: ci.denoise(f, drop=0),
        lambda f: ci.empirical_bayes_log_likelihood(f, f.data),
    ):
        assert torch.allclose(ask(dense), ask(fit), atol=1e-6)
    assert fit.aic() == pytest.approx(dense.aic()) and set(fit.to_arviz(num_draws=3).groups()) >= {"observed_data"}
