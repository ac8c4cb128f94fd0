"""What a fit learned about how its data are read, and the one door by which further data meet it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from custom_inference.core.labels import Labelled
from ppl_models import Data, Model
from ppl_models.core.errors import list_some
from ppl_models.data.adapt import adapt
from ppl_models.data.answers import ANSWERS
from ppl_models.data.columns import in_columns_of
from ppl_models.data.factors import Factors
from ppl_models.data.held import MatrixLike, Source
from ppl_models.data.lazy import is_xarray


@dataclass(frozen=True)
class Reader:
    """Reads data as those of a fit were read.

    model: what reads them. like: the data of the fit, of whose labels and ``recipe`` are all the names and the order of
    columns, the answers, users, items, nodes, words and classes, the levels of factors, the times, and how texts were
    cut. dtype, device: of the numbers; None: those of the data.
    """

    model: Model
    like: Data
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None

    def read(self, x: Source, *, mask: MatrixLike | None = None, **beside: Any) -> Data:
        """Return further data in the columns, with the labels and in the units of the fit's.

        x: in any container. mask: True where an entry is observed. beside: further observed and given sites, by name.

        Raises DataError for labels that the data of the fit do not have, and for missing ones.
        """
        x, mask, names = adapt(x), adapt(mask), self.like.coords.get("feature")
        dims = self.like.recipe.get("dims", {}).get("x", ())
        if is_xarray(x, "DataArray") and set(map(str, x.dims)) == set(dims):
            x = x.transpose(*dims)
        if type(self.like) is Data and (names is None or self.model.data_kind != "documents"):
            x, mask = in_columns_of(x, mask, names)
        found = self.model.prepare_new(x, self.like, mask=mask, dtype=self.dtype, device=self.device, **beside)
        unnamed = type(found) is Data and names is not None and "feature" not in found.coords
        return found.with_labels("feature", names) if unnamed else found

    def encode(self, site: str, given: MatrixLike) -> Any:
        """Return what is given of a site, without rows beside it, as numbers in the columns of the fit's."""
        return Factors(dict(self.like.recipe.get("levels", {}))).encode(site, adapt(given))

    def __repr__(self) -> str:
        """What is known, a line each."""
        named = {axis: labels for axis, labels in self.like.coords.items() if axis != ANSWERS}
        known = [f"{axis}: {len(labels)}, {list_some(labels, 5)}" for axis, labels in named.items()]
        answers = self.like.coords.get(ANSWERS)
        if answers is not None:
            known.append(f"answers: {list_some(list(dict.fromkeys(answers)), 3)}")
        known += [f"{what}: {value}" for what, value in self.like.recipe.items() if value]
        return "\n  ".join([f"Reader of data for {type(self.model).__name__}", *(known or ["by position"])])


def read_at(
    model: Model, at: Labelled | Mapping[str, Any] | None, x: Source, mask: MatrixLike | None, beside: Mapping[str, Any]
) -> Data:
    """Return data for what is asked of a model at given globals, in float64: as those of the fit were read where a fit
    gives them, else as the model reads any.

    at: a fit, values of the globals by the names of their sites, or None.
    """
    if isinstance(at, Labelled):
        return model.as_read(Reader(at.model, at.data, torch.float64).read(x, mask=mask, **beside))
    return model.as_read(model.prepare(x, mask=mask, dtype=torch.float64, **beside))
