"""``device="cuda"``: every engine on a pretend device, to rounding what it is on the CPU.

The pretend device (tests/support/pretend_device.py) raises the errors of a real one. Closed-form engines and samplers
draw their random numbers on the CPU, so that a seed gives one result on every device; SVI and NUTS draw on the device.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import custom_inference as ci
from custom_inference.em.search import Search
from custom_inference.methods import every_method, methods_for
from ppl_models import MODELS, NOCA, CapacityError, Data, GraphModel, MethodError, graph
from tests.support.graphs import small_problem as graph_problem
from tests.support.pretend_device import pretend_device

#: Fewer of whatever costs time, by the name of the setting.
SMALL = {
    "max_iterations": 2, "steps": 2, "num_samples": 2, "warmup": 2, "chains": 1, "max_tree_depth": 1, "search": None,
}  # fmt: skip
#: Engines whose numbers come from Pyro's distributions, on the device.
DRAWS_THERE = ("svi", "svi_factorized", "amortized", "svi_delta", "svi_normal", "nuts")
#: One of each way of computing: enumeration, cubes, quadratic forms, tables, aspects, Newton, integrals of scores,
#: document kernels, sparse mixtures, node sweeps, tables of dyads, samplers, and guides of each kind.
QUICK = [
    ("noca", "em"), ("noca", "factorized"), ("noca", "mean_field"), ("noca", "truncated"), ("noca", "svi"),
    ("noca", "svi_factorized"), ("noca", "amortized"), ("noca", "svi_delta"), ("cvq", "mean_field"),
    ("aspect_bernoulli", "map"), ("aspect_bernoulli", "dirichlet"), ("logistic_pca", "gaussian"),
    ("lda", "gibbs"), ("lda", "svi"), ("mixture_of_poissons", "vb"), ("mixture_of_poissons", "gibbs"),
    ("mixture_of_bernoullis", "em"), ("sbm", "vb"), ("sbm", "gibbs"), ("sbm", "svi"), ("covariate_sbm", "svi"),
    ("mmsb", "vb"), ("mmsb", "cvb0"), ("mmsb", "gibbs"), ("degree_corrected_sbm", "mean_field"),
]  # fmt: skip
#: Documents are swept by other code on the CPU: equal where both have converged, not on the way.
DOCUMENTS = ("lda", "multinomial_pca", "plsa", "user_rating_profile")
KERNELS = ("map", "dirichlet", "vb", "cvb0", "tempered", "exact", "em")


def small_method(name: str) -> Any:
    method = every_method()[name]()
    known = {field.name for field in fields(method)}
    return replace(method, **{setting: value for setting, value in SMALL.items() if setting in known})


def small_problem(model: str) -> tuple[Any, Any]:
    """A few rows of the example, or a graph whose labelings can all be listed, with hidden dyads."""
    example = MODELS[model].example()
    if not isinstance(example.model, GraphModel):
        return example.model, example.data.rows(slice(0, 12))
    size = 4 if model == "mmsb" else 6
    problem = graph_problem(model, directed=example.model.directed, hidden=0.15, num_nodes=size)
    return problem.model, problem.data


def cpu(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu()


def same(first: ci.Fit, second: ci.Fit, tolerance: float = 1e-10) -> None:
    """To rounding the same fit, the second on the device."""
    assert {site: v.device.type for site, v in second.params.items()} == dict.fromkeys(first.params, "cuda")
    for site, value in first.params.items():
        assert torch.allclose(value, cpu(second.params[site]), rtol=tolerance, atol=tolerance), site
    mean = second.posterior.mean
    assert mean.is_cuda and torch.allclose(first.posterior.mean, cpu(mean), rtol=tolerance, atol=tolerance)
    assert torch.allclose(first.elbo, cpu(second.elbo), rtol=tolerance)
    assert (first.bound_name, first.status) == (second.bound_name, second.status)


def check(model: str, method: str) -> None:
    made, data = small_problem(model)
    expected = small_method(method).fit(made, data, seed=3, progress=False)
    drawn_there = method in DRAWS_THERE
    with pretend_device(same_numbers=drawn_there) as device:
        found = small_method(method).fit(made, data, seed=3, device="cuda", progress=False)
        assert found.posterior.mean.is_cuda and found.data.x.is_cuda
        assert drawn_there or not device.calls, "numbers were drawn on the device"
        # The posterior that NUTS looks up is swept, of documents by other code: to the sweeps' tolerance.
        same(expected, found, 1e-4 if method == "nuts" and model in DOCUMENTS else 1e-10)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize(("model", "method"), QUICK)
def test_the_same_fit_on_the_device(model, method):
    check(model, method)


EVERY = [(name, method) for name in MODELS for method in methods_for(MODELS[name].example().model)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "method"), EVERY)
def test_every_model_by_every_method(model, method):
    if (model in DOCUMENTS and method in (*KERNELS, "default")) or method == "default":
        pytest.skip("test_documents_converge_to_the_same has these; the default is one of the others")
    try:
        check(model, method)
    except CapacityError as error:
        pytest.skip(f"too large an example: {error}")


@pytest.mark.parametrize("guide", ["vb", "map"])
def test_documents_converge_to_the_same(guide):
    """The compiled sweeps of the CPU and the batched ones of devices end at one fixed point, from one start."""
    example = MODELS["lda"].example()
    data = example.data.rows(slice(0, 20))
    method = ci.VariationalEM(guide=guide, max_iterations=100, tolerance=1e-8)
    start = {"topic": example.truth["topic"]}
    expected = method.fit(example.model, data, init=start, progress=False)
    with pretend_device():
        found = method.fit(example.model, data, init=start, device="cuda", progress=False)
        assert float(found.elbo[-1]) == pytest.approx(float(expected.elbo[-1]), rel=1e-7)
        assert torch.allclose(expected.params["topic"], cpu(found.params["topic"]), atol=2e-4)


def test_searches_draw_on_the_cpu():
    """Starts, annealing and judgements too: one seed, one fit, whatever numbers the device would draw."""
    model, data = small_problem("noca")
    method = ci.EM(search=Search(restarts=2, settle=2), max_iterations=2)
    expected = method.fit(model, data, seed=3, progress=False)
    with pretend_device() as device:
        same(expected, method.fit(model, data, seed=3, device="cuda", progress=False))
        assert not device.calls


def test_a_fit_leaves_the_devices_random_state_alone():
    model, data = small_problem("noca")
    with pretend_device():
        torch.manual_seed(5)
        before, on_cpu = torch.cuda.get_rng_state(), torch.get_rng_state()
        fits = [small_method(name).fit(model, data, device="cuda", progress=False) for name in ("em", "svi")]
        for fit in fits:
            for look in (fit.posterior.sample, fit.sample, fit.predictive):
                look(2)
        assert torch.equal(before, torch.cuda.get_rng_state()) and torch.equal(on_cpu, torch.get_rng_state())


LOOKS = {
    "transform": lambda f, x: f.transform(x),
    "log-likelihood": lambda f, x: f.log_likelihood(x),
    "plug-in": lambda f, x: f.plugin_log_likelihood(x),
    "draws": lambda f, x: f.posterior.sample(3, seed=1),
    "mode": lambda f, x: f.posterior.log_prob(f.posterior.mode),
    "rows": lambda f, x: f.sample(4)[f.model.observed_site],
    "predictive": lambda f, x: f.predictive(2),
    "reconstruction": lambda f, x: f.reconstruct(),
    "globals": lambda f, x: torch.cat([q.sample(2).flatten() for q in f.global_posterior.values()] or [f.elbo]),
    "criteria": lambda f, x: torch.tensor([f.bic(), f.aic()]),
    "report": lambda f, x: torch.tensor(f.report().select_dtypes("number").to_numpy(float)),
    # Many predictive copies: on one model.
    "arviz": lambda f, x: torch.tensor(len(f.to_arviz().groups())) if "rate" in f.params else f.elbo,
    "figure": lambda f, x: torch.tensor(len(f.plot("elbo").axes)),
    "blocks": lambda f, x: torch.tensor(ci.block_matrix(f).to_numpy()) if f.model.is_graph else f.elbo,
    "alignment": lambda f, x: ci.align(f, to=f).similarity,
}
FACES = [
    ("noca", "truncated"), ("aspect_bernoulli", "dirichlet"), ("mixture_of_poissons", "vb"), ("sbm", "vb"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize(("model", "method"), FACES)
def test_what_a_fit_offers(model, method, tmp_path):
    """Everything computed from a fit on the device is what it is on the CPU."""
    made, data = small_problem(model)
    new = data if made.is_graph else data.x[:3]
    expected = small_method(method).fit(made, data, seed=3, progress=False)
    with pretend_device(same_numbers=True):
        found = small_method(method).fit(made, data, seed=3, device="cuda", progress=False)
        for name, look in LOOKS.items():
            assert torch.allclose(look(expected, new), cpu(look(found, new)), equal_nan=True, atol=1e-9), name
        table = None
        if model == "noca":
            table = ci.compare([small_method(method)], made, found.data, at=found, progress=False).table
        path = found.save(tmp_path / "fit")
        assert not ci.Fit.load(path).params[made.global_sites[0]].is_cuda, "a saved fit is loaded onto the CPU"
        there = ci.Fit.load(path, device="cuda")
        assert there.transform(new).is_cuda and there.to("cpu").transform(new).device.type == "cpu"
        assert there.to("cuda") is there
    if table is not None:
        plain = ci.compare([small_method(method)], made, data, at=expected, progress=False).table
        same, measured = ["what", "posterior"], table.columns.drop(["what", "posterior", "seconds"])
        assert table[same].equals(plain[same]) and (table[measured] - plain[measured]).abs().max().max() < 1e-9


def test_a_fit_starts_from_one_on_another_device():
    model, data = small_problem("noca")
    method = ci.EM(max_iterations=2)
    first = method.fit(model, data, progress=False)
    with pretend_device():
        second = method.fit(model, data, init=first, device="cuda", progress=False)
        third = method.fit(model, data, init=second, progress=False)
        assert second.params["loading"].is_cuda and not third.params["loading"].is_cuda
        assert third.elbo[-1] >= second.elbo[-1]


@pytest.mark.parametrize("method", [ci.EM(), ci.CollapsedGibbs(), ci.SVI(), ci.NUTS()], ids=lambda m: m.name)
@pytest.mark.parametrize("device", ["cuda", "abacus"])
def test_a_device_that_is_not_there_is_named(method, device):
    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    words = "is not available here" if device == "cuda" else "names no device"
    model, data = small_problem("mixture_of_poissons" if isinstance(method, ci.CollapsedGibbs) else "noca")
    with pytest.raises(MethodError, match=f"device = '{device}' {words}; available.*: 'cpu'"):
        method.fit(model, data, device=device, progress=False)
    with pytest.raises(MethodError, match="available"):
        graph([(0, 1), (1, 2)], device=device)


def test_names_of_devices_have_their_index():
    with pretend_device():
        assert Data(x=torch.ones(2, 2)).to(device="cuda").x.device == torch.device("cuda", 0)
        with pytest.raises(MethodError, match="'cuda:1' is not available here; available: 'cpu', 'cuda:0'"):
            NOCA.example().data.to(device="cuda:1")


@pytest.mark.parametrize(("model", "method"), QUICK)
@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_single_precision(model, method):
    """float32 runs, stays float32, and says what float64 says to single precision: two iterations amplify little."""
    made, data = small_problem(model)
    fit = small_method(method).fit(made, data, seed=3, dtype=torch.float32, progress=False)
    values = [value for value in fit.params.values() if value.is_floating_point()]
    assert all(value.dtype == torch.float32 and torch.isfinite(value).all() for value in values)
    if method in ("gibbs", *DRAWS_THERE):
        return  # draws are other draws
    expected = small_method(method).fit(made, data, seed=3, progress=False)
    assert float(fit.elbo[-1]) == pytest.approx(float(expected.elbo[-1]), rel=1e-4)
