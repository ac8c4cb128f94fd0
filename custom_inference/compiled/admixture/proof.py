"""The proof that the words of rows are the program of shares, made whenever rows are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributions

from custom_inference.compiled.admixture.reader import admixture_of
from custom_inference.compiled.admixture.rows import ENTRIES, AdmixtureRows, bind_words
from custom_inference.compiled.admixture.structure import AdmixtureStructure
from custom_inference.compiled.reading import NotCompiled
from custom_inference.core.programs.density import RowDensity
from ppl_models import Data, Model

#: Rows that are looked at, at most, and by how much log joints may differ.
_PROVED, _DIFFER = 4096, 1e-7


def read_rows(model: Model, data: Data) -> AdmixtureRows:
    """Read rows in double precision, and prove that the structure is the program's own on some of them.

    Raises NotCompiled where the program has no such structure.
    """
    dense = model.as_read(data).dense().to(dtype=torch.float64)
    structure = admixture_of(model, dense)
    rows = bind_words(structure, dense)
    _prove(structure, rows, dense)
    return rows


def _prove(structure: AdmixtureStructure, rows: AdmixtureRows, data: Data) -> None:
    """Compare the log joint of some rows with the program's own, at random values of everything."""
    probe, widest = structure.probe, sum(len(one.cell) * one.law.width for one in structure.observed)
    most = min(len(rows), _PROVED, max(2, ENTRIES // max(1, widest)))
    index = torch.linspace(0, len(rows) - 1, most).long().unique()
    some, params = rows.select(index), probe.draw_globals()
    drawn = torch.rand(len(index), structure.size, generator=probe.generator, dtype=torch.float64) + 0.1
    share = drawn / drawn.sum(-1, keepdim=True) if structure.rate is None else drawn
    sizes = torch.tensor(structure.variables.sizes, dtype=torch.float64)
    chosen = (torch.rand(len(index), len(sizes), generator=probe.generator, dtype=torch.float64) * sizes).long()
    program = RowDensity(probe.model, params, data.rows(index), structure.layout, structure.variables.plates)
    with torch.no_grad():
        expected = program(structure.code_of(share, chosen)[None])[0]
        found = log_joint(some, params, share, chosen)
    if not bool(((found - expected).abs() <= _DIFFER * (1 + expected.abs())).all()):
        worst = int((found - expected).abs().argmax())
        raise NotCompiled(
            f"{type(structure.model).__name__} is not compiled: its words are not the program: log p of row "
            f"{int(index[worst])} is {float(expected[worst]):.6g}, not {float(found[worst]):.6g}"
        )


def log_joint(rows: AdmixtureRows, params: Mapping[str, Tensor], share: Tensor, chosen: Tensor) -> Tensor:
    """Return log p (N,) of rows at theta (N, K), at the numbers (N, V) of their choices' values, and at globals."""
    structure = rows.structure
    flat = structure.entries.flatten(params)
    values = [one.block.natural(flat)[0] for one in (*structure.observed, *structure.responses)]
    score, counts, size = rows.scores(values), rows.counts.to_dense(), structure.size
    total = prior_of(structure).log_prob(share) + rows.offset - (share * rows.exposure(values)).sum(-1)
    if len(structure.variables):
        total = total + share.log().gather(1, chosen).sum(-1)
        shown = torch.cat([score, score.new_zeros(len(score), 1)], 1)
        total = total + shown[chosen, rows.token].sum(-1)
        counts = counts.index_fill(1, rows.token[rows.token >= 0].unique(), 0.0)
    for one, answer, natural in zip(structure.responses, rows.answers, values[len(structure.observed) :], strict=True):
        weight = torch.nn.functional.one_hot(chosen, size).double().mean(1) if one.of_choices else share
        total = total + (one.law.expect(answer, weight, 0.0) * natural[0]).sum((-1, -2))
    return total + (counts * torch.logsumexp(share.log().unsqueeze(-1) + score, 1)).sum(-1)


def prior_of(structure: AdmixtureStructure) -> Any:
    """Return the law of theta."""
    if structure.rate is None:
        return distributions.Dirichlet(structure.shape)
    return distributions.Independent(distributions.Gamma(structure.shape, structure.rate), 1)
