"""The exact posterior over finite local latents, and over the globals with the locals summed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference._isolation import keeps_modes
from custom_inference.engines import Local, engines_of, enumerate_local, solve_local
from custom_inference.fit import Fit
from custom_inference.mcmc import NUTS
from custom_inference.svi import SVI
from custom_inference.vem import EM
from ppl_models import Data, MethodError, Model
from ppl_models._errors import unknown_name


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Sums over every configuration of the local latents.

    ``local_posterior(model, params, data)`` gives the full table (marginals, mode, samples) and the evidence at
    given globals, for any program with finite locals. ``fit`` learns the globals with the codes summed out:
    globals_: "map" (exact EM where the model has closed-form steps, else AutoDelta), "normal" (AutoNormal), or
        "nuts".
    generic: use Pyro's enumeration, and AutoDelta for "map", even where the model has closed-form steps (a check).
    """

    globals_: str = "map"
    generic: bool = False

    def __post_init__(self) -> None:
        if self.globals_ not in ("map", "normal", "nuts"):
            raise MethodError(unknown_name("treatment of the globals", self.globals_, ("map", "normal", "nuts")))

    @property
    def name(self) -> str:
        return "Exact"

    def has_global_posterior(self, model: Model) -> bool:
        """Whether fits hold draws, or a posterior, of the globals rather than points."""
        del model
        return self.globals_ != "map"

    @keeps_modes
    def fit(
        self,
        model: Model,
        data: Any,
        *,
        mask: Any = None,
        seed: int = 0,
        device: Any = None,
        dtype: torch.dtype = torch.float64,
        init: Fit | Mapping[str, Tensor] | None = None,
        progress: bool = True,
    ) -> Fit:
        """Learn the globals with the local latents summed out."""
        methods: dict[str, Any] = {"normal": SVI(guide="normal"), "nuts": NUTS(), "map": EM()}
        method = methods[self.globals_]
        if self.globals_ == "map" and (self.generic or not engines_of(model)):
            method = SVI(guide="delta")
        settings = {"mask": mask, "seed": seed, "device": device, "dtype": dtype, "init": init, "progress": progress}
        fit = method.fit(model, data, **settings)
        fit.method = f"Exact({fit.method})"
        return fit

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Full table of p(s_n | x_n, params), and log p(x_n | params) as its bound."""
        if self.generic:
            return enumerate_local(model, params, data)
        return solve_local(model, params, data, bound="evidence", seed=seed)
