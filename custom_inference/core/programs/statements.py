"""The statements of a program: one run of it, the layout of its latents, and whether it states what its model
declares."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch import Tensor

from custom_inference.core.isolation import default_dtype, own_store
from custom_inference.core.programs.latents import Latent, Layout, list_whole
from custom_inference.core.programs.row_plates import row_dim_of, row_plates_of
from custom_inference.core.programs.sticks import bijection_to
from custom_inference.core.programs.supports import base_of, is_moving
from ppl_models import Data, MethodError, Model, ModelError
from ppl_models.core.errors import own_errors
from ppl_models.core.priors import support_of
from ppl_models.core.sites import of_element
from ppl_models.core.supports import describe_support, lies_within

#: Whole numbers without an upper bound are tabulated up to so many standard deviations above the mean at first.
_REACH = 10
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
    return contextlib.nullcontext() if _LEARNING.get() else own_store()


def run(program: Callable[..., Any], data: Data, values: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
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


def row_plates_on(model: Model, data: Data, values: Mapping[str, Tensor]) -> frozenset[str]:
    """The names of the plates of rows of a program, by runs on some of these rows with some sites at given values."""

    def run_on(number: int) -> dict[str, Any]:
        few = data.rows(torch.arange(number, device=data.x.device) % len(data))
        return run(model, model.as_read(few).dense(), values)

    return row_plates_of(model, run_on)


def layout_of(model: Model, nodes: Mapping[str, Any], plates: frozenset[str]) -> Layout:
    """The latents of a row from one run of the program, whose plates of rows have these names.

    Raises ModelError for a latent that is drawn outside the plate of rows, or whose shape or kind is not as declared.
    """
    found = []
    for name in model.sites_of("latent"):
        if name in nodes and not nodes[name]["is_observed"]:
            dim = row_dim_of(nodes[name], plates)
            if dim is None:
                found = ", ".join(f"'{plate}'" for plate in sorted(plates)) or "none"
                raise ModelError(
                    f"latent '{name}' of {type(model).__name__} is drawn outside the plate of rows, whose size follows "
                    f"the number of rows (plates of this program that do: {found})"
                )
            found.append(_latent(model, name, nodes[name], dim))
    return Layout(tuple(found))


def layout_of_whole(model: Model, nodes: Mapping[str, Any]) -> Layout:
    """The latents of all rows as those of a single one, from one run of a program whose rows depend on each other.

    Raises ModelError for a latent whose shape or kind is not as declared.
    """
    found = []
    for name in model.sites_of("latent"):
        if name in nodes and not nodes[name]["is_observed"]:
            before = -len(nodes[name]["fn"].batch_shape) - 1  # an axis of size 1, in front of all that there are
            found.append(_latent(model, name, nodes[name], before, whole=True))
    return Layout(tuple(found))


def _latent(model: Model, name: str, node: Mapping[str, Any], dim: int, *, whole: bool = False) -> Latent:
    fn, site = node["fn"], model.sites[name]
    value = node["value"].expand(fn.shape()) if node["value"].ndim < len(fn.shape()) else node["value"]
    row_axis, plates = dim - fn.event_dim, {frame.dim for frame in node["cond_indep_stack"] if frame.vectorized}
    axes = [axis for axis in range(-value.ndim, 0) if axis != row_axis]
    shape = tuple(value.shape[axis] for axis in axes)
    visible = tuple(value.shape[axis] for axis in axes if axis >= -fn.event_dim or axis + fn.event_dim in plates)
    _check_shape(model, name, visible, whole)
    base, integer, moving = base_of(fn), not value.is_floating_point(), is_moving(fn, site.support)
    if site.choice is not None:
        places = model.sizes[site.choice]
        _check_places(model, name, base, places)
        return Latent(name, shape, visible, row_axis, True, places, torch.eye(places), math.prod(shape))
    if fn.support.is_discrete:
        options, elements, is_open = _options(model, name, base, shape)
        return Latent(name, shape, visible, row_axis, integer, None, options, elements, is_open, moving=moving)
    if site.support is not None and site.support.is_discrete:
        drawn = type(base).__name__
        raise ModelError(f"latent '{name}' is declared as {site.support}, but the program draws it from {drawn}")
    support: Any = fn.support
    if type(base).__name__.startswith("VonMises"):  # whose density goes round: torch has it on all real numbers
        support = constraints.independent(constraints.interval(-math.pi, math.pi), fn.event_dim)
    drawn = support_of(base) if support is fn.support else of_element(support)
    if site.support is not None and not lies_within(drawn, site.support):
        raise ModelError(
            f"latent '{name}' of {type(model).__name__} has the support {describe_support(site.support)}, but the "
            f"program draws it from {type(base).__name__}, on {drawn}"
        )
    transform: Any = bijection_to(support)
    every = transform.inverse_shape(value.shape)
    place = row_axis + value.ndim - len(every)
    reals = tuple(size for axis, size in enumerate(every, start=-len(every)) if axis != place)
    return Latent(
        name, shape, visible, row_axis, integer, transform=transform, reals=reals, support=support, moving=moving
    )


def _check_shape(model: Model, name: str, shape: tuple[int, ...], whole: bool) -> None:
    site, sizes = model.sites[name], model.sizes
    axes = (*site.plates[0 if whole else 1 :], *site.dims)
    expected = tuple(sizes.get(axis, -1) for axis in axes)
    fits = len(shape) == len(expected) and all(one in (-1, other) for one, other in zip(expected, shape, strict=True))
    if not fits:
        each = ("", "") if whole else (" a row", " for each row")
        known = tuple(size if size >= 0 else axis for size, axis in zip(expected, axes, strict=True))
        raise ModelError(
            f"latent '{name}' of {type(model).__name__} is declared with axes {axes} of sizes {known}{each[0]}, but "
            f"the program draws values of shape {shape}{each[1]}"
        )


def _check_places(model: Model, name: str, base: Any, places: int) -> None:
    found = getattr(base, "probs", None)
    if found is not None and found.ndim and found.shape[-1] != places:
        axis = model.sites[name].choice
        raise ModelError(
            f"latent '{name}' chooses among the {places} places of axis '{axis}', but the program draws it from "
            f"{found.shape[-1]} categories"
        )


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
            return list_whole(name, low, high), math.prod(shape), False
    low = next((found for one in (declared, own) if (found := _bound(one, "lower_bound", min)) is not None), None)
    if low is None:
        raise MethodError(
            f"latent '{name}' of {type(model).__name__} ({type(base).__name__}) is discrete without a lower bound; "
            "declare its support, such as constraints.integer_interval(0, 50)"
        )
    most = float((base.mean + _REACH * base.variance.sqrt()).max())
    high = low + max(10, math.ceil(most - low) if math.isfinite(most) else 0)
    return list_whole(name, low, high), math.prod(shape), True


def _bound(support: Any, end: str, worst: Any) -> int | None:
    found = getattr(support, end, None)
    return None if found is None else int(worst(torch.as_tensor(found).flatten().tolist()))


def is_scaled(node: Mapping[str, Any]) -> bool:
    """Whether a statement's log-probability counts another number of times than once, or a number that is computed."""
    return torch.is_tensor(node["scale"]) or node["scale"] != 1


def check_statements(model: Model, nodes: Mapping[str, Any], params: Mapping[str, Tensor]) -> None:
    """Refuse a program that states what it does not declare, declares what it does not state, draws a global from
    something else than its prior, or scales a statement.

    Raises ModelError, which names the sites.
    """
    declared = {name for name, site in model.sites.items() if site.role in ("global", "latent", "observed")}
    stated = {name for name, node in nodes.items() if type(node["fn"]).__name__ != "Unit"}
    known = set(model.known)
    _refuse_sites(model, sorted(stated - declared), "states {}, which `sites` does not declare; add {} to `sites`")
    missing = [name for name in model.sites if name in declared - stated - known - set(nodes) - set(model.part_sites)]
    _refuse_sites(model, missing, "declares {} in `sites`, which the program does not state; state or remove {}")
    _check_support(model, nodes)
    for name, node in nodes.items():
        if is_scaled(node):
            raise ModelError(
                f"{type(model).__name__} scales its statement of '{name}' (poutine.scale, or a plate that sees a part "
                "of its members), so that its density is not that of what it draws; leave the scale out. Rows that "
                "count several times are repeated, or have weights= where a method takes them"
            )
    for name in (site for site in model.unknown_sites if site in nodes and site in params):
        value, prior = params[name], model.prior(name, like=params[name], values=params)
        stated, meant = (float(fn.log_prob(value).sum()) for fn in (nodes[name]["fn"], prior))
        if math.isfinite(meant) and not abs(stated - meant) <= 1e-4 * max(1.0, abs(meant)):
            drawn = type(base_of(nodes[name]["fn"])).__name__
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
