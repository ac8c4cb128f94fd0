"""Programs of small graphs by summing over all labellings of the nodes: exact EM, and the evidence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.compiled.graphs.engine import DyadEngine
from custom_inference.compiled.graphs.rows import DyadRows, Floats
from custom_inference.compiled.graphs.sweep import DyadTables
from custom_inference.core.engine import EStep, Params
from custom_inference.families.blocks.exact import AllLabelings, Score
from ppl_models import GraphModel


@dataclass(frozen=True, kw_only=True)
class DyadExact(AllLabelings, DyadEngine):
    """Point estimates of the globals, the labels summed out."""

    accelerate = "squarem"

    def make_score(self, model: GraphModel, params: Params, rows: DyadRows) -> tuple[Tensor, Score]:
        """Return no log p of labels by themselves, as nodes may differ, and a function that scores labellings."""
        structure, size = rows.structure, len(rows)
        natural, labels = structure.look_up({site: value.cpu().double() for site, value in params.items()})
        labels, at = labels.expand(size, -1), DyadTables.at(rows, params)
        form = torch.einsum("ijf,abf->iajb", _weigh(rows, at.weight), natural).flatten(2).flatten(0, 1)

        def score(code: Tensor) -> Tensor:
            """Sum log p of the labels (C, N, K), and of the dyads, as a quadratic form of one vector of length N K."""
            own = code.flatten(1)
            return (code * labels).sum((-2, -1)) + ((own @ form) * own).sum(-1) + rows.offset + at.constant

        return natural.new_zeros(model.num_blocks), score

    def m_step(self, model: GraphModel, state: Params, step: EStep, rows: DyadRows) -> Params:
        pairs = step.statistics["pairs"].double()
        own, labelled = rows.structure.propensities, pairs.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1)

        def refit(found: Params) -> Params:
            dense = _weigh(rows, own.weights(found, len(rows)))
            return self.best(model, found, labelled, torch.einsum("ijf,iajb->abf", dense, pairs), rows)

        values = refit(state)
        if not own.ends:
            return values
        values = {site: value.double() for site, value in values.items()}
        rates = torch.as_tensor(DyadTables.at(rows, values).natural[0]).exp()
        expected = (rows.dense[..., 1] * torch.einsum("iajb,ab->ij", pairs, rates)).numpy()
        moved = own.update(
            model, values, rows.degrees, lambda number, side: (expected.T if side else expected) @ number
        )
        return refit(moved)

    def from_responsibilities(self, model: GraphModel, responsibility: Tensor, rows: DyadRows) -> Params:
        return self.start_at(model, responsibility, rows)


def _weigh(rows: DyadRows, weight: Floats) -> Tensor:
    """The features (N, N, F) of the dyads, exposures those of the weights (2, N) of their nodes."""
    if not rows.structure.propensities.ends:
        return rows.dense
    found = rows.dense.clone()
    found[..., 1] *= torch.as_tensor(weight[0, :, None] * weight[1])
    return found
