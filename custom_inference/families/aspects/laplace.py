"""The aspect Bernoulli model with memberships under any prior: E steps of ``common.laplace``, the M step of Beta modes.

A draw of feature t that came out 1 is a token of word t, whose probability in aspect k is a_kt, and one that came out 0
a token of word D + t, with 1 - a_kt: p(x_n | s_n, a) is then that of documents (Bingham et al. 2007, eqs. 10-11).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.aspects.engines import AspectMarginal
from custom_inference.families.common.laplace import LaplaceMemberships
from custom_inference.families.rows.counts import CountRows
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import AspectBernoulli, Data, Model
from ppl_models.data import sparse


class TokenRows(CountRows):
    """Counts of ones and zeros that are also read as documents."""

    @cached_property
    def tokens(self) -> DocumentRows:
        """Counts (N, 2 D): the ones of every feature, then the zeros."""
        ones = sparse.dense(self.ones)
        zeros = self.total_count - ones
        if self.mask is not None:
            zeros = zeros.masked_fill(~self.mask, 0.0)
        return DocumentRows(sparse.from_dense(torch.cat([ones, zeros], 1)))


@dataclass(frozen=True, kw_only=True)
class AspectLaplace(LaplaceMemberships, AspectMarginal):
    """A Gaussian of stick-breaking coordinates a row, the aspects as points."""

    def rows(self, model: AspectBernoulli, data: Data) -> TokenRows:
        return TokenRows.of(data, model.total_count)

    def alpha(self, model: Model, like: Tensor) -> Tensor:
        """(K,): a flat Dirichlet's, where one is asked for, whatever the prior is."""
        return like.new_ones(model.local_shape)

    def check(self, model: Model, rows: CountRows) -> None:
        super().check(model, rows)
        self.check_local_prior(model, rows.log_coefficient)

    def e_step(
        self, model: Model, params: Params, rows: TokenRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        a = params["aspect_probability"]
        counts, locals_, bound = self.infer_memberships(model, rows.tokens, torch.cat([a, 1 - a], 1), warm, temperature)
        on, off = counts.chunk(2, 1)
        return EStep({"on": on, "off": off}, locals_, bound + rows.log_coefficient)
