"""Reading of matrices: any container becomes a validated tensor, a mask and labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import psutil
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, about, require_room
from ppl_models.core.supports import Entries
from ppl_models.data import sparse
from ppl_models.data.containers import (
    ROUNDING,
    as_numbers,
    as_tensor,
    mask_values,
    refuse_blocks,
    sparse_matrix,
    type_for,
    unpack,
)
from ppl_models.data.device import resolve_device
from ppl_models.data.displays import of_data
from ppl_models.data.entries import refuse_entries, split_entries
from ppl_models.data.held import MatrixLike, ReadBefore, Source
from ppl_models.likelihoods import Bernoulli, Binomial, Likelihood


@dataclass(frozen=True, kw_only=True)
class Data(ReadBefore):
    """Validated rows.

    x: (N, D) tensor; missing entries are filled with 0, which nothing may depend on. Sparse (torch's CSR layout) for
        models that read it so, where it came from a scipy sparse matrix without missing entries. Of models whose rows
        are one number or arrays, (N,) or (N, A, B, ...).
    mask: of the shape of x, bool, True where observed; ``None`` where everything is observed.
    coords: axis name -> labels, for the axes that came with labels: "row" and "feature", of rows that are arrays "row"
        and the axes of the model's observed site; "answers": of every column a tuple of the labels of its categories.
    others: what is observed or given beside x, by the names of the model's sites; leading axis: rows.
    between: names among these whose second axis is the rows too, as of links between documents.
    recipe: what else was learned about how such data are read, for those that follow: "texts": how they were cut;
        "levels": given site -> column -> the levels of a factor; "table": what was dropped or changed in a file.
    """

    x: Tensor
    mask: Tensor | None = None
    coords: dict[str, list[Any]] = field(default_factory=dict)
    others: dict[str, Tensor] = field(default_factory=dict)
    between: tuple[str, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)

    #: What these are: "rows", "graph", "ratings", "sequences" or "relations".
    container: ClassVar[str] = "rows"

    def __len__(self) -> int:
        return self.x.shape[0]

    #: Shows the data, as HTML or with ``text=True`` as a few lines.
    _display = of_data

    def __repr__(self) -> str:
        return self._display(text=True)

    def _repr_html_(self) -> str:
        return self._display()

    @property
    def num_features(self) -> int:
        """Entries of a row."""
        return math.prod(self.x.shape[1:])

    @property
    def is_sparse(self) -> bool:
        return sparse.is_sparse(self.x)

    @property
    def feature_names(self) -> Sequence[Any]:
        """The labels of the columns; their numbers where they have none, and of rows that are arrays their places."""
        if self.x.ndim > 2:
            return list(itertools.product(*map(range, self.x.shape[1:])))
        return self.coords.get("feature", range(self.num_features))

    @property
    def as_columns(self) -> Data:
        """Flatten the entries of each row to a matrix (N, D) without labels; return a matrix unchanged."""
        if self.x.ndim == 2:
            return self
        mask = None if self.mask is None else self.mask.reshape(len(self), -1)
        return Data(x=self.x.reshape(len(self), -1), mask=mask)

    @property
    def observed_x(self) -> Tensor:
        """x, with 0 where an entry is missing."""
        return self.x if self.mask is None else self.x * self.mask

    @property
    def x_with_nan(self) -> Tensor:
        """x, with NaN where an entry is missing."""
        return self.x if self.mask is None else self.x.masked_fill(~self.mask, torch.nan)

    @property
    def observed(self) -> Tensor:
        """Whether each entry of a dense x is observed, bool."""
        return torch.ones_like(self.x, dtype=torch.bool) if self.mask is None else self.mask

    @property
    def stored(self) -> Tensor:
        """x where it is dense; the stored entries (M,) of a sparse one."""
        return sparse.stored(self.x)

    @property
    def entries(self) -> Tensor:
        """The observed entries of x, (M,): of ratings and other sparse data those that are stored."""
        return self.stored.flatten() if self.mask is None else self.x[self.mask]

    def with_labels(self, axis: str, names: Sequence[Any] | None) -> Self:
        """Return the data with these labels of an axis; None: with none."""
        others = {one: labels for one, labels in self.coords.items() if one != axis}
        return replace(self, coords=others if names is None else {**others, axis: list(names)})

    def with_stored(self, values: Tensor) -> Self:
        """Return the data with other values of :attr:`stored`."""
        return replace(self, x=sparse.with_values(self.x, values) if self.is_sparse else values)

    def dense(self) -> Data:
        """Return the data with a dense ``x``. Raises CapacityError where that does not fit into the free memory."""
        if not self.is_sparse:
            return self
        (rows, columns), bytes_each = self.x.shape, self.x.values().element_size()
        needed, allowed = float(rows) * columns * bytes_each, psutil.virtual_memory().available
        hint = "models of counts read sparse matrices without a mask and NaN as they are"
        require_room(f"the entries of a dense matrix of shape ({rows}, {columns})", needed, allowed, hint)
        return replace(self, x=self.x.to_dense())

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a program beside x: the mask, and further observed and given sites."""
        return {"mask": self.mask, **self.others}

    @property
    def is_complete(self) -> bool:
        """Whether everything is observed."""
        return self.mask is None

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Raises MethodError for a device that is not available here."""
        device = resolve_device(device)
        mask = None if self.mask is None else self.mask.to(device=device)
        # Times stay as they are: single precision rounds seconds since 1970 to minutes.
        kinds = {n: dtype if value.is_floating_point() and n != "time" else None for n, value in self.others.items()}
        others = {name: value.to(dtype=kinds[name], device=device) for name, value in self.others.items()}
        return replace(self, x=self.x.to(dtype=dtype, device=device), mask=mask, others=others)

    def parts(self) -> dict[str, Any]:
        """Return the tensors of the data; those of graphs without the mask, which repeats ``hidden``."""
        names = {one.name for one in fields(self)} - {"coords", "others", "between", "recipe"}
        return {name: getattr(self, name) for name in names - ({"mask"} if "hidden" in names else set())} | self.others

    def rows(self, index: Tensor | slice) -> Data:
        """The chosen rows, with their labels, and of what is ``between`` rows what is between the chosen ones."""
        coords = dict(self.coords)
        if "row" in coords:
            coords["row"] = [coords["row"][i] for i in sparse.places(len(self), index)]
        mask = None if self.mask is None else self.mask[index]
        others = {name: sparse.select_rows(value, index) for name, value in self.others.items()}
        for name in set(self.between) & set(others):
            others[name] = sparse.select_columns(others[name], index)
        x = sparse.select_rows(self.x, index)
        return Data(x=x, mask=mask, coords=coords, others=others, between=self.between, recipe=self.recipe)

    def columns(self, index: np.ndarray) -> Data:
        """The chosen columns, which have labels from here on."""
        x = sparse.select_columns(self.x, torch.as_tensor(index))
        mask, names = None if self.mask is None else self.mask[:, index], self.feature_names
        every = {axis: [labels[j] for j in index] for axis, labels in self.coords.items() if axis == "answers"}
        coords = {**self.coords, "feature": [names[j] for j in index], **every}
        return Data(x=x, mask=mask, coords=coords, others=self.others, between=self.between, recipe=self.recipe)


def as_matrix(
    data: Source,
    *,
    mask: MatrixLike | None = None,
    site: str | None = None,
    num_features: int | None = None,
    named: tuple[str, str] = ("feature", "num_features"),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    keep_sparse: bool = False,
) -> Data:
    """Any two-dimensional numeric container -> :class:`Data`. NaN means missing, and so does ``mask == False``.

    named: what the axis of the columns, and the model's field that is their number, are called.
    keep_sparse: leave scipy sparse matrices sparse, for models that read rows in blocks; with missing entries they
        are made dense all the same.
    """
    with about(site):
        refuse_blocks(data)
        keep = keep_sparse and mask is None
        if isinstance(data, Data):
            checked = _apply_mask(_check(data if keep and data.is_complete else data.dense(), dtype), mask)
        elif sparse.is_matrix(data):
            matrix = sparse.from_scipy(sparse_matrix(data), dtype=torch.float64)
            checked = _check(Data(x=matrix), dtype or type_for(matrix.values()))
            if not keep:
                checked = _apply_mask(checked.dense(), mask)
        else:
            values, coords = unpack(data)
            if values.ndim != 2:
                raise DataError(f"{values.ndim} dimensions, shape {tuple(values.shape)}", expected="(N, D)")
            checked = _apply_mask(Data(x=as_tensor(values, dtype), coords=coords), mask)
        if 0 in checked.x.shape:
            raise DataError(f"no entries, shape {tuple(checked.x.shape)}", expected="N >= 1 and D >= 1")
        if num_features is not None and checked.num_features != num_features:
            problem = f"{checked.num_features} columns where the model has {named[1]} = {num_features}"
            raise DataError(problem, axis=named[0], expected=f"shape (N, {num_features})")
        return checked.to(dtype=dtype, device=device)


def as_array(
    data: Source,
    axes: Mapping[str, tuple[str, int] | None],
    *,
    mask: MatrixLike | None = None,
    site: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Data:
    """Any dense numeric container of rows that are numbers or arrays -> :class:`Data`. NaN means missing, and so does
    ``mask == False``, of the same shape.

    axes: name -> the model's field that is its size, and the size, of every axis after that of the rows; None: of any.
        The labels of an xarray ``DataArray``, or of a pandas ``Series`` of single numbers, are kept by these names.

    Raises DataError for other numbers of axes and other sizes, naming the axis.
    """
    names = ("row", *axes)
    sizes = [str(known[1]) if known else name for name, known in axes.items()]
    shape = f"shape (N, {', '.join(sizes)})" if sizes else "shape (N,)"
    with about(site):
        refuse_blocks(data)
        if isinstance(data, Data):
            checked = _apply_mask(_check(data, dtype, names, shape), mask, names)
        elif sparse.is_matrix(data):
            raise DataError("a sparse matrix", expected=f"a dense array of {shape}")
        else:
            values, coords = unpack(data, axes=names)
            if values.ndim != len(names):
                raise DataError(f"{values.ndim} dimensions, shape {tuple(values.shape)}", expected=f"{names}, {shape}")
            coords = {axis: labels for axis, labels in coords.items() if axis in names}
            checked = _apply_mask(Data(x=as_tensor(values, dtype), coords=coords), mask, names)
        for place, (axis, known) in enumerate(axes.items(), 1):
            if known and checked.x.shape[place] != known[1]:
                problem = f"{checked.x.shape[place]} places where the model has {known[0]} = {known[1]}"
                raise DataError(problem, axis=axis, expected=shape)
        if 0 in checked.x.shape:
            raise DataError(f"no entries, shape {tuple(checked.x.shape)}", expected="N >= 1")
        return checked.to(dtype=dtype, device=device)


def _check(
    data: Data, dtype: torch.dtype | None, axes: tuple[str, ...] = ("row", "feature"), expected: str = ""
) -> Data:
    """Data that somebody may have made by hand, as the models expect them: of the type asked for, filled where they
    are missing. NaN in a sparse matrix makes it dense."""
    x, mask, shape = data.x, data.mask, tuple(data.x.shape)
    if x.ndim != len(axes) or x.layout not in (torch.strided, torch.sparse_csr):
        raise DataError(f"{x.ndim} dimensions, shape {shape}", expected=expected or "(N, D), dense or CSR")
    if mask is not None and (mask.shape != x.shape or mask.dtype != torch.bool):
        problem = f"mask of shape {tuple(mask.shape)} and {mask.dtype} for data of shape {shape}"
        raise DataError(problem, expected="one mask entry per data entry, True = observed")
    for axis, size in zip(axes, shape, strict=True):
        if len(data.coords.get(axis, range(size))) != size:
            raise DataError(f"{len(data.coords[axis])} labels", axis=axis, expected=f"{size} of them")
    values = data.stored
    target = dtype or (values.dtype if values.is_floating_point() else None)
    converted = as_tensor(as_numbers(values), target)
    if converted.dtype != values.dtype:
        data = data.with_stored(converted)
    if mask is None and not _has_gaps(converted):
        return data
    return _apply_mask(replace(data.dense(), mask=None), mask, axes)


def _has_gaps(x: Tensor) -> bool:
    # A sum without gaps is NaN at most where infinities of both signs meet; it takes a fraction of the time.
    return bool(torch.isnan(x.sum())) and bool(torch.isnan(x).any())


def _apply_mask(data: Data, mask: MatrixLike | None, axes: tuple[str, ...] = ("row", "feature")) -> Data:
    if mask is None and not _has_gaps(data.stored):
        return data
    observed = ~torch.isnan(data.x) & data.observed
    if mask is not None:
        given = mask_values(mask, tuple(data.x.shape), data.coords, axes)
        observed = observed & given.to(device=data.x.device)
    if bool(observed.all()):
        return data
    # 0 rather than NaN: a NaN would survive multiplication by a zero mask.
    return replace(data, x=torch.where(observed, data.x, torch.zeros_like(data.x)), mask=observed)


def as_values_of(
    likelihood: Likelihood | Entries,
    data: Source,
    *,
    site: str | None = None,
    read: Callable[..., Data] = as_matrix,
    **settings: Any,
) -> Data:
    """:func:`as_matrix`, refusing what has no probability under the likelihood, or lies outside the support: DataError
    names the first such entry.

    Of a sparse x only the stored ones can be. Whole numbers but for rounding, as exp(log(3)) is, are whole ones.
    read: what reads the data, with these settings.
    """
    with about(site):
        checked = read(data, **settings)
        values = checked.stored
        if all(bool(likelihood.valid(part).all()) for part in split_entries(values)):
            return checked
        wrong = ~likelihood.valid(values)
        if checked.mask is not None:
            wrong = wrong & checked.mask
        whole = values.round() + 0.0
        near = (values - whole).abs() <= ROUNDING * whole.abs().clamp(min=1, max=1e4)
        rounded = wrong & near & likelihood.valid(whole)
        if bool(rounded.any()):
            values, wrong = torch.where(rounded, whole, values), wrong & ~rounded
            checked = checked.with_stored(values)
        refuse_entries(checked.x, checked.feature_names, wrong, likelihood.refusal)
        return checked


def as_binary(data: Source, **settings: Any) -> Data:
    """:func:`as_matrix`, refusing everything but 0, 1 and missing."""
    return as_values_of(Bernoulli(), data, **settings)


def as_counts(data: Source, total_count: int, **settings: Any) -> Data:
    """:func:`as_matrix`, refusing everything but whole numbers from 0 to ``total_count``, and missing."""
    return as_values_of(Binomial(total_count), data, **settings)
