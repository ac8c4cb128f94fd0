"""Block models of small graphs by summing over all K^N labelings of the nodes: exact EM, and the evidence.

    log p(x, z) = sum_i log pi_(z_i) + sum_ab [m_ab(z) A_ab + n_ab(z) B_ab] + terms without z

with A and B of ``likelihoods``. The M step is that of mean field with P(z_i = a, z_j = b) in place of phi_ia phi_jb: it
maximises the expected log joint plus log prior (with propensities it raises it).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.engine import EXACT_UP_TO, EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import LabellingPosterior
from custom_inference.core.states import move_state
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.mean_field import PointBlocks, safe_log
from custom_inference.families.blocks.nodes import Exposures
from custom_inference.families.blocks.rows import BlockCounts, SbmRows
from ppl_models import CapacityError
from ppl_models.block_models import BlockModel
from ppl_models.distributions.labellings import MAX_LABELINGS

#: Bytes of the arrays for labelings that are scored together.
_CHUNK = 2**26
#: log p(x | z, globals) of labelings (C, N, K), one-hot: (C,).
Score = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class AllLabelings(ExactEngine):
    """The exact posterior over the labelings, of which there may be 2^22 at most: that many take seconds.

    max_bytes: memory to use at most; by default half of what is free.

    Raises CapacityError where the labelings are more, or do not fit.
    """

    max_bytes: float | None = None
    #: What to take where they do not.
    instead = "bound='mean_field'"

    @abc.abstractmethod
    def make_score(self, model: BlockModel, params: Params, rows: Any) -> tuple[Tensor, Score]:
        """Return log pi (K,), and a function that scores labelings; differentiable."""

    def feasible(self, model: BlockModel) -> bool:
        """Tell whether there are at most 2^14 labelings."""
        return model.num_nodes * math.log2(model.num_blocks) <= EXACT_UP_TO

    def check(self, model: BlockModel, rows: Any) -> None:
        super().check(model, rows)
        self._require(model, rows)

    def _require(self, model: BlockModel, rows: Any) -> None:
        size, blocks, allowed = len(rows), model.num_blocks, memory_limit(self.max_bytes)
        largest = max((n for n in range(1, 64) if _fits(n, blocks, allowed)), default=1)
        fits = f"with {blocks} blocks up to {largest} nodes fit; for more use {self.instead}"
        what, needed = f"summing over {blocks}^{size} labelings of the nodes", _table_bytes(size, blocks)
        require(what, needed, allowed=allowed, fits=fits)
        if not _fits(size, blocks, allowed):
            most = _table_bytes(largest, blocks)
            message = f"{what} would take minutes, at most 2^{MAX_LABELINGS.bit_length() - 1} are summed over; {fits}"
            raise CapacityError(message, needed_bytes=needed, allowed_bytes=most)

    def _chunks(self, model: BlockModel, rows: Any) -> Iterator[Tensor]:
        """Yield all labelings, (C, N) whole numbers, some at a time; the last node's block changes fastest."""
        size, blocks = len(rows), model.num_blocks
        power = blocks ** torch.arange(size - 1, -1, -1)
        step = max(1, _CHUNK // (8 * size * blocks * 4))
        for first in range(0, blocks**size, step):
            index = torch.arange(first, min(first + step, blocks**size))
            yield index[:, None] // power % blocks

    def table(self, model: BlockModel, params: Params, rows: Any, temperature: float = 1.0) -> Tensor:
        """Compute log p(x, z | params) of all labelings, (K^N,); differentiable."""
        self._require(model, rows)
        log, score = self.make_score(model, params, rows)
        found = []
        for labels in self._chunks(model, rows):
            code = one_hot(labels.to(log.device), model.num_blocks).to(log)
            found.append((code @ log).sum(-1) + temperature * score(code))
        return torch.cat(found)

    def log_evidence(self, model: BlockModel, params: Params, rows: Any) -> Tensor:
        """Compute log p(x | params), (1,)."""
        return self.table(model, params, rows).logsumexp(-1, keepdim=True)

    def e_step(
        self, model: BlockModel, params: Params, rows: Any, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Compute P(z_i = a, z_j = b), (N, K, N, K)."""
        table = self.table(model, params, rows, temperature)
        bound = table.logsumexp(-1, keepdim=True)
        weight, start, pairs = (table - bound).exp(), 0, table.new_zeros(())
        for labels in self._chunks(model, rows):
            code = one_hot(labels.to(table.device), model.num_blocks).to(table).flatten(1)
            pairs = pairs + (weight[start : start + len(labels), None] * code).T @ code
            start += len(labels)
        shape = (len(rows), model.num_blocks) * 2
        return EStep({"pairs": pairs.reshape(shape)}, {}, bound)

    def posterior(self, model: BlockModel, params: Params, rows: Any, step: EStep) -> LabellingPosterior:
        """Return all labelings and their probabilities."""
        table = self.table(model, params, rows)
        labels = torch.cat([labels.to(torch.int8) for labels in self._chunks(model, rows)]).to(table.device)
        return LabellingPosterior(labels, torch.log_softmax(table, -1), torch.tensor(model.num_blocks))


@dataclass(frozen=True, kw_only=True)
class SbmExact(AllLabelings, PointBlocks):
    """Point estimates of the globals."""

    accelerate = "squarem"
    instead = "bound='mean_field', or 'vb'"

    def make_score(self, model: BlockModel, params: Params, rows: SbmRows) -> tuple[Tensor, Score]:
        log, matrix = safe_log(params["block_proportion"]), likelihood_of(model)
        lift, base = matrix.natural(params[matrix.site])
        x, seen = (torch.as_tensor(value).to(log) for value in rows.dense)
        weight, constant = seen, x.new_zeros(())
        if matrix.kind != "bernoulli":
            constant = constant - rows.log_factorials
        if self.nodes(model).sites:
            send, receive = (params[site] for site in model.propensity_sites)
            weight = seen * send[:, None] * receive
            constant = constant + torch.xlogy(x, send[:, None] * receive).sum()

        # Of a labeling as one vector of length N K its score is a quadratic form.
        form = (
            (torch.einsum("ij,ab->iajb", x, lift) + torch.einsum("ij,ab->iajb", weight, base)).flatten(2).flatten(0, 1)
        )

        def score(code: Tensor) -> Tensor:
            """Sum x_ij A_(z_i z_j) + w_ij B_(z_i z_j) over the dyads."""
            flat = code.flatten(1)
            return ((flat @ form) * flat).sum(-1) + constant

        return log, score

    def m_step(self, model: BlockModel, params: Params, step: EStep, rows: SbmRows) -> Params:
        """Update proportions and block matrix; then propensities, and the other two again."""
        pairs, propensities = step.statistics["pairs"].double().numpy(), self.nodes(model)
        best = self.best_sites(model, params, self._counts(model, pairs, params, rows))
        if propensities.sites:
            nodes = propensities.update(best, rows, self._exposures(pairs, rows, self.block_means(model, best)))
            best = self.best_sites(model, nodes, self._counts(model, pairs, nodes, rows))
        return move_state(best, rows.like)

    def best(self, model: BlockModel, nodes: Params, counts: BlockCounts, responsibility: Tensor) -> Params:
        return self.best_sites(model, nodes, counts)

    def _counts(self, model: BlockModel, pairs: np.ndarray, nodes: Params, rows: SbmRows) -> BlockCounts:
        ends, (x, seen) = self.nodes(model).weights(nodes, rows).ends, rows.dense
        both = [np.einsum("ij,iajb->ab", value, pairs) for value in (x, seen * ends[0][:, None] * ends[-1])]
        if not rows.directed:  # x and seen hold every dyad once, above the diagonal or on it
            both = [value + value.T - np.diag(np.diag(value)) for value in both]
        return BlockCounts(both[0], both[1], np.einsum("iaia->a", pairs))

    def _exposures(self, pairs: np.ndarray, rows: SbmRows, matrix: np.ndarray) -> Exposures:
        expected = rows.dense[1] * np.einsum("iajb,ab->ij", pairs, matrix)
        own = np.diag(expected)
        apart = expected - np.diag(own)
        if not rows.directed:
            apart = apart + apart.T
        return Exposures(lambda mean, outgoing: (apart if outgoing else apart.T) @ mean, own)


def _fits(num_nodes: int, num_blocks: int, allowed: float) -> bool:
    few = num_nodes * math.log2(num_blocks) <= math.log2(MAX_LABELINGS) + 1e-9
    return few and _table_bytes(num_nodes, num_blocks) <= allowed


def _table_bytes(num_nodes: int, num_blocks: int) -> float:
    """Return the bytes of the labelings and their places in a table, and of some numbers for each."""
    if num_nodes * math.log2(num_blocks) > 1000:  # no floating-point number
        return math.inf
    return float(num_blocks) ** num_nodes * (17 * num_nodes + 32)
