"""Models of answers: rows of categories, of which every feature (question) may have another number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Dirichlet, constraints

from ppl_models.core.errors import DataError, ModelError, about, require_whole, warn_of_data
from ppl_models.core.hierarchy import is_function
from ppl_models.core.priors import element_of, value_if_known
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.data.answers import ANSWERS, Labels, answers_by_label, encode_answers, number_answers
from ppl_models.data.columns import check_columns, warn_of_answers
from ppl_models.data.covariates import labels_held, read_before
from ppl_models.data.held import Reading, Source, is_listed
from ppl_models.data.matrix import Data
from ppl_models.distributions.padded import PaddedDirichlet, present_of
from ppl_models.likelihoods import Categorical

#: The logit of a category that a feature lacks.
ABSENT = -1e9


@dataclass(frozen=True, kw_only=True, eq=False)
class AnswerModel(ComponentModel):
    """A model of D categorical features a row, x (N, D).

    num_categories: C_j of every feature: one number, or a tuple of D; each at least 2. C is the largest.

    x holds numbers 0..C_j - 1; :meth:`prepare` also takes words and pandas' Categoricals, whose answers it numbers and
    keeps as labels. Raises ModelError for numbers that are no whole ones above 1, or not one a feature.
    """

    num_categories: Any

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "category": "most_categories"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_categories", check_categories(self.num_categories, self.num_features))
        super().__post_init__()

    @property
    def categories(self) -> tuple[int, ...]:
        """C_j of every feature."""
        return of_each(self.num_categories, self.num_features)

    @property
    def most_categories(self) -> int:
        """C."""
        return max(self.categories)

    @property
    def is_padded(self) -> bool:
        """Whether some feature has fewer categories than another."""
        return len(set(self.categories)) > 1

    @property
    def likelihood(self) -> Categorical:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Categorical(self.most_categories)

    def present(self, like: Tensor) -> Tensor:
        """Return which categories each feature has, bool (D, C)."""
        return present_of(torch.tensor(self.categories, device=like.device), self.most_categories)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model whose number of features is the data's, with as many categories of each as its answers have labels,
        or else up to the largest that occurs in it."""
        settings.setdefault("num_categories", categories_of(data))
        return cls(num_components=num_components, num_features=data.num_features, **settings)

    def prepare(self, data: Source, **reading: Unpack[Reading]) -> Data:
        """Check a matrix of numbers of categories, 0 to C_j - 1, or a table of words, Categoricals or other whole
        numbers, which :func:`ppl_models.answers` numbers; NaN is missing.

        Raises DataError for an answer that its feature does not have, naming both.
        """
        return read_answers(data, None, super().prepare, reading, self.categories)

    def prepare_new(self, data: Source, like: Data, **reading: Unpack[Reading]) -> Data:
        """Prepare new answers, coded as those of ``like``, by their labels where ``like`` has them."""
        return read_answers(data, like.coords.get(ANSWERS), super().prepare, reading, self.categories)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse features that are never observed; warn of those that are always the same, and of answers that look
        as if they were counted from 1."""
        with about(self.observed_site):
            check_columns(data, constant=range(self.most_categories))
            warn_of_answers(data)
            seen = data.entries
            if len(data) > 1 and ANSWERS not in data.coords and bool((seen >= 1).all()):
                warn_of_data("no feature has the answer 0, which every one could have; answers counted from 1 are "
                             "numbered by ppl_models.answers(x), which keeps them as labels")  # fmt: skip


def read_answers(
    data: Source, known: Labels | None, prepare: Callable[..., Data], reading: Reading, categories: tuple[int, ...]
) -> Data:
    """Read answers by a door ``prepare``, after words, Categoricals and numbers that are no categories' have become
    such numbers, with labels.

    known: the labels of a fit, which all containers hold then. categories: of each feature, how many there are.

    Raises DataError for answers that are none.
    """
    labels = labels_held(data, ANSWERS)
    with about("x"):
        own = read_before(data)
        if own is not None and labels is not None and known is not None and labels != known:
            data, labels = answers_by_label(own, labels), None
        if read_before(data) is None:
            data, labels = number_answers(data, categories) if known is None else encode_answers(data, known)
    checked = check_answers(prepare(data, **reading), categories, labels)
    return checked if labels is None or ANSWERS in checked.coords else checked.with_labels(ANSWERS, labels)


def check_answers(data: Data, categories: tuple[int, ...], labels: Labels | None = None) -> Data:
    """Return the data. Raises DataError for an answer that its feature does not have, and for more labels than it has
    categories."""
    for name, one, size in zip(data.feature_names, labels or (), categories, strict=False):
        if len(one) > size:
            found = f"feature {name!r} has the {len(one)} answers {', '.join(map(str, one))}"
            raise DataError(found, site="x", axis="feature", expected=f"at most num_categories = {size} of them")
    wrong = (data.observed_x >= torch.tensor(categories, device=data.x.device)).nonzero()
    if not len(wrong):
        return data
    row, column = wrong[0].tolist()
    value, has, name = int(data.x[row, column]), categories[column], data.feature_names[column]
    found = f"{len(wrong)} entries are no category of their feature (the first: {value} in row {row}, column"
    raise DataError(f"{found} {name!r}, which has {has})", site="x", axis="feature", expected=f"numbers 0 to {has - 1}")


def of_each(num_categories: int | tuple[int, ...], num_features: int) -> tuple[int, ...]:
    """C_j of so many features, of one number for all or a tuple of one for each."""
    return tuple(np.broadcast_to(num_categories, num_features).tolist())


def check_categories(given: Any, num_features: int) -> int | tuple[int, ...]:
    """Return numbers of categories, one or one a feature. Raises ModelError for others."""
    if not is_listed(given):
        require_whole({"num_categories": given}, 2)
        return given
    require_whole({f"num_categories of feature {j}": size for j, size in enumerate(given)}, 2)
    if len(given) != num_features:
        found = f"num_categories of {len(given)} features"
        raise ModelError(f"{found}, expected one number or one for each of num_features = {num_features}")
    return tuple(given)


def categories_of(data: Data) -> int | tuple[int, ...]:
    """Count the categories of every feature: those with labels, else up to the largest that occurs; at least 2 each,
    and one number where all have the same."""
    labels = data.coords.get(ANSWERS)
    most = [int(one) + 1 for one in data.observed_x.amax(0)]
    sizes = [max(2, one, len(labels[j]) if labels else 0) for j, one in enumerate(most)]
    return sizes[0] if len(set(sizes)) == 1 else tuple(sizes)


@dataclass(frozen=True, kw_only=True, eq=False)
class ResponseModel(AnswerModel):
    """A model of R categorical responses a row, x (N, R), by tables ``response`` (K, R, C).

    Of responses with fewer categories than C the rest of their tables is 0: their prior is the Dirichlet of the
    concentrations of the categories that they have.
    """

    sites: ClassVar[Mapping[str, Site]] = {
        "response": Site("global", ("component", "feature", "category"), support=constraints.simplex),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        value = value_if_known(self.priors["response"])
        if value is not None and bool((value.expand(self.shapes["response"]) * ~self.present(value) != 0).any()):
            raise ModelError("the known value of 'response' has probabilities of categories that a feature has not")
        if not is_function(self.priors["response"]):
            self.prior("response")

    def possible(self, site: str) -> Tensor | None:
        """Return which categories each feature has, (R, C), for padded responses; None if all have equally many."""
        return self.present(torch.ones(())) if site == "response" and self.is_padded else None

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """Return the prior of a site; for ``response``, restricted to the categories that each feature has.

        Raises ModelError for a prior that is no Dirichlet, where features have different numbers.
        """
        found: Any = super().prior(site, like=like, values=values)
        if site != "response" or not self.is_padded:
            return found
        inner, event = element_of(found), len(found.event_shape)
        if value_if_known(inner) is not None:
            return found
        if not isinstance(inner, Dirichlet):
            what = f"the prior {type(inner).__name__} of '{site}'"
            raise ModelError(f"{what} for features of different numbers of categories; expected a Dirichlet")
        sizes = torch.tensor(self.categories, device=inner.concentration.device)
        padded = PaddedDirichlet(inner.concentration, sizes, getattr(inner, "powers", 0.0), validate_args=False)
        return padded.to_event(event - 1)

    def num_unseen(self, num_rows: int) -> int:
        """Count the categories that features do not have."""
        del num_rows
        lacking = sum(self.most_categories - size for size in self.categories)
        return self.num_components * lacking if "response" in self.unknown_sites else 0


def draw_responses(weight: Tensor, response: Tensor, generator: torch.Generator) -> Tensor:
    """Draw x (N, R) from the mixed tables of every row."""
    table = torch.tensordot(weight, response, 1)
    drawn = torch.multinomial(table.flatten(0, 1), 1, generator=generator)
    return drawn.view(table.shape[:2]).to(response)
