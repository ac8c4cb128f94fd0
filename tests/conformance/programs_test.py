"""Every model, of rows and of graphs: its example, its priors, and that Pyro's own tools take the instance."""

import io
import pickle
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoNormal

from ppl_models import MODELS, RTM, ModelError
from tests.support.cases import problem_of
from tests.support.graphs import GRAPHS, small_problem

pytestmark = pytest.mark.quick

NAMES = pytest.mark.parametrize("name", MODELS)


@NAMES
def test_example_has_model_data_and_truth(name):
    example = MODELS[name].example()
    model, data, local = example.model, example.data, example.truth[example.model.local_site]
    assert isinstance(model, MODELS[name]) and len(data) >= 20 and set(model.global_sites) <= set(example.truth)
    for site, shape in model.shapes.items():
        assert tuple(example.truth[site].shape) == shape == tuple(model.prior(site).sample().shape)
        assert len(model.dims[site]) == len(shape)
    if name in GRAPHS:
        assert data.x.dtype == torch.float64 and data.is_sparse and len(data) == model.num_nodes == len(local)
        assert set(model.dims) == {*model.shapes, model.local_site, "x"}
        assert local.ndim == len(model.dims[model.local_site])
    read = model.as_read(data) if name in GRAPHS else data
    trace = poutine.trace(pyro.condition(model, data=example.truth)).get_trace(read.x, mask=read.mask, **data.others)
    assert np.isfinite(float(trace.log_prob_sum()))


@NAMES
def test_priors_are_checked(name):
    model = problem_of(name).model
    with pytest.raises(ModelError, match="unknown site .*valid: "):
        model.with_priors(nonsense=dist.Beta(1.0, 1.0))
    for site in model.global_sites:
        with pytest.raises(ModelError, match=site):
            model.with_priors(**{site: dist.Beta(torch.ones(97), torch.ones(97))})  # neither its shape nor its support
        with pytest.raises(ModelError, match=site):
            model.with_priors(**{site: object()})
    assert model.with_priors() is not model


#: Models with a latent that no normal can stand for: why, as Pyro says it.
_NO_NORMAL = {
    "spike_gamma_poisson": "Cannot transform _NonnegativeWithAtom",
    "rtm": "cannot handle discrete sample site 'topic_share'",
}


@pytest.mark.parametrize("name", [name for name in MODELS if name == "rtm" or name not in _NO_NORMAL])
def test_pyros_normal_guide_and_objectives(name):
    """AutoNormal for what has a density, and Pyro's sums over codes and choices: losses and gradients are finite."""
    problem = problem_of(name)
    model, data = problem.model, problem.model.as_read(problem.data)
    if name == "rtm":
        model = RTM(num_topics=3, vocabulary_size=9, link="sigmoid", link_on="proportions")
    with torch.no_grad(), poutine.block():
        nodes = poutine.trace(model).get_trace(data.x, **data.arguments).nodes
    latents = {site: nodes[site]["fn"] for site in (*model.global_sites, *model.sites_of("latent")) if site in nodes}
    finite = [site for site, law in latents.items() if law.support.is_discrete]
    guide = AutoNormal(poutine.block(model, hide=finite))
    elbo: Any = TraceEnum_ELBO(max_plate_nesting=1) if finite else Trace_ELBO()
    program = config_enumerate(model) if finite else model
    for _ in range(2):
        loss = elbo.differentiable_loss(program, guide, data.x, **data.arguments)
        slopes = torch.autograd.grad(loss, list(guide.parameters()))
        assert np.isfinite(float(loss.detach())) and all(bool(torch.isfinite(slope).all()) for slope in slopes)


def test_what_no_normal_can_stand_for_is_refused():
    for name, message in _NO_NORMAL.items():
        problem = problem_of(name)
        with pytest.raises((NotImplementedError, ValueError), match=message):
            AutoNormal(problem.model)(problem.data.x, **problem.data.arguments)


@pytest.mark.parametrize(
    ("name", "directed"), [(n, d) for n in MODELS for d in ((True, False) if n in GRAPHS else (None,))]
)
def test_pyros_own_tools_take_the_instance(name, directed):
    problem = problem_of(name) if directed is None else small_problem(name, directed=directed)
    model, x = problem.model, problem.data.dense().x
    draws = Predictive(model, num_samples=3)(**({"num_rows": 5} if directed is None else {}))
    assert draws[model.observed_site].shape[:2] == (3, 5 if directed is None else model.num_dyads())
    if directed is False:
        for site in model.pair_sites:
            value = draws[site].reshape(3, *model.shapes[site])
            assert torch.equal(value, value.transpose(1, 2))
    AutoDelta(poutine.block(model, expose=list(model.global_sites)))(x)
    assert pyro.render_model(model, model_args=(x,)) is not None
    assert pickle.loads(pickle.dumps(model)).settings() == model.settings()
    torch.save(model.settings(), io.BytesIO())
