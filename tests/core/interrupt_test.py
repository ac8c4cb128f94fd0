"""Ctrl-C at any line of a fit: the best state so far as a usable fit, or the interrupt itself; no traces."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pyro
import pytest
import torch

from custom_inference import (
    EM,
    NUTS,
    SVI,
    CollapsedGibbs,
    Exact,
    Fit,
    Search,
    StochasticMMSB,
    TemperedEM,
    VariationalEM,
)
from custom_inference.core.progress import Progress
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence
from custom_inference.families.noca.exact import NocaExact
from custom_inference.families.noca.propose import NocaProposals
from custom_inference.families.ratings.gradient import RatingsSGD
from custom_inference.families.ratings.matchbox import Matchbox
from ppl_models import LDA, MODELS
from ppl_models.core.priors import support_of
from tests.support.fuzz import SCALE
from tests.support.interrupts import count, interrupted

SHORT: dict[str, Any] = {"max_iterations": 4}
METHODS: dict[str, tuple[Any, str]] = {
    "em": (EM(search=None, **SHORT), "mixture_of_bernoullis"),
    "em, search": (EM(search=Search(restarts=2, settle=3), **SHORT), "noca"),
    "mean field": (VariationalEM(guide="mean_field", search=None, **SHORT), "cvq"),
    "vb of documents": (VariationalEM(guide="vb", search=None, **SHORT), "lda"),
    "vb of a graph": (VariationalEM(guide="vb", search=None, **SHORT), "sbm"),
    "svi, points": (SVI(guide="delta", steps=4), "noca"),
    "svi, mean field": (SVI(guide="mean_field", steps=4), "cvq"),
    "nuts": (NUTS(num_samples=3, warmup=2, chains=2), "mixture_of_bernoullis"),
    "stochastic": (StochasticMMSB(steps=12), "mmsb"),
    "tempered": (TemperedEM(max_iterations=8, informed=False), "plsa"),
    "exact": (Exact(), "mixture_of_bernoullis"),
    "matchbox": (Matchbox(passes=6, tolerance=0.0), "bilinear_pmf"),
    "ratings, sgd": (RatingsSGD(passes=4), "pmf"),
    "contrastive divergence": (ContrastiveDivergence(max_iterations=4, ascent=False), "rbm"),
}
#: Lines that put a result together after the last iteration: who interrupts there gets the interrupt.
FINISHING = ("_result", "__post_init__", "evaluate", "_bound_name")


def _fit(name: str, **settings: Any) -> Callable[[], Fit]:
    method, model = METHODS[name]
    example = MODELS[model].example()
    if "fitted" in settings and name == "nuts":
        settings["init"] = settings.pop("fitted")
    settings.pop("fitted", None)
    return lambda: method.fit(example.model, example.data, progress=False, **settings)


def _in_support(fit: Fit) -> None:
    """Parameters have their shapes and lie where their priors have mass, but for rounding."""
    fit.model.check_params(fit.params)
    for site in fit.model.global_sites:
        value, support = fit.params[site], support_of(fit.model.priors[site])
        assert bool(torch.isfinite(value).all()), site
        lower, upper = getattr(support, "lower_bound", -torch.inf), getattr(support, "upper_bound", torch.inf)
        assert bool((value >= torch.as_tensor(lower) - 1e-9).all() and (value <= torch.as_tensor(upper) + 1e-9).all())
        if support is torch.distributions.constraints.simplex:
            assert torch.allclose(value.sum(-1), torch.ones(()), atol=1e-6)


def _usable(fit: Fit, folder: Any) -> None:
    _in_support(fit)
    assert len(fit.elbo) and bool(torch.isfinite(fit.elbo).all())
    assert fit.posterior.mean.shape == (len(fit.data), *fit.model.local_shape)
    again = Fit.load(fit.save(folder / "fit"))
    assert all(torch.equal(again.params[site], fit.params[site]) for site in fit.params)
    assert again.status == fit.status and torch.equal(again.elbo, fit.elbo)


@pytest.fixture
def traceless():
    """Fails where the caller's random state, parameter store, default type or gradient mode are not as they were."""
    pyro.get_param_store()["mine"] = torch.ones(2)
    torch.manual_seed(11)
    before = torch.get_rng_state()

    def check() -> None:
        assert torch.equal(torch.get_rng_state(), before), "random state"
        assert list(pyro.get_param_store().keys()) == ["mine"], "parameter store"
        assert torch.get_default_dtype() == torch.float64 and torch.is_grad_enabled()
        assert threading.active_count() < 40

    return check


def _lines(total: int, number: int) -> list[int]:
    """Places to interrupt at, one in each of so many equal parts of a run, the same ones in everyday runs."""
    random_ = random.Random(3 if SCALE == 1 else None)
    parts = number * SCALE
    return [1 + int((part + random_.random()) * (total - 1) / parts) for part in range(parts)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_ctrl_c_at_any_line_gives_a_usable_fit_or_the_interrupt(name, tmp_path, traceless):
    start = EM(search=None, **SHORT).fit(*_example("mixture_of_bernoullis"), progress=False)
    run = _fit(name, fitted=start)
    run()
    total, returned = count(run), 0
    for at in _lines(total, 8):
        fit, line = interrupted(run, at)
        traceless()
        innermost = {place.split(".")[-1] for place in line.where}
        if fit is None and name == "stochastic" and "loop.run_em" in line.where:
            continue  # the closing E step over all dyads
        if fit is None:  # before the first iteration there is nothing to keep
            during = line.advanced > LATE.get(name, 0) and not innermost & set(FINISHING) and len(line.where) > 2
            assert not during, f"lost after {line.advanced} iterations: {line.where}"
            continue
        returned += 1
        assert fit.interrupted, line.where
        _usable(fit, tmp_path)
    assert returned, "no place where anything was kept"


#: Reports of progress before there is something to keep: of NUTS the warm-up's.
LATE = {"nuts": 2}


def _example(name: str) -> tuple[Any, Any]:
    example = MODELS[name].example()
    return example.model, example.data


@pytest.mark.parametrize("name", ["em", "em, search", "mean field", "vb of documents", "vb of a graph"])
def test_going_on_from_an_interrupted_fit_never_falls_below_it(name):
    run = _fit(name)
    total = count(run)
    for at in _lines(total, 4):
        fit, _ = interrupted(run, at)
        if fit is None:
            continue
        resumed = _fit(name, init=fit)()
        assert not resumed.interrupted
        assert resumed.elbo[-1] >= fit.elbo[-1] - 1e-9 * abs(fit.elbo[-1])
        if fit.bound_name == "exact":
            assert resumed.elbo[0] >= fit.elbo[-1] - 1e-9 * abs(fit.elbo[-1]), "it does not start where it was"


@pytest.mark.parametrize("milliseconds", [5, 120, 250, 400])
def test_gibbs_keeps_what_its_chains_have(milliseconds, tmp_path, traceless):
    """Its chains run in threads: a real signal, in the middle."""
    example = LDA.example()
    method = CollapsedGibbs(num_samples=20_000, warmup=5, chains=2, search=False, threads=2)
    timer = threading.Timer(milliseconds / 1000, os.kill, (os.getpid(), signal.SIGINT))
    CollapsedGibbs(num_samples=1, warmup=1, chains=1, search=False).fit(example.model, example.data, progress=False)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a process in the background lacks
    try:
        timer.start()
        fit = method.fit(example.model, example.data, progress=False)
    except KeyboardInterrupt:
        traceless()
        assert milliseconds < 100, "nothing was kept"
        return
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, handler)
    traceless()
    assert fit.interrupted
    _usable(fit, tmp_path)


def _interrupt_call(monkeypatch, steps: Any, name: str, at: int) -> None:
    """Ctrl-C in the call of this number of one of the steps' methods."""
    original, calls = getattr(steps, name), []

    def cut(*arguments: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    monkeypatch.setattr(steps, name, cut)


STARTS = Search(restarts=2, settle=3)


def _kept(method: Any) -> bool:
    """Whether the interrupt of a fit of the example of NOCA leaves a fit."""
    try:
        return method.fit(*_example("noca"), progress=False).interrupted
    except KeyboardInterrupt:  # pytest would take it for its own
        return False


def test_what_the_search_found_survives_ctrl_c_in_its_refinement(monkeypatch):
    _interrupt_call(monkeypatch, NocaProposals, "refine", 1)
    assert _kept(EM(search=STARTS, **SHORT))


def test_what_the_search_found_survives_ctrl_c_as_its_climb_begins(monkeypatch):
    label = Progress.label

    def labelled(self: Progress, text: str) -> None:
        label(self, text)
        if text == "all rows":
            _interrupt_call(monkeypatch, NocaExact, "e_step", 1)

    monkeypatch.setattr(Progress, "label", labelled)
    assert _kept(EM(search=STARTS, **SHORT))


def test_stepwise_em_says_so_wherever_ctrl_c_comes(monkeypatch):
    """Also within the closing E step over all rows, whose own interrupt must not pass for an end."""
    method = EM(search=None, max_iterations=2, batch_size=20)
    calls: list[int] = []
    original = NocaExact.e_step
    with monkeypatch.context() as patch:
        patch.setattr(NocaExact, "e_step", lambda *a, **k: (calls.append(1), original(*a, **k))[1])
        method.fit(*_example("noca"), progress=False)
    found = {}
    for at in range(1, len(calls) + 1):
        with monkeypatch.context() as patch:
            _interrupt_call(patch, NocaExact, "e_step", at)
            try:
                found[at] = method.fit(*_example("noca"), progress=False).status
            except KeyboardInterrupt:
                found[at] = "raised"
    assert all("interrupted" in status or status == "raised" for status in found.values()), found
    assert "raised" not in list(found.values())[4:], found
