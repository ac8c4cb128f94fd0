"""What approximations are compared with: the exact posterior where there is one, else an estimate, and how far that may
be off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from custom_inference.checks.calibration.simulate import Problem, one_hot
from custom_inference.checks.exact import Exact
from custom_inference.core.annealing.estimate import Budget, Estimated
from custom_inference.core.annealing.local import Sandwich, anneal_locals, depend_on_each_other, posterior_of, sandwich
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import ANNEALING, Local, is_feasible
from custom_inference.core.posterior_bounds import evaluate_posterior, row_log_joint
from custom_inference.core.posteriors import LocalPosterior, kullback_leibler
from custom_inference.core.registry import family_of
from custom_inference.core.settings import require_positive
from ppl_models import CapacityError, Data, MethodError, Model, ModelError
from ppl_models.core.errors import own_errors, unknown_name

#: What may be asked for.
CHOICES = ("auto", "exact", "ais", "none")
#: Rows that are drawn from the model to be bounded from both sides, and the part of the seconds that this takes.
_DRAWN, _SHARE = 40, 0.25
#: How often all of them are drawn where they depend on each other.
_TIMES = 4
#: The part of the seconds of an estimate that goes to rows whose exact sum is within reach.
_EXACT = 0.2
#: Draws that the ELBO of a posterior is estimated by.
_DRAWS = 100
#: Added to the seed, so that an estimate among the methods is not the reference itself.
_APART_FROM_METHODS = 7919
#: R-hat above which chains at the posterior are said to be apart.
_APART = 1.1


@dataclass(frozen=True)
class PosteriorReference:
    """local: the posterior and log p(x_n), None without; how: "exact", "ais" or "none"; no_exact: why nothing exact.

    estimated: of an estimate how it was found; within: how many rows are exact in it. check: the same estimate from
    below and from above of rows that were drawn from the model.
    """

    local: Local | None
    how: Literal["exact", "ais", "none"]
    no_exact: str = ""
    estimated: Estimated | None = None
    within: int = 0
    check: Sandwich | None = None

    @property
    def remarks(self) -> list[str]:
        """What the reference is, where it is an estimate."""
        if self.estimated is None:
            return []
        error, r_hat = self.estimated.standard_error, self.estimated.r_hat
        whole = len(error) < len(self.estimated.mean)  # one number for all rows, as for the nodes of a graph
        spread = f"{float(error.square().mean().sqrt()):.2g} nats"
        spread += " for all rows together" if whole else f" a row ({float(error.max()):.2g} at most)"
        found = [f"compared with an estimate by annealed importance sampling, whose standard error is {spread}"]
        if self.within:
            found.append(f"{self.within} of {len(error)} rows are exact")
        if self.check is not None:
            found.append(
                f"how far it may be off: of {self.check.rows} rows drawn from the model it differs, from both "
                f"sides, by {self.check.gap:.2g} nats a row (standard error {self.check.gap_error:.1g})"
            )
        apart = int((r_hat > _APART).sum())
        if apart and whole:
            found.append(
                f"single chains do not get about in the posterior (R-hat {float(r_hat.max()):.2g}), so that marginals "
                "rest on as many independent draws as there are chains"
            )
        elif apart:
            found.append(
                f"single chains do not get about in the posterior of {apart} of {len(r_hat)} rows (R-hat above "
                f"{_APART}), whose marginals rest on as many independent draws as there are chains"
            )
        return found

    def distances(self, model: Model, params: dict[str, Tensor], data: Data, local: Local) -> dict[str, float]:
        """Measure how far a posterior of the locals is from this one.

        The rows of a graph are its nodes, its bound is one number.
        """
        if self.local is None:
            return dict.fromkeys(_COLUMNS, math.nan)
        rows, exact = len(data), self.local
        found = {
            "evidence": float(exact.bound.sum()),
            "gap_per_row": float((exact.bound.sum() - local.bound.sum()) / rows),
            "gap_error": 0.0,
            "worst_marginal_error": float((local.posterior.mean - exact.posterior.mean).abs().max()),
            "marginal_error": 0.0,
        }
        own = 0.0 if local.standard_error is None else float(local.standard_error.square().sum())
        found["gap_error"] = math.sqrt(own) / rows
        if self.estimated is None:
            drawn = local.family == ANNEALING  # a posterior of draws has no density
            divergence = math.nan if drawn else float(kullback_leibler(local.posterior, exact.posterior).sum() / rows)
            found["kl_per_row"] = divergence
        else:
            found["gap_error"] = math.sqrt(own + float(self.estimated.standard_error.square().sum())) / rows
            apart = (local.posterior.mean - self.estimated.mean).abs()
            found["worst_marginal_error"] = float(apart.max())
            found["marginal_error"] = float(self.estimated.mean_error.flatten()[apart.argmax()])
            found["kl_per_row"] = self._divergence(model, params, data, local) / rows
        return {name: found[name] for name in _COLUMNS}

    def _divergence(self, model: Model, params: dict[str, Tensor], data: Data, local: Local) -> float:
        """KL(q || p) = log p(x) - ELBO(q), of all rows; NaN of draws, whose density is not known."""
        assert self.local is not None
        if local.posterior.is_point:
            return math.inf
        kind = local.what.partition(",")[0]
        if kind == "draws" or local.family == ANNEALING:
            return math.nan
        bound = float(local.bound.sum())
        if kind not in ("exact", "enumeration", "quadrature"):  # some bounds are below the ELBO of their posterior
            elbo, error = _elbo(model, params, data, local.posterior)
            bound = bound if abs(elbo - bound) <= 4 * error else elbo
        return float(self.local.bound.sum()) - bound


#: What is measured against a reference.
_COLUMNS = ("evidence", "gap_per_row", "gap_error", "kl_per_row", "worst_marginal_error", "marginal_error")


def _elbo(model: Model, params: dict[str, Tensor], data: Data, posterior: LocalPosterior) -> tuple[float, float]:
    """The ELBO of a posterior of all rows, with its standard error: exact where that is a sum, else by draws."""
    try:
        found = evaluate_posterior(model, params, data, posterior)
    except CapacityError:
        gains = [row_log_joint(model, params, data, one) - posterior.log_prob(one) for one in posterior.sample(_DRAWS)]
        total = torch.stack(gains).sum(1)
        return float(total.mean()), float(total.std() / math.sqrt(_DRAWS))
    error = found.standard_error
    return float(found.bound.sum()), 0.0 if error is None else float(error.square().sum().sqrt())


def _time_rows(model: Model, data: Data) -> Tensor:
    """The seconds (N,) that exact sums of the rows take, infinite where they are out of reach or alike for all."""
    reach = family_of(model).reach
    return torch.full((len(data),), math.inf) if reach is None else reach(model, data).cpu()


def _require_time(model: Model, data: Data, seconds: float) -> None:
    """Raises CapacityError where exact sums of all rows take longer than so many seconds."""
    each = _time_rows(model, data)
    if family_of(model).reach is not None and not is_feasible(model, data) and float(each.sum()) > seconds:
        within = int(each.isfinite().sum())
        raise CapacityError(
            f"exact sums are within reach in {within} of {len(each)} rows, and take about "
            f"{float(each[each.isfinite()].sum()):.0f} s in these, of {seconds:g} that are given"
        )


def _estimate(
    model: Model, params: dict[str, Tensor], data: Data, budget: Budget, seed: int, reference: str
) -> tuple[Local, Estimated, int]:
    """Estimate by annealing, where "auto" is asked for but for rows whose exact sum is within reach; how many."""
    each = _time_rows(model, data)
    order = each.argsort()
    within = torch.zeros(len(data), dtype=torch.bool)
    if reference == "auto":
        within[order] = each[order].cumsum(0) <= _EXACT * budget.seconds
    rest, some = (~within).nonzero()[:, 0], within.nonzero()[:, 0]
    found = anneal_locals(model, params, data.rows(rest) if len(some) else data, budget, seed=seed)
    if len(some):
        exact = Exact().local_posterior(model, params, data.rows(some))
        zero, mean = torch.zeros_like(exact.bound), exact.posterior.mean
        draws = exact.posterior.sample(len(found.codes), seed=seed)
        known = Estimated(
            exact.bound, zero, zero.long(), zero.long(), draws, mean, exact.posterior.variance, 0 * mean, zero + 1
        )
        order = torch.argsort(torch.cat([rest, some]))
        axes = {"codes": 1}
        found = Estimated(*(
            torch.cat([one, other.to(one)], axes.get(name, 0)).index_select(axes.get(name, 0), order)
            for name, one, other in zip(Estimated._fields, found, known, strict=True)
        ))  # fmt: skip
    posterior = posterior_of(model, params, data, found)
    return Local(posterior, found.log_evidence, found.standard_error, "estimate", ANNEALING), found, len(some)


def find_posterior_reference(
    model: Model, params: dict[str, Tensor], data: Data, *, reference: str, seconds: float, seed: int
) -> PosteriorReference:
    """Find the best reference that is feasible: the exact posterior, else an estimate within so many seconds.

    Raises MethodError for an unknown name, and where "exact" or "ais" was asked for and there is none.
    """
    if reference not in CHOICES:
        raise MethodError(unknown_name("reference", reference, CHOICES))
    require_positive("seconds", seconds)
    if reference == "none":
        return PosteriorReference(None, "none")
    reason = ""
    if reference != "ais":
        try:
            with torch.no_grad(), own_errors():
                if reference == "auto":
                    _require_time(model, data, seconds)
                return PosteriorReference(Exact().local_posterior(model, params, data), "exact")
        except (CapacityError, MethodError, ModelError) as error:
            if reference == "exact":
                raise
            reason = str(error).partition("\n")[0]
    try:
        budget = Budget(seconds=seconds * (1 - _SHARE))
        with own_errors():
            local, found, within = _estimate(model, params, data, budget, seed + _APART_FROM_METHODS, reference)
    except (CapacityError, MethodError, ModelError) as error:
        if reference == "ais":
            raise
        return PosteriorReference(None, "none", f"{reason}; {str(error).partition(chr(10))[0]}")
    steps = int(found.steps[found.steps > 0].double().median())
    return PosteriorReference(local, "ais", reason, found, within, _check(model, params, data, budget, steps, seed))


def _check(
    model: Model, params: Mapping[str, Tensor], data: Data, budget: Budget, steps: int, seed: int
) -> Sandwich | None:
    """Bound rows that are drawn from the model from both sides; None where none can be drawn like the data."""
    together = depend_on_each_other(model, data)
    some = data if together else data.rows(torch.arange(min(_DRAWN, len(data))))
    times = _TIMES if together else 1
    budget, found = replace(budget, seconds=budget.seconds / times), []
    try:
        problem = Problem(
            model=model,
            method=None,
            of="locals",
            num_rows=len(some),
            num_draws=1,
            seed=seed,
            at=dict(params),
            like=some,
        )
        for time in range(times):
            drawn = problem.draw(problem.seeds(time))
            code = drawn.local if is_own_of_rows(model) else one_hot(model, drawn.local)
            found.append(sandwich(model, params, drawn.data, code, budget, steps, seed=seed))
        return Sandwich.beside(found)
    except (CapacityError, MethodError, ModelError):
        return None
