"""The problems of the benchmark of fits from disk, and what it measures of a fit."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.speed import streaming
from benchmarks.speed._stream_problem import CASES, documents, images, write
from benchmarks.speed._stream_worker import measured
from ppl_models import row_blocks


def test_rows_are_drawn_as_said():
    found = documents(30, 1)
    assert found.shape == (30, 2000) and (found.sum(1) == 100).all()
    x = images(400, 1)
    assert x.shape == (400, 64) and set(np.unique(x)) == {0.0, 1.0}


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_files_hold_the_same_rows_and_fits_are_measured(tmp_path):
    case = replace(CASES["mixture"], rows=120, block_rows=50)
    files = write(case, 120, tmp_path)
    whole = [case.whole(row_blocks(path, block_rows=50)) for path in files.values()]
    np.testing.assert_array_equal(whole[0], whole[1])
    each = {kind: {120: measured(case, path, False)} for kind, path in files.items()}
    each["in memory"] = {120: measured(case, files["npy"], True)}
    assert all(found[120]["rows"] == 120 and found[120]["passes"] == 3 for found in each.values())
    memory, speed = streaming.tables({"mixture": each})
    assert len(memory.rows) == len(speed.rows) == 3
    assert CASES["lda_online"].passes(3) == 4
