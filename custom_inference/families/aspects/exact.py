"""The aspect Bernoulli model with the memberships integrated out exactly: evidence, posterior and EM.

Given s_n the draws of a row are independent, with b_ik = a_kt for a 1 of feature t and 1 - a_kt for a 0 (001, eqs. 4
and 10-11): ``_polynomial`` integrates their product. A missing entry is a draw that the row does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.capabilities import Exact
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletMixture
from custom_inference.families.aspects.marginal import AspectMarginal
from custom_inference.families.common import polynomial as _polynomial
from custom_inference.families.common.counts import CountRows
from custom_inference.families.common.polynomial import BLOCK_ENTRIES, num_states, num_terms
from ppl_models import Model

#: Up to this many numbers a row the exact engine is a default.
_FEASIBLE = 20_000


@dataclass(frozen=True, kw_only=True)
class AspectExact(AspectMarginal, Exact):
    """Exact E step by multiplying out the polynomial of every row.

    max_bytes: memory allowed; half of what is free by default.
    """

    max_bytes: float | None = None

    def feasible(self, model: Model) -> bool:
        """Up to ``_FEASIBLE`` numbers a row: 199 draws for two components, 47 for three, 23 for four."""
        num_components, num_features = model.shapes["aspect_probability"]
        return num_states(num_features * model.settings()["total_count"], num_components) <= _FEASIBLE

    def check(self, model: Model, rows: CountRows) -> None:
        """Raises MethodError for priors without closed-form updates, CapacityError for polynomials that do not fit."""
        super().check(model, rows)
        num_components, num_features = model.shapes["aspect_probability"]
        self._require(num_components, num_features * rows.total_count, 1, rows.like.element_size())

    def _require(self, size: int, draws: int, num_rows: int, itemsize: int, *, only_last: bool = False) -> None:
        what, fits = f"{draws} draws in {size} memberships", 'use a bound instead, such as "dirichlet"'
        settings = {"what": what, "fits": fits, "limit": self.max_bytes, "only_last": only_last}
        _polynomial.require_memory(draws, size, num_rows, itemsize, **settings)

    def e_step(
        self, model: Model, params: Params, rows: CountRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        aspect = params["aspect_probability"]
        on, off, bounds = torch.zeros_like(aspect), torch.zeros_like(aspect), []
        for part in self._parts(params, rows):
            draws = _Draws(aspect, part, temperature)
            states, log_scale = _polynomial.multiplied(draws, keep=True)
            weight = _polynomial.prior_weight(len(draws), self.alpha(model, aspect)).to(part.like)
            bounds.append(log_scale + (weight @ states[-1]).log() + part.log_coefficient)
            for draw, share in _polynomial.attributed(draws, states, weight):
                feature, is_one = draws.outcome(draw)
                share = draws.only_observed(feature, share)
                on[:, feature] += share @ is_one
                off[:, feature] += share @ (1 - is_one)
        return EStep({"on": on, "off": off}, {}, torch.cat(bounds))

    def _parts(self, params: Params, rows: CountRows, *, keep: bool = True) -> list[CountRows]:
        size, num_features = params["aspect_probability"].shape
        draws = num_features * rows.total_count
        each = num_states(draws, size) if keep else 4 * num_terms(draws, size)
        block = max(1, min(len(rows), BLOCK_ENTRIES // each))
        self._require(size, draws, block, rows.like.element_size())
        return [rows.select(slice(start, start + block)) for start in range(0, len(rows), block)]

    def log_evidence(self, model: Model, params: Params, rows: CountRows) -> Tensor:
        """log p(x_n | params), (N,)."""
        return torch.cat([self._log_terms(model, params, part)[1] for part in self._parts(params, rows, keep=False)])

    def _log_terms(self, model: Model, params: Params, rows: CountRows) -> tuple[Tensor, Tensor]:
        """log [w(m) beta(m) / p(x_n)] (N, S), and log p(x_n) (N,)."""
        aspect = params["aspect_probability"]
        log_weight, log_evidence = _polynomial.log_terms(_Draws(aspect, rows), self.alpha(model, aspect))
        return log_weight, log_evidence + rows.log_coefficient

    def posterior(self, model: Model, params: Params, rows: CountRows, step: EStep | None = None) -> DirichletMixture:
        """The exact posterior of every membership: the same Dirichlets for all rows, in each row's own proportions."""
        size, num_features = params["aspect_probability"].shape
        draws = num_features * rows.total_count
        self._require(size, draws, len(rows), rows.like.element_size(), only_last=True)
        parts = self._parts(params, rows, keep=False)
        log_weight = torch.cat([self._log_terms(model, params, part)[0] for part in parts])
        exponents = _polynomial.terms_of(draws, size, rows.like.device).every.to(rows.like)
        return DirichletMixture(log_weight, self.alpha(model, exponents) + exponents)


class _Draws:
    """The linear forms of the rows' draws, in order: feature by feature, a feature's ones first."""

    def __init__(self, aspect: Tensor, rows: CountRows, temperature: float = 1.0):
        self.like, self.rows, self.temperature = aspect, rows, temperature
        ones = rows.ones.to_dense() if rows.is_sparse else rows.ones  # of a block of rows, never of all
        self.ones, self.size, self.num_rows = ones.T.contiguous(), len(aspect), len(rows)
        self.mask = None if rows.mask is None else rows.mask.T

    def __len__(self) -> int:
        return self.rows.total_count * self.like.shape[1]

    def outcome(self, draw: int) -> tuple[int, Tensor]:
        """Feature, and whether each row's draw came out 1 (B,)."""
        feature, position = divmod(draw, self.rows.total_count)
        return feature, (self.ones[feature] > position).to(self.like)

    def form(self, draw: int) -> Tensor:
        feature, is_one = self.outcome(draw)
        a = self.like[:, feature, None]
        b = (a * is_one + (1 - a) * (1 - is_one)).pow(self.temperature)
        return b if self.mask is None else torch.where(self.mask[feature], b, torch.ones_like(b))

    def only_observed(self, feature: int, share: Tensor) -> Tensor:
        """The shares of draws that were observed, 0 for the others."""
        return share if self.mask is None else share * self.mask[feature]
