"""Reading of data for a class of models, in whatever container, by its kind of data."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from inspect import Parameter, signature
from typing import Any, Protocol, cast

import numpy as np

from ppl_models.core.errors import DataWarning, ModelError
from ppl_models.data import sparse
from ppl_models.data.adapt import adapt
from ppl_models.data.answers import ANSWERS, has_words, number_answers
from ppl_models.data.covariates import read_before
from ppl_models.data.documents.counts import as_documents
from ppl_models.data.factors import Factors
from ppl_models.data.graphs.door import read_graph_data
from ppl_models.data.held import Source
from ppl_models.data.lazy import is_xarray
from ppl_models.data.matrix import Data, as_array, as_matrix
from ppl_models.data.ratings.door import ratings
from ppl_models.data.relations.door import relations
from ppl_models.data.sequences.door import sequences


class HasExample(Protocol):
    """A class of models, which has an example."""

    @classmethod
    def example(cls) -> Any: ...

    @classmethod
    def number_for(cls, data: Data, settings: Mapping[str, Any]) -> int | None: ...


def read_for(kind: HasExample, data: Source, settings: Mapping[str, Any]) -> Data:
    """The data as the class ``kind`` reads them, before there is a model of their shape: frames, arrays, texts, edges.

    settings: of the model to be. Data that were read before come back as they are.

    Raises DataError for what its door does not read.
    """
    data = adapt(data)
    own = read_before(data)
    if own is not None:
        return own
    if settings.get("visible") == "categorical" and len(np.shape(cast(Any, data))) == 2:
        return read_answer_table(data)
    model = kind.example().model
    if model.data_kind == "binary" and has_words(data):
        with warnings.catch_warnings(action="ignore", category=DataWarning):  # ``prepare`` says it
            data = Factors().number_two_valued("x", data)
    doors: dict[str, Callable[[Any], Data]] = {"documents": as_documents, "ratings": ratings, "sequences": sequences}
    doors |= {"relations": relations, "categories": read_answer_table}
    if model.data_kind in doors:
        return doors[model.data_kind](data)
    if model.is_graph:
        # Of their nodes and direction alone: what is wrong with edges, ``prepare`` says. A model of loops is asked for.
        return replace(read_graph_data(data, weight=False, self_loops=True), self_loops=False)
    axes = model.sites[model.observed_site].dims
    return as_matrix(data, keep_sparse=True) if len(axes) == 1 else as_array(data, dict.fromkeys(axes))


def read_answer_table(data: Source) -> Data:
    """A table of answers, numbered as ``prepare`` of the models does."""
    numbers, labels = number_answers(as_matrix(data) if sparse.is_matrix(data) else data)
    return as_matrix(numbers).with_labels(ANSWERS, labels)


def default_of(kind: HasExample, field: str) -> Any:
    """The default of a field of a class of models; None where it has none."""
    found: Any = next((one.default for one in fields(cast(Any, kind)) if one.name == field), None)
    return None if found is MISSING else found


def needs_no_number(kind: HasExample) -> bool:
    """Whether a class of models finds the number of its components, or takes it from what is given with the rows."""
    example = kind.example()
    return kind.number_for(example.data, {}) is not None


def with_containers(read: Callable[..., Data]) -> Callable[..., Data]:
    """``prepare`` or ``prepare_new`` of a class, for data and what stands beside them in any library's containers.

    Words and Categoricals among the covariates are factors: numbers take their place, and the data keep the levels, in
    ``recipe["levels"]``, and the names of the columns.
    """

    @functools.wraps(read)
    def reading(self: Any, data: Source, *like: Data, **beside: Any) -> Data:
        data, given = adapt(data), {name: adapt(value) for name, value in beside.items()}
        known = read_before(like[0] if like else data)
        dims = list(map(str, data.dims)) if is_xarray(data, "DataArray") else None
        factors = Factors({} if known is None else dict(known.recipe.get("levels", {})))
        if self.data_kind == "binary" and has_words(data):
            data = factors.number_two_valued(self.observed_site, data)
        for site, one in given.items():
            kind = self.factor_sites.get(site)
            if kind is None or one is None:
                continue
            if kind == "columns":
                given[site] = factors.encode(site, one)
            else:
                given[site] = factors.number(site, one, real=kind == "value")
        found = read(self, data, *like, **given)
        for site, names in factors.named.items():
            axis = self.dims.get(site, ("",))[-1]
            found = found.with_labels(axis, names) if self.sizes.get(axis) == len(names) else found
        learned = {"levels": factors.columns, "dims": {} if dims is None else {"x": dims}}
        learned = {what: one for what, one in learned.items() if one}
        return replace(found, recipe={**found.recipe, **learned}) if learned else found

    return reading


def with_door(for_data: Callable[..., Any]) -> Callable[..., Any]:
    """``for_data`` of a class, for data that nobody has read yet too; units that are categories may be words.

    The number of components may be called as the class calls it, and be left out where its ``number_for`` says it.
    """
    needed = signature(for_data).parameters["num_components"].default is Parameter.empty

    @functools.wraps(for_data)
    def reading(cls: HasExample, data: Source, *sizes: Any, **settings: Any) -> Any:
        read = read_for(cls, data, settings)
        own = cast(Any, cls).axes.get("component", "num_components")
        number = sizes[0] if sizes else settings.pop("num_components", settings.pop(own, None))
        if number is None:
            number = cls.number_for(read, settings)
        if number is None and needed:
            raise ModelError(f"{cast(Any, cls).__name__} for these data: how many components? give {own}=...")
        return for_data(cls, read, number, *sizes[1:], **settings)

    return reading
