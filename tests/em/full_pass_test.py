"""EM over rows that are read block by block, every iteration all of them: it is EM in memory, to rounding."""

import gc
from dataclasses import replace

import pytest
import torch

from custom_inference import EM, VariationalEM
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.em.loop import run_em
from custom_inference.families.topics.cvb0 import TopicCounts
from ppl_models import MODELS, MethodError, RowBlocks

#: Compiled passes over documents take the documents before them into account within a pass, which are other ones where
#: the documents are read in blocks: same fixed points, another way there.
_SEQUENTIAL = {"cvb0"}


def cases(*, in_memory=False):
    """Engines that take rows block by block, or those whose M step needs them in memory, all at once."""
    for name, kind in MODELS.items():
        model = kind.example().model
        if model.is_graph:
            continue
        for bound, engine in engines_of(model).items():
            made = engine()
            needs = not (made.additive or made.reads_rows)
            if bound not in _SEQUENTIAL and needs == in_memory:
                yield pytest.param(name, bound, id=f"{name}-{bound}")


def method_for(bound):
    # Later, documents of some models are tried from another start or not, as rounding has it.
    return VariationalEM(guide=bound, search=None, accelerate=None, max_iterations=3, tolerance=1e-12)


@pytest.mark.quick
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
    # Newton's steps of these end where an iteration moves little, each block for itself.
    rtol = (1e-7 if name in ("ctm", "random_effects_lda", "supervised_lda") else 1e-9) if exact else 1e-2
    torch.testing.assert_close(streamed.elbo, memory.elbo, rtol=rtol, atol=1e-9)
    if exact:
        for site, value in streamed.globals.items():
            torch.testing.assert_close(value, memory.globals[site], rtol=100 * rtol, atol=max(1e-9, rtol))
        first = streamed.posterior.mean
        torch.testing.assert_close(first, memory.posterior.mean[: len(first)], rtol=1e-6, atol=1e-7)
    assert "first block" in streamed.status


@pytest.mark.parametrize(("name", "bound"), list(cases(in_memory=True)))
def test_an_m_step_that_needs_every_row_at_once_refuses_blocks(name, bound):
    example = MODELS[name].example()
    source = RowBlocks.of(example.data, max(1, len(example.data) // 3))
    with pytest.raises(MethodError, match=f"the {bound} M step needs every row at once, in memory"):
        method_for(bound).fit(example.model, source, progress=False)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize(("name", "bound"), list(cases()))
def test_blocks_are_freed_at_once(name, bound):
    """No tensor is left in a cycle of references, where it would stay until the garbage collector looks."""
    example, method = MODELS[name].example(), replace(method_for(bound), max_iterations=2)
    source = RowBlocks.of(example.data, max(1, len(example.data) // 3))
    start = {site: example.truth[site] for site in example.model.global_sites}
    gc.disable()
    gc.freeze()  # what was there before is not looked at, which would take most of the time
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        method.fit(example.model, source, init=start, progress=False)
        gc.collect()
        left = [one for one in gc.garbage if issubclass(type(one), torch.Tensor)]  # not through weak references
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
    assert not left


@pytest.mark.parametrize(("name", "bound"), [("lda", "vb"), ("logistic_pca", "map"), ("gaussian_pca", "exact")])
def test_leaps_and_their_refusals_read_the_right_locals(name, bound):
    """An accelerated run that leaps, and takes leaps back, is the one in memory too."""
    example = MODELS[name].example()
    settings = {"max_iterations": 40, "tolerance": 1e-12, "accelerate": "squarem", "search": None}
    method = VariationalEM(guide=bound, **settings)
    start = {site: example.truth[site] for site in example.model.global_sites}
    memory = method.fit(example.model, example.data, init=start, progress=False)
    plain = replace(method, accelerate=None).fit(example.model, example.data, init=start, progress=False)
    streamed = method.fit(example.model, RowBlocks.of(example.data, 7), init=start, progress=False)
    torch.testing.assert_close(streamed.elbo, memory.elbo, rtol=1e-9, atol=1e-9)
    assert len(plain.elbo) != len(memory.elbo) or not torch.allclose(plain.elbo, memory.elbo, rtol=1e-9)


def test_the_search_is_made_on_some_rows():
    example = MODELS["mixture_of_bernoullis"].example()
    fit = EM(max_iterations=20).fit(example.model, RowBlocks.of(example.data, 50), progress=False)
    assert "starts found" in fit.status
    assert fit.details["rows"] == len(example.data)
    assert bool((fit.elbo.diff() > -1e-8).all())


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_sequential_passes_have_the_same_fixed_points():
    """CVB0's responsibilities in memory, once they stand still, stand still in blocks too; and blocks get as far."""
    example = MODELS["lda"].example()
    start = {site: example.truth[site] for site in example.model.global_sites}
    method = VariationalEM(guide="cvb0", search=None, max_iterations=2000, tolerance=1e-13)
    streamed = method.fit(example.model, RowBlocks.of(example.data, 7), init=start, progress=False)
    steps = engine_for(example.model, "cvb0")
    rows = steps.rows(example.model, example.data)
    params = steps.start_from(example.model, start, rows)
    memory = run_em(steps, example.model, rows, params, max_iterations=2000, tolerance=1e-13)
    topic, responsibility, first = memory.state.counts, memory.step.locals["responsibility"], 0
    total = torch.zeros_like(topic)
    for data in RowBlocks.of(example.data, 7):
        rows = steps.rows(example.model, data)
        last = first + rows.counts.values().numel()
        step = steps.e_step(example.model, TopicCounts(topic), rows, {"responsibility": responsibility[first:last]})
        torch.testing.assert_close(step.locals["responsibility"], responsibility[first:last], rtol=0, atol=1e-4)
        total, first = total + step.statistics["topic"], last
    torch.testing.assert_close(total, topic, rtol=1e-4, atol=1e-3)
    assert abs(float(streamed.elbo[-1]) - memory.objective) < 2e-3 * abs(memory.objective)
