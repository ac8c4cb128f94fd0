"""Every model x every method: the promises of the protocols, checked on each model's own ``example()``."""

from __future__ import annotations

import importlib
import io
import pickle

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoDelta
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver, is_feasible, solve_local
from custom_inference.core.posteriors import GaussianPosterior, LogisticPosterior, PointPosterior
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.methods import methods_of
from custom_inference.svi.initialisation import initial_values
from ppl_models import MODELS as ALL_MODELS
from ppl_models import CapacityError, Data, MethodError, ModelError

#: Graphs are one observation each, not rows: tests/graph_conformance_test.py is theirs.
MODELS = {name: kind for name, kind in ALL_MODELS.items() if not kind.is_graph}
#: Small but real settings of every method.
METHODS = {
    "exact": ci.Exact(),
    "em": ci.EM(),
    "em_stepwise": ci.EM(batch_size=20, max_iterations=20),
    "factorized": ci.VariationalEM(guide="factorized", max_iterations=40),
    "mean_field": ci.VariationalEM(guide="mean_field", max_iterations=40),
    "truncated": ci.VariationalEM(guide="truncated", max_iterations=40),
    "svi_mean_field": ci.SVI(steps=60),
    "svi_amortized": ci.SVI(guide="amortized", steps=60),
    "svi_factorized": ci.SVI(guide="factorized", steps=60),
    "svi_delta": ci.SVI(guide="delta", steps=60),
    "svi_normal": ci.SVI(guide="normal", steps=60),
    "svi_batch": ci.SVI(steps=60, batch_size=20),
    "map": ci.VariationalEM(guide="map", max_iterations=40),
    "dirichlet": ci.VariationalEM(guide="dirichlet", max_iterations=40),
    "vb": ci.VariationalEM(guide="vb", max_iterations=40),
    "vb_stepwise": ci.VariationalEM(guide="vb", batch_size=20, max_iterations=20),
    "cvb0": ci.VariationalEM(guide="cvb0", max_iterations=40),
    "gaussian": ci.VariationalEM(guide="gaussian", max_iterations=40),
    "nuts": ci.NUTS(num_samples=20, warmup=20, chains=2, max_tree_depth=3),
    "tempered": ci.TemperedEM(max_iterations=40),
    "gibbs": ci.CollapsedGibbs(num_samples=20, warmup=20, chains=2),
}

#: The methods' names in the registry, where these settings are others of the same method.
NAMES = {
    "em_stepwise": "em",
    "svi_amortized": "amortized",
    "svi_batch": "svi",
    "svi_mean_field": "svi",
    "vb_stepwise": "vb",
}


def applies(model: str, method: str) -> bool:
    """Whether the registry says so; and minibatches of SVI where rows have codes."""
    instance, settings = MODELS[model].example().model, METHODS[method]
    if getattr(settings, "batch_size", "auto") not in (None, "auto") and instance.has_continuous_locals:
        return False
    return NAMES.get(method, method) in methods_of(instance)


def swapped_priors(model) -> tuple[dict, dict]:
    """Informative priors by the support of each site: for the model, and as the NumPy references spell them."""
    priors, spelled = {}, {}
    for site in model.priors:
        support = model.prior(site).support
        support = getattr(support, "base_constraint", support)
        if support is constraints.simplex:
            size = model.priors[site].event_shape[-1]
            priors[site], spelled[site] = dist.Dirichlet(torch.full((size,), 2.5)), ("dirichlet", 2.5)
        elif support is constraints.real:
            priors[site], spelled[site] = dist.Normal(0.3, 1.5), ("normal", 0.3, 1.5)
        elif getattr(support, "upper_bound", None) == 1:
            priors[site], spelled[site] = dist.Beta(2.0, 3.0), (2.0, 3.0)
        else:
            priors[site], spelled[site] = dist.LogNormal(-0.5, 0.7), ("lognormal", -0.5, 0.7)
    return priors, spelled


PAIRS = [(model, method) for model in MODELS for method in METHODS if applies(model, method)]
#: Fits are shared by the tests of this module (they are only read).
_fits: dict[tuple[str, str], ci.Fit] = {}


def example_of(model: str):
    example = MODELS[model].example()
    assert example.data.x.dtype == torch.float64
    return example


def fitted(model: str, method: str) -> ci.Fit:
    if (model, method) not in _fits:
        example = example_of(model)
        _fits[model, method] = METHODS[method].fit(example.model, example.data, seed=3, progress=False)
    return _fits[model, method]


def globals_of(example) -> dict[str, torch.Tensor]:
    return {site: example.truth[site] for site in example.model.global_sites}


# ----- models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_example_has_model_data_and_truth(name):
    example = example_of(name)
    assert isinstance(example.model, MODELS[name]) and len(example.data) >= 20
    assert set(example.model.global_sites) | {example.model.local_site} <= set(example.truth)
    for site, shape in example.model.shapes.items():
        assert tuple(example.truth[site].shape) == shape == tuple(example.model.prior(site).sample().shape)
        assert len(example.model.dims[site]) == len(shape)


@pytest.mark.parametrize("name", MODELS)
def test_log_joint_is_the_references(name):
    """The Pyro program against NumPy written from the math, with and without a mask, with informative priors."""
    reference = importlib.import_module(f"tests.references.{name}")
    example = example_of(name)
    priors, spelled = swapped_priors(example.model)
    model = example.model.with_priors(**priors)
    truth = {site: example.truth[site] for site in (*model.global_sites, model.local_site)}
    params = {site: truth[site].numpy() for site in model.global_sites}
    for mask in (None, torch.rand(example.data.x.shape) > 0.3):
        trace = poutine.trace(pyro.condition(model, data=truth)).get_trace(example.data.x, mask=mask)
        expected = reference.log_joint(
            params,
            example.data.x.numpy(),
            truth[model.local_site].numpy(),
            None if mask is None else mask.numpy(),
            spelled,
        )
        assert np.isclose(float(trace.log_prob_sum()), expected, rtol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_fill_value_of_missing_entries_does_not_matter(name):
    example = example_of(name)
    mask = torch.rand(example.data.x.shape) > 0.3
    program = pyro.condition(example.model, data=example.truth)
    values = []
    for fill in (0.0, 1.0):  # what any model of the suite may observe
        x = torch.where(mask, example.data.x, torch.full_like(example.data.x, fill))
        values.append(float(poutine.trace(program).get_trace(x, mask=mask).log_prob_sum()))
    assert values[0] == values[1]


@pytest.mark.parametrize("name", MODELS)
def test_subsampling_is_unbiased(name):
    """The mean of the subsampled log joint over every minibatch of a partition is the full one."""
    example = example_of(name)
    program = pyro.condition(example.model, data=globals_of(example))
    total = len(example.data)
    full = poutine.trace(pyro.condition(program, data=example.truth)).get_trace(example.data.x).log_prob_sum()
    local = example.model.local_site
    parts = []
    for index in torch.arange(total).split(total // 4):
        chosen = poutine.condition(program, data={local: example.truth[local][index]})
        with poutine.substitute(data={}):
            trace = poutine.trace(_at(chosen, index)).get_trace(example.data.x, batch_size=len(index))
        parts.append(float(trace.log_prob_sum()))
    assert np.isclose(np.mean(parts), float(full), rtol=1e-12)


def _at(program, index):
    """The program with its subsample fixed."""

    def fixed(*arguments, **keywords):
        with poutine.replay(trace=_subsample_trace(index)):
            return program(*arguments, **keywords)

    return fixed


def _subsample_trace(index):
    trace = poutine.Trace()
    trace.add_node("data", name="data", type="sample", value=index, is_observed=False, fn=None, args=(), kwargs={},
                   infer={}, scale=1.0, cond_indep_stack=(), done=True, stop=False, continuation=None, mask=None)
    return trace


@pytest.mark.parametrize("name", MODELS)
def test_components_are_exchangeable(name):
    """Permuting the components in every site changes neither the log joint nor the evidence."""
    example = example_of(name)
    size = next(s for site, shape in example.model.shapes.items() for axis, s in zip(example.model.dims[site], shape,
                strict=True) if axis == "component")
    order = list(reversed(range(size)))
    moved = ci.Alignment(order=order, similarity=torch.ones(size)).apply(example.truth, example.model.dims)
    before, after = ({**p} for p in (example.truth, moved))
    joint = [
        float(poutine.trace(pyro.condition(example.model, data=p)).get_trace(example.data.x).log_prob_sum())
        for p in (before, after)
    ]
    assert np.isclose(*joint, rtol=1e-12)
    for p in (before, after):
        p.pop(example.model.local_site)
    exact = ci.Exact(generic=not example.model.has_continuous_locals)  # a density cannot be enumerated
    evidence = [exact.local_posterior(example.model, p, example.data).bound for p in (before, after)]
    assert torch.allclose(*evidence, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_pyros_own_tools_take_the_instance(name):
    example = example_of(name)
    draws = Predictive(example.model, num_samples=3)(num_rows=5)
    assert draws[example.model.observed_site].shape[:2] == (3, 5)
    AutoDelta(poutine.block(example.model, expose=list(example.model.global_sites)))(example.data.x)
    assert pyro.render_model(example.model, model_args=(example.data.x,)) is not None
    copy = pickle.loads(pickle.dumps(example.model))
    assert copy.settings() == example.model.settings()
    buffer = io.BytesIO()
    torch.save(example.model.settings(), buffer)


@pytest.mark.parametrize("name", MODELS)
def test_priors_are_checked(name):
    model = example_of(name).model
    with pytest.raises(ModelError, match="unknown site .*valid: "):
        model.with_priors(nonsense=dist.Beta(1.0, 1.0))
    site = model.global_sites[0]
    with pytest.raises(ModelError, match="expected a Pyro distribution"):
        model.with_priors(**{site: 0.5})
    with pytest.raises(ModelError, match="broadcasts to"):
        model.with_priors(**{site: dist.Beta(torch.ones(97), torch.ones(97))})
    assert model.with_priors() is not model


# ----- models x methods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "method"), PAIRS)
def test_a_fit_keeps_its_promises(model, method):
    fit, example = fitted(model, method), example_of(model)
    model_, rows = example.model, len(example.data)
    shapes = model_.shapes
    if model_.has_continuous_locals and model_.local_site in fit.params:
        shapes = {**shapes, model_.local_site: (rows, *model_.local_shape)}
    assert {site: tuple(value.shape) for site, value in fit.params.items()} == shapes
    assert all(torch.isfinite(value).all() and value.dtype == torch.float64 for value in fit.params.values())
    assert fit.elbo.ndim == 1 and torch.isfinite(fit.elbo).all() and fit.status and fit.bound_name
    mean = fit.posterior.mean
    assert mean.shape == example.truth[model_.local_site].shape == (rows, *model_.local_shape)
    assert torch.isfinite(mean).all()
    unbounded = GaussianPosterior | LogisticPosterior | PointPosterior
    if model_.code_bits is not None or not isinstance(fit.posterior, unbounded):
        assert ((mean >= 0) & (mean <= 1)).all()
    assert fit.transform(example.data.x[:4]).shape == (4, mean.shape[1])
    assert fit.posterior.sample(5).shape == (5, *mean.shape) and fit.posterior.mode.shape == mean.shape
    assert (fit.posterior.log_prob(fit.posterior.mode) > -torch.inf).all()
    assert fit.sample(7)[example.model.observed_site].shape == (7, example.data.num_features)
    assert fit.predictive(2).shape == (2, *example.data.x.shape)
    assert fit.reconstruct().shape == example.data.x.shape and fit.reconstruct(how="mean").shape == example.data.x.shape
    assert len(fit.report()) == mean.shape[1] and np.isfinite(fit.bic()) and np.isfinite(fit.aic())
    assert torch.isfinite(fit.plugin_log_likelihood()).all()
    assert "Fit of" in repr(fit)


@pytest.mark.parametrize(("model", "method"), PAIRS)
def test_bounds_stay_below_the_evidence(model, method):
    fit = fitted(model, method)
    evidence = fit.log_likelihood()
    for bound in fit.bounds:
        assert (fit.log_likelihood(bound=bound) <= evidence + 1e-8).all(), bound
    if fit.local is not None:
        # Points, posteriors averaged over draws of the globals, and CVB0 have no bound; the ELBO of a sampled
        # continuous guide is an estimate, exact only in its mean.
        without = isinstance(fit.posterior, PointPosterior) or method in ("cvb0", "gibbs")
        assert without == bool(torch.isnan(fit.local.bound).all())
        slack = 0.1 if example_of(model).model.has_continuous_locals and method.startswith("svi") else 1e-8
        assert not (fit.local.bound > evidence + slack).any()
    with pytest.raises(MethodError, match="valid: "):
        fit.log_likelihood(bound="nonsense")


@pytest.mark.parametrize(("model", "method"), PAIRS)
def test_same_seed_same_result_and_no_side_effects(model, method):
    if method == "nuts":
        pytest.skip("slow here: test_nuts_repeats_with_the_same_seed covers it")
    example = example_of(model)
    pyro.param("bystander", torch.tensor(1.0))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again = METHODS[method].fit(example.model, example.data, seed=3, progress=False)
    assert torch.equal(torch.rand(3), expected), "the caller's random state was changed"
    assert list(pyro.get_param_store().keys()) == ["bystander"], "the caller's parameter store was changed"
    for site, value in fitted(model, method).params.items():
        assert torch.equal(value, again.params[site]), site


@pytest.mark.parametrize(("model", "method"), PAIRS)
def test_save_and_load(model, method, tmp_path):
    fit = fitted(model, method)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert list(tmp_path.iterdir()) == [tmp_path / "fit.safetensors"], "no temporary file may stay behind"
    for site, value in fit.params.items():
        assert torch.equal(value, loaded.params[site])
    assert torch.equal(fit.elbo, loaded.elbo) and fit.status == loaded.status and fit.method == loaded.method
    assert torch.allclose(fit.posterior.mean, loaded.posterior.mean, atol=1e-9)
    assert torch.allclose(fit.log_likelihood(), loaded.log_likelihood())
    assert repr(fit) == repr(loaded)


@pytest.mark.parametrize(("model", "method"), PAIRS)
def test_missing_entries_work(model, method):
    example = example_of(model)
    x = example.data.x.clone()
    x[torch.rand(x.shape) < 0.2] = float("nan")
    fit = METHODS[method].fit(example.model, x, seed=0, progress=False)
    assert all(torch.isfinite(value).all() for value in fit.params.values())
    assert torch.isfinite(fit.evidence).all() and torch.isfinite(fit.transform(x[:3])).all()


@pytest.mark.parametrize("name", MODELS)
def test_every_family_at_the_truth_against_the_exact_posterior(name):
    example = example_of(name)
    methods = [m for key, m in METHODS.items() if applies(name, key) and not isinstance(m, ci.NUTS)]
    table = ci.compare(methods, example.model, example.data, at=globals_of(example)).table
    assert list(table.columns) == ["bound", "evidence", "gap_per_row", "kl_per_row", "worst_marginal_error", "seconds"]
    assert table["evidence"].nunique() == 1
    without = table["bound"].isna()
    draws = without & (table.index == "CollapsedGibbs")  # a mixture of its draws: no bound, but a divergence
    assert (table["kl_per_row"][without & ~draws] == np.inf).all()
    assert table["kl_per_row"][draws].between(-0.05, 0.5).all()
    # Divergences of continuous posteriors, and the bounds of sampled guides, are estimates by draws.
    slack = 0.05 if example.model.has_continuous_locals else 1e-6
    bounded = table[~without]
    assert (bounded["gap_per_row"] > (-slack if example.model.has_continuous_locals else -1e-8)).all()
    # KL(q || p) is the gap of q's own ELBO, so no bound is tighter than its KL.
    assert (bounded["gap_per_row"] - bounded["kl_per_row"] > -slack).all()
    assert table.loc["Exact", "gap_per_row"] == 0 and (table["worst_marginal_error"] >= 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_at_the_edge_give_finite_answers(name):
    """0 and 1 are legal values of a probability, and what sigmoid(17) is in single precision."""
    example = example_of(name)
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


@pytest.mark.parametrize("name", MODELS)
def test_too_large_to_enumerate_is_refused_with_what_would_fit(name):
    example = example_of(name)
    if example.model.code_bits is None:
        pytest.skip(f"{name} has no codes to enumerate")
    fit = fitted(name, "em")
    steps = engine_for(fit.model, "exact", max_bytes=1000.0)
    with pytest.raises(CapacityError, match=r"GiB, .* are allowed; up to \d+ sources would fit"):
        LocalSolver(engine=steps).solve(fit.model, fit.params, example.data)
    large = MODELS[name](num_components=40, num_features=60)
    x = torch.bernoulli(torch.full((10, 60), 0.3))
    params = initial_values(large, Data(x=x), 0)
    big = ci.Fit(model=large, params=params, elbo=torch.zeros(1), bound_name="mean_field", status="", method="",
                 data=Data(x=x), seed=0)
    others = [bound for bound in big.bounds if bound != "exact"]
    with pytest.raises(CapacityError, match=f"Lower bounds available: bound='{others[0]}'"):
        big.log_likelihood()
    assert big.log_likelihood(bound=others[-1]).shape == (10,) and big.transform().shape == (10, 40)
