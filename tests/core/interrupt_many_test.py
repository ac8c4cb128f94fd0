"""Ctrl-C in what makes many fits, and in chains."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from custom_inference import EM, NUTS, VariationalEM, choose_num_blocks, compare, cross_validate
from custom_inference.core.ended import Ended
from custom_inference.core.progress import Progress
from ppl_models import LDA, SBM
from tests.core.interrupt_test import SHORT, _example, _usable

pytestmark = pytest.mark.quick


def _after(monkeypatch, module: Any, name: str, calls: int) -> None:
    """Ctrl-C during the call after so many of a function of a module: it returns an interrupted fit."""
    original, seen = getattr(module, name), []

    def cut(*arguments: Any, **settings: Any) -> Any:
        seen.append(1)
        fit = original(*arguments, **settings)
        if len(seen) > calls:
            fit.ended = Ended.INTERRUPTED
        return fit

    monkeypatch.setattr(module, name, cut)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_cross_validation_keeps_whole_numbers_of_topics_and_scores_no_interrupted_fit(monkeypatch):
    from custom_inference.documents import cross_validation

    example = LDA.example()
    method = VariationalEM(guide="vb", search=None, max_iterations=2)

    def run() -> Any:
        return cross_validate(LDA, example.data, [2, 3], folds=2, method=method)

    whole = run()
    assert not whole.interrupted
    for calls, kept in {1: [(2, 0)], 2: [(2, 0), (2, 1)], 3: [(2, 0), (2, 1)]}.items():
        with monkeypatch.context() as patch:
            _after(patch, cross_validation, "default_fit", calls)
            found = run()
        assert found.interrupted and list(zip(found.folds["num_topics"], found.folds["fold"], strict=True)) == kept
        assert found.best == 2 and found.folds["perplexity"].tolist() == whole.folds["perplexity"].tolist()[: len(kept)]
    _after(monkeypatch, cross_validation, "default_fit", 0)
    with pytest.raises(KeyboardInterrupt):
        run()


def test_the_choice_of_blocks_keeps_the_numbers_that_are_done(monkeypatch):
    from custom_inference.graphs import choice

    example = SBM.example()
    method = VariationalEM(guide="vb", search=None, max_iterations=2)

    def run() -> Any:
        return choose_num_blocks(example.model, example.data, [1, 2, 3], method=method, progress=False)

    with monkeypatch.context() as patch:
        _after(patch, choice, "default_fit", 2)
        found = run()
    assert found.interrupted and list(found.table.index) == [1, 2] and found.best in (1, 2)
    _after(monkeypatch, choice, "default_fit", 0)
    with pytest.raises(KeyboardInterrupt):
        run()


def test_a_comparison_keeps_the_methods_that_are_done(monkeypatch):
    model, data = _example("noca")
    at = EM(search=None, max_iterations=2).fit(model, data, progress=False)

    class Broken(VariationalEM):
        def local_posterior(self, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

    found = compare([EM(), VariationalEM(guide="mean_field"), Broken(), EM()], model, data, at=at, progress=False)
    assert found.interrupted and len(found.table) == len(found.locals) == 2
    with pytest.raises(KeyboardInterrupt):
        compare([Broken()], model, data, at=at, progress=False)
    _after(monkeypatch, sys.modules[compare.__module__], "default_fit", 0)
    with pytest.raises(KeyboardInterrupt):
        compare([EM()], model, data, progress=False)


def test_nuts_stops_where_the_search_for_its_start_is_interrupted(monkeypatch):
    """An interrupted start is no reason to go on with something slower."""
    _after(monkeypatch, EM, "fit", 0)
    with pytest.raises(KeyboardInterrupt):
        NUTS(num_samples=2, warmup=1, chains=1).fit(*_example("mixture_of_bernoullis"), progress=False)


def test_nuts_keeps_the_draws_of_its_first_chain(monkeypatch, tmp_path):
    model, data = _example("mixture_of_bernoullis")
    start = EM(search=None, **SHORT).fit(model, data, progress=False)
    whole = NUTS(num_samples=8, warmup=3, chains=1).fit(model, data, init=start, progress=False)
    advanced = []

    def advance(*_: Any, **__: Any) -> None:
        advanced.append(1)
        if len(advanced) == 3 + 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", advance)
    fit = NUTS(num_samples=8, warmup=3, chains=1).fit(model, data, init=start, progress=False)
    assert fit.status.startswith("interrupted after 5 of 8 draws of the first chain")
    assert fit.draws is not None and whole.draws is not None
    for site, draws in fit.draws.items():
        assert draws.shape == (1, 5, *model.shapes[site])
    assert torch.allclose(fit.elbo, whole.elbo[:5])
    _usable(fit, tmp_path)
