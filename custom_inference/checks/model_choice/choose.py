"""How many components? One model with several numbers of them, compared, and a sentence that says what follows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from custom_inference.checks.model_choice.result import ModelComparison
from custom_inference.checks.model_choice.run import compare_models
from custom_inference.core.fit import Fit
from custom_inference.core.settings import require_whole
from ppl_models import MODELS, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.core.model import require_model
from ppl_models.core.unsized import with_sizes
from ppl_models.data.held import MatrixLike, Source, holds_several, is_text

#: Criteria by how much they say of the number, and what is said of them.
_ORDER = {
    "heldout": "the held-out score is highest",
    "evidence": "the evidence is highest",
    "loo": "leave-one-out is highest",
    "bic": "BIC is lowest",
}


@dataclass(frozen=True, repr=False)
class Choice(ModelComparison):
    """Numbers of components of one model, compared; see :func:`custom_inference.choose`.

    The table has a line a number. A ``ModelComparison`` otherwise, with its ``plot``.
    """

    @property
    def num_components(self) -> int:
        """The number that is the best by the first criterion that has numbers, of held-out score, evidence,
        leave-one-out and BIC; of those tied with it that which is the best by the next, and at last the fewest.

        Raises MethodError where no criterion has a number.
        """
        known = self._known
        if not known:
            raise MethodError("no criterion has a number for any number of components; reasons say why")
        left = self._best_by(known[0])
        for criterion in known[1:]:
            sign = -1.0 if criterion == "bic" else 1.0
            values = {size: sign * float(self.table.to_dict()[criterion][str(size)]) for size in left}
            finite = [size for size in left if math.isfinite(values[size])]
            if finite:
                best = max(finite, key=values.__getitem__)
                left = [size for size in finite if size == best or self._is_tied(criterion, str(best), str(size))]
        return min(left)

    @property
    def model(self) -> Model:
        """The model with that number."""
        return self.models[str(self.num_components)]

    @property
    def fit(self) -> Fit:
        """The fit of that model to all data. Raises MethodError where no criterion needed it."""
        if str(self.num_components) not in self.fits:
            raise MethodError(
                "no criterion needed fits to all data; expected 'bic' among the criteria, or fit(model, x)"
            )
        return self.fits[str(self.num_components)]

    @property
    def _known(self) -> list[str]:
        return [criterion for criterion in _ORDER if criterion in self.best]

    def _best_by(self, criterion: str) -> list[int]:
        return [int(name) for name in self.best[criterion]]

    @property
    def sentence(self) -> str:
        """What follows, in a sentence."""
        if not self._known:
            return "No criterion has a number, so that nothing follows."
        number, parts = self.num_components, []
        for criterion in self._known:
            best, *ties = self._best_by(criterion)
            tied = f" (tied with it: {', '.join(str(size) for size in sorted(ties))})" if ties else ""
            parts.append(f"{_ORDER[criterion]} at {best}{tied}")
        most = max(int(name) for name in self.models)
        end = " No more were tried: there may be better ones." if number == most and len(self.models) > 1 else ""
        return f"{number} component{'s' if number > 1 else ''}: {', '.join(parts)}.{end}"

    @property
    def remarks(self) -> list[str]:
        """The sentence, and what :class:`ModelComparison` remarks; reasons that all numbers have stand once."""
        shared = {
            criterion: reason
            for (_, criterion), reason in self.reasons.items()
            if all(self.reasons.get((name, criterion)) == reason for name in self.models)
        }
        again = [f"no {criterion} of" for criterion in shared]
        once = [f"no {criterion}: {reason}" for criterion, reason in shared.items()]
        rest = [remark for remark in super().remarks if not remark.startswith(("best by", *again))]
        return [self.sentence, *once, *rest]


def choose(
    model: Model | type[Model] | str,
    x: Source,
    num_components: Iterable[int] = range(1, 7),
    *,
    criteria: Sequence[str] = ("heldout", "evidence", "bic"),
    folds: int = 5,
    seed: int = 0,
    seconds: float = 10.0,
    mask: MatrixLike | None = None,
    progress: bool = True,
    **others: Any,
) -> Choice:
    """Choose how many components (topics, blocks, factors) a model of rows, ratings, documents or a graph needs.

    Parameters
    ----------
    model: one with any number of components, whose settings and priors all others have; or a class, or its name in
        ``MODELS``, whose other sizes are those of the data.
    x, mask, others: as for :func:`custom_inference.fit`.
    num_components: the numbers to compare.
    criteria, folds, seed, progress: as for :func:`custom_inference.compare_models`. seconds: for the evidence of each.

    Returns
    -------
    :class:`custom_inference.Choice`: ``table``, ``num_components``, ``model``, ``fit``, ``sentence``, ``plot()``.

    Raises
    ------
    MethodError: no numbers, numbers that are not whole and at least 1, a model without components. What
    :func:`custom_inference.compare_models` raises.
    """
    if not holds_several(num_components):
        raise MethodError(f"num_components = {num_components!r}, expected numbers to compare, such as range(1, 7)")
    sizes = [*dict.fromkeys(num_components)]
    if not sizes:
        raise MethodError("no numbers of components to choose from, expected some, such as range(1, 7)")
    for size in sizes:
        require_whole("num_components", size, 1)
    model, x = with_sizes(model, x, others)
    models = {str(size): with_components(model, size, x) for size in sizes}
    found = compare_models(
        models, x, criteria=criteria, folds=folds, seed=seed, seconds=seconds, mask=mask, progress=progress, **others
    )
    return Choice(**vars(found))


def with_components(model: Model | type[Model] | str, size: int, x: Source) -> Model:
    """The model with so many components."""
    if is_text(model) and str(model).lower() not in MODELS:
        raise MethodError(unknown_name("model", str(model), MODELS))
    made: Any = MODELS[str(model).lower()] if is_text(model) else model
    if inspect.isclass(made):
        kind: Any = made
        return kind.for_data(x, size)
    model = require_model(made)
    if "component" not in model.axes:
        name = type(model).__name__
        raise MethodError(f"{name} has no components to choose the number of; its axes: {', '.join(model.axes)}")
    return replace(model, **{model.axes["component"]: size, "priors": model.chosen_priors})
