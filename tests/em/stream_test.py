"""Rows in blocks: the folder they are kept in, stepwise EM on them, and that one block is in memory at a time."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch

import custom_inference as ci
from custom_inference import EM, VariationalEM
from custom_inference.core.registry import engine_for
from custom_inference.em.stepwise import Rates, Stepwise, run_stepwise
from ppl_models import (
    LDA,
    DataError,
    FileFormatError,
    MethodError,
    MixtureOfBernoullis,
    RowBlocks,
    open_blocks,
    save_blocks,
)
from tests.references import lda

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


@pytest.fixture
def counts():
    rng = np.random.default_rng(0)
    topic = rng.dirichlet(np.full(30, 0.1), 4)
    words = rng.dirichlet(np.full(4, 0.3), 90) @ topic
    x = np.array([rng.multinomial(rng.integers(5, 40), p) for p in words], dtype=float)
    x[3] = 0
    return x


MODEL = LDA(num_topics=4, vocabulary_size=30)
ONLINE = VariationalEM(guide="vb", batch_size=10, max_iterations=3, search=None, shuffle=False)


def blocks_of(x, size):
    return [scipy.sparse.csr_matrix(x[start : start + size]) for start in range(0, len(x), size)]


@pytest.mark.quick
@pytest.mark.parametrize("block_rows", [1, 7, 90, 1000])
def test_a_folder_gives_back_what_was_written(counts, tmp_path, block_rows):
    words = [f"word {j}" for j in range(30)]
    folder = save_blocks(tmp_path / "corpus", blocks_of(counts, 13), vocabulary=words)
    source = open_blocks(folder, block_rows=block_rows)
    for _ in range(2):  # every pass reads anew
        found = [block.toarray() for block in source]
        assert all(len(block) <= block_rows for block in found)
        assert np.array_equal(np.concatenate(found), counts)
    assert (len(source), source.coords) == (90, {"feature": words})


def test_folders_that_are_none_and_blocks_that_do_not_belong_are_refused(counts, tmp_path):
    folder = save_blocks(tmp_path / "corpus", blocks_of(counts, 30))
    with pytest.raises(FileFormatError, match="holds something already"):
        save_blocks(folder, blocks_of(counts, 30))
    with pytest.raises(FileFormatError, match="no folder of blocks"):
        open_blocks(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="block_rows = 0"):
        open_blocks(folder, block_rows=0)
    (folder / "values.bin").write_bytes(b"1234")
    with pytest.raises(FileFormatError, match=r"values\.bin: 4 bytes, expected"):
        open_blocks(folder)
    wrong = {
        "block 1 has 29 columns": [counts, counts[:, 1:]],
        "block 1 has -1": [counts, -np.eye(30)],
        "block 0 has 0.5": [counts / 2],
        "block 0 has missing": [np.where(counts > 3, np.nan, counts)],
        "no blocks": [],
    }
    for number, (message, blocks) in enumerate(wrong.items()):
        with pytest.raises(DataError, match=message):
            save_blocks(tmp_path / str(number), blocks)
        with pytest.raises(FileFormatError, match="no folder of blocks"):  # a write that failed leaves none
            open_blocks(tmp_path / str(number))
    with pytest.raises(DataError, match="2 labels for 30 columns"):
        save_blocks(tmp_path / "labels", [counts], vocabulary=["a", "b"])


def test_rates_are_those_of_the_algorithm():
    rates = Rates(delay=4.0, forgetting=0.7)
    assert [rates.at(t) for t in (0, 1, 10)] == pytest.approx([4**-0.7, 5**-0.7, 14**-0.7])
    assert Rates(delay=0.5, forgetting=0.0).at(7) == 1.0
    for wrong in ({"delay": 0.0}, {"forgetting": 1.1}, {"forgetting": -0.1}, {"delay": float("nan")}):
        with pytest.raises(MethodError, match=next(iter(wrong))):
            VariationalEM(guide="vb", **wrong)


@pytest.mark.quick
def test_one_full_batch_with_rate_one_is_batch_vb(counts):
    steps = engine_for(MODEL, "vb")
    rows = steps.rows(MODEL, MODEL.prepare(counts))
    generator = torch.Generator().manual_seed(0)
    batch = online = steps.initial(MODEL, rows, generator)
    for _ in range(4):
        batch = steps.m_step(MODEL, batch, steps.e_step(MODEL, batch, rows), rows)
    stepwise = Stepwise(steps, MODEL, len(rows), online, Rates(forgetting=0.0), generator)
    stepwise.climb(lambda: iter([rows]), max_iterations=4, tolerance=1e-12)
    torch.testing.assert_close(stepwise.state.concentration, batch.concentration, rtol=1e-12, atol=0)
    assert stepwise.seen == [90, 180, 270, 360]


def test_a_minibatch_is_the_step_of_algorithm_27_2(counts):
    """b~ <- (1 - rho) b~ + rho (gamma + N / B sum n c~), against the NumPy reference."""
    steps = replace(engine_for(MODEL, "vb"), cold_sweeps=3000, threshold=1e-13)
    rows, generator = steps.rows(MODEL, MODEL.prepare(counts)), torch.Generator().manual_seed(1)
    start = steps.initial(MODEL, rows, generator)
    known = {"topic": start.concentration - 0.05}
    stepwise = Stepwise(steps, MODEL, 90, start, Rates(delay=3.0, forgetting=0.8), generator, known)
    parts = [rows.select(slice(0, 10)), rows.select(slice(10, 20))]
    stepwise.climb(lambda: iter(parts), max_iterations=1, tolerance=1e-9)
    expected = start.concentration.numpy()
    for t, x in enumerate((counts[:10], counts[10:20])):
        expected = lda.online_update(x, expected, 0.1, 0.05, (t + 3.0) ** -0.8, 90, sweeps=3000)
    assert stepwise.state.concentration.numpy() == pytest.approx(expected, rel=1e-6)


def test_streamed_blocks_are_the_batches_of_memory(counts, tmp_path):
    """The same minibatches in the same order, from disk, from memory, and by hand."""
    folder = save_blocks(tmp_path / "corpus", blocks_of(counts, 45))
    disk = ONLINE.fit(MODEL, open_blocks(folder, block_rows=30), progress=False)
    memory = ONLINE.fit(MODEL, RowBlocks.of(counts, 30), progress=False)
    torch.testing.assert_close(disk.params["topic"], memory.params["topic"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(disk.elbo, memory.elbo, rtol=1e-10, atol=0)
    steps = engine_for(MODEL, "vb")
    rows, generator = steps.rows(MODEL, MODEL.prepare(counts)), torch.Generator().manual_seed(0)
    start = steps.initial(MODEL, rows.select(slice(0, 30)), generator)
    by_hand = Stepwise(steps, MODEL, 90, start, Rates(), generator)
    parts = [rows.select(slice(first, first + 10)) for first in range(0, 90, 10)]
    by_hand.climb(lambda: iter(parts), max_iterations=3, tolerance=1e-5)
    assert torch.allclose(disk.global_posterior["topic"].concentration, by_hand.state.concentration, rtol=1e-12)
    assert disk.details["rows_seen"] == by_hand.seen == list(range(10, 280, 10))
    assert disk.details["minibatch_bounds"] == pytest.approx(by_hand.bounds)
    assert len(disk.elbo) == 4
    final = steps.objective_at(MODEL, by_hand.state, steps.e_step(MODEL, by_hand.state, rows).bound)
    assert float(disk.elbo[-1]) == pytest.approx(final)
    assert len(disk.data) == 30
    assert disk.transform(counts[:5]).shape == (5, 4)


def test_streaming_reaches_what_memory_reaches(counts, tmp_path):
    """With the default search on the first block: close to the batch fit of all rows."""
    folder = save_blocks(tmp_path / "corpus", blocks_of(counts, 30), vocabulary=[f"w{j}" for j in range(30)])
    method = VariationalEM(guide="vb", batch_size=30, max_iterations=30, delay=1.0, forgetting=0.7)
    streamed = ci.fit(MODEL, open_blocks(folder, block_rows=60), method=method, progress=False)
    batch = VariationalEM(guide="vb").fit(MODEL, counts, progress=False)
    assert abs(float(streamed.elbo[-1] - batch.elbo[-1])) < 0.02 * abs(float(batch.elbo[-1]))
    assert "first block" in streamed.status
    assert streamed.coords["word"][:2] == ["w0", "w1"]
    default = ci.fit(MODEL, RowBlocks.of(counts, 60), batch_size=30, max_iterations=2, progress=False)
    assert default.bound_name == "vb"


def test_any_additive_engine_streams(counts):
    x = (counts > 0).astype(float)
    model = MixtureOfBernoullis(num_components=3, num_features=30)
    fit = EM(batch_size=20, max_iterations=3, search=None).fit(model, RowBlocks.of(x, 40), progress=False)
    assert fit.bound_name == "exact"
    assert bool(torch.isfinite(fit.elbo).all())


class _Counted:
    """A source of blocks that knows how many of the blocks it gave out are alive at a time."""

    def __init__(self, x, size):
        self.x, self.size, self.given, self.most = x, size, [], 0

    def __call__(self):
        for start in range(0, len(self.x), self.size):
            block = scipy.sparse.csr_matrix(self.x[start : start + self.size])
            self.given.append(weakref.ref(block))
            self.most = max(self.most, sum(one() is not None for one in self.given))
            yield block
            del block


def test_one_block_is_in_memory_at_a_time(counts):
    source = _Counted(counts, 10)
    ONLINE.fit(MODEL, RowBlocks(read=source, num_rows=90), progress=False)
    assert len(source.given) == 1 + 4 * 9
    assert source.most == 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_one_block_is_in_memory_at_a_time_in_full_passes_too(counts, shuffle):
    source = _Counted(counts, 10)
    method = replace(ONLINE, batch_size=None, shuffle=shuffle)
    fit = method.fit(MODEL, RowBlocks(read=source, num_rows=90), progress=False)
    assert len(fit.elbo) == 3
    assert len(source.given) >= 1 + 3 * 9
    assert source.most == 1


def test_peak_memory_does_not_grow_with_the_rows(tmp_path):
    """Eight times the rows in as large blocks: what Python and NumPy hold at most does not grow by them, only by some
    numbers for every minibatch."""
    import tracemalloc

    rng = np.random.default_rng(0)
    peaks = []
    for name, rows in (("short", 2_000), ("long", 16_000)):
        parts = (scipy.sparse.random(500, 300, density=0.1, random_state=rng) for _ in range(rows // 500))
        whole = (scipy.sparse.csr_matrix(np.ceil(part.toarray())) for part in parts)
        source = open_blocks(save_blocks(tmp_path / name, whole), block_rows=250)
        method = VariationalEM(guide="vb", batch_size=250, max_iterations=1, search=None)
        model = LDA(num_topics=3, vocabulary_size=300)
        method.fit(model, source, progress=False)  # compiled and loaded
        tracemalloc.start()
        method.fit(model, source, progress=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    more_entries = 14_000 * 300 * 0.1
    assert peaks[1] - peaks[0] < 0.04 * 12 * more_entries  # bytes of a value and its column


def test_interruption_keeps_the_state_so_far(counts):
    class Stopping(_Counted):
        passes = 0

        def __call__(self):
            self.passes += 1
            for number, block in enumerate(super().__call__()):
                if self.passes == 4 and number == 3:  # the first look, two passes, and some of a third
                    raise KeyboardInterrupt
                yield block

    fit = ONLINE.fit(MODEL, RowBlocks(read=Stopping(counts, 10), num_rows=90), progress=False)
    assert fit.status.startswith("interrupted after 2 passes of 90 rows")
    assert len(fit.elbo) == 2
    assert fit.details["rows_seen"][-1] == 210
    whole = ONLINE.fit(MODEL, RowBlocks.of(counts, 10), progress=False)
    # Their blocks lie elsewhere in memory, on which the last digits of sums depend.
    assert fit.details["minibatch_bounds"] == pytest.approx(whole.details["minibatch_bounds"][:21], rel=1e-9)


def test_what_cannot_be_streamed_is_refused(counts):
    source = RowBlocks.of(counts, 30)
    with pytest.raises(MethodError, match="read as they are"):
        VariationalEM(guide="vb").fit(MODEL, source, mask=counts > 0, progress=False)
    with pytest.raises(DataError, match="90 rows together"):
        ONLINE.fit(MODEL, RowBlocks(read=source.read, num_rows=91), progress=False)
    with pytest.raises(DataError, match="num_rows = 0"):
        RowBlocks(read=source.read, num_rows=0)
    with pytest.raises(DataError, match="no counts"):
        ONLINE.fit(MODEL, RowBlocks.of(counts - 0.5, 30), progress=False)


def test_memory_fits_report_what_they_saw(counts):
    fit = replace(ONLINE, shuffle=True).fit(MODEL, counts, progress=False)
    assert fit.details["rows_seen"] == list(range(10, 280, 10))
    assert len(fit.details["minibatch_bounds"]) == 27
    steps = engine_for(MODEL, "vb")
    rows, generator = steps.rows(MODEL, MODEL.prepare(counts)), torch.Generator().manual_seed(0)
    start = steps.initial(MODEL, rows, generator)
    run = run_stepwise(
        steps, MODEL, rows, start, batch_size=10, max_iterations=3, tolerance=1e-5, generator=generator
    )  # fmt: skip
    assert torch.equal(fit.global_posterior["topic"].concentration, run.state.concentration)
