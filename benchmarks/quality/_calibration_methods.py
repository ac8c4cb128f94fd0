"""Methods that are wrong in a known way, which calibration has to find."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from custom_inference import Exact, VariationalEM
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import CodePosterior, GammaPosterior
from ppl_models import Model


@dataclass(frozen=True)
class Spoiled:
    """The exact posterior of codes, raised to a power (above 1: too narrow).

    hidden: features that it does not look at; -1 for all, which leaves the prior.
    """

    power: float = 1.0
    hidden: int = 0

    @property
    def name(self) -> str:
        seen = {0: "", -1: " of no data"}.get(self.hidden, f" without {self.hidden} feature(s)")
        return f"exact posterior{seen}" + ("" if self.power == 1 else f", to the power {self.power:g}")

    def local_posterior(self, model: Model, params: Any, data: Any, *, seed: int = 0) -> Local:
        if self.hidden:
            seen = torch.ones(data.x.shape, dtype=torch.bool)
            seen[:, (0 if self.hidden < 0 else data.num_features - self.hidden) :] = False
            data = replace(data, mask=seen)
        found = Exact().local_posterior(model, params, data, seed=seed)
        codes, log_weight = found.posterior.table()
        return Local(CodePosterior(codes, torch.log_softmax(self.power * log_weight, -1)), found.bound)


@dataclass(frozen=True)
class OneRate:
    """Variational Bayes of a mixture of one component, where it is exact: Gamma posteriors of rates; then spoiled.

    narrow: shape and rate times this: the same mean, a smaller variance. shift: of all rates, as a factor.
    """

    narrow: float = 1.0
    shift: float = 1.0

    @property
    def name(self) -> str:
        parts = [f"variance / {self.narrow:g}"] * (self.narrow != 1) + [f"mean x {self.shift:g}"] * (self.shift != 1)
        return ", ".join(["conjugate posterior", *parts])

    def fit(self, model: Model, data: Any, **settings: Any) -> Any:
        fit = VariationalEM(guide="vb", search=None).fit(model, data, **settings)
        right: Any = fit.global_posterior["rate"]
        fit.global_posterior["rate"] = GammaPosterior(right.shape * self.narrow, right.rate * self.narrow / self.shift)
        return fit
