"""Graphs whose edges have real weights: which model reads them, and that the others say so."""

from __future__ import annotations

import numpy as np
import pytest

from custom_inference import fit
from ppl_models import IRM, SBM, DataError, PoissonSBM, relations

BLOCK = np.repeat([0, 1], 8)
MEANS = np.array([[2.0, -1.0], [-1.0, 1.0]])
WEIGHTS = np.random.default_rng(0).normal(MEANS[BLOCK][:, BLOCK], 0.3)


@pytest.mark.parametrize("weights", [WEIGHTS, np.abs(WEIGHTS)])
@pytest.mark.parametrize("kind", [SBM, PoissonSBM])
def test_real_weights_are_refused_with_the_model_that_reads_them(kind, weights):
    with pytest.raises(DataError, match="IRM: relations"):
        kind(num_blocks=2, num_nodes=16, directed=True).prepare(weights)


def test_counts_are_pointed_to_models_of_counts_alone():
    counts = np.round(np.abs(WEIGHTS)) + 2
    np.fill_diagonal(counts, 0)
    with pytest.raises(DataError, match="PoissonSBM") as refused:
        SBM(num_blocks=2, num_nodes=16, directed=True).prepare(counts)
    assert "IRM" not in str(refused.value)


def test_blocks_and_means_of_real_weights():
    """The planted blocks, and of each pair the mean of its cells, but for the prior's pull."""
    edges = relations({"trade": WEIGHTS}, {"trade": ("country", "country")})
    found = fit(IRM.for_data(edges, num_components=2), edges, progress=False)
    cluster = found.params["cluster_country"].numpy()
    assert len({*zip(cluster.tolist(), BLOCK.tolist(), strict=True)}) == 2
    cells = WEIGHTS[np.ix_(cluster == 0, cluster == 1)]
    assert float(found.params["edge_mean_trade"][0, 1]) == pytest.approx(cells.mean(), abs=0.03)
