"""The exact posterior over finite local latents, and over the globals with the locals summed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.reading import NotCompiled
from custom_inference.core.fit import Fit
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import Local, enumerate_local, solve_local
from custom_inference.core.method import Call, Method
from custom_inference.core.programs.quadrature import MOST_REALS
from custom_inference.core.programs.reference import EXACTLY, best_reference, describe_reals
from custom_inference.core.registry import engines_of
from custom_inference.em.method import EM
from custom_inference.mcmc import NUTS
from custom_inference.svi.method import SVI
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.core.model import require_model, size_model

#: Learns the globals of programs that are not compiled.
_LEARNER = SVI(guide="delta", optimizer="lbfgs", restarts=3)


@dataclass(frozen=True, kw_only=True)
class Exact(Method):
    """Sums over every configuration of finite local latents, and integrates over up to three real numbers a row.

    ``local_posterior(model, params, data)`` gives the posterior (marginals, mode, samples) and the evidence at given
    globals, for any program with finite locals, and by quadrature for programs without engines whose rows have up to
    three real numbers; what it cannot do exactly it refuses. ``fit`` learns the globals with the codes summed out:
    globals_: "map" (exact EM where the model has closed-form steps, else AutoDelta), "normal" (AutoNormal), or
        "nuts".
    generic: use Pyro's enumeration, and AutoDelta for "map", even where the model has closed-form steps (a check).
    """

    globals_: str = "map"
    generic: bool = False

    def __post_init__(self) -> None:
        if self.globals_ not in ("map", "normal", "nuts"):
            raise MethodError(unknown_name("treatment of the globals", self.globals_, ("map", "normal", "nuts")))

    def has_global_posterior(self, model: Model) -> bool:
        del model
        return self.globals_ != "map"

    def fit(self, model: Model, data: Any, **settings: Any) -> Fit:
        """Learn the globals with the local latents summed out; settings as those of every method."""
        model, data = size_model(model, data, settings)
        try:
            fit = self._learner(model).fit(model, data, **settings)
        except NotCompiled:
            fit = _LEARNER.fit(model, data, **settings)
        fit.method, fit.method_name = self, f"Exact({fit.method_name})"
        return fit

    def ask(self, model: Model) -> None:
        self._learner(require_model(model)).ask(model)

    def _learner(self, model: Model) -> Method:
        """Return the method that learns the globals. Raises MethodError for a program whose locals it neither sums nor
        integrates out."""
        methods: dict[str, Method] = {"normal": SVI(guide="normal"), "nuts": NUTS(), "map": EM()}
        if is_own_of_rows(model) and best_reference(model) not in EXACTLY:
            raise MethodError(
                f"Exact sums over finite latents and integrates over up to {MOST_REALS} real numbers a row; "
                f"{type(model).__name__} has {describe_reals(model)}. Use SVI(guide='gaussian') or NUTS()"
            )
        if self.globals_ == "map" and is_own_of_rows(model) and not self.generic:
            return EM() if best_reference(model) != "quadrature" else _LEARNER
        if self.globals_ == "map" and (self.generic or not engines_of(model)):
            return SVI(guide="delta")
        return methods[self.globals_]

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        raise NotImplementedError  # another method fits

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Full table of p(s_n | x_n, params), and log p(x_n | params) as its bound.

        Raises CapacityError where the sum is too large: more codes than fit into half of the free memory, more than
        2^22 labelings of a graph's nodes (seconds of work); MethodError where a sum over finite locals has no meaning.
        """
        if any(value.dtype == torch.float64 for value in params.values()):
            data = data.to(dtype=torch.float64)
        if self.generic:
            return enumerate_local(model, params, data)
        return solve_local(model, params, data, bound="exact", seed=seed)
