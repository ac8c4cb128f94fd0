"""Local inference at given globals: the posterior of the local latents and a bound on (or the exact) evidence.

Each model registers here the families of posteriors it has closed-form steps for. ``Fit.transform``,
``Fit.log_likelihood`` and ``compare`` go through this table, so that a bound has one name everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference._enumerate import enumerated_log_joint
from custom_inference.posterior import CodePosterior, LocalPosterior
from custom_inference.steps import Steps
from custom_inference.steps.noca_exact import NocaExact
from custom_inference.steps.noca_factorized import NocaFactorized
from custom_inference.steps.noca_mean_field import NocaMeanField
from custom_inference.steps.noca_truncated import NocaTruncated
from ppl_models import NOCA, Data, MethodError, Model
from ppl_models._errors import unknown_name

_ENGINES: dict[type[Model], dict[str, Callable[[], Steps]]] = {
    NOCA: {
        "evidence": NocaExact,
        "factorized": NocaFactorized,
        "mean_field": NocaMeanField,
        "truncated": NocaTruncated,
    },
}

#: Codes of up to this many bits are summed out exactly unless a bound is asked for.
EXACT_UP_TO = 14
#: The family that is used by default beyond.
SCALABLE = "truncated"


class Local(NamedTuple):
    """A posterior over the locals of some rows, and its bound (N,) on log p(x_n | params)."""

    posterior: LocalPosterior
    bound: Tensor


def engines_of(model: Model) -> Mapping[str, Callable[[], Steps]]:
    """Bound name -> steps, for the models that have closed-form steps."""
    for kind, engines in _ENGINES.items():
        if isinstance(model, kind):
            return engines
    return {}


def steps_for(model: Model, name: str, **settings: Any) -> Steps:
    """The steps of a model under a family of posteriors, by the name of its bound."""
    engines = engines_of(model)
    if not engines:
        raise MethodError(f"{type(model).__name__} has no closed-form steps; use Exact, SVI or NUTS")
    if name not in engines:
        raise MethodError(unknown_name(f"bound of {type(model).__name__}", name, engines))
    return engines[name](**settings)


@dataclass(frozen=True, kw_only=True)
class LocalSolver:
    """Repeats a family's E step at fixed globals until its bound settles."""

    steps: Steps
    max_iterations: int = 200
    tolerance: float = 1e-8

    def solve(self, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        rows = self.steps.rows(data)
        generator = torch.Generator().manual_seed(seed)
        step = self.steps.e_step(params, rows, generator=generator)
        still = self.steps.patience if self.steps.bound_name == "evidence" else 0
        for _ in range(self.max_iterations):
            if still >= self.steps.patience:
                break
            before = step.bound
            step = self.steps.e_step(params, rows, step.locals, generator=generator)
            still = still + 1 if float((step.bound - before).abs().max()) < self.tolerance else 0
        return Local(self.steps.posterior(params, rows, step), step.bound)


def is_feasible(model: Model) -> bool:
    """Whether exact local posteriors are the default: codes of up to ``EXACT_UP_TO`` bits, locals of a few values."""
    return model.code_bits is None or model.code_bits <= EXACT_UP_TO


def scalable_bound(model: Model) -> str:
    """The family that is used by default where enumeration is not feasible: truncated, or the model's first other."""
    names = [name for name in engines_of(model) if name != "evidence"]
    return SCALABLE if SCALABLE in names or not names else names[0]


def enumerate_local(model: Model, params: Mapping[str, Tensor], data: Data) -> Local:
    """The exact local posterior of any program with finite locals, by Pyro's parallel enumeration."""
    values, table = enumerated_log_joint(model, params, data)
    codes = torch.cat([value.reshape(len(value), -1) for value in values.values()], -1)
    return Local(CodePosterior(codes.to(table), torch.log_softmax(table, -1)), table.logsumexp(-1))


def solve_local(
    model: Model,
    params: dict[str, Tensor],
    data: Data,
    *,
    bound: str | None = None,
    fallback: LocalSolver | None = None,
    seed: int = 0,
) -> Local:
    """The local posterior under the named family; by default exact where feasible, else the fallback's family."""
    engines = engines_of(model)
    if not engines and bound in (None, "evidence"):
        return enumerate_local(model, params, data)
    if bound is None and not is_feasible(model) and fallback is not None:
        return fallback.solve(params, data, seed=seed)
    name = bound or ("evidence" if is_feasible(model) else scalable_bound(model))
    return LocalSolver(steps=steps_for(model, name)).solve(params, data, seed=seed)


def bound_of(model: Model, params: dict[str, Tensor], data: Data, posterior: LocalPosterior) -> Tensor:
    """The ELBO of a given factorised posterior over the locals, per row (N,): a lower bound on the evidence."""
    with torch.no_grad():
        if "mean_field" in engines_of(model):
            steps = steps_for(model, "mean_field")
            return steps.bound(params, steps.rows(data), posterior.mean)  # pyright: ignore[reportAttributeAccessIssue]
        (_, log_q), exact = posterior.table(), enumerate_local(model, params, data)
        log_p = exact.posterior.table()[1] + exact.bound[:, None]
        return (log_q.exp() * torch.where(log_q > -torch.inf, log_p - log_q, torch.zeros_like(log_q))).sum(-1)
