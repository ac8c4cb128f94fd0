"""The binary restricted Boltzmann machine by exact sums over its smaller layer (002, section 27.7).

    log p(x) = x'b + sum_k softplus(c_k + (W x)_k) - log Z                  (eq. 27.117 with the logarithm and the sign)
    log p(x observed) = logsumexp_h [c'h + sum_{d observed} x_d a_d + sum_{d missing} softplus(a_d)] - log Z,
                        a = b + W'h                                          where entries are missing: 2^K terms a row
    slope of sum_n log p(x_n): E[h x' | data] - N E[h x' | model], likewise for the biases    (eqs. 27.112 and 27.123)

As EM: the E step's statistics are S = sum_n E[(h x', x, h) | x_n]; the M step maximises <theta, S> - N log Z(theta) +
log p(theta), which is concave where the log prior is: a run of L-BFGS from where it is, taken back if it lowers it.
EM alone is slow here; the start that :func:`ascend` gives is a maximum of log p(x) + log p(theta) already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn.functional import softplus

from custom_inference.core.capabilities import Checked, Exact
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import BernoulliPosterior, CodePosterior, LocalPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.families.common.rows import BinaryRows
from ppl_models import CapacityError, Data, Model
from ppl_models.distributions import all_codes
from ppl_models.distributions.basic import log_partition

#: Units of the smaller layer (with missing entries: hidden ones) that are summed over.
_MOST_UNITS = 20
#: Starts that climb at once, their steps by Adam in single precision, and the spread of their weights.
_STARTS, _ADAM_STEPS, _SPREAD, _RATE = 6, 400, 0.3, 0.05
#: Iterations of L-BFGS of a start, and of an M step.
_POLISH, _M_STEP = 800, 40

SITES = ("weight", "visible_bias", "hidden_bias")


def log_likelihood(params: Params, rows: BinaryRows) -> Tensor:
    """log p(x_n), (..., N)."""
    table = _table(params, rows)
    if table is not None:
        return torch.logsumexp(table, -1)
    visible = rows.ones @ params["visible_bias"].unsqueeze(-1)
    hidden = params["hidden_bias"].unsqueeze(-2) + rows.ones @ params["weight"].mT
    return visible.squeeze(-1) + softplus(hidden).sum(-1) - _log_z(params).unsqueeze(-1)


def _log_z(params: Params) -> Tensor:
    return log_partition(params["weight"], params["hidden_bias"].unsqueeze(-2), params["visible_bias"].unsqueeze(-2))


def _table(params: Params, rows: BinaryRows) -> Tensor | None:
    """log p(x_n observed, h) of every code, (..., N, 2^K); None where nothing is missing and no table is needed."""
    if rows.mask is None:
        return None
    codes = all_codes(params["hidden_bias"].shape[-1]).to(rows.like)
    active = params["visible_bias"].unsqueeze(-2) + codes @ params["weight"]
    missing = (~rows.mask).to(rows.like)
    joint = rows.ones @ active.mT + missing @ softplus(active).mT
    own = (codes @ params["hidden_bias"].unsqueeze(-1)).mT
    return joint + own - _log_z(params)[..., None, None]


@dataclass(frozen=True, kw_only=True)
class ExactHarmonium(Checked, Exact):
    """The exact posterior of the hidden units: independent given a whole row, a table of codes where entries miss."""

    def rows(self, model: Model, data: Data) -> BinaryRows:
        return BinaryRows.of(data)

    def feasible(self, model: Model) -> bool:
        return min(model.shapes["weight"]) <= _MOST_UNITS

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises CapacityError where a sum over the smaller layer is too large."""
        hidden, visible = model.shapes["weight"]
        units, what, width = min(hidden, visible), "units in the smaller layer", hidden + visible
        if rows.mask is not None:
            units, what, width = hidden, "hidden units with missing entries", len(rows)
        if units > _MOST_UNITS:
            needed = 8.0 * 2.0**units * width
            message = f"exact sums over 2^{units} states ({units} {what}); at most {_MOST_UNITS} are summed over"
            raise CapacityError(message, needed_bytes=needed, allowed_bytes=needed * 2.0 ** (_MOST_UNITS - units))

    def initial(self, model: Model, rows: BinaryRows, generator: torch.Generator) -> Params:
        """Random weights; the visible biases are the log odds of the columns."""
        return {site: value[0] for site, value in _random(model, rows, generator, 1).items()}

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        with torch.enable_grad():
            # The slope of the first two terms is the expectation of what the parameters multiply.
            at = {site: params[site].detach().clone().requires_grad_() for site in SITES}
            bound = log_likelihood(at, rows)
            sums = torch.autograd.grad((bound + _log_z(at)).sum(), list(at.values()))
        statistics = dict(zip(SITES, sums, strict=True)) | {"rows": bound.new_tensor(float(len(rows)))}
        return EStep({name: temperature * value for name, value in statistics.items()}, {}, bound.detach())

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        counts = step.statistics

        def objective(at: Params) -> Tensor:
            linear = sum((counts[site].to(at[site]) * at[site]).sum() for site in SITES)
            return linear - counts["rows"].to(at["weight"]) * _log_z(at) + model.log_prior(at)

        return polished(objective, params, _M_STEP, float(counts["rows"]))

    def posterior(self, model: Model, params: Params, rows: BinaryRows, step: EStep) -> LocalPosterior:
        table = _table(params, rows)
        if table is None:
            return BernoulliPosterior(torch.sigmoid(params["hidden_bias"] + rows.ones @ params["weight"].T))
        return CodePosterior(all_codes(len(params["hidden_bias"])).to(rows.like), torch.log_softmax(table, -1))

    def log_evidence(self, model: Model, params: Params, rows: BinaryRows) -> Tensor:
        return log_likelihood(params, rows)


class HarmoniumProposals(Proposals):
    """One start: the best of several random ones that climbed log p(x) + log p(theta) side by side."""

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        return ascend(model, rows, _random(model, rows, generator, _STARTS))

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """One proposal, which makes its starts itself, on all rows."""
        return 1, num_rows


def _random(model: Model, rows: BinaryRows, generator: torch.Generator, starts: int) -> Params:
    shape, like = model.shapes["weight"], rows.like
    chance = (rows.ones.sum(0) + 0.5) / (rows.observed_count + 1)
    noise = torch.randn((starts, *shape), generator=generator, dtype=torch.float64).to(like)
    return {
        "weight": _SPREAD * noise,
        "visible_bias": torch.logit(chance).expand(starts, -1).clone(),
        "hidden_bias": like.new_zeros(starts, shape[0]),
    }


def ascend(model: Model, rows: BinaryRows, starts: Params) -> Params:
    """Adam on all starts at once, L-BFGS on the best: a maximum of log p(x) + log p(theta)."""
    seen = rows.ones if rows.mask is None else torch.cat([rows.ones, rows.mask.to(rows.ones)], 1)
    different, count = torch.unique(seen, dim=0, return_counts=True)
    size = rows.ones.shape[1]
    distinct = BinaryRows(different[:, :size], None if rows.mask is None else different[:, size:].bool())
    exact = distinct.to(torch.float64)

    def objective(at: Params, rows: BinaryRows) -> Tensor:
        return log_likelihood(at, rows) @ count.to(rows.like) + model.log_prior(at)

    at = {site: value.clone().requires_grad_() for site, value in starts.items()}
    adam = torch.optim.Adam(list(at.values()), lr=_RATE, betas=(0.9, 0.99))
    with torch.enable_grad():
        for _ in range(_ADAM_STEPS):
            adam.zero_grad()
            (-objective(at, distinct).sum() / len(rows)).backward()
            adam.step()
    found = {site: value.detach() for site, value in at.items()}
    best = int(objective(found, distinct).argmax())

    def single(one: Params) -> Tensor:
        return objective({site: value[None] for site, value in one.items()}, exact)[0]

    return polished(single, {site: value[best] for site, value in found.items()}, _POLISH, float(len(rows)))


def polished(objective: Callable[[Params], Tensor], start: Params, iterations: int, scale: float) -> Params:
    """L-BFGS up ``objective`` in double precision; the start itself where that is no better."""
    like, shapes = start["weight"], {site: start[site].shape for site in SITES}

    def unpacked(flat: Tensor) -> Params:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        return {site: part.view(shape) for part, (site, shape) in zip(parts, shapes.items(), strict=True)}

    def slope(flat: Any) -> tuple[float, Any]:
        at = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            value = -objective(unpacked(at)) / scale
        return float(value.detach()), torch.autograd.grad(value, at)[0].numpy()

    first = torch.cat([start[site].detach().flatten() for site in SITES]).cpu().double().numpy()
    found = minimize(slope, first, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20})
    better = np.isfinite(found.fun) and found.fun <= slope(first)[0]
    return {site: value.to(like) for site, value in unpacked(torch.as_tensor(found.x if better else first)).items()}
