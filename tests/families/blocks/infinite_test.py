"""The infinite block model: the Chinese restaurant process by many blocks, and the number of blocks in use."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from custom_inference import CollapsedGibbs
from custom_inference.families.blocks.gibbs import BlockChain
from custom_inference.families.rows.graph import GraphRows
from ppl_models import InfiniteSBM, ModelError
from tests.references import infinite_sbm
from tests.support.sbm_cases import planted


def test_partitions_are_those_of_the_chinese_restaurant():
    """p(number of blocks) of 200 blocks with Dirichlet(c / 200, ...) against the process, no edges counted."""
    size, blocks, c = 5, 200, 1.3
    every = infinite_sbm.partitions(size)
    assert len(every) == 52
    direct = np.array([infinite_sbm.log_restaurant(one, c) for one in every])
    assert np.exp(direct).sum() == pytest.approx(1)
    model = InfiniteSBM(num_nodes=size, num_blocks=blocks, concentration=c)
    alpha = model.priors["block_proportion"].concentration.double()
    for one, value in zip(every, direct, strict=True):
        counts = torch.bincount(torch.tensor(one), minlength=blocks)
        found = torch.lgamma(alpha.sum()) - torch.lgamma(alpha.sum() + size)
        found = found + (torch.lgamma(alpha + counts) - torch.lgamma(alpha)).sum()
        used = int((counts > 0).sum())
        ways = float(np.log(np.arange(blocks, blocks - used, -1)).sum())
        assert float(found) + ways == pytest.approx(value, abs=0.06)


@pytest.mark.parametrize("directed", [True, False])
def test_draws_of_partitions_against_all_of_them(directed):
    """Split-merge moves and single nodes, many more blocks than nodes: co-assignment and the number of blocks."""
    rng = np.random.default_rng(3)
    x = (rng.random((6, 6)) < 0.45).astype(float)
    x = x - np.diag(np.diag(x)) if directed else np.triu(x, 1) + np.triu(x, 1).T
    every, share = infinite_sbm.partition_posterior(x, 1.0, directed=directed)
    model = InfiniteSBM(num_nodes=6, num_blocks=60, directed=directed)
    rows = GraphRows.of(model, model.prepare(torch.as_tensor(x)))
    chain, draws = BlockChain(model, rows, seed=1), []
    for _ in range(2500):
        chain.sweep()
        draws.append(chain.indicators().numpy())
    found, labels = np.stack(draws)[200:], np.array(every)
    used = np.array([len(set(one)) for one in every])
    drawn = np.array([len(set(one)) for one in found.tolist()])
    for number in range(1, 7):
        assert (drawn == number).mean() == pytest.approx(share[used == number].sum(), abs=0.05)
    together = (found[:, :, None] == found[:, None]).mean(0)
    exact = np.einsum("c,cij->ij", share, (labels[:, :, None] == labels[:, None]).astype(float))
    np.testing.assert_allclose(together, exact, atol=0.05)


def test_the_number_of_blocks_is_found():
    matrix = np.full((3, 3), 0.05) + 0.45 * np.eye(3)
    x, block = planted(matrix, [20, 15, 15], 0, directed=False)
    model = InfiniteSBM(num_nodes=50, num_blocks=10, directed=False)
    fit = CollapsedGibbs(num_samples=30, warmup=30, chains=2).fit(model, x, seed=0, progress=False)
    assert adjusted_rand_score(block, fit.params["block"]) > 0.9
    assert fit.draws is not None
    used = [len(one.unique()) for one in fit.draws["block"].reshape(-1, 50)]
    assert np.median(used) in (3, 4)


def test_a_concentration_that_is_not_positive_is_refused():
    with pytest.raises(ModelError, match="concentration"):
        InfiniteSBM(num_nodes=5, concentration=0.0)
