"""Sums over the zeros of a graph, compiled and by dense products, against a loop over all dyads."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from custom_inference.families.memberships.dyads import Dyads, _sum_zeros_by_products, _sum_zeros_compiled
from custom_inference.families.rows.graph import GraphRows
from ppl_models import MMSB, GraphData, graph

SIZE, BLOCKS, REST = 70, 3, 0.05


def make_graph(directed: bool, loops: bool, size: int = SIZE) -> GraphData:
    rng = np.random.default_rng(0)
    x = (rng.random((size, size)) < 0.1).astype(float)
    mask = rng.random((size, size)) > 0.05
    if not directed:
        x, mask = np.triu(x) + np.triu(x, 1).T, np.triu(mask) | np.triu(mask, 1).T
    if not loops:
        np.fill_diagonal(x, 0)
    return graph(x, directed=directed, self_loops=loops, mask=mask)


def read_dyads(data: GraphData) -> Dyads:
    return Dyads.of(GraphRows.of(MMSB.for_data(data, BLOCKS), data))


def sum_by_loop(data: GraphData, share: np.ndarray, left: np.ndarray) -> list[np.ndarray]:
    dense = data.dense()
    x, seen = dense.x.numpy(), np.ones((SIZE, SIZE), bool) if dense.mask is None else dense.mask.numpy().copy()
    if not data.self_loops:
        np.fill_diagonal(seen, False)
    out, into, logs, weight = np.zeros_like(share), np.zeros_like(share), 0.0, 0.0
    for i, j in product(range(SIZE), repeat=2):
        if x[i, j] or not seen[i, j] or (j < i and not data.directed):
            continue
        z = REST + left[i] @ share[j]
        out[i] += share[j] / z
        into[j] += share[i] / z
        logs, weight = logs + np.log(z), weight + 1 / z
    return [out, into, np.array(logs), np.array(weight)]


@pytest.mark.parametrize(("directed", "loops"), [*product((False, True), repeat=2)])
@pytest.mark.parametrize("scale", [1.0, 1e-80])
def test_sums_over_zeros_are_those_of_a_loop(directed, loops, scale):
    data, generator = make_graph(directed, loops), torch.Generator().manual_seed(0)
    share, table = (torch.rand(n, BLOCKS, generator=generator, dtype=torch.float64) for n in (SIZE, BLOCKS))
    left, rows = share @ table, read_dyads(data)
    out, into, logs, weight = sum_by_loop(data, share.numpy(), left.numpy())
    wanted = out / scale, into / scale, logs + rows.num_zeros * np.log(scale), weight / scale
    for by in (_sum_zeros_compiled, _sum_zeros_by_products):
        found = by(rows, share, scale * left, scale * REST)
        assert all(np.allclose(one.numpy(), other, rtol=1e-9) for one, other in zip(found, wanted, strict=True))


def test_more_columns_than_are_summed_over_at_a_time():
    size = 2100
    rows, generator = read_dyads(make_graph(False, True, size)), torch.Generator().manual_seed(0)
    share = torch.rand(size, BLOCKS, generator=generator, dtype=torch.float64)
    found, wanted = (by(rows, share, share, REST) for by in (_sum_zeros_compiled, _sum_zeros_by_products))
    assert all(torch.allclose(one, other, rtol=1e-9) for one, other in zip(found, wanted, strict=True))
