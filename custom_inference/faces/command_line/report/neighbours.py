"""How good a fit is beside no components, and beside one fewer and one more."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from custom_inference.checks.held_entries import Held
from custom_inference.checks.model_choice.choose import with_components
from custom_inference.checks.read_as import KINDS
from custom_inference.checks.suggest import HELD
from custom_inference.core.fit import Fit, require_complete
from custom_inference.methods import fit as fit_by
from ppl_models import Data, DataWarning, MethodError, Model, PPLError
from ppl_models.core.errors import own_errors

#: Seconds of a fit up to which others are made to compare it with, and how many fits these are at most.
LONGEST, _FITS = 15.0, 5
#: Differences that are none: of a held-out score in nats, and of BIC.
_SAME = {"held-out score": 0.001, "BIC": 2.0}
#: The share of entries that is hidden.
_SHARE = 0.2
#: Seconds from which on it is said beforehand how long it takes.
_TOLD = 5.0


@dataclass(frozen=True)
class Neighbours:
    """Fits with fewer and more components. table: a line a number, "none" first. sentences: what follows.

    remarks: what could not be compared, and why.
    """

    table: pd.DataFrame
    sentences: list[str]
    remarks: list[str]


def compare_neighbours(fit: Fit, say: Callable[[str], None]) -> Neighbours | str:
    """Compare a fit with no components, one fewer and one more; or return why it is not compared.

    A fifth of the entries (tokens, pairs of nodes, ratings) is hidden, once, and the log probability of these compared;
    BIC is of fits to all data. All fits are by the method of the first. say: takes what is to be told beforehand.
    """
    seconds = float(fit.details.get("seconds") or 0.0)
    if not fit.model.has_components or "component" not in fit.model.axes:
        return "the model has no number of components to change"
    if fit.weights is not None:
        return "rows with weights are not compared"
    if seconds > LONGEST:
        return f"the fit took {seconds:.0f} s, and {_FITS} more would take too long"
    if _FITS * seconds > _TOLD:
        say(f"comparing with fewer and more components: about {_FITS * seconds:.0f} s (--no-compare leaves it out)")
    size = fit.model.sizes["component"]
    models = {each: with_components(fit.model, each, fit.data) for each in (size - 1, size, size + 1) if each > 0}
    columns: dict[str, dict[str, float]] = {}
    remarks: list[str] = []
    for name, compute in (("held-out score", _score_held_out), ("BIC", _compute_bics)):
        try:
            with own_errors(), warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # what is to be said of the data was said
                columns[name] = compute(fit, models)
        except PPLError as error:
            remarks.append(f"No {name}: {str(error).partition(chr(10))[0]}.")
    if not columns:
        return " ".join(remarks)
    table = pd.DataFrame(columns, index=pd.Index(["none", *map(str, models)], name="components"))
    if "held-out score" in table:
        table.insert(1, "gain over none", table["held-out score"] - table.loc["none", "held-out score"])
    table = table.loc[[line for line in table.index if table.loc[line].notna().any()]]
    return Neighbours(table, _conclude(table, str(size)), remarks)


def _score_held_out(fit: Fit, models: dict[int, Model]) -> dict[str, float]:
    kind = next((name for name, (_, kinds) in KINDS.items() if fit.model.data_kind in kinds), None)
    if kind is None or fit.model.other_sites:
        raise MethodError(f"nothing is held out of the data of {type(fit.model).__name__}")
    held: Held[Any, Any] = HELD[kind](fit.data, _SHARE, fit.seed)
    found = {"none": held.baseline}
    for size, model in models.items():
        score = held.score(_fit_again(fit, model, held.train))
        found[str(size)] = score if math.isfinite(score) else math.nan
    return found


def _compute_bics(fit: Fit, models: dict[int, Model]) -> dict[str, float]:
    own = fit.model.sizes["component"]
    return {
        str(size): (fit if size == own else _fit_again(fit, model, fit.data)).bic() for size, model in models.items()
    }


def _fit_again(fit: Fit, model: Model, data: Data) -> Fit:
    return require_complete(fit_by(model, data, method=fit.method, seed=fit.seed, progress=False))


def _conclude(table: pd.DataFrame, own: str) -> list[str]:
    found = []
    if "held-out score" in table:
        gain = float(table.loc[own, "gain over none"])  # pyright: ignore[reportArgumentType]
        if not math.isfinite(gain):
            found.append("The held-out score of this number of components is no finite number.")
        elif gain > 0:
            found.append(
                f"It predicts hidden entries better than no components do: each is {math.exp(min(gain, 50)):.3g} times "
                f"as probable, on average."
            )
        else:
            found.append(
                "It does not predict hidden entries better than no components do: do not rely on what is seen in them."
            )
        found.append(_name_best(table, own, "held-out score", -1.0))
    if "BIC" in table:
        found.append(_name_best(table, own, "BIC", 1.0))
    return found


def _name_best(table: pd.DataFrame, own: str, column: str, sign: float) -> str:
    values = (sign * table[column].drop("none", errors="ignore")).dropna()
    if values.empty:
        return f"No number of components has a {column}."
    best = str(values.idxmin())
    subject = "1 component is" if own == "1" else f"{own} components are"
    own_value = float(values.to_dict().get(own, math.inf))
    if best != own and own_value - min(float(one) for one in values.to_list()) < _SAME[column]:
        return f"By {column}, {subject} as good as any of these."
    return f"By {column}, {subject} {'the best of these' if best == own else f'less good than {best}'}."
