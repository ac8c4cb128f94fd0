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
from custom_inference.faces.command_line.report.verdict import name_method_with_posterior
from custom_inference.methods import fit as fit_by
from ppl_models import Data, DataWarning, MethodError, Model, PPLError
from ppl_models.core.errors import own_errors

#: Seconds of a fit up to which others are made to compare it with, and how many fits these are at most.
LONGEST, _FITS = 15.0, 5
#: Differences that one split cannot tell: of a held-out score in nats, and as a part of it; and those of BIC.
_SAME, _SAME_PART = {"held-out score": 0.01, "BIC": 2.0}, {"held-out score": 0.01, "BIC": 0.0}
#: The share of entries that is hidden.
_SHARE = 0.2
#: Seconds from which on it is said beforehand how long it takes.
_TOLD = 5.0


@dataclass(frozen=True)
class Neighbours:
    """Fits with fewer and more components. table: a line a number, "none" first. sentences: what follows.

    remarks: what could not be compared, and why. behind: whether no components predict better.
    """

    table: pd.DataFrame
    sentences: list[str]
    remarks: list[str]
    behind: bool = False


def compare_neighbours(fit: Fit, say: Callable[[str], None]) -> Neighbours | str:
    """Compare a fit with no components, one fewer and one more; or return why it is not compared.

    A fifth of the entries (tokens, pairs of nodes, ratings) is hidden, once, and the log probability of these compared;
    BIC is of fits to all data. All fits are by the method of the first. say: takes what is to be told beforehand.
    """
    seconds = float(fit.details.get("seconds") or 0.0)
    if not fit.model.has_components or "component" not in fit.model.axes:
        return "the model has no number of components to change"
    if fit.model.axes["component"].startswith("max_"):
        return "the model finds the number of its components itself"
    if fit.weights is not None:
        return "rows with weights are not compared"
    if seconds > LONGEST:
        return f"the fit took {seconds:.0f} s, and {_FITS} more would take too long"
    if _FITS * seconds > _TOLD:
        say(f"comparing with fewer and more components: about {_FITS * seconds:.0f} s (--no-compare leaves it out)")
    size = fit.model.sizes["component"]
    columns: dict[str, dict[str, float]] = {}
    models, remarks = _resize(fit, [each for each in (size - 1, size, size + 1) if each > 0])
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
    return conclude(fit, table, remarks)


def _resize(fit: Fit, sizes: list[int]) -> tuple[dict[int, Model], list[str]]:
    """Return the models of other sizes, and why there are none of some: labels need topics, priors say one of each."""
    models, remarks = {fit.model.sizes["component"]: fit.model}, []
    for size in sizes:
        try:
            with own_errors():
                models[size] = with_components(fit.model, size, fit.data)
        except PPLError as error:
            remarks.append(f"Not compared with {size} components: {str(error).partition(chr(10))[0]}.")
    return dict(sorted(models.items())), remarks


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


def conclude(fit: Fit, table: pd.DataFrame, remarks: list[str]) -> Neighbours:
    """Say what follows from a table of fits, one thing: how the fit is beside no components, then beside its
    neighbours; differences that one split cannot tell are none."""
    found, behind, own = [], False, str(fit.model.sizes["component"])
    if "held-out score" in table:
        scores = {str(name): float(score) for name, score in table["held-out score"].to_dict().items()}
        gain, alike = scores[own] - scores["none"], _find_same(scores["none"], "held-out score")
        behind = not gain >= -alike
        found.append(_compare_to_none(fit, gain, alike))
    for column, sign in (("held-out score", -1.0), ("BIC", 1.0)):
        if column in table:
            found.append(
                _compare_sizes({str(k): sign * float(v) for k, v in table[column].to_dict().items()}, own, column)
            )
    found = [sentence for sentence in found if sentence]
    return Neighbours(table, found, remarks, behind)


def _find_same(value: float, column: str) -> float:
    return max(_SAME[column], _SAME_PART[column] * abs(value))


def _compare_to_none(fit: Fit, gain: float, alike: float) -> str:
    if gain > alike:
        more = f"each is {math.exp(min(gain, 50)):.3g} times as probable, on average"
        return f"It predicts hidden entries better than no components do: {more}."
    if gain >= -alike:
        return "It predicts hidden entries about as well as no components do: one split cannot tell them apart."
    known = fit.draws is not None or bool(fit.global_posterior)
    method = None if known else name_method_with_posterior(fit)
    ways = ["informative priors" + (", such as Beta(1, 2) of probabilities" if fit.model.data_kind == "binary" else "")]
    ways += [f"`--method {method}`"] * (method is not None) + ["fewer components"] * (fit.model.sizes["component"] > 1)
    start = (
        f"It predicts hidden entries worse than no components do, by {-gain:.2g} nats each"
        if math.isfinite(gain)
        else "Its held-out score is no finite number: it gives some hidden entry a probability of 0, or none at all"
    )
    return (
        f"{start}. The components may still be right: with flat priors a fit gives probabilities of nearly 0 to what "
        f"it has not seen, and a single surprise then costs a lot. What may help: {'; '.join(ways)}."
    )


def _compare_sizes(losses: dict[str, float], own: str, column: str) -> str:
    """Say which numbers of components are better, as good and less good than the fit's own, by what is to be small."""
    others = {size: loss for size, loss in losses.items() if size not in ("none", own) and math.isfinite(loss)}
    mine = losses.get(own, math.nan)
    if not others:
        return ""
    subject, same = f"By {column}, {own} component{' is' if own == '1' else 's are'}", _find_same(mine, column)
    best = min(others, key=lambda size: others[size])
    if not mine <= others[best] + same:
        return f"{subject} less good than {best}."
    alike = [size for size, loss in others.items() if loss <= mine + same]
    worse = [size for size in others if size not in alike]
    parts = [f"about as good as {' and '.join(alike)}"] if alike else []
    parts += [f"better than {' and '.join(worse)}"] if worse else []
    return f"{subject} {', and '.join(parts)}."
