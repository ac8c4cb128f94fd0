"""The latents that a program draws for every row, of whatever kind, and one vector that codes a row's values of them.

A choice (``Site(..., choice=axis)``) is coded by a one-hot vector; one-hot vectors, bits, whole and real numbers by
themselves, flattened. The code of a row is the latents' codes side by side, in the order of the declaration.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch import Tensor
from torch.distributions import biject_to

from custom_inference.core.isolation import default_dtype
from ppl_models import Data, MethodError, Model, ModelError
from ppl_models.core.errors import own_errors

#: The name of the plate of rows in the suite's programs; in others it is the plate of as many members as rows.
ROW_PLATE = "data"
#: Whole numbers without an upper bound are tabulated up to so many standard deviations above the mean at first.
_REACH = 10


@dataclass(frozen=True)
class Latent:
    """One latent site of a row.

    shape: of a row's value in the program, the axes of inner plates first. visible: the same without the axes of size
    1 that the program needs for broadcasting alone. row_axis: where the axis of rows is in the program's value, counted
    from the right. integer: whether the program draws whole numbers as such (it may look up by them). places: of a
    choice the number of its places, else None. options: (S, w) codes of the S values that one element may have, None
    of continuous latents. elements: how many elements there are. open: whether larger whole numbers are possible than
    those in ``options``. transform: of continuous ones, from real numbers. reals: the shape of a row's real numbers.
    support: of continuous ones (transforms of several parts do not tell what they map onto).
    """

    name: str
    shape: tuple[int, ...]
    visible: tuple[int, ...]
    row_axis: int
    integer: bool = False
    places: int | None = None
    options: Tensor | None = None
    elements: int = 1
    open: bool = False
    transform: Any = None
    reals: tuple[int, ...] = ()
    support: Any = None

    @property
    def width(self) -> int:
        """The length of its code."""
        return math.prod(self.shape) * (self.places or 1)

    @property
    def num_reals(self) -> int:
        """How many real numbers stand for a value, 0 of finite latents."""
        return 0 if self.transform is None else math.prod(self.reals)

    @property
    def mean_shape(self) -> tuple[int, ...]:
        """The shape of a row's posterior mean: at least one axis."""
        return ((*self.visible, self.places) if self.places else self.visible) or (1,)

    def decode(self, code: Tensor) -> Tensor:
        """The program's values from codes (..., N, w), with the axis of rows where the program has it."""
        places = () if self.places is None else (self.places,)
        value = code.reshape(*code.shape[:-1], *self.shape, *places)
        value = value.argmax(-1) if places else value
        return (value.long() if self.integer else value).movedim(code.ndim - 2, self.row_axis)

    def encode(self, value: Tensor, like: Tensor) -> Tensor:
        """Codes (..., N, w) of the program's values, with the type of ``like``."""
        leading = value.ndim - 1 - len(self.shape)
        value = value.movedim(self.row_axis, leading)
        if self.places is not None:
            value = torch.nn.functional.one_hot(value.long(), self.places)
        return value.reshape(*value.shape[: leading + 1], -1).to(like)

    def constrain(self, reals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (..., N, w) from real numbers (..., N, R), and the logarithm of the volume that the map stretches."""
        leading = reals.ndim - 2
        value = reals.reshape(*reals.shape[:-1], *self.reals).movedim(leading, self._real_axis)
        found = self.transform(value)
        volume = self.transform.log_abs_det_jacobian(value, found)
        volume = sum_but_rows(volume, self.row_axis + self.transform.codomain.event_dim, leading)
        return self.encode(found, reals), volume.expand(reals.shape[:-1])

    def unconstrain(self, code: Tensor) -> Tensor:
        """Real numbers (..., N, R) from codes (..., N, w)."""
        found = self.transform.inv(self.decode(code)).movedim(self._real_axis, code.ndim - 2)
        return found.reshape(*code.shape[:-1], -1)

    @property
    def _real_axis(self) -> int:
        return self.row_axis + len(self.shape) - len(self.reals)


def sum_but_rows(term: Tensor, row_dim: int, leading: int = 0) -> Tensor:
    """Sum a term of log-probabilities over all axes but that of rows, counted from the right, and ``leading`` ones."""
    rest = [dim for dim in range(leading - term.ndim, 0) if dim != row_dim]
    return term.sum(rest) if rest else term


@dataclass(frozen=True)
class Layout:
    """The latents of a row, in the order of their declaration."""

    latents: tuple[Latent, ...]

    def __iter__(self) -> Iterator[Latent]:
        return iter(self.latents)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(latent.name for latent in self.latents)

    @property
    def width(self) -> int:
        return sum(latent.width for latent in self.latents)

    @property
    def slices(self) -> dict[str, slice]:
        """Latent -> its part of a row's code."""
        ends = list(itertools.accumulate((latent.width for latent in self.latents), initial=0))
        return {latent.name: slice(*pair) for latent, pair in zip(self.latents, itertools.pairwise(ends), strict=True)}

    @property
    def continuous(self) -> tuple[Latent, ...]:
        return tuple(latent for latent in self.latents if latent.transform is not None)

    @property
    def finite(self) -> tuple[Latent, ...]:
        return tuple(latent for latent in self.latents if latent.transform is None)

    @property
    def num_reals(self) -> int:
        """How many real numbers a row has."""
        return sum(latent.num_reals for latent in self.latents)

    @property
    def num_configurations(self) -> float:
        """How many values the finite latents of a row have together."""
        return math.prod(float(len(one.options)) ** one.elements for one in self.finite if one.options is not None)

    @property
    def is_boolean(self) -> bool:
        """Whether codes consist of zeros and ones."""
        return all(
            latent.options is not None and bool(((latent.options == 0) | (latent.options == 1)).all())
            for latent in self
        )

    def configurations(self, like: Tensor) -> Tensor:
        """All values of the finite latents as codes (C, W), 0 where continuous ones stand."""
        parts = [_product([latent.options.to(like)] * latent.elements) for latent in self.finite]  # type: ignore[union-attr]
        every = _product(parts) if parts else like.new_zeros(1, 0)
        found, start = like.new_zeros(len(every), self.width), 0
        for latent in self.finite:
            found[:, self.slices[latent.name]] = every[:, start : start + latent.width]
            start += latent.width
        return found

    def decode(self, code: Tensor) -> dict[str, Tensor]:
        """The program's values of every latent from codes (..., N, W)."""
        return {latent.name: latent.decode(code[..., self.slices[latent.name]]) for latent in self.latents}

    def encode(self, values: Mapping[str, Tensor], like: Tensor) -> Tensor:
        """Codes (..., N, W) of the program's values."""
        return torch.cat([latent.encode(values[latent.name], like) for latent in self.latents], -1)

    def constrain(self, code: Tensor, reals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (..., N, W) with the continuous latents from real numbers (..., N, R), the others as they are in
        ``code`` (which broadcasts), and the logarithm of the stretched volume (..., N)."""
        shape = (*reals.shape[:-1], code.shape[-1])
        parts, volume, start = list(code.expand(shape).split([one.width for one in self.latents], -1)), 0.0, 0
        for place, latent in enumerate(self.latents):
            if latent.transform is not None:
                parts[place], own = latent.constrain(reals[..., start : start + latent.num_reals])
                start, volume = start + latent.num_reals, volume + own
        return torch.cat(parts, -1), torch.as_tensor(volume).expand(shape[:-1])

    def unconstrain(self, code: Tensor) -> Tensor:
        """The real numbers (..., N, R) of codes (..., N, W)."""
        return torch.cat([latent.unconstrain(code[..., self.slices[latent.name]]) for latent in self.continuous], -1)

    def widened(self) -> Layout:
        """The same with twice as many values of whole numbers without an upper bound."""
        return Layout(tuple(_widen(latent) if latent.open else latent for latent in self.latents))


def _widen(latent: Latent) -> Latent:
    assert latent.options is not None
    more = torch.arange(2 * len(latent.options)).to(latent.options).unsqueeze(-1)
    return replace(latent, options=more + latent.options[0])


def _product(parts: list[Tensor]) -> Tensor:
    """All combinations of rows of the parts (S_i, w_i), side by side: (prod S_i, sum w_i)."""
    found = parts[0]
    for part in parts[1:]:
        found = torch.cat([found.repeat_interleave(len(part), 0), part.repeat(len(found), 1)], -1)
    return found


#: Whether programs are run in the course of learning, whose parameters they must leave alone.
_LEARNING: ContextVar[bool] = ContextVar("learning", default=False)


@contextlib.contextmanager
def learning() -> Iterator[None]:
    """Programs that are run in this block see the parameters that are being learned."""
    token = _LEARNING.set(True)
    try:
        yield
    finally:
        _LEARNING.reset(token)


def own_parameters() -> contextlib.AbstractContextManager[Any]:
    """An empty store of parameters for a run of a program, but in the course of learning."""
    return contextlib.nullcontext() if _LEARNING.get() else pyro.get_param_store().scope()


def run(program: Any, data: Data, values: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """The sample statements of one run of a program on data, by name, with some sites at given values; the caller's
    parameters and random state stay as they are."""
    conditioned = pyro.condition(program, data=dict(values or {}))
    with own_errors(), own_parameters(), torch.random.fork_rng(devices=[]), default_dtype(data.x.dtype):
        trace: Any = poutine.trace(conditioned).get_trace(data.x, **data.arguments)
    return {name: node for name, node in trace.nodes.items() if is_statement(node)}


def is_statement(node: Mapping[str, Any]) -> bool:
    """Whether a node of a trace is a statement about a variable: not a plate, nor a deterministic value."""
    return (
        node["type"] == "sample"
        and type(node["fn"]).__name__ != "_Subsample"
        and not node["infer"].get("_deterministic")
    )


def row_dim_of(node: Mapping[str, Any], rows: int) -> int | None:
    """The batch dimension of the plate of rows that a statement stands in, counted from the right; None outside it."""
    frames = [frame for frame in node["cond_indep_stack"] if frame.vectorized]
    named = [frame.dim for frame in frames if frame.name == ROW_PLATE]
    return next(iter(named or [frame.dim for frame in frames if frame.size == rows]), None)


def layout_of(model: Model, nodes: Mapping[str, Any], rows: int) -> Layout:
    """The latents of a row from one run of the program.

    Raises ModelError for a latent that is drawn outside the plate of rows, or whose shape or kind is not as declared.
    """
    found = []
    for name in model.sites_of("latent"):
        if name in nodes and not nodes[name]["is_observed"]:
            dim = row_dim_of(nodes[name], rows)
            if dim is None:
                raise ModelError(
                    f"latent '{name}' of {type(model).__name__} is drawn outside the plate of rows, which is called "
                    f"'{ROW_PLATE}' or has as many members as there are rows ({rows})"
                )
            found.append(_latent(model, name, nodes[name], dim, rows))
    return Layout(tuple(found))


def _latent(model: Model, name: str, node: Mapping[str, Any], dim: int, rows: int) -> Latent:
    fn, site = node["fn"], model.sites[name]
    value = node["value"].expand(fn.shape()) if node["value"].ndim < len(fn.shape()) else node["value"]
    row_axis, plates = dim - fn.event_dim, {frame.dim for frame in node["cond_indep_stack"] if frame.vectorized}
    axes = [axis for axis in range(-value.ndim, 0) if axis != row_axis]
    shape = tuple(value.shape[axis] for axis in axes)
    visible = tuple(value.shape[axis] for axis in axes if axis >= -fn.event_dim or axis + fn.event_dim in plates)
    _check_shape(model, name, visible)
    base, integer = _base(fn), not value.is_floating_point()
    if site.choice is not None:
        places = model.sizes[site.choice]
        _check_places(model, name, base, places)
        return Latent(name, shape, visible, row_axis, True, places, torch.eye(places), math.prod(shape))
    if fn.support.is_discrete:
        options, elements, is_open = _options(model, name, base, shape)
        return Latent(name, shape, visible, row_axis, integer, None, options, elements, is_open)
    if site.support is not None and site.support.is_discrete:
        drawn = type(base).__name__
        raise ModelError(f"latent '{name}' is declared as {site.support}, but the program draws it from {drawn}")
    support: Any = fn.support
    if type(base).__name__.startswith("VonMises"):  # whose density goes round: torch has it on all real numbers
        support = constraints.independent(constraints.interval(-math.pi, math.pi), fn.event_dim)
    transform: Any = biject_to(support)
    every = transform.inverse_shape(value.shape)
    place = row_axis + value.ndim - len(every)
    reals = tuple(size for axis, size in enumerate(every, start=-len(every)) if axis != place)
    return Latent(name, shape, visible, row_axis, integer, transform=transform, reals=reals, support=support)


def _check_shape(model: Model, name: str, shape: tuple[int, ...]) -> None:
    site, sizes = model.sites[name], model.sizes
    axes = (*site.plates[1:], *site.dims)
    expected = tuple(sizes.get(axis, -1) for axis in axes)
    fits = len(shape) == len(expected) and all(one in (-1, other) for one, other in zip(expected, shape, strict=True))
    if not fits:
        known = tuple(size if size >= 0 else axis for size, axis in zip(expected, axes, strict=True))
        raise ModelError(
            f"latent '{name}' of {type(model).__name__} is declared with axes {axes} of sizes {known} a row, but the "
            f"program draws values of shape {shape} for each row"
        )


def _check_places(model: Model, name: str, base: Any, places: int) -> None:
    found = getattr(base, "probs", None)
    if found is not None and found.ndim and found.shape[-1] != places:
        axis = model.sites[name].choice
        raise ModelError(
            f"latent '{name}' chooses among the {places} places of axis '{axis}', but the program draws it from "
            f"{found.shape[-1]} categories"
        )


def _base(fn: Any) -> Any:
    """The distribution of one element: without independent axes, masks and the like."""
    while hasattr(fn, "base_dist") and not isinstance(fn, torch.distributions.TransformedDistribution):
        fn = fn.base_dist
    return fn


def _options(model: Model, name: str, base: Any, shape: tuple[int, ...]) -> tuple[Tensor, int, bool]:
    """What one element may be (S, w), how many elements a row has, and whether there are values beyond."""
    declared = model.sites[name].support
    own, support = getattr(base, "support", None), declared
    if constraints.one_hot in (declared, own):
        return torch.eye(shape[-1]), math.prod(shape[:-1]), False
    if constraints.boolean in (declared, own) or (
        own is not None and getattr(own, "base_constraint", None) is constraints.boolean
    ):
        return torch.tensor([[0.0], [1.0]]), math.prod(shape), False
    for support in (declared, own):
        low, high = (_bound(support, end, worst) for end, worst in (("lower_bound", min), ("upper_bound", max)))
        if low is not None and high is not None and getattr(support, "is_discrete", False):
            return torch.arange(low, high + 1, dtype=torch.float64).unsqueeze(-1), math.prod(shape), False
    low = next((found for one in (declared, own) if (found := _bound(one, "lower_bound", min)) is not None), None)
    if low is None:
        raise MethodError(
            f"latent '{name}' of {type(model).__name__} ({type(base).__name__}) is discrete without a lower bound; "
            "declare its support, such as constraints.integer_interval(0, 50)"
        )
    most = float((base.mean + _REACH * base.variance.sqrt()).max())
    high = low + max(10, math.ceil(most - low))
    return torch.arange(low, high + 1, dtype=torch.float64).unsqueeze(-1), math.prod(shape), True


def _bound(support: Any, end: str, worst: Any) -> int | None:
    found = getattr(support, end, None)
    return None if found is None else int(worst(torch.as_tensor(found).flatten().tolist()))


def check_statements(model: Model, nodes: Mapping[str, Any], params: Mapping[str, Tensor]) -> None:
    """Refuse a program that states what it does not declare, declares what it does not state, or draws a global from
    something else than its prior.

    Raises ModelError, which names the sites.
    """
    declared = {name for name, site in model.sites.items() if site.role in ("global", "latent", "observed")}
    stated = {name for name, node in nodes.items() if type(node["fn"]).__name__ != "Unit"}
    known = set(model.known)
    _refuse_sites(model, sorted(stated - declared), "states {}, which `sites` does not declare; add {} to `sites`")
    missing = [name for name in model.sites if name in declared - stated - known - set(nodes) - set(model.part_sites)]
    _refuse_sites(model, missing, "declares {} in `sites`, which the program does not state; state or remove {}")
    _check_support(model, nodes)
    for name in (site for site in model.unknown_sites if site in nodes and site in params):
        value, prior = params[name], model.prior(name, like=params[name], values=params)
        stated, meant = (float(fn.log_prob(value).sum()) for fn in (nodes[name]["fn"], prior))
        if math.isfinite(meant) and not abs(stated - meant) <= 1e-4 * max(1.0, abs(meant)):
            drawn = type(_base(nodes[name]["fn"])).__name__
            raise ModelError(
                f"{type(model).__name__} draws '{name}' from {drawn}, which is not its prior: draw it by "
                "self.sample_globals(), or from self.prior(...), and state the prior in default_priors"
            )


def _check_support(model: Model, nodes: Mapping[str, Any]) -> None:
    for name in model.sites_of("latent"):
        site = model.sites[name]
        if name in nodes and site.support is None and site.choice is None and not nodes[name]["fn"].support.is_discrete:
            raise ModelError(
                f"latent '{name}' of {type(model).__name__} has no support; declare it, such as "
                f"Site('latent', ..., support=constraints.real): the program draws it on {nodes[name]['fn'].support}"
            )


def _refuse_sites(model: Model, names: Iterable[str], sentence: str) -> None:
    names = list(names)
    if names:
        listed = ", ".join(f"'{name}'" for name in names)
        raise ModelError(f"{type(model).__name__} {sentence.format(listed, 'it' if len(names) == 1 else 'them')}")
