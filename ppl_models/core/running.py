"""How programs are run: in the type of their data, whatever torch's default is, and with as many rows as are given."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ppl_models.core.errors import ModelError


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make this the dtype of tensors made from Python numbers: constants of programs, parameters of Pyro's guides."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def dtype_of(*values: Any) -> torch.dtype:
    """The type of the first of these that is a tensor of floating-point numbers; torch's default where none is."""
    found = (value.dtype for value in values if isinstance(value, Tensor) and value.is_floating_point())
    return next(found, torch.get_default_dtype())


def as_given(program: Callable[..., Any]) -> Callable[..., Any]:
    """A model's program, run as what it is given says: in the type of x, or of what is given beside it; and where rows
    are generated and ``num_rows`` is not said, as many of them as what is given has.

    ``dist.Normal(0.0, 1.0)`` in a program is of torch's default type, which need not be that of the data; products of
    the two fail. Whoever runs the program, it is run so.
    """
    counts = "num_rows" in inspect.signature(program).parameters

    @functools.wraps(program)
    def run(self: Any, x: Tensor | None = None, *others: Any, **given: Any) -> Any:
        if x is None and counts:
            given |= self.rows_of(given)
        with default_dtype(dtype_of(x, *others, *given.values())):
            return program(self, x, *others, **given)

    return run


def rows_of(given: Mapping[str, Any]) -> dict[str, int]:
    """``num_rows`` of a program that generates rows, from the arguments beside x that have an entry for every row; none
    where there are no such. Arguments of one row are for all of them where others have more.

    Raises ModelError where they differ from each other or from ``num_rows``.
    """
    sizes = {name: len(value) for name, value in given.items() if isinstance(value, Tensor) and value.ndim}
    said = given.get("num_rows")
    sizes |= {} if said is None else {"num_rows": said}
    several = {name: size for name, size in sizes.items() if size != 1 or name == "num_rows"}
    if len(set(several.values())) > 1:
        found = ", ".join(f"{name} has {size}" for name, size in several.items() if name != "num_rows")
        expected = "the same number of each" if said is None else f"num_rows = {said} of each"
        raise ModelError(f"rows to generate: {found}; expected {expected}")
    return {"num_rows": max((several or sizes).values())} if sizes else {}
