"""EM over rows that are read block by block, every iteration all of them: it is EM in memory, to rounding."""

from __future__ import annotations

import pytest
import torch

from custom_inference import EM, VariationalEM
from custom_inference.engines import engines_of
from ppl_models import MODELS, RowBlocks

#: Compiled passes over documents take the documents before them into account within a pass, which are other ones where
#: the documents are read in blocks: same fixed points, another way there.
_SEQUENTIAL = {"cvb0"}


def cases():
    for name, kind in MODELS.items():
        model = kind.example().model
        if model.is_graph:
            continue
        for bound in engines_of(model):
            if bound not in _SEQUENTIAL:
                yield pytest.param(name, bound, id=f"{name}-{bound}")


def method_for(bound, **settings):
    guide = "exact" if bound == "evidence" else bound
    return VariationalEM(guide=guide, search=None, accelerate=None, max_iterations=6, tolerance=1e-12, **settings)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize(("name", "bound"), list(cases()))
def test_all_blocks_are_the_rows_in_memory(name, bound):
    model, data, truth = (getattr(MODELS[name].example(), part) for part in ("model", "data", "truth"))
    start = {site: truth[site] for site in model.global_sites}
    method = method_for(bound)
    memory = method.fit(model, data, init=start, progress=False)
    streamed = method.fit(model, RowBlocks.of(data, max(1, len(data) // 3)), init=start, progress=False)
    # Truncated families propose codes at random, other ones in blocks.
    exact = bound != "truncated"
    torch.testing.assert_close(streamed.elbo, memory.elbo, rtol=1e-9 if exact else 1e-2, atol=1e-9)
    if exact:
        for site, value in streamed.globals.items():
            torch.testing.assert_close(value, memory.globals[site], rtol=1e-7, atol=1e-9)
        first = streamed.posterior.mean
        torch.testing.assert_close(first, memory.posterior.mean[: len(first)], rtol=1e-6, atol=1e-7)
    assert "first block" in streamed.status


def test_leaps_and_their_refusals_read_the_right_locals():
    """An accelerated run that leaps, and takes leaps back, is the one in memory too."""
    example = MODELS["lda"].example()
    settings = {"max_iterations": 40, "tolerance": 1e-12, "accelerate": "squarem", "search": None}
    method = VariationalEM(guide="vb", **settings)
    start = {site: example.truth[site] for site in example.model.global_sites}
    memory = method.fit(example.model, example.data, init=start, progress=False)
    streamed = method.fit(example.model, RowBlocks.of(example.data, 7), init=start, progress=False)
    torch.testing.assert_close(streamed.elbo, memory.elbo, rtol=1e-9, atol=1e-9)


def test_the_search_is_made_on_some_rows():
    example = MODELS["mixture_of_bernoullis"].example()
    fit = EM(max_iterations=20).fit(example.model, RowBlocks.of(example.data, 50), progress=False)
    assert "starts found" in fit.status
    assert fit.details["rows"] == len(example.data)
    assert bool((fit.elbo.diff() > -1e-8).all())
