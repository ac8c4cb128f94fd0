"""Models of rows of visible units, all of one kind: 0/1, probabilities, categories or real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor

from ppl_models.core.answer_models import categories_of, read_answers
from ppl_models.core.errors import DataError, about
from ppl_models.core.row_models import RowModel
from ppl_models.data.answers import ANSWERS, Labels
from ppl_models.data.columns import check_columns
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.held import MatrixLike, Reading, Source
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitModel(RowModel):
    """A model of rows x (N, D) of units of the kind that its setting ``visible`` says: the door for their data."""

    #: The kind of the units, and the largest number of categories; a field and a property of the models.
    visible: ClassVar[str]
    most_categories: ClassVar[int]
    categories: ClassVar[Any]

    def prepare(self, data: Source, **reading: Unpack[Reading]) -> Data:
        """Read a matrix; NaN is missing. Categories may also be indicators (N, D, C), those of a missing entry all NaN
        or all 0, and tables of words or Categoricals, whose answers are numbered as :func:`ppl_models.answers` does.

        Raises DataError for entries that are no value of a unit, and for indicators that do not add up to 1.
        """
        return self._read(data, None, reading)

    def prepare_new(self, data: Source, like: Data, **reading: Unpack[Reading]) -> Data:
        """Read further data; tables hold answers by their labels where the data ``like`` have these."""
        return self._read(data, like.coords.get(ANSWERS), reading)

    def _read(self, data: Source, known: Labels | None, reading: Reading) -> Data:
        if self.visible != "categorical":
            return super().prepare(data, **reading)
        if len(getattr(data, "shape", ())) == 3:
            given: Any = data
            data = categories_of_indicators(given, self.most_categories)
        return read_answers(data, known, super().prepare, reading, self.categories)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse columns that were never observed, 0/1 data without a 1; warn of columns that are always the same."""
        if self.visible == "categorical":
            with about(self.observed_site):
                check_columns(data, constant=range(self.most_categories))
        else:
            super().check_for_fitting(data)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of the data's features, with categories up to the largest that occurs in each."""
        if settings.get("visible") == "categorical" and settings.get("num_categories", 1) == 1:
            settings["num_categories"] = categories_of(data)
        return super().for_data(data, num_components, **settings).on_scale_of(data)


def categories_of_indicators(data: MatrixLike, most_categories: int) -> Tensor:
    """Return the categories (N, D) that indicators (N, D, C) are of, NaN where they are missing."""
    with about("x"):
        each = as_tensor(unpack(data)[0], torch.float64)
        if each.shape[-1] != most_categories:
            expected = f"num_categories = {most_categories}"
            raise DataError(f"{each.shape[-1]} indicators an entry", expected=expected)
        missing = torch.isnan(each).all(-1) | (each == 0).all(-1)
        wrong = (~missing & (((each != 0) & (each != 1)).any(-1) | (each.sum(-1) != 1))).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            found = f"the indicators of {len(wrong)} entries do not add up to one 1 (the first: row {row}, column "
            raise DataError(f"{found}{column}: {each[row, column].tolist()})", expected="one 1, and 0 elsewhere")
        return torch.where(missing, torch.nan, each.nan_to_num(0.0).argmax(-1).double())
