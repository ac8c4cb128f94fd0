"""How programs are run: in the type of their data, whatever torch's default is, and with as many rows as are given."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ppl_models.core.errors import ModelError
from ppl_models.core.missing import Missing
from ppl_models.distributions.labellings import LooksUp


@dataclass
class Run:
    """One run of a program.

    like: the first tensor of floating-point numbers that it was given, whose type and device its draws have; None:
        torch's defaults.
    values: the sites that it has stated so far by ``self.sample``, which later priors may be functions of.
    given: what it was called with by name.
    """

    like: Tensor | None = None
    values: dict[str, Tensor] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


_RUN: ContextVar[Run] = ContextVar("run of a program")


def current_run() -> Run:
    """Return the run that statements belong to; outside of a program's call a new one."""
    return _RUN.get(None) or Run()


@contextlib.contextmanager
def running(run: Run) -> Iterator[Run]:
    """Make this run the current one."""
    token = _RUN.set(run)
    try:
        yield run
    finally:
        _RUN.reset(token)


def first_real(*values: Any) -> Tensor | None:
    """Return the first of these that is a tensor of floating-point numbers; None where none is."""
    return next((value for value in values if torch.is_tensor(value) and value.is_floating_point()), None)


def dtype_of(*values: Any) -> torch.dtype:
    """Return the type of the first of these that is a tensor of floating-point numbers, or torch's default."""
    found = first_real(*values)
    return torch.get_default_dtype() if found is None else found.dtype


#: Held while programs run: Pyro's handlers, plates and parameters, and torch's default type, are those of the process,
#: so that programs of several threads take turns.
PYRO_LOCK = threading.RLock()


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make this the dtype of tensors made from Python numbers: constants of programs, parameters of Pyro's guides.
    Other threads wait until it is put back."""
    with PYRO_LOCK:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def as_given(program: Callable[..., Any]) -> Callable[..., Any]:
    """A model's program, run as what it is given says: in the type of x, or of what is given beside it; and where rows
    are generated and ``num_rows`` is not said, as many of them as what is given has.

    ``dist.Normal(0.0, 1.0)`` in a program is of torch's default type, which need not be that of the data; products of
    the two fail. Whoever runs the program, it is run so, and entries of what it observes beside x that are NaN are
    missing.
    """
    counts = not {"num_rows", "plate"}.isdisjoint(inspect.signature(program).parameters)

    @functools.wraps(program)
    def run(self: Any, x: Tensor | None = None, *others: Any, **given: Any) -> Any:
        if x is None and counts:
            given |= self.rows_of(given)
        like = first_real(x, *others, *given.values())
        beside = set(self.sites_of("observed")) - {self.observed_site}
        beside = {site for site in beside if _has_nan(given.get(site))}
        masks = Missing(beside) if beside else contextlib.nullcontext()
        labels = LooksUp(self.local_site) if self.is_graph else contextlib.nullcontext()
        with default_dtype(dtype_of(like)), running(Run(like, given=given)), masks, labels:
            return program(self, x, *others, **given)

    return run


def _has_nan(value: Tensor | None) -> bool:
    """Whether something of a tensor is missing."""
    if value is None or not value.is_floating_point() or value.layout != torch.strided:
        return False
    return bool(torch.isnan(value).any())


def rows_of(given: Mapping[str, Any]) -> dict[str, int]:
    """``num_rows`` of a program that generates rows, from the arguments beside x that have an entry for every row; none
    where there are no such. Arguments of one row are for all of them where others have more.

    Raises ModelError where they differ from each other or from ``num_rows``.
    """
    sizes = {name: len(value) for name, value in given.items() if torch.is_tensor(value) and value.ndim}
    said = given.get("num_rows")
    sizes |= {} if said is None else {"num_rows": said}
    several = {name: size for name, size in sizes.items() if size != 1 or name == "num_rows"}
    if len(set(several.values())) > 1:
        found = ", ".join(f"{name} has {size}" for name, size in several.items() if name != "num_rows")
        expected = "the same number of each" if said is None else f"num_rows = {said} of each"
        raise ModelError(f"rows to generate: {found}; expected {expected}")
    return {"num_rows": max((several or sizes).values())} if sizes else {}
