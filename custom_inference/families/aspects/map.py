"""The aspect Bernoulli model by joint maximum a posteriori: a point for every aspect and every membership.

Bingham et al. (2007), eqs. 5-9 and 16-21. The objective is the log joint, up to constants of flat priors,

    F(s, a) = sum_n [ log p(x_n | s_n, a) + log Dirichlet(s_n; alpha) ] + log p(a)

with flat priors eq. 6. One iteration raises it over s at fixed a (E step), then over a at fixed s (M step). By EM, with
R1 = ones / p, R0 = zeros / (1 - p) and M_n the observed draws of row n, never forming responsibilities (N, D, K):

    s_nk <- [s_nk sum_t (R1_nt a_kt + R0_nt (1 - a_kt)) + alpha_k - 1] / [M_n + sum_k (alpha_k - 1)]    (eqs. 16-17)
    a_kt <- (on_kt + alpha - 1) / (on_kt + off_kt + alpha + beta - 2)                                    (eqs. 18-21)
    on_kt = a_kt sum_n s_nk R1_nt,    off_kt = (1 - a_kt) sum_n s_nk R0_nt

Given a, F is concave in every s_n by itself, and given s in every column of a. With ``update="newton"`` each of them
takes a Newton step within its bounds wherever that raises F, which is nearly everywhere, and else the EM step
(Alexander, Novembre & Lange, Genome Research 19, 2009). The constraint sum_k s_nk = 1 needs no multiplier: written in
p1 = s a and p0 = s (1 - a), both linear in s, log p(x | s) - M sum_k s_k has its maximum over s >= 0 on the simplex.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.engine import POINT, EStep, Objective, Params, Warm
from custom_inference.core.optimize.newton import box_newton, pair_index, unpack_symmetric
from custom_inference.core.posteriors import LocalPosterior, PointPosterior
from custom_inference.families.aspects.engines import AspectEngine
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.counts import CountRows, Tiles, margin
from ppl_models import MethodError, Model
from ppl_models.core.errors import unknown_name

#: Rows without a membership from before start in the middle of the simplex and take this many updates at once.
_FIRST_UPDATES = {False: 20, True: 6}
#: Newton steps are the default where a row has this many draws for each aspect.
_SHARP = 200


@dataclass(frozen=True, kw_only=True)
class AspectMap(AspectEngine):
    """E step: memberships at fixed aspects; M step: aspects at fixed memberships.

    update: "newton" (safeguarded by EM), "em", the plain algorithm of the paper, or "auto": Newton where rows have many
        draws. There the memberships are sharp and EM converges slowly, by .98 an iteration and more; with few draws
        EM is the faster way to good starts, as Newton steps put memberships on the simplex's edge that later have to
        leave it. The best start is finished by Newton steps all the same: where aspects overlap, EM crawls (thousands
        of iterations on damaged digits) and would be stopped far from the optimum, before a phantom has formed.
    draws: those of a row on average, by which "auto" decides; None: of the rows at hand, see ``configure``.

    EStep.bound is log p(x_n | s_n, a), binomial coefficient included, plus log Dirichlet(s_n; alpha), 0 where
    that is flat.
    """

    has_point_locals = True
    reads_rows = True

    update: str = "auto"
    draws: float | None = None

    name: ClassVar[str] = POINT
    objective: ClassVar[Objective] = "log joint"
    accelerate: ClassVar[str | None] = "anderson"
    extrapolated: ClassVar[tuple[str, ...]] = ("membership",)

    def check(self, model: Model, rows: CountRows) -> None:
        self.pseudo_count(model, rows.like)
        if self.update not in ("auto", "em", "newton"):
            raise MethodError(unknown_name("update", self.update, ("auto", "em", "newton")))
        Beta.with_mode(model, "aspect_probability", torch.ones(1))

    def local(self) -> AspectMap:
        """Return the engine for fixed aspects, where the problem of every row is concave and Newton steps solve it."""
        return replace(self, update="newton")

    def configure(self, rows: CountRows, total: Callable[..., tuple[Tensor, ...]]) -> Self:
        if self.update != "auto":
            return self
        size = rows.like.new_tensor(float(rows.draws.numel()), dtype=torch.float64)
        draws, number = total(rows.draws.double().sum(), size)
        return replace(self, draws=float(draws / number))

    def pseudo_count(self, model: Model, like: Tensor) -> Tensor:
        """alpha - 1, (K,). Raises MethodError for priors of the memberships that are no Dirichlets with alpha >= 1."""
        return Dirichlet.with_mode(model, "membership", like).concentration.expand(model.local_shape) - 1

    def e_step(
        self, model: Model, params: Params, rows: CountRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        aspect, prior = params["aspect_probability"], self.pseudo_count(model, params["aspect_probability"])
        draws = float(rows.draws.mean()) if self.draws is None else self.draws
        newton = draws >= _SHARP * len(aspect) if self.update == "auto" else self.update == "newton"
        update, memberships, bounds = MembershipUpdate(aspect, prior / temperature, newton=newton), [], []
        for block in rows.iterate_tiles():
            if warm is None:
                membership = aspect.new_full((len(block.draws), len(aspect)), 1 / len(aspect))
                for _ in range(_FIRST_UPDATES[newton] - 1):
                    membership = update(block, membership)
            else:
                membership = warm["membership"][block.at]
            membership, likelihood = update.last(block, membership)
            memberships.append(membership)
            bounds.append(likelihood + torch.xlogy(prior, membership).sum(1))
        # Of the memberships' prior; 0 where it is flat, as in ``Model.log_prior``.
        constant = torch.lgamma((prior + 1).sum()) - torch.lgamma(prior + 1).sum() if bool((prior != 0).any()) else 0.0
        bound = torch.cat(bounds) + rows.log_coefficient + constant
        return EStep(update.statistics, {"membership": torch.cat(memberships)}, bound)

    def m_step(self, model: Model, params: Params, step: EStep, rows: CountRows) -> Params:
        """Newton steps need the rows' memberships; without them (stepwise EM) the statistics alone give the EM step."""
        aspect, s = params["aspect_probability"], step.statistics
        prior = Beta.with_mode(model, "aspect_probability", aspect)
        plain = prior.mode(s["on"], s["on"] + s["off"], floor=margin(aspect.dtype))
        if "curvature" in s and "membership" in step.locals:
            plain = self._newton(aspect, step, prior, plain, AllRows.of(rows))
        return {**params, "aspect_probability": plain}

    def _newton(self, aspect: Tensor, step: EStep, prior: Beta, plain: Tensor, rows: AllRows) -> Tensor:
        """The Newton step of every column whose own part of F it raises, the EM step of the others."""
        s, edge = step.statistics, margin(aspect.dtype)
        a, b = (count - 1 for count in prior)
        gradient = (s["on"] + a) / aspect - (s["off"] + b) / (1 - aspect)
        curvature = unpack_symmetric(s["curvature"].T)
        curvature.diagonal(dim1=1, dim2=2).add_((a / aspect**2 + b / (1 - aspect) ** 2).expand_as(aspect).T)
        trial = box_newton(aspect.T, gradient.T, curvature, edge, 1 - edge).T.contiguous()
        value, weights = torch.zeros_like(trial[0]), None if rows.weights is None else rows.weights.to(trial)
        before = s["column"] + torch.xlogy(a, aspect).sum(0) + torch.xlogy(b, 1 - aspect).sum(0)
        for part, kept in rows.pieces({"membership": step.locals["membership"]}):
            for block in part.iterate_tiles():
                count = None if weights is None else weights[block.at]
                for columns, tile in block.tiles:
                    found = tile.likelihood(kept["membership"][block.at] @ trial[:, columns])
                    value[columns] += found.sum(0) if count is None else count @ found.log()
        value = rows.total(value)[0] + torch.xlogy(a, trial).sum(0) + torch.xlogy(b, 1 - trial).sum(0)
        return torch.where(value >= before, trial, plain)

    def posterior(self, model: Model, params: Params, rows: CountRows, step: EStep) -> LocalPosterior:
        return PointPosterior(step.locals["membership"])

    def point_locals(self, step: EStep) -> dict[str, Tensor]:
        return {"membership": step.locals["membership"]}

    def project(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Aspects into their box, memberships onto the simplex; none at 0, which an EM step could not leave."""
        aspect, membership = params["aspect_probability"], locals_["membership"]
        edge = margin(aspect.dtype)
        inside = membership.clamp(min=edge)
        locals_ = {**locals_, "membership": inside / inside.sum(-1, keepdim=True)}
        return {**params, "aspect_probability": aspect.clamp(edge, 1 - edge)}, locals_


class MembershipUpdate:
    """Raises log p(x_n | s_n, a) + sum_k prior_k log s_nk for every row of a block, by EM or by Newton steps.

    prior: alpha - 1, (K,).

    ``statistics`` adds up over the blocks given to ``last`` what the M step needs: expected counts of ones and zeros
    of every aspect, "on" and "off" (K, D); for Newton steps also the "curvature" by the columns of a, its pairs
    (K (K + 1) / 2, D), and the "column" log-likelihoods (D,).
    """

    def __init__(self, aspect: Tensor, prior: Tensor, *, newton: bool):
        self.aspect, self.prior, self.newton = aspect, prior, newton
        self.informative = bool((prior > 0).any())
        self.statistics = {"on": torch.zeros_like(aspect), "off": torch.zeros_like(aspect)}
        first, second, _ = pair_index(len(aspect))
        self.first, self.second = first.to(aspect.device), second.to(aspect.device)
        if newton:
            self.products = self._pairs(aspect).T.contiguous()
            self.statistics |= {"curvature": torch.zeros_like(self.products.T), "column": torch.zeros_like(aspect[0])}

    def __call__(self, block: Tiles, membership: Tensor) -> Tensor:
        """The new memberships (B, K)."""
        plain, trial, before = self._proposals(block, membership)
        if trial is None:
            return plain
        value = sum((tile.likelihood(trial @ self.aspect[:, at]).sum(1) for at, tile in block.tiles), before * 0)
        return self._safe(block, plain, trial, before, value)

    def last(self, block: Tiles, membership: Tensor) -> tuple[Tensor, Tensor]:
        """The new memberships and their log-likelihoods (B,); adds to the statistics."""
        plain, trial, before = self._proposals(block, membership)
        chosen = plain if trial is None else trial
        value, found = self._evaluate(block, chosen)
        if trial is not None:
            chosen = self._safe(block, plain, trial, before, value)
            if chosen is not trial:
                value, found = self._evaluate(block, chosen)
        for at, parts in found:
            for name, part in parts.items():
                self.statistics[name][..., at] += part
        return chosen, value

    def _safe(self, block: Tiles, plain: Tensor, trial: Tensor, before: Tensor, value: Tensor) -> Tensor:
        """The Newton step where it raised the objective, elsewhere the EM step; ``trial`` itself if everywhere."""
        rises = (value + self._log_prior(trial) >= before) & (block.draws > 0)
        return trial if bool(rises.all()) else torch.where(rises.unsqueeze(1), trial, plain)

    def _proposals(self, block: Tiles, membership: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """The EM step, the Newton step, and the objective before."""
        slope, likelihood, curvature = self._sums(block, membership)
        total = (block.draws + self.prior.sum()).unsqueeze(1)
        plain = (membership * slope + self.prior) / total
        # A row without any information goes to the prior's mode, which for the flat prior is its mean.
        plain = torch.where(total > 0, plain, torch.full_like(plain, 1 / plain.shape[1]))
        plain = plain / plain.sum(1, keepdim=True)
        trial = self._newton(membership, slope - total, curvature) if self.newton else None
        if trial is not None:  # A step that ends in 0 on every axis has no direction on the simplex.
            size = trial.sum(1, keepdim=True)
            trial = torch.where(size > 0, trial / size, plain)
        return plain, trial, likelihood + self._log_prior(membership)

    def _sums(self, block: Tiles, membership: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sum over the entries of every row the derivative of log p(x_n | s_n, a) = sum_t ones log p1 + zeros log p0 in
        s_n, (B, K).

        With Newton steps also the log-likelihood (B,), and the packed pairs of minus the second derivative,
        sum_t [rise / p] a a' + [fall / (1 - p)] (1 - a) (1 - a)'.
        """
        slope, likelihood = torch.zeros_like(membership), torch.zeros_like(membership[:, 0])
        curvature = membership.new_zeros(len(membership), len(self.first))
        falling, constant = torch.zeros_like(membership), membership.new_zeros(len(membership), 1)
        for at, tile in block.tiles:
            aspect = self.aspect[:, at]
            p = membership @ aspect
            if self.newton:
                likelihood += tile.likelihood(p.clone()).sum(1)
            slopes = tile.slopes(p, curvature=self.newton)
            slope.addmm_(slopes.slope, aspect.T).add_(slopes.fall.sum(1, keepdim=True))
            if self.newton:
                curvature.addmm_(slopes.curvature, self.products[at])
                falling.addmm_(slopes.curvature_of_zeros, aspect.T)
                constant += slopes.curvature_of_zeros.sum(1, keepdim=True)
        if self.newton:
            # (1 - a_k)(1 - a_l) = 1 - a_k - a_l + a_k a_l
            curvature += constant - falling[:, self.first] - falling[:, self.second]
        return slope, likelihood, curvature

    def _newton(self, membership: Tensor, gradient: Tensor, packed: Tensor) -> Tensor:
        """The Newton step over s >= 0, (B, K); not yet on the simplex."""
        curvature = unpack_symmetric(packed)
        if self.informative:
            gradient = gradient + self.prior / membership
            curvature.diagonal(dim1=1, dim2=2).add_(self.prior / membership.square())
        edge = margin(membership.dtype) ** 2 if self.informative else 0.0
        return box_newton(membership, gradient, curvature, edge, torch.inf)

    def _evaluate(self, block: Tiles, membership: Tensor) -> tuple[Tensor, list[tuple[slice, dict[str, Tensor]]]]:
        """Compute the log-likelihood of the rows, and the statistics of every tile."""
        value, found, turned = torch.zeros_like(membership[:, 0]), [], membership.T.contiguous()
        pairs = self._pairs(turned) if self.newton else turned
        for at, tile in block.tiles:
            aspect = self.aspect[:, at]
            p = membership @ aspect
            likelihood = tile.likelihood(p.clone())
            value += likelihood.sum(1)
            slopes = tile.slopes(p, curvature=self.newton)
            off = turned @ slopes.fall
            parts = {"on": aspect * (turned @ slopes.slope + off), "off": (1 - aspect) * off}
            if self.newton:
                parts |= {"curvature": pairs @ slopes.curvature, "column": likelihood.sum(0)}
            found.append((at, parts))
        return value, found

    def _pairs(self, values: Tensor) -> Tensor:
        """(K, M) -> products of every pair of rows, (K (K + 1) / 2, M)."""
        return values[self.first] * values[self.second]

    def _log_prior(self, membership: Tensor) -> Tensor:
        return torch.xlogy(self.prior, membership).sum(1) if self.informative else torch.zeros_like(membership[:, 0])
