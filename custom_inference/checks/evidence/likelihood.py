"""log p(x | globals) of any row model, the latents of the rows summed or integrated out, at many globals at once.

Where the latents can be integrated out neither in closed form nor soon enough by quadrature, the globals and the real
numbers that stand for the latents of all rows are one vector.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from torch import Tensor

from custom_inference.checks.evidence.coordinates import Globals
from custom_inference.checks.evidence.exact import is_mixture
from custom_inference.checks.evidence.labelings import expect_other
from custom_inference.core.isolation import seed_of
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import row_evidence
from custom_inference.core.programs.reference import EXACTLY, best_reference, count_summed, describe_reals
from custom_inference.core.programs.statements import learning
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.svi.marginal import log_prior_of
from ppl_models import Data, MethodError, Model, ModelError, PPLError
from ppl_models.core.errors import own_errors
from ppl_models.core.hierarchy import is_function, typical_values
from ppl_models.data import sparse as _sparse

#: log p(x | globals), (), at the values of all globals.
LogLikelihood = Callable[[Mapping[str, Tensor]], Tensor]
#: Numbers that are evaluated at once, about.
ENTRIES = 2**22


class OutOfTime(Exception):
    """The seconds are over."""


class Points:
    """Globals u (S, d) with log q(u) (S,), their prior density, and l(u) (S,) = log p(x, u) - log q(u)."""

    def __init__(self, u: Tensor, prior: Tensor, likelihood: Tensor):
        self.u, self.prior, self.likelihood = u, prior, likelihood

    def at(self, temperature: float) -> Tensor:
        """Return log q(u) + temperature l(u), -inf where the likelihood is 0."""
        tempered = self.prior + temperature * self.likelihood
        return torch.where(torch.isnan(tempered), -torch.inf, tempered)

    def select(self, index: Tensor) -> Points:
        """Select some points."""
        return Points(self.u[index], self.prior[index], self.likelihood[index])

    def where(self, taken: Tensor, other: Points) -> Points:
        """Take the points of another set where ``taken`` (S,) says so."""
        pairs = ((self.u, other.u), (self.prior, other.prior), (self.likelihood, other.likelihood))
        return Points(*(torch.where(taken.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in pairs))


@dataclass
class Target:
    """The prior and the likelihood of the globals, at many u at once: by ``torch.vmap`` where the likelihood allows it,
    one after the other where it does not."""

    globals: Globals
    log_likelihood: LogLikelihood
    together: int
    deadline: float = math.inf
    vectorised: bool = True

    def evaluate(self, u: Tensor) -> Points:
        """Evaluate at u (S, d)."""
        return Points(u, *self._each(u))

    def gradient(self, u: Tensor, temperature: float) -> tuple[Points, Tensor]:
        """Evaluate at u (S, d), with the gradient (S, d) of the tempered log density."""
        leaf = u.detach().requires_grad_()
        with torch.enable_grad():
            prior, likelihood = self._each(leaf)
            total = (prior + temperature * likelihood).nan_to_num(0.0, 0.0, 0.0).sum()
            (slope,) = torch.autograd.grad(total, leaf, allow_unused=True)
        slope = torch.zeros_like(u) if slope is None else slope.nan_to_num(0.0, 0.0, 0.0)
        return Points(u, prior.detach(), likelihood.detach()), slope

    def _one(self, u: Tensor) -> tuple[Tensor, Tensor]:
        values, prior = self.globals.evaluate(u)
        return prior, self.log_likelihood(values)

    def _each(self, u: Tensor) -> tuple[Tensor, Tensor]:
        found: list[tuple[Tensor, Tensor]] = []
        with own_errors(), pyro.validation_enabled(False):
            for some in u.split(self.together):
                if self.vectorised:
                    self._require_time()
                    try:
                        with warnings.catch_warnings():
                            # Some operations go through the points one after the other, as all would without it.
                            warnings.filterwarnings("ignore", "There is a performance drop")
                            found.append(torch.vmap(self._one)(some))
                        continue
                    except PPLError:
                        raise
                    except (RuntimeError, ValueError):  # one after the other shows whether vmap was the reason
                        self.vectorised = False
                for one in some:
                    self._require_time()
                    try:
                        prior, likelihood = self._one(one)
                    except torch.linalg.LinAlgError as error:
                        name = type(self.globals.model).__name__
                        raise MethodError(
                            f"log p(x | globals) of {name} cannot be computed at all values that its priors draw "
                            f"({error}); expected priors that suit x"
                        ) from error
                    found.append((prior.unsqueeze(0), likelihood.unsqueeze(0)))
        return torch.cat([prior for prior, _ in found]), torch.cat([each for _, each in found])

    def _require_time(self) -> None:
        if time.perf_counter() > self.deadline:
            raise OutOfTime


def target_of(model: Model, data: Data) -> Target:
    """Return the prior and the likelihood of a row model's globals.

    Raises
    ------
    PriorError: a prior that is improper. MethodError: latents that no sum or integral is known for; it names them.
    """
    _require_rows(model)
    globals_ = Globals.of(model, data)
    entries = math.prod(data.x.shape[1:])
    width = entries * min(count_summed(model, data), 4096.0)
    return Target(globals_, _log_likelihood(model, data), max(1, int(ENTRIES / (len(data) * width))))


def _require_rows(model: Model) -> None:
    if not model.rows_are_independent:
        raise MethodError(
            f"the latents '{model.local_site}' of {type(model).__name__} meet in every entry: at given globals they "
            f"cannot be summed out row by row; {expect_other(model)}"
        )


def _log_likelihood(model: Model, data: Data) -> LogLikelihood:
    if is_own_of_rows(model):
        return _of_program(model, data)
    if "exact" not in engines_of(model):
        raise MethodError(
            f"log p(x | globals) of {type(model).__name__} is not known: its latent '{model.local_site}' cannot be "
            "summed or integrated out exactly; compare held-out scores, or the bounds of fits by variational Bayes"
        )
    engine: Any = engine_for(model, "exact")
    rows = engine.rows(model, data)
    if is_mixture(model):  # of sparse products torch.vmap knows nothing
        rows = replace(rows, counts=_sparse.dense(rows.counts))
    of_latents = any(is_function(model.priors.get(site)) for site in model.sites_of("latent"))

    def log_likelihood(values: Mapping[str, Tensor]) -> Tensor:
        return engine.log_evidence(model.at(values) if of_latents else model, dict(values), rows).sum()

    return log_likelihood


def _of_program(model: Model, data: Data) -> LogLikelihood:
    """Sum or integrate out the latents of a program without engines."""
    if model.row_latents and best_reference(model) not in EXACTLY:
        raise MethodError(
            f"log p(x | globals) of {type(model).__name__} has no exact value: {describe_reals(model)} are more real "
            "numbers a row than quadrature takes (three); compare held-out scores instead"
        )
    dense = model.as_read(data).dense()
    start = {site: value.to(dense.x) for site, value in typical_values(model).items()}
    evidence = row_evidence(RowDensity.of(model, start, dense))
    require_priors(model, start, dense)

    def log_likelihood(values: Mapping[str, Tensor]) -> Tensor:
        with learning():
            return evidence(dict(values)).sum()

    return log_likelihood


def require_priors(model: Model, params: Mapping[str, Tensor], data: Data) -> None:
    """Refuse a program that states its globals otherwise than its priors say, from which they are drawn."""
    stated, declared = log_prior_of(model, params, data), model.log_prior(params)
    if abs(float(stated - declared)) > 1e-6 * (1 + abs(float(declared))):
        raise MethodError(
            f"the program of {type(model).__name__} states its globals with log density {float(stated):.6g} where its "
            f"priors have {float(declared):.6g}; expected self.sample(site), which draws from the priors"
        )


@dataclass(frozen=True)
class Joint(Globals):
    """The unknown globals, and behind them the real numbers of the latents of N rows, (N R,)."""

    density: RowDensity

    def draw(self, count: int, seed: int) -> Tensor:
        """Draw all from the program's prior, (count, d)."""
        u, parts = super().draw(count, seed), []
        for number, one in enumerate(u):
            density = self.density.at(self.evaluate(one)[0])
            parts.append(density.unconstrain(density.draw(seed_of(seed, "locals", number))).flatten())
        return torch.cat([u, torch.stack(parts)], 1)

    def evaluate_all(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log prior density of all at u (d,), and log p(x | all), both ()."""
        values, prior = self.evaluate(u[: self.size])
        layout, density = self.density.layout, self.density.at(values)
        reals = u[self.size :].reshape(1, len(density), layout.num_reals)
        code, volume = density.constrain(reals.new_zeros(1, len(density), layout.width), reals)
        of_latents, of_rows = density.split(code)
        return prior + (of_latents + volume).sum(), of_rows.sum()


@dataclass
class JointTarget(Target):
    """The prior and the likelihood of globals and latents."""

    globals: Joint

    def _one(self, u: Tensor) -> tuple[Tensor, Tensor]:
        with learning():
            return self.globals.evaluate_all(u)


def joint_target_of(model: Model, data: Data) -> JointTarget | None:
    """Return the prior and the likelihood of globals and latents together; None of models whose latents are summed or
    integrated out in closed form, or are not all real numbers.

    Raises PriorError for a prior that is improper.
    """
    if not (model.rows_are_independent and model.row_latents):
        return None
    if (
        best_reference(model) in ("closed form", "enumeration")
        if is_own_of_rows(model)
        else "exact" in engines_of(model)
    ):
        return None
    globals_, data = Globals.of(model, data), model.as_read(data).dense()
    start = {site: value.to(data.x) for site, value in typical_values(model).items()}
    try:
        density = RowDensity.of(model, start, data)
    except (NotImplementedError, ModelError):
        return None
    if density.layout.finite:
        return None
    require_priors(model, start, data)
    joint = Joint(**vars(globals_), density=density)
    return JointTarget(joint, _not_known, max(1, ENTRIES // data.x.numel()))


def _not_known(values: Mapping[str, Tensor]) -> Tensor:
    raise NotImplementedError("log p(x | globals) by itself")
