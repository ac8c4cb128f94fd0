"""Which model, and how many components? Held-out scores, leave-one-out, evidence and BIC side by side, in one call."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch

from custom_inference.checks.evidence.result import Evidence
from custom_inference.checks.evidence.run import marginal_likelihood
from custom_inference.checks.leave_one_out import LeaveOneOut, loo
from custom_inference.checks.model_choice.held import Folds, Scores, group_of, make_folds, score_held_out
from custom_inference.checks.model_choice.result import COLUMNS, ModelComparison
from custom_inference.core.fit import Fit, require_complete
from custom_inference.core.settings import require_seed, require_whole
from custom_inference.methods import fit as default_fit
from custom_inference.methods import methods_for
from ppl_models import Data, MethodError, Model, PPLError
from ppl_models.core.errors import own_errors, unknown_name
from ppl_models.core.model import require_model
from ppl_models.data.held import MatrixLike, Source, is_text

#: Methods whose fits leave-one-out takes where the default one has points for globals, the first that a model has.
_WITH_GLOBALS = ("vb", "svi_normal", "gibbs")
#: Draws of the globals for leave-one-out.
_DRAWS = 400


def compare_models(
    models: Mapping[str, Model] | Sequence[Model],
    x: Source,
    *,
    criteria: Sequence[str] = ("heldout", "loo", "evidence", "bic"),
    folds: int = 5,
    seed: int = 0,
    seconds: float = 60.0,
    mask: MatrixLike | None = None,
    progress: bool = True,
    **others: Any,
) -> ModelComparison:
    """Compare models of the same data by several criteria: which model, and how many components?

    Parameters
    ----------
    models: name -> model, or a list of them, which are named by class and number of components. They may be of several
        classes that read the same kind of data: rows, documents, a graph, ratings.
    x, mask, others: as for :func:`custom_inference.fit`; sites beside x go to the models that have them.
    criteria: some of
        "heldout": log score of what the default fit to the other folds did not see: log p(row | globals); of documents
        the words of one half given the other; whether pairs of nodes are linked; of ratings a normal distribution about
        the prediction. An item's score is the same number for every model: differences are paired.
        "loo": :func:`custom_inference.loo` of draws by collapsed Gibbs sampling, where there is a sampler and the
        latents are finite; else of the default fit, or by ``"vb"`` or ``"svi_normal"`` where it has points for globals.
        "evidence": :func:`custom_inference.marginal_likelihood`. "bic": of the default fit.
    folds: of rows, documents, ratings or pairs of nodes, the same for all models. seconds: for the evidence of a model.

    Returns
    -------
    :class:`custom_inference.ModelComparison`: ``table`` with errors beside the numbers, ``best`` by each criterion with
    those that are tied. A criterion that does not apply is NaN, with the reason in ``remarks``. Ctrl-C returns what was
    computed until then.

    Raises
    ------
    MethodError: no models, two of one name, models of different kinds of data, unknown criteria, a number of folds that
    the data do not have. What ``prepare`` of a model raises for data that it does not read.
    """
    named = _name_models(models)
    wanted = _require_criteria(criteria)
    require_whole("folds", folds, 2)
    require_seed(seed)
    _require_one_kind(named)
    data = {name: _read(name, x, mask, others, named) for name in named}
    sizes = {name: len(one) for name, one in data.items()}
    if len(set(sizes.values())) > 1:
        raise MethodError(f"models read different numbers of rows: {sizes}; expected the same data for all")
    first = next(iter(named))
    parts = make_folds(named[first], data[first], folds, seed) if "heldout" in wanted else None
    task = _Task(named, data, wanted, parts, seed, seconds, progress)
    interrupted = False
    try:
        for name in named:
            for criterion in wanted:
                task.compute(name, criterion)
    except KeyboardInterrupt:
        interrupted = True
    return task.result(interrupted)


def _name_models(models: Mapping[str, Model] | Sequence[Model]) -> dict[str, Model]:
    """Models by name. Raises MethodError for none, and for two of one name."""
    given: Any = models
    if is_text(given) or not hasattr(given, "__iter__"):
        raise MethodError(f"models = {given!r}, expected a list of models, or a mapping name -> model")
    pairs = [*given.items()] if hasattr(given, "items") else [(_name(model), model) for model in given]
    if not pairs:
        raise MethodError("no models to compare")
    found: dict[str, Model] = {}
    for name, model in pairs:
        if str(name) in found:
            raise MethodError(f"two models are called '{name}'; expected a mapping with a name for each")
        found[str(name)] = require_model(model)
    return found


def _name(model: Model) -> str:
    kind = require_model(model)
    size = kind.sizes.get("component") if kind.has_components else None
    return type(kind).__name__ if size is None else f"{type(kind).__name__}({size})"


def _require_criteria(criteria: Sequence[str]) -> tuple[str, ...]:
    wanted = (str(criteria),) if is_text(criteria) else tuple(criteria)
    for one in wanted:
        if one not in COLUMNS:
            raise MethodError(unknown_name("criterion", one, COLUMNS))
    if not wanted:
        raise MethodError(f"no criteria, expected some of {', '.join(COLUMNS)}")
    return tuple(dict.fromkeys(wanted))


def _require_one_kind(models: Mapping[str, Model]) -> None:
    """Refuse models whose scores are of different things: of other kinds of data, densities beside probabilities."""
    kinds = {name: (group_of(model), model.data_kind == "real") for name, model in models.items()}
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name}: {models[name].data_kind}" for name in kinds)
        raise MethodError(f"models of different kinds of data ({listed}), whose scores cannot be compared")


def _read(
    name: str, x: Source, mask: MatrixLike | None, others: Mapping[str, Any], models: Mapping[str, Model]
) -> Data:
    """The data as a model reads them, with the sites beside x that it has; what no model has every model refuses.

    Errors begin with the model's name."""
    model = models[name]
    known = {site for one in models.values() for site in one.other_sites}
    own = {name: value for name, value in others.items() if name in model.other_sites or name not in known}
    try:
        return model.prepare(x, mask=mask, dtype=torch.float64, **own)
    except PPLError as error:
        error.args = (f"{name}: {error}", *error.args[1:])
        raise


@dataclass
class _Task:
    models: dict[str, Model]
    data: dict[str, Data]
    criteria: tuple[str, ...]
    folds: Folds | None
    seed: int
    seconds: float
    progress: bool
    fits: dict[str, Fit] = field(default_factory=dict)
    heldout: dict[str, Scores] = field(default_factory=dict)
    loo: dict[str, LeaveOneOut] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    bic: dict[str, float] = field(default_factory=dict)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def compute(self, name: str, criterion: str) -> None:
        """Compute a criterion of a model, or note why there is none."""
        ways: dict[str, Callable[[str], None]] = {
            "heldout": self._hold_out, "loo": self._leave_out, "evidence": self._integrate, "bic": self._count
        }  # fmt: skip
        try:
            with own_errors():
                ways[criterion](name)
        except PPLError as error:
            self.reasons[name, criterion] = str(error).partition("\n")[0]

    def _fit(self, name: str) -> Fit:
        if name not in self.fits:
            found = default_fit(self.models[name], self.data[name], seed=self.seed, progress=self.progress)
            self.fits[name] = require_complete(found)
        return self.fits[name]

    def _hold_out(self, name: str) -> None:
        assert self.folds is not None
        found = score_held_out(self.models[name], self.data[name], self.folds, seed=self.seed, progress=self.progress)
        self.heldout[name] = found
        if found.remark:
            self.notes.append(f"{name}: {found.remark}")

    def _leave_out(self, name: str) -> None:
        fit, model, how = self._fit(name), self.models[name], ""
        if fit.draws is None:
            useful = () if model.has_continuous_locals else ("gibbs",)
            useful = useful if fit.global_posterior else (*useful, *_WITH_GLOBALS)
            known = methods_for(model)
            how = next((one for one in useful if one in known), "")
        if how:
            made = default_fit(model, self.data[name], seed=self.seed, progress=self.progress, method=how)
            fit = require_complete(made)
        with warnings.catch_warnings():  # of large Pareto k, which the notes count
            warnings.simplefilter("ignore", UserWarning)
            found = loo(fit, num_draws=_DRAWS, seed=self.seed, progress=self.progress)
        if not math.isfinite(found.elpd):
            self.reasons[name, "loo"] = "leave-one-out is no finite number"
            return
        self.loo[name] = found
        if how:
            self.notes.append(f"{name}: loo of a fit by '{how}', not of the default one")
        if found.num_bad:
            self.notes.append(f"{name}: loo is not to be relied on in {found.num_bad} of {len(found.pareto_k)} "
                              f"{found.unit}s (Pareto k above {found.good_k:.2f})")  # fmt: skip
        if found.bound != "exact":
            self.notes.append(f"{name}: loo by {found.stand_in}, in place of log p(x_n | globals)")

    def _integrate(self, name: str) -> None:
        settings: Any = {"seed": self.seed, "seconds": self.seconds, "progress": self.progress}
        found = marginal_likelihood(self.models[name], self.data[name], **settings)
        if not math.isfinite(found.log_evidence):
            self.reasons[name, "evidence"] = "; ".join(found.remarks)
            return
        self.evidence[name] = found
        self.notes += [f"{name}: evidence: {remark}" for remark in found.remarks]

    def _count(self, name: str) -> None:
        value = self._fit(name).bic()
        if not math.isfinite(value):
            self.reasons[name, "bic"] = "the log likelihood of the fit is no finite number"
            return
        self.bic[name] = value

    def result(self, interrupted: bool) -> ModelComparison:
        """Put together what was computed."""
        lines = {}
        for name in self.models:
            held, left, whole = self.heldout.get(name), self.loo.get(name), self.evidence.get(name)
            lines[name] = {
                "heldout": math.nan if held is None else held.mean,
                "heldout_error": math.nan if held is None else held.error,
                "loo": math.nan if left is None else left.elpd,
                "loo_error": math.nan if left is None else left.se,
                "evidence": math.nan if whole is None else whole.log_evidence,
                "evidence_error": math.nan if whole is None else whole.standard_error,
                "bic": self.bic.get(name, math.nan),
            }
        columns = [column for criterion in self.criteria for column in COLUMNS[criterion]]
        table = pd.DataFrame([[line[column] for column in columns] for line in lines.values()], columns=columns)
        table.index = pd.Index([*lines], name="model")
        unit = next((scores.unit for scores in self.heldout.values()), "")
        return ModelComparison(
            table, self.criteria, unit, self.models, self.fits, self.heldout, self.loo, self.evidence, self.reasons,
            tuple(self.notes), interrupted,
        )  # fmt: skip
