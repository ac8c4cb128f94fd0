"""Every model of rows against the promises of the model protocol, on its own ``example()``."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver, is_feasible, solve_local
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.methods import default_method, methods_of
from custom_inference.svi.initialisation import initial_values
from ppl_models import MODELS, CapacityError, Data
from tests.support.cases import ROWS, at_subsample, fitted, globals_of, problem_of, swapped_priors
from tests.support.fits import given

pytestmark = pytest.mark.quick

NAMES = pytest.mark.parametrize("name", ROWS)
#: Models whose components belong to labels, or come in an order.
ORDERED = ("labeled_lda", "partially_labeled_lda", "hdp")


@NAMES
def test_log_joint_is_the_references(name):
    """The Pyro program against NumPy written from the math, with and without a mask, with informative priors."""
    reference = importlib.import_module(f"tests.references.{name}")
    example = problem_of(name)
    priors, spelled = swapped_priors(example.model)
    model = example.model.with_priors(**priors)
    known = {model.local_site, *model.part_sites}
    further = [site for site in model.sites_of("latent") if site not in known and site in example.truth]
    truth = {site: example.truth[site] for site in (*model.global_sites, model.local_site, *further)}
    params = {site: truth[site].numpy() for site in model.global_sites}
    for mask in (None, torch.rand(example.data.x.shape) > 0.3):
        others = example.data.others
        trace = poutine.trace(pyro.condition(model, data=truth)).get_trace(example.data.x, mask=mask, **others)
        expected = reference.log_joint(
            params,
            example.data.x.numpy(),
            truth[model.local_site].numpy(),
            None if mask is None else mask.numpy(),
            spelled,
            **{site: value.numpy() for site, value in others.items()},
            **{site: truth[site].numpy() for site in further},
        )
        assert np.isclose(float(trace.log_prob_sum()), expected, rtol=1e-12)


@NAMES
def test_fill_value_of_missing_entries_does_not_matter(name):
    example = problem_of(name)
    mask = torch.rand(example.data.x.shape) > 0.3
    program = pyro.condition(example.model, data=example.truth)
    values = []
    for fill in (0.0, 1.0):  # what any model of the suite may observe
        x = torch.where(mask, example.data.x, torch.full_like(example.data.x, fill))
        values.append(float(poutine.trace(program).get_trace(x, mask=mask, **example.data.others).log_prob_sum()))
    assert values[0] == values[1]


@NAMES
def test_subsampling_is_unbiased(name):
    """The mean of the subsampled log joint over every minibatch of a partition is the full one."""
    if name == "rtm":
        pytest.skip("pairs of documents: unbiased over random minibatches, see the tests of its family")
    example = problem_of(name)
    program = pyro.condition(example.model, data=globals_of(example))
    total = len(example.data)
    whole = poutine.trace(pyro.condition(program, data=example.truth))
    full = whole.get_trace(example.data.x, **example.data.others).log_prob_sum()
    local = example.model.local_site
    parts = []
    for index in torch.arange(total).split(total // 4):
        chosen = poutine.condition(program, data={local: example.truth[local][index]})
        with poutine.substitute(data={}):
            trace = poutine.trace(at_subsample(chosen, index)).get_trace(
                example.data.x, batch_size=len(index), **example.data.others
            )
        parts.append(float(trace.log_prob_sum()))
    assert np.isclose(np.mean(parts), float(full), rtol=1e-12)


@NAMES
def test_components_are_exchangeable(name):
    """Permuting the components in every site changes neither the log joint nor the evidence."""
    if name in ORDERED:
        pytest.skip("each component has a meaning of its own")
    example = problem_of(name)
    size = next(
        s
        for site, shape in example.model.shapes.items()
        for axis, s in zip(example.model.dims[site], shape, strict=True)
        if axis == "component"
    )
    order = list(reversed(range(size)))
    moved = ci.Alignment(order=order, similarity=torch.ones(size)).apply(example.truth, example.model.dims)
    before, after = ({**p} for p in (example.truth, moved))
    joint = [
        float(one.get_trace(example.data.x, **example.data.others).log_prob_sum())
        for one in (poutine.trace(pyro.condition(example.model, data=p)) for p in (before, after))
    ]
    assert np.isclose(*joint, rtol=1e-12)
    for p in (before, after):
        p.pop(example.model.local_site)
    method: Any = ci.Exact(generic=not example.model.has_continuous_locals)  # a density cannot be enumerated
    if "exact" not in methods_of(example.model):
        method = default_method(example.model, example.data)
    infer = solve_local if isinstance(method, ci.CollapsedGibbs) else method.local_posterior
    evidence = [infer(example.model, p, example.data).bound for p in (before, after)]
    assert torch.allclose(*evidence, atol=1e-10)


@NAMES
def test_probabilities_at_the_edge_give_finite_answers(name):
    """0 and 1 are legal values of a probability, and what sigmoid(17) is in single precision."""
    example = problem_of(name)
    params = globals_of(example)
    for site in params:
        support = example.model.prior(site).support
        if getattr(getattr(support, "base_constraint", support), "upper_bound", None) == 1:
            params[site] = params[site].clone()
            params[site].view(-1)[0], params[site].view(-1)[-1] = 1.0, 0.0
    for bound in [b for b in engines_of(example.model) if b != "exact" or is_feasible(example.model)]:
        local = solve_local(example.model, params, example.data, bound=bound)
        assert torch.isfinite(local.posterior.mean).all(), bound
        assert bound == "map" or torch.isfinite(local.bound).all(), bound


@NAMES
def test_too_large_to_enumerate_is_refused_with_what_would_fit(name):
    example = problem_of(name)
    if example.model.code_bits is None or "num_components" not in example.model.settings():
        pytest.skip(f"{name} has no codes that only enumeration sums out")
    fit = fitted(name, "em")
    steps = engine_for(fit.model, "exact", max_bytes=1000.0)
    with pytest.raises(CapacityError, match=r"GiB, .* are allowed; up to \d+ sources would fit"):
        LocalSolver(engine=steps).solve(fit.model, fit.params, example.data)
    large = MODELS[name](num_components=40, num_features=60)
    x = torch.bernoulli(torch.full((10, 60), 0.8))  # rows of few ones have exact sums under noisy-or
    big = given(large, initial_values(large, Data(x=x), 0), Data(x=x), bound_name="mean_field")
    others = [bound for bound in big.bounds if bound != "exact"]
    with pytest.raises(CapacityError, match=f"Lower bounds available: bound='{others[0]}'"):
        big.log_likelihood()
    assert big.log_likelihood(bound=others[-1]).shape == (10,) and big.transform().shape == (10, 40)
