"""What the benchmark of fits from disk fits, to which rows, and the files that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

from custom_inference import EM, VariationalEM
from ppl_models import CVQ, LDA, NOCA, MixtureOfBernoullis, Model, RowBlocks, save_blocks

#: Iterations of EM, or passes of minibatches, that are timed.
PASSES = 3


@dataclass(frozen=True)
class Case:
    """A model, how it is fitted, and what draws rows for it."""

    title: str
    model: Model
    method: VariationalEM
    draw: Callable[[int, int], Any]
    rows: int
    block_rows: int

    def fit(self, data: Any, passes: int) -> Any:
        settings: dict[str, Any] = {"max_iterations": passes, "tolerance": 1e-12, "search": None, "accelerate": None}
        kind = type(self.method)
        method = kind(guide=self.method.guide, batch_size=self.method.batch_size, **settings)
        return method.fit(self.model, data, progress=False)

    def passes(self, iterations: int) -> int:
        """Over all rows; stepwise EM looks at them once more at the end."""
        return iterations + (self.method.batch_size is not None)

    @staticmethod
    def whole(source: RowBlocks) -> Any:
        """All rows in memory."""
        blocks = list(source)
        if scipy.sparse.issparse(blocks[0]):
            return scipy.sparse.vstack(blocks, format="csr")
        return np.concatenate(blocks)


def images(rows: int, seed: int) -> np.ndarray:
    """0/1 rows of 64 pixels: eight patterns of 12 pixels, switched on independently, and noise."""
    rng = np.random.default_rng(seed)
    pattern = np.zeros((8, 64))
    for k in range(8):
        pattern[k, np.random.default_rng(k).choice(64, 12, replace=False)] = 1
    on = (rng.random((rows, 8)) < 0.2).astype(float) @ pattern > 0
    return (on ^ (rng.random((rows, 64)) < 0.02)).astype(np.float64)


def reals(rows: int, seed: int) -> np.ndarray:
    """Sums of eight patterns, with noise."""
    return images(rows, seed) + 0.3 * np.random.default_rng(seed).normal(size=(rows, 64))


def documents(rows: int, seed: int) -> scipy.sparse.csr_matrix:
    """100 tokens a document of 2000 words, from 20 topics."""
    topic = np.random.default_rng(0).dirichlet(np.full(2000, 0.05), 20)
    rng = np.random.default_rng(seed)
    mixed = rng.dirichlet(np.full(20, 0.1), rows) @ topic
    # Words by the inverse of their distribution function, known at every 20th word.
    tenth = (rng.random((rows, 100, 1)) > mixed.cumsum(-1)[:, None, 19:-1:20]).sum(-1)
    word = 20 * tenth + rng.integers(0, 20, (rows, 100))
    row = np.repeat(np.arange(rows), 100)
    values = (np.ones(row.size), (row, word.ravel()))
    return scipy.sparse.csr_matrix(values, shape=(rows, 2000))


_LDA = LDA(num_topics=20, vocabulary_size=2000).with_concentration(alpha=0.1, gamma=0.05)

CASES = {
    "lda": Case("LDA, variational Bayes", _LDA, VariationalEM(guide="vb"), documents, 1000, 500),
    "lda_online": Case(
        "LDA, online variational Bayes", _LDA, VariationalEM(guide="vb", batch_size=250), documents, 1000, 500
    ),
    "noca": Case("NOCA, exact EM", NOCA(num_components=8, num_features=64), EM(), images, 8000, 2000),
    "cvq": Case(
        "CVQ, mean field", CVQ(num_components=8, num_features=64), VariationalEM(guide="mean_field"), reals, 4000, 2000
    ),
    "mixture": Case(
        "Mixture of Bernoullis, exact EM", MixtureOfBernoullis(num_components=8, num_features=64), EM(), images, 16_000,
        2000,
    ),
}  # fmt: skip


def write(case: Case, rows: int, folder: Path) -> dict[str, Path]:
    """The rows as files of every format that suits them; written and drawn block by block."""
    name = f"{case.draw.__name__}_{rows}_{case.block_rows}"
    starts = range(0, rows, case.block_rows)

    def blocks() -> Iterator[Any]:
        return (case.draw(min(case.block_rows, rows - start), 1 + start) for start in starts)

    if case.draw is documents:
        target = folder / f"{name}_blocks"
        return {"saved blocks": target if target.is_dir() else save_blocks(target, blocks())}
    found = {"npy": folder / f"{name}.npy", "Parquet": folder / f"{name}.parquet"}
    if not found["npy"].is_file():
        whole = np.lib.format.open_memmap(found["npy"], "w+", np.float64, (rows, 64))
        for start, block in zip(starts, blocks(), strict=True):
            whole[start : start + len(block)] = block
        whole.flush()
        frame = pd.DataFrame(np.load(found["npy"], mmap_mode="r")).rename(columns=str)
        frame.to_parquet(found["Parquet"], row_group_size=case.block_rows)
    return found
