"""Methods that fit where a default does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from custom_inference.core.fit import Fit
from ppl_models import Model
from ppl_models.data.held import Source


@dataclass(frozen=True)
class Instead:
    """A method that fits where the default does not suit the priors or the size; the status says why."""

    method: Any
    said: str

    def ask(self, model: Model) -> None:
        self.method.ask(model)

    def fit(self, model: Model, data: Source, **arguments: Any) -> Fit:
        found = self.method.fit(model, data, **arguments)
        found.status += f"; by {found.method_name}, {self.said}"
        return found
