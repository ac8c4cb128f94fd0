"""The protocol of inference methods: settings, whose ``fit`` turns a model and data into a :class:`Fit`."""

from __future__ import annotations

import abc
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.fit import Fit, check_init
from custom_inference.core.local_inference import Local
from custom_inference.core.orders import settle_order
from custom_inference.core.programs.checked import check_program
from custom_inference.core.reader import Reader
from custom_inference.core.registry import family_of
from custom_inference.core.settings import require_seed
from custom_inference.core.stages import Stage, Stages
from custom_inference.core.threads import HeldLibraries
from ppl_models import Data, DataError, MethodError, Model, ModelError
from ppl_models.core.errors import about, own_cause
from ppl_models.core.model import size_model
from ppl_models.data.covariates import beside
from ppl_models.data.held import Source, has_text
from ppl_models.data.row_blocks import RowBlocks


@dataclass(frozen=True)
class Call:
    """The arguments of a call of ``fit`` beside the model and the data; ``init`` as it was given, weights checked."""

    seed: int
    init: Fit | Mapping[str, Tensor] | None
    progress: bool
    dtype: torch.dtype
    device: Any
    weights: Tensor | None = None

    def start(self, model: Model) -> dict[str, Tensor] | None:
        """Starting values of the globals, checked."""
        return check_init(model, self.init)


def refusal(method: Any, model: Model) -> MethodError | None:
    """Return why a method refuses a model, asked without data; None if it takes the model, or cannot be asked."""
    ask = getattr(method, "ask", None)
    try:
        if ask is not None:
            ask(model)
    except MethodError as error:
        return error
    return None


@functools.cache
def _example(kind: type[Model]) -> tuple[Model, Data] | None:
    try:
        example = kind.example()
    except ModelError:  # a class of people's own has none
        return None
    return example.model, example.model.prepare(example.data, dtype=torch.float64)


def to_ask_with(model: Model) -> tuple[Model, Data] | None:
    """The example of a model's class, and its data: what a method says of a model's priors does not depend on which the
    data are. None where there is none."""
    return _example(type(model.summed_out))


def weights_of_rows(weights: Any, data: Data) -> Tensor:
    """Weights (N,) of the rows of data in double precision, matched by the rows' labels where both have some.

    Raises DataError for other shapes, numbers that are negative or not finite, and where all are 0; for labels that the
    rows do not have, and rows without a weight.
    """
    expected = f"{len(data)} finite numbers of at least 0, one for each row"
    try:
        with about("weights"):
            found = beside(weights, data, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        if has_text(weights):
            raise DataError("weights of no numbers", axis="row", expected=expected) from error
        raise
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.shape != (len(data),):
        raise DataError(f"weights of shape {tuple(found.shape)}", axis="row", expected=expected)
    bad = ~(torch.isfinite(found) & (found >= 0))
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        problem = f"{int(bad.sum())} weights are wrong (the first: {float(found[first]):g}, of row {first})"
        raise DataError(problem, axis="row", expected=expected)
    if not bool((found > 0).any()):
        raise DataError("all weights are zero", axis="row", expected=expected)
    return found


def _read(model: Model, init: Fit | Mapping[str, Tensor] | None, data: Source, **others: Any) -> Data:
    """The data of a fit, those of one that starts from another fit as that one's were read: its values are of these
    columns, answers and words.

    Raises DataError where what a model observes beside x is not given, which of new rows may be missing.
    """
    if not isinstance(init, Fit):
        return _check(model, model.prepare(data, **others))
    known = {name for name, value in others.items() if value is not None} | set(getattr(data, "others", ()))
    for site in set(init.data.others) & set(model.sites_of("observed")) - known:
        raise DataError("not among the arguments", site=site, expected=f"{site}=..., as in the fit that is the start")
    dtype, device = others.pop("dtype"), others.pop("device")
    return _check(model, Reader(model, init.data, dtype, device).read(data, **others))


def _check(model: Model, data: Data) -> Data:
    check_program(model, data)
    model.check_for_fitting(data)
    return data


def _add_stage(fit: Fit, seconds: float) -> Fit:
    """Return the fit with the method itself as the last stage, with what those before it leave of the seconds."""
    fit.details["seconds"] = round(seconds, 3)
    last = float(fit.elbo[-1]) / len(fit.data) if len(fit.elbo) else None
    own = Stage(fit.method_name, seconds - sum(stage.seconds for stage in fit.stages), last)
    fit.stages = Stages((*fit.stages, own))
    return fit


class Method(abc.ABC):
    """An inference method. Subclasses are frozen dataclasses of settings that implement ``_fit``.

    ``local_posterior(model, params, data)``, where a method has one, gives its posterior of the locals at given
    globals.
    """

    #: Whether fits of every model hold draws of the globals.
    draws_globals: ClassVar[bool] = False
    #: Whether latents must have finitely many values or a density.
    needs_density: ClassVar[bool] = False
    #: Why fits start from no given values, in the words that follow "takes no init: "; "" where they do.
    takes_no_init: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """The name of the method in fits and tables."""
        return type(self).__name__

    def __str__(self) -> str:
        return self.name

    def engine_name(self, model: Model) -> str | None:
        """Return the name of the engine that fits of a model are by; None: by none of its family's."""
        return None

    def has_global_posterior(self, model: Model) -> bool:
        """Whether fits hold draws, or a posterior, of the globals rather than points."""
        del model
        return self.draws_globals

    def fit(
        self,
        model: Model,
        data: Any,
        *,
        mask: Any = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float64,
        init: Fit | Mapping[str, Tensor] | None = None,
        progress: bool = True,
        weights: Any = None,
        **others: Any,
    ) -> Fit:
        """Fit the model to data in any of the forms that its ``prepare`` takes.

        mask: True = observed. init: values of the globals to start from, a fit of a model of this kind, or a mapping of
        all its global sites (latents in it are found anew). weights: (N,), how often each row counts, at least 0: whole
        numbers are rows that are repeated. By EM and variational EM alone. others: what the model observes or
        conditions on beside x, by the names of its sites. Ctrl-C ends the fit with the best state so far.

        Raises ModelError or DataError for what is no model, or data that do not suit it; MethodError for a model that
        the method does not take, for weights by one that cannot weigh rows, and for ``init`` by a method that starts
        from no given values; see ``check_init``.
        """
        model, data = size_model(model, data, others, init)
        require_seed(seed)
        call, begin = Call(int(seed), init, progress, dtype, device), time.perf_counter()
        self._require_taken(model, init, weighted=weights is not None)
        # Put back here: an interrupt between the last line of a ``with`` block and its exit leaves what the block set.
        gradients, default_dtype, held = torch.is_grad_enabled(), torch.get_default_dtype(), False
        try:
            if isinstance(data, RowBlocks):
                if weights is not None:
                    raise MethodError("weights of rows that are read block by block; expected rows in memory")
                fit = self._fit_blocks(model, data, mask, call)
                go_on = functools.partial(self.without_files()._fit_blocks, model, data, mask)
            else:
                checked = _read(model, init, data, mask=mask, dtype=dtype, device=device, **others)
                if weights is not None:
                    call = replace(call, weights=weights_of_rows(weights, checked))
                counted: Any = {} if weights is None else {"weights": call.weights}
                model = model.on_scale_of(checked, like=init.model if isinstance(init, Fit) else None, **counted)
                held = HeldLibraries.hold() if family_of(model).divides_work(self.engine_name(model)) else False
                fit = self._fit(model, checked, call)
                go_on = functools.partial(self.without_files()._fit, model, checked)
            if not self.takes_no_init:
                fit = settle_order(model, fit, lambda values: go_on(replace(call, init=values)))
        except ValueError as error:
            if (own := own_cause(error)) is None:
                raise
            raise own from own.__cause__
        except (torch.linalg.LinAlgError, np.linalg.LinAlgError) as error:
            raise self._say_singular(model, dtype, error) from error
        finally:
            torch.set_grad_enabled(gradients)
            torch.set_default_dtype(default_dtype)
            if held:
                HeldLibraries.release()
        return _add_stage(fit, time.perf_counter() - begin)

    def without_files(self) -> Method:
        """Return the method without the files that it keeps its state in, where it does."""
        return self

    def _say_singular(self, model: Model, dtype: torch.dtype, error: Exception) -> MethodError:
        found = f"{self.name} of {type(model).__name__} met a matrix that is singular, or not positive definite"
        double = "" if dtype == torch.float64 else "dtype=torch.float64, "
        expected = f"{double}data that vary, or proper priors ({str(error).splitlines()[0]})"
        return MethodError(f"{found}, in {str(dtype).removeprefix('torch.')}; expected {expected}")

    def _require_taken(self, model: Model, init: Fit | Mapping[str, Tensor] | None, *, weighted: bool) -> None:
        """Refuse a model, values to start from, or weights, before anything is computed."""
        if self.needs_density and model.has_atoms:
            what = f"'{model.local_site}' of {type(model).__name__} {model.without_density}"
            raise MethodError(f"{what}: it has no density that {self.name} could follow; use VariationalEM or Gibbs")
        self.check(model)
        self.check_init(model, init)
        if weighted:
            self.check_weights(model)

    def check(self, model: Model) -> None:
        """Refuse a model before anything is computed; by default every model is taken."""
        del model

    def check_weights(self, model: Model) -> None:
        """Refuse weights of rows, before anything is computed, where the method cannot weigh them."""
        name = f"{self.name} of {type(model).__name__}"
        raise MethodError(f"{name} cannot weigh rows; expected no weights, or a method such as EM() or VariationalEM()")

    def check_init(self, model: Model, init: Fit | Mapping[str, Tensor] | None) -> None:
        """Refuse values that no fit of the model can start from, before anything is computed."""
        if init is not None and self.takes_no_init:
            raise MethodError(f"{self.name} takes no init: {self.takes_no_init}")
        check_init(model, init)

    def ask(self, model: Model) -> None:
        """Refuse, without data, what ``fit`` would refuse: a model of another kind, priors without steps. Raises
        MethodError, for priors PriorError."""
        self.check(model)

    @abc.abstractmethod
    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        """The fit to validated data."""

    def _fit_blocks(self, model: Model, source: RowBlocks, mask: Any, call: Call) -> Fit:
        """The fit to rows that are read from a source block by block."""
        model.prepare(source, mask=mask)  # says what takes such rows
        raise MethodError(f"{self.name} does not read rows block by block; use VariationalEM")

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """The method's posterior of the locals at given globals, and its bound on log p(x_n | params)."""
        raise MethodError(f"{self.name} has no posterior of the locals at given globals")
