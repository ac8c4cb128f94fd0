"""Collapsed variational Bayes of mixed memberships."""

import numpy as np
import pytest
import torch

from custom_inference import VariationalEM
from custom_inference.core.registry import engine_for
from ppl_models import MMSB, CapacityError
from tests.families.memberships.vb_test import ALPHA, KINDS, PRIOR, RHO_PRIOR, SPARSITIES, problem
from tests.references import _graphs, mmsb_integrated

pytestmark = pytest.mark.quick


@KINDS
@SPARSITIES
def test_collapsed_tables_are_the_conditionals_at_the_counts_of_the_others(directed, self_loops, sparsity, monkeypatch):
    from custom_inference.families.memberships import cvb0 as mmsb_cvb0

    monkeypatch.setattr(mmsb_cvb0, "_REFRESHES", 1)
    model, x, mask, data = problem(5, directed=directed, self_loops=self_loops, sparsity=sparsity)
    steps = engine_for(model, "cvb0")
    rows = steps.rows(model, data)
    start = steps.initial(model, rows, torch.Generator().manual_seed(0))
    first = steps.e_step(model, start, rows)
    second = steps.e_step(model, steps.m_step(model, start, first, rows), rows, first.locals)
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    tables, expected, total = first.locals["table"].numpy(), [], 0.0
    for at in range(len(i)):
        others = np.arange(len(i)) != at
        members = mmsb_integrated.member_sums(tables[others], None, i[others], j[others], 5) + ALPHA
        cells = [PRIOR[one] + np.einsum("e,eab->ab", values[others] == 1 - one, tables[others]) for one in (0, 1)]
        if not directed:
            cells = [one + one.T - np.diag(np.diag(one)) - PRIOR[n] * (1 - np.eye(2)) for n, one in enumerate(cells)]
        far, near = (0.0, 1.0) if sparsity == 0.0 else (0.3, 0.7)
        if sparsity is None:
            drawn = tables[others].sum()
            far, near = RHO_PRIOR[0] + others.sum() - drawn, RHO_PRIOR[1] + drawn
            far, near = far / (far + near), near / (far + near)
        ends = [members[end[at]] / members[end[at]].sum() for end in (i, j)]
        weight = near * np.outer(*ends) * cells[0 if values[at] else 1] / (cells[0] + cells[1])
        mass = weight.sum() + (far if values[at] == 0 else 0.0)
        expected.append(weight / mass)
        total += np.log(mass)
    np.testing.assert_allclose(second.locals["table"].numpy(), np.array(expected), atol=1e-12)
    assert float(second.bound) == pytest.approx(total, abs=1e-10)


def test_monks(real_data):
    """Sampson's monks: three groups from every seed, and the waverer between two of them (Fig. 27.22)."""
    archive = np.load(real_data / "sampson" / "sampson.npz")
    names, group = archive["relation_names"].tolist(), archive["group3"]
    for x in (archive["relations"][names.index("SAMPLK3")] > 0, archive["liking_any"]):
        model = MMSB(num_blocks=3, num_nodes=18)
        for seed in range(3):
            fit = VariationalEM(guide="cvb0").fit(model, x.astype(float), seed=seed, progress=False)
            label = fit.params["membership"].argmax(1).numpy()
            assert len(set(zip(label, group, strict=True))) == 3
        waverer = fit.params["membership"][archive["names"].tolist().index("Amand")]
        assert 0.4 < float(waverer.max()) < 0.8


def test_collapsed_refuses_what_does_not_fit():
    model, _, _, data = problem(30, directed=True)
    steps = engine_for(model, "cvb0", max_bytes=1e4)
    with pytest.raises(CapacityError, match="a table for each dyad of 30 nodes"):
        steps.check(model, steps.rows(model, data))
