"""NOCA by exact sums over the sources of every row: over all 2^K codes, or over the subsets of the row's ones.

Of up to ``EXACT_UP_TO`` sources the posterior is a table R (N, 2^K) over the codes. It enters the M step only through
the expected counts R' ones, R' zeros and R' 1, which are additive over rows; given them, further inner M steps cost
nothing in N. Of more sources each row takes what costs less, all codes or the subsets of its ones
(``subsets``); the M step is then that of the other engines, from the expected numbers of transmissions.

A row with M ones takes about c_1 K M 2^M ns by the subsets of its ones (``subsets``) and 2^K (c_2 D + c_3) ns by all
codes, on one processor, beside c_4 2^K D for the codes' tables, which all rows share. Both have a limit in memory, and
one in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.capacity import code_table_bytes, memory_limit
from custom_inference.core.engine import EXACT_UP_TO, EStep, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.registry import EXACT_EM_UP_TO
from custom_inference.families.common.enumerated import LEAST_ROWS, Enumerated, codes_of, exponentiate
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.noca.common import NocaEngine, prior_mode, thetas, transmission_update
from custom_inference.families.noca.posterior import NoisyOrPosterior, SourceTables
from custom_inference.families.noca.subsets import Subsets
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import CapacityError, Data, MethodError, Model
from ppl_models.distributions.basic import MAX_ENUMERABLE_BITS


@dataclass(frozen=True, kw_only=True)
class NocaExact(NocaEngine, Enumerated):
    """Exact E step, cause-transmission M step.

    inner_steps: transmission updates per M step of few sources (each raises the expected log joint; the counts are
        reused).
    """

    inner_steps: int = 4

    def tables(self, params: Params, rows: BinaryRows, temperature: float = 1.0) -> SourceTables:
        return SourceTables.of(params, rows, temperature)

    def feasible_on(self, model: Model, data: Data) -> bool:
        """Say whether exact sums of these rows are cheap enough to be a default: those of few sources, and of rows
        with few ones."""
        return self.feasible(model) or is_cheap_on(model, data)

    def check(self, model: Model, rows: BinaryRows) -> None:
        """Raises CapacityError where the codes do not fit into memory; beyond ``EXACT_UP_TO`` sources for rows out of
        reach."""
        if model.shapes["source_prior"][0] <= EXACT_UP_TO:
            return super().check(model, rows)
        self.check_priors(model, rows)
        self._reach(model, rows)
        return None

    def _reach(self, model: Model, rows: BinaryRows) -> Reach:
        """Find what sums each row. Raises CapacityError for rows out of reach."""
        found = find_reach(model, rows, self.max_bytes)
        found.require(model, rows, memory_limit(self.max_bytes))
        return found

    def e_step(
        self, model: Model, params: Params, rows: BinaryRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        if len(params["source_prior"]) <= EXACT_UP_TO:
            statistics, bound, _ = self._count_codes(params, rows, temperature)
            return EStep(statistics, {}, bound)
        if temperature != 1.0:
            found = f"a temperature of {temperature:g} with {len(params['source_prior'])} sources"
            raise MethodError(f"{found}; expected 1, or at most {EXACT_UP_TO} sources, whose codes are enumerated")
        by_codes = self._reach(model, rows).by_codes
        bound, mean = rows.like.new_empty(len(rows)), rows.like.new_empty(len(rows), len(params["source_prior"]))
        sent, sent_leak = torch.zeros_like(params["loading"]), torch.zeros_like(params["leak"])
        if not bool(by_codes.all()):
            found = Subsets.of(params, rows.select(~by_codes)).expect()
            bound[~by_codes], mean[~by_codes] = found.log_evidence.to(bound), found.mean.to(mean)
            sent, sent_leak = sent + found.sent.to(sent), sent_leak + found.sent_leak.to(sent)
        if bool(by_codes.any()):
            counts, bound[by_codes], mean[by_codes] = self._count_codes(params, rows.select(by_codes), means=True)
            more, more_leak = _transmissions(params, counts["code_ones"])
            sent, sent_leak = sent + more, sent_leak + more_leak
        # As the other engines' (``noca.common.transmission_statistics``), whose sums are yet to be multiplied by p.
        statistics = {"sent": sent, "sent_leak": sent_leak, "present": rows.sum_observed(mean), "source": mean.sum(0)}
        statistics |= {"observed": rows.observed_count, "rows": mean.new_tensor(len(rows))}
        return EStep(statistics, {"mean": mean}, bound)

    def _count_codes(
        self, params: Params, rows: BinaryRows, temperature: float = 1.0, *, means: bool = False
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Compute the expected counts of all codes, log p(x_n) (N,) and, where they are asked for, E[s_n] (N, K)."""
        tables = self.tables(params, rows, temperature)
        total: dict[str, Tensor] = {}
        bounds, found = [], []
        for part in self.blocks(params, rows):
            weight, scale, evidence = exponentiate(tables.joint(part))
            bounds.append(evidence)
            # Scaling the rows of the small factor spares a pass over the (N, C) table; and with the table as the
            # right factor the product is up to twice as fast as with its transpose as the left one.
            counts = {"code": scale @ weight, "code_ones": (part.ones * scale[:, None]).T @ weight}
            if part.mask is not None:
                counts["code_observed"] = (part.mask * scale[:, None]).T @ weight
            total = {k: total[k].add_(v) if k in total else v for k, v in counts.items()}
            if means:
                found.append((weight @ tables.codes) * scale[:, None])
        counts = {k: v.T.contiguous() if v.ndim > 1 else v for k, v in total.items()}
        return counts, torch.cat(bounds), torch.cat(found) if means else tables.codes[:0]

    def m_step(self, model: Model, params: Params, step: EStep, rows: BinaryRows) -> Params:
        if "code" not in step.statistics:
            return super().m_step(model, params, step, rows)
        code, ones = step.statistics["code"], step.statistics["code_ones"]
        codes = codes_of(len(params["source_prior"]), code.dtype, code.device)
        observed = step.statistics.get("code_observed")
        present = (code @ codes)[:, None].expand_as(params["loading"]) if observed is None else codes.T @ observed
        leak_count = code.sum().expand_as(params["leak"]) if observed is None else observed.sum(0)
        new = {**params, "source_prior": prior_mode(model, params, code @ codes, round(float(code.sum())))}
        priors = [Beta.with_mode(model, site, params[site]) for site in ("loading", "leak")]
        for _ in range(self.inner_steps):
            sent, sent_leak = _transmissions(new, ones)
            new |= transmission_update(priors, sent=sent, sent_leak=sent_leak, present=present, observed=leak_count)
        return new

    def posterior(self, model: Model, params: Params, rows: BinaryRows, step: EStep | None = None) -> LocalPosterior:
        if len(params["source_prior"]) <= EXACT_UP_TO:
            return super().posterior(model, params, rows, step)
        step = self.e_step(model, params, rows) if step is None else step
        by_codes = self._reach(model, rows).by_codes
        return NoisyOrPosterior(model, dict(params), rows, step.locals["mean"], step.bound, by_codes)

    def log_evidence(self, model: Model, params: Params, rows: BinaryRows) -> Tensor:
        """Compute log p(x_n), (N,): of few sources by all codes, which gradients pass through; of more by what costs
        less, without gradients unless all rows are summed by codes."""
        if len(params["source_prior"]) <= EXACT_EM_UP_TO or any(one.requires_grad for one in params.values()):
            return super().log_evidence(model, params, rows)
        by_codes = self._reach(model, rows).by_codes
        found = rows.like.new_empty(len(rows))
        if not bool(by_codes.all()):
            found[~by_codes] = Subsets.of(params, rows.select(~by_codes)).log_evidence().to(found)
        if bool(by_codes.any()):
            found[by_codes] = super().log_evidence(model, params, rows.select(by_codes))
        return found


def _transmissions(params: Params, ones: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the expected transmissions of sources (K, D) and leak (D,) from the codes' expected ones (C, D)."""
    codes = codes_of(len(params["source_prior"]), ones.dtype, ones.device)
    theta, theta0 = thetas(params)
    # ones / P(x_j = 1 | c), (C, D): where no row has the code and the feature, 0 / small stays 0.
    ratio = ones / (-torch.expm1(-(codes @ theta + theta0))).clamp(min=torch.finfo(ones.dtype).tiny)
    return params["loading"] * (codes.T @ ratio), params["leak"] * ratio.sum(0)


#: Nanoseconds of a term of the recursion, of a code and feature, of a code, and of an entry of its table, as measured.
_TERM, _FEATURE, _CODE, _TABLE = 1.5, 0.5, 6.0, 250.0
#: Nanoseconds that a row may take, and that all rows may take together where an exact sum is a default.
_MOST, _CHEAP = 4e9, 4e9
#: No row has so many ones that its subsets are counted in floating point.
_ENDLESS = 500


class Reach(NamedTuple):
    """within: the rows that are within reach (N,); by_codes: those of them that all codes take less time for (N,);
    seconds (N,) of each, and ``most_ones``: how many ones a row may have."""

    within: Tensor
    by_codes: Tensor
    seconds: Tensor
    most_ones: int

    def require(self, model: Model, rows: BinaryRows, allowed: float) -> None:
        """Raise CapacityError where some rows are out of reach; say how many, and what the limits are."""
        beyond = ~self.within
        if not bool(beyond.any()):
            return
        number, ones = model.shapes["source_prior"][0], count_ones(rows)[beyond]
        needed = min(8.0 * 2.0**number * rows.like.shape[1], float(_subset_bytes(number, ones.max())))
        raise CapacityError(
            f"the exact sums of {len(ones)} of {len(rows)} rows are out of reach: they have up to {int(ones.max())} "
            f"ones, and beside {number} sources the subsets of up to {self.most_ones} ones a row are summed over; "
            f"enumerating the 2^{number} codes needs at most {MAX_ENUMERABLE_BITS} sources; use a bound instead",
            needed_bytes=needed,
            allowed_bytes=allowed,
        )


def find_reach(model: Model, rows: BinaryRows, max_bytes: float | None = None) -> Reach:
    """Tell of every row whether an exact sum is within reach, and by what.

    max_bytes: memory allowed; half of what is free by default.
    """
    number, features = model.shapes["loading"]
    allowed, ones = memory_limit(max_bytes), count_ones(rows).double()
    subsets = _subset_time(number, ones)
    few = (subsets <= _MOST) & (_subset_bytes(number, ones) <= allowed)
    codes = 2.0**number * (_FEATURE * features + _CODE)
    room = code_table_bytes(number, features, min(len(rows), LEAST_ROWS))
    fits = number <= MAX_ENUMERABLE_BITS and room <= allowed and codes <= _MOST
    table, gain = _TABLE * 2.0**number * features, torch.where(few, subsets - codes, 0.0).clamp(min=0).sum()
    worth = bool((~few).any()) or float(gain) > table
    by_codes = torch.full_like(few, fits) & (~few | (worth & (codes < subsets)))
    codes += table / max(1, int(by_codes.sum()))
    every = torch.arange(_ENDLESS, dtype=torch.float64)
    most = int(((_subset_time(number, every) <= _MOST) & (_subset_bytes(number, every) <= allowed)).sum()) - 1
    return Reach(few | by_codes, by_codes, torch.where(by_codes, codes, subsets) / 1e9, most)


def time_rows(model: Model, data: Data) -> Tensor:
    """Estimate the seconds (N,) that the exact sum of every row takes, infinite where it is out of reach."""
    reach = find_reach(model, BinaryRows.of(data))
    return torch.where(reach.within, reach.seconds, torch.inf)


def is_cheap_on(model: Model, data: Data) -> bool:
    """Whether exact sums of all rows are a default: within reach, and a few seconds of work together."""
    reach = find_reach(model, BinaryRows.of(data))
    return bool(reach.within.all()) and 1e9 * float(reach.seconds.sum()) <= _CHEAP


def count_ones(rows: BinaryRows) -> Tensor:
    """Count the observed ones of every row, (N,)."""
    return rows.ones.sum(-1).round().clamp(max=_ENDLESS)


def _subset_time(number: int, ones: Tensor) -> Tensor:
    return _TERM * number * (ones + 1) * torch.exp2(ones)


def _subset_bytes(number: int, ones: Tensor) -> Tensor:
    """Return the memory that one row takes: f or h after every source, and the stages of one."""
    return 8.0 * (number + ones + 5) * torch.exp2(ones)
