"""The table that drives conformance: a small problem of every model, every method that it has, and their fits.

Rows are each model's own ``example()``; graphs have some nodes, every labeling of which can be listed. Which methods a
model has is the registry's word. Fits are made once in a test run, and only read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any
from unittest import mock

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import constraints

import custom_inference as ci
from custom_inference import mcmc
from custom_inference.checks import exact
from custom_inference.core import posterior_bounds
from custom_inference.core.registry import engines_of
from custom_inference.families.boltzmann import exact as boltzmann_exact
from custom_inference.families.boltzmann import search as boltzmann
from custom_inference.families.helmholtz import exact as helmholtz_exact
from custom_inference.families.helmholtz import search as helmholtz
from custom_inference.methods import methods_of
from custom_inference.svi.guides import own
from ppl_models import MODELS, Example, Model
from ppl_models.distributions import InverseWishart, SpikeGamma
from ppl_models.distributions.normals import InUnits
from tests.support.graphs import GRAPHS, small_problem

ROWS = [name for name in MODELS if name not in GRAPHS]
#: Fewer of whatever costs time, by the name of the setting.
SMALL = {"max_iterations": 8, "steps": 6, "num_samples": 5, "warmup": 3, "chains": 2, "max_tree_depth": 1}
#: The same of what has no settings, by its module.
_SMALLER: dict[Any, dict[str, Any]] = {
    own: {"_DRAWS": 40},
    posterior_bounds: {"_ELBO_DRAWS": (10, 40)},
    helmholtz_exact: {"_M_STEP": 8},
    boltzmann_exact: {"_M_STEP": 8},
    helmholtz: {"_STARTS": (4, 2, 1), "_STEPS": (6, 6, 6), "_BRIEF": 5, "_POLISH": 10},
    boltzmann: {"_STARTS": 3, "_ADAM_STEPS": 20, "_POLISH": 10},
}
#: Of two starts, which hardly climb: what searches find has tests of its own.
SEARCH = ci.Search(restarts=2, settle=3, climb=3)
#: Stands for a third of the rows.
THIRD = -3
#: Methods of rows with other settings: name -> the registry's name, settings.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "em_stepwise": ("em", {"batch_size": THIRD, "max_iterations": 2}),
    "vb_stepwise": ("vb", {"batch_size": THIRD, "max_iterations": 2}),
    "svi_batch": ("svi", {"batch_size": THIRD}),
}
#: Those that are others by another name, with all of their settings.
WHOLE = ("default", "exact")
#: Methods that need nothing but the program. They and the variants are fitted again, to see whether the same comes out
#: and what missing entries do, and measured against exact posteriors, on a few models alone. Graphs, all labelings of
#: which are summed over, have those that draw globals and solve for the locals of each draw on one model alone.
GENERIC, FEW = {"svi", "svi_delta", "amortized", "svi_batch"}, {"noca", "sbm", "cvq", "lda", "gaussian_pca", "pmf"}
DRAWN, SAMPLED = {"nuts", "svi_normal"}, {"noca", "sbm"}


@cache
def problem_of(name: str) -> Example:
    """The model, its data and the truth. A graph is directed where the model's example is; some dyads are hidden."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # tables of cases are made before any test begins
    try:
        example = MODELS[name].example()
        return example if name not in GRAPHS else _small_graph(name, example)
    finally:
        torch.set_default_dtype(before)


def _small_graph(name: str, example: Example) -> Example:
    return small_problem(name, directed=example.model.directed, hidden=0.15, num_nodes=4 if name == "mmsb" else 7)


def globals_of(example: Example) -> dict[str, torch.Tensor]:
    """The true globals, those of the caller."""
    return {site: example.truth[site] for site in example.model.global_sites}


def small_method(model: str, name: str) -> Any:
    """A method with settings that cost little."""
    registered, more = VARIANTS.get(name, (name, {}))
    method = methods_of(problem_of(model).model)[registered]()
    if name in WHOLE:
        return method
    known = {field.name for field in fields(method)}
    more = {**more, "batch_size": len(problem_of(model).data) // 3} if more.get("batch_size") == THIRD else more
    if isinstance(getattr(method, "search", None), ci.Search):
        more = {"search": SEARCH, **more}
    return replace(method, **{setting: value for setting, value in {**SMALL, **more}.items() if setting in known})


@cache
def methods_at(name: str) -> list[str]:
    """The methods of a model, and their variants; minibatches of SVI are for rows with codes."""
    model = problem_of(name).model
    found = [one for one in methods_of(model) if one not in WHOLE]
    if name in GRAPHS:
        return [one for one in found if name in SAMPLED or one not in DRAWN]
    minibatches = [one for one, (registered, _) in VARIANTS.items() if registered in found]
    if "exact" in engines_of(model) and not engines_of(model)["exact"]().additive:
        minibatches = [one for one in minibatches if one != "em_stepwise"]
    return found + [one for one in minibatches if one != "svi_batch" or not model.has_continuous_locals]


@contextlib.contextmanager
def small_computations(name: str, method: str) -> Iterator[None]:
    """What no setting makes smaller: draws that fits estimate by, starts that proposals make themselves, the EM within
    "exact". Chains begin at the truth, but on a few models: to find a mode takes most of their time, and has tests of
    its own."""
    problem = problem_of(name)
    with contextlib.ExitStack() as stack:
        for module, settings in _SMALLER.items():
            stack.enter_context(mock.patch.multiple(module, **settings))
        if method == "nuts" and (problem.model.has_continuous_locals or name not in FEW):
            latents = [problem.model.local_site] if problem.model.has_continuous_locals else []
            found = {site: problem.truth[site] for site in (*problem.model.global_sites, *latents)}
            stack.enter_context(mock.patch.object(mcmc, "_mode", return_value=found))
        if method == "exact" and "exact" in engines_of(problem.model):
            stack.enter_context(mock.patch.object(exact, "EM", lambda: small_method(name, "em")))
        yield


def small_fit(model: str, method: str, data: Any = None, **settings: Any) -> ci.Fit:
    """A fit with settings that cost little, to other data where there are some."""
    problem = problem_of(model)
    with small_computations(model, method):
        fit = small_method(model, method).fit
        return fit(problem.model, problem.data if data is None else data, progress=False, **settings)


@cache
def fitted(model: str, method: str) -> ci.Fit:
    """The fit that all tests of a run share."""
    return small_fit(model, method, seed=3)


PAIRS = [(model, method) for model in MODELS for method in methods_at(model)]


def marked(model: str, method: str) -> Any:
    """A pair for ``parametrize``. Methods that need nothing but the program, and the variants, are one code for all
    models: they run on a few in every run, on all others where slow tests do."""
    everywhere = {*GENERIC, *DRAWN, *VARIANTS}
    return pytest.param(model, method, marks=[pytest.mark.slow] if model not in FEW and method in everywhere else [])


#: All of them.
MARKED = [marked(*pair) for pair in PAIRS]


def _summed(model: str, method: str) -> bool:
    """Whether the method is EM by exact sums without closed form, whose engine is that of other models too."""
    engines = engines_of(problem_of(model).model)
    return method == "em" and "exact" in engines and not engines["exact"]().additive


#: Those that are fitted more than once.
AGAIN = [
    (model, method)
    for model, method in PAIRS
    if model in SAMPLED
    or (method not in DRAWN and (model in FEW or not (method in {*GENERIC, *VARIANTS} or _summed(model, method))))
]
DEFAULTS = [(model, "default") for model in MODELS]
EXACT = [(model, "exact") for model in ROWS if "exact" in methods_of(problem_of(model).model)]


def swapped_priors(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Informative priors by the support of each site: for the model, and as the NumPy references spell them."""
    priors, spelled = {}, {}
    for site in model.priors:
        support: Any = model.prior(site).support
        support = getattr(support, "base_constraint", support)
        if support is constraints.simplex:
            size = model.priors[site].event_shape[-1]
            priors[site], spelled[site] = dist.Dirichlet(torch.full((size,), 2.5)), ("dirichlet", 2.5)
        elif support is constraints.positive_definite:
            size = model.priors[site].event_shape[-1]
            priors[site] = InverseWishart(size + 3.0, 1.5 * torch.eye(size))
            spelled[site] = ("inverse_wishart", size + 3.0, 1.5)
        elif getattr(support, "has_atom", False):
            priors[site], spelled[site] = SpikeGamma(0.4, 1.5, 0.8), ("spike_gamma", 0.4, 1.5, 0.8)
        elif support is constraints.real or isinstance(support, InUnits):
            priors[site], spelled[site] = dist.Normal(0.3, 1.5), ("normal", 0.3, 1.5)
        elif getattr(support, "upper_bound", None) == 1:
            priors[site], spelled[site] = dist.Beta(2.0, 3.0), (2.0, 3.0)
        else:
            priors[site], spelled[site] = dist.LogNormal(-0.5, 0.7), ("lognormal", -0.5, 0.7)
    return priors, spelled


def at_subsample(program: Any, index: torch.Tensor) -> Any:
    """The program with the subsample of its plate "data" fixed."""
    trace = poutine.Trace()
    trace.add_node(
        "data",
        name="data",
        type="sample",
        value=index,
        is_observed=False,
        fn=None,
        args=(),
        kwargs={},
        infer={},
        scale=1.0,
        cond_indep_stack=(),
        done=True,
        stop=False,
        continuation=None,
        mask=None,
    )

    def fixed(*arguments: Any, **keywords: Any) -> Any:
        with poutine.replay(trace=trace):
            return program(*arguments, **keywords)

    return fixed
