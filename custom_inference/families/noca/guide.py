"""NOCA's own guide: the factorized variational posterior of Singliar & Hauskrecht (2006), section 2.2, with per-datum
q.

Every observed x_nj = 1, and only those, carries a distribution q_nj over the sources: an (E, K) tensor of simplex
rows. Q(s_n) follows from q and the globals in closed form (eq. 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro import poutine
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.engine import Engine
from custom_inference.core.guide import Globals, Guide
from custom_inference.families.noca.factorized import FeatureLinks, NocaFactorized
from custom_inference.families.rows.matrix import BinaryRows
from custom_inference.svi.guides.protocol import DerivedBound, LocalGuide
from ppl_models import NOCA, Data, MethodError, Model
from ppl_models.distributions import BernoulliVector


@dataclass(frozen=True, kw_only=True)
class FactorizedNoisyOr(Guide):
    """The paper's guide. In VariationalEM: closed-form updates (Fig. 2). In SVI: q as simplex parameters.

    inner_steps: alternations of Q and q per E step.
    start: where the q of a row begins: "codes" (its likely codes) or "prior" (the same for every row, the paper's).
    """

    inner_steps: int = 5
    start: str = "codes"
    name: ClassVar[str] = "factorized"
    enumerates: ClassVar[bool] = False

    def engine(self, model: Model) -> Engine:
        _require_noca(model)
        return NocaFactorized(inner_steps=self.inner_steps, start=self.start)

    def __post_init__(self) -> None:
        if self.start not in ("codes", "prior") or self.inner_steps < 1:
            found = f"start = {self.start!r}, inner_steps = {self.inner_steps}"
            raise MethodError(f'{found}; expected start "codes" or "prior" and inner_steps from 1')

    def bind(
        self, model: Model, data: Data, *, globals_: Globals = "delta", init: dict[str, Tensor] | None = None
    ) -> FactorizedNoisyOrGuide:
        _require_noca(model)
        return FactorizedNoisyOrGuide(model, data, globals_, init)


def _require_noca(model: Model) -> None:
    if not isinstance(model, NOCA):
        raise MethodError(f"FactorizedNoisyOr is a guide for NOCA, not for {type(model).__name__}")


class FactorizedPosterior(BernoulliVector):
    """Q(s) of eq. 5 for a batch of rows, carrying what the bound F needs: the batch's rows and gains g_i(q)."""

    def __init__(self, probs: Tensor, rows: BinaryRows, gain: Tensor):
        super().__init__(probs)
        self.rows, self.gain = rows, gain


class FactorizedNoisyOrGuide(LocalGuide):
    """A plain Pyro guide for ``pyro.infer.SVI``.

    Works with Trace_ELBO, TraceEnum_ELBO and TraceGraph_ELBO on the true ELBO of Q, and with
    :class:`FactorizedBound` on F of eq. 7.
    """

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__(model, data, globals_, init)
        rows = BinaryRows.of(data)
        row, _ = rows.nonzero
        # Where the ones of row n start in q: subsampling picks whole rows.
        per_row = torch.bincount(row, minlength=len(data))
        self.register_buffer("first", torch.cat([per_row.new_zeros(1), per_row.cumsum(0)]))
        start = torch.full((len(row), self.num_bits), 1.0 / self.num_bits).to(data.x)
        self.q: Any = PyroParam(start, constraint=constraints.simplex)
        self._steps, self.own_loss = NocaFactorized(), FactorizedBound

    def _entries(self, index: Tensor) -> Tensor:
        """Return the positions in q of the ones of the chosen rows, in the order of ``x[index].nonzero()``."""
        first, count = self.first[index], self.first[index + 1] - self.first[index]
        start = torch.repeat_interleave(first - (count.cumsum(0) - count), count)
        return start + torch.arange(len(start), device=index.device)

    def local_distribution(
        self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]
    ) -> FactorizedPosterior:
        rows = BinaryRows.of(Data(x=x[index], mask=None if mask is None else mask[index]))
        gain, _ = FeatureLinks.of(params, rows).gain(self.q[self._entries(index)])
        probs = self._steps.source_mean(params, rows, gain)
        return FactorizedPosterior(probs.clamp(1e-12, 1 - 1e-12), rows, gain)


class FactorizedBound(DerivedBound):
    """F of eq. 7 (with errata) plus the log prior of the globals, as a Pyro loss (negative, minimised).

    Deterministic given the minibatch: no sampling of the sources, gradients for q and the globals by autograd.
    Needs a :class:`FactorizedNoisyOr` guide.
    """

    def _get_trace(self, model: Any, guide: Any, args: tuple, kwargs: dict) -> tuple[Any, Any]:
        """Return traces of the guide, and of the model's globals at the guide's values."""
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
        only_globals = poutine.block(poutine.replay(model, trace=guide_trace), hide=["source", "x", "data"])
        return poutine.trace(only_globals).get_trace(*args, **kwargs), guide_trace

    def particle(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Tensor:
        model_trace, guide_trace = self._get_trace(model, guide, args, kwargs)
        site = guide_trace.nodes.get("source", {})
        posterior = site.get("fn")
        if not isinstance(posterior, FactorizedPosterior):
            raise MethodError("FactorizedBound needs the guide FactorizedNoisyOr().bind(model, data)")
        params = {name: node["value"] for name, node in model_trace.nodes.items() if node["type"] == "sample"}
        bound = NocaFactorized().bound(params, posterior.rows, posterior.gain, posterior.probs)
        log_q = guide_trace.log_prob_sum(lambda name, _: name in params)
        return log_q - model_trace.log_prob_sum() - site["scale"] * bound.sum()
