"""What a comparison of models says: a table of criteria with their errors, the best by each, and those tied with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from custom_inference.checks.evidence.result import Evidence
from custom_inference.checks.leave_one_out import LeaveOneOut
from custom_inference.checks.model_choice.held import Scores, ratio_error
from custom_inference.core.fit import Fit
from ppl_models import MethodError, Model
from ppl_models.core.errors import unknown_name

#: Criterion -> the columns of the table that it has.
COLUMNS = {
    "heldout": ("heldout", "heldout_error"),
    "loo": ("loo", "loo_error"),
    "evidence": ("evidence", "evidence_error"),
    "bic": ("bic",),
}
#: Differences of fewer standard errors than this are none.
_TIED = 2.0
#: Relative differences of this size are those of fits that stopped a little apart.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class ModelComparison:
    """Models of the same data, by several criteria; see :func:`custom_inference.compare_models`.

    table: a line a model. "heldout": mean log score of a held-out ``unit``, in nats. "loo": leave-one-out predictive
    accuracy, summed over the observations. "evidence": log p(x), globals and latents integrated out. Of these more is
    better. "bic": -2 log p(x | globals) + free parameters * log N, of which less is better. Each has its standard error
    beside it, but for "bic", a function of the data. NaN where a criterion does not apply: ``reasons`` say why.
    models, fits: by name; the fits to all data. heldout, loo, evidence: by name, what was found, item by item.
    reasons: (name, criterion) -> why there is NaN. notes: what else is to be known of the numbers.
    interrupted: Ctrl-C ended the comparison; what was not computed is NaN.
    """

    table: pd.DataFrame
    criteria: tuple[str, ...]
    unit: str
    models: dict[str, Model] = field(repr=False)
    fits: dict[str, Fit] = field(default_factory=dict, repr=False)
    heldout: dict[str, Scores] = field(default_factory=dict, repr=False)
    loo: dict[str, LeaveOneOut] = field(default_factory=dict, repr=False)
    evidence: dict[str, Evidence] = field(default_factory=dict, repr=False)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def best(self) -> dict[str, list[str]]:
        """Criterion -> the best model, and after it those tied with it: within two standard errors of the difference,
        item by item where there are items. Criteria that no model has are left out."""
        found = {}
        for criterion in self.criteria:
            sign = -1.0 if criterion == "bic" else 1.0
            values = self.table[criterion].to_numpy(dtype=float)
            score = {str(name): sign * value for name, value in zip(self.table.index, values, strict=True)}
            names = sorted((name for name in score if math.isfinite(score[name])), key=lambda name: -score[name])
            if names:
                ties = [name for name in names[1:] if self._is_tied(criterion, names[0], name)]
                found[criterion] = [names[0], *ties]
        return found

    def difference(self, criterion: str, one: str, other: str) -> tuple[float, float]:
        """Return how much more the table has of a criterion for one model than for another, and its standard error.

        Held-out scores and leave-one-out are compared item by item, which removes what the items have in common.

        Raises MethodError for a criterion or a model that was not compared.
        """
        if criterion not in self.criteria:
            raise MethodError(unknown_name("criterion", criterion, self.criteria))
        for name in (one, other):
            if name not in self.table.index:
                raise MethodError(unknown_name("model", name, [str(each) for each in self.table.index]))
        values = self.table[criterion].to_dict()
        gain = float(values[one] - values[other])
        if not math.isfinite(gain):
            return gain, math.nan
        if criterion == "heldout":
            pair = self.heldout[one], self.heldout[other]
            return gain, ratio_error(pair[0].value - pair[1].value, pair[0].weight)
        if criterion == "loo":
            each = self.loo[one].pointwise - self.loo[other].pointwise
            return gain, float(math.sqrt(len(each)) * np.std(each, ddof=1))
        if criterion == "evidence":
            return gain, self.evidence[one].log_bayes_factor(self.evidence[other]).standard_error
        return gain, 0.0

    def _is_tied(self, criterion: str, best: str, name: str) -> bool:
        gain, error = self.difference(criterion, best, name)
        rounding = _ROUNDING * max(1.0, abs(float(self.table.to_dict()[criterion][best])))
        return abs(gain) <= max(rounding, 0.0 if math.isnan(error) else _TIED * error)

    @property
    def remarks(self) -> list[str]:
        """What the table does not say: the best by each criterion, why there is NaN, and what to know of the rest."""
        found = []
        for criterion, names in self.best.items():
            ties = f" (tied with it, within two standard errors: {', '.join(names[1:])})" if len(names) > 1 else ""
            found.append(f"best by {criterion}: {names[0]}{ties}")
        found += [f"no {criterion} of {name}: {reason}" for (name, criterion), reason in self.reasons.items()]
        stopped = ["interrupted: what was not computed is NaN"] if self.interrupted else []
        return [*found, *self.notes, *stopped]

    def __repr__(self) -> str:
        return "\n".join([self.table.to_string(float_format=lambda value: f"{value:.4g}"), *self.remarks])

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report(
            f"Comparison of {len(self.table)} models", *self.remarks, table=self.table, plot=self.plot
        )

    def plot(self, **settings: Any) -> Any:
        """Draw every criterion against the models, or their numbers of components, with error bars.

        settings: ``title``, and ``axes`` to draw on, one for each criterion; returns these, or a new Figure.
        """
        from custom_inference.checks.model_choice.plots import plot_models

        return plot_models(self, **settings)
