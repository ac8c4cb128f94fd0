"""A part of linked documents, or these in another order, has the links among them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from custom_inference import fit
from ppl_models import RTM
from ppl_models.data import sparse

EXAMPLE = RTM.example()


def as_array(links):
    return links.to_dense().numpy() if sparse.is_sparse(links) else links.numpy()


def prepared(kind):
    x, links = EXAMPLE.data.x.numpy(), EXAMPLE.data.others["links"].numpy()
    given = {"dense": links, "sparse": scipy.sparse.csr_array(links), "pairs": np.argwhere(np.triu(links))}[kind]
    return EXAMPLE.model.prepare(x, links=given), links


@pytest.mark.parametrize("kind", ["dense", "sparse", "pairs"])
def test_rows_take_the_links_among_them(kind):
    data, links = prepared(kind)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    for index in (order, order[:9], slice(3, 12)):
        some, at = data.rows(index), np.arange(len(data))[index]
        assert np.array_equal(as_array(some.others["links"]), links[np.ix_(at, at)])
        assert torch.equal(sparse.select_rows(data.x, index), some.x)
        again = EXAMPLE.model.prepare(some).rows(torch.tensor([1, 0]))
        assert np.array_equal(as_array(again.others["links"]), links[np.ix_(at[[1, 0]], at[[1, 0]])])


def test_links_to_other_documents_stay_with_their_rows():
    x, links = EXAMPLE.data.x[:4], EXAMPLE.data.others["links"][:4]
    data = EXAMPLE.model.prepare_new(x, EXAMPLE.data, links=links.numpy())
    assert torch.equal(data.rows(torch.tensor([2, 0])).others["links"], links[[2, 0]].to(data.x))


def test_the_likelihood_does_not_depend_on_the_order():
    import pyro
    from pyro import poutine

    data, _ = prepared("dense")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    values = {site: EXAMPLE.truth[site].to(data.x) for site in ("topic", "link_weight", "link_bias")}
    found = []
    for at in (torch.arange(len(data)), order):
        some = data.rows(at)
        local = {site: EXAMPLE.truth[site].to(data.x)[at] for site in ("topic_proportion", "topic_share")}
        program = pyro.condition(EXAMPLE.model, data={**values, **local})
        trace = poutine.trace(program).get_trace(some.x, links=some.others["links"])
        trace.compute_log_prob()
        found.append(trace.nodes["links"]["log_prob_sum"])
    torch.testing.assert_close(found[0], found[1])


def test_fits_in_another_order_are_the_same():
    data, _ = prepared("sparse")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(2))
    ends = [float(fit(EXAMPLE.model, one, progress=False).elbo[-1]) for one in (data, data.rows(order))]
    assert ends[0] == pytest.approx(ends[1], rel=2e-2)
