"""Any Pyro guide as ``SVI`` takes it: a function, a PyroModule, an automatic guide or its class.

Latent sites with finitely many values that the guide does not sample are summed out. What a guide samples is learned by
running it once, so that one which does not fit the model is refused before any step.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeGuard

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from pyro.infer.autoguide import (
    AutoDiscreteParallel,
    AutoGuide,
    AutoLaplaceApproximation,
    AutoMultivariateNormal,
    AutoNormalizingFlow,
)
from pyro.infer.autoguide.initialization import InitMessenger, init_to_value
from pyro.params.param_store import StateDict
from pyro.poutine.messenger import Messenger
from torch import Tensor

from custom_inference.core.isolation import own_store
from custom_inference.core.latent_values import is_own_of_rows, plates_of_rows
from custom_inference.core.programs.ranges import require_still
from custom_inference.core.programs.row_plates import row_dim_of, stands_inside
from custom_inference.svi.guides.of_globals import LearnedGuide
from custom_inference.svi.guides.own_checks import check_enumerated, check_names, check_site
from custom_inference.svi.objective import Objective, Trace, climb
from ppl_models import Data, MethodError, Model
from ppl_models.core.running import default_dtype, dtype_of

#: Draws of the globals that a fit holds.
_DRAWS = 500
#: Iterations of L-BFGS by which the maximum of a Laplace approximation is made sure of.
_TO_THE_MAXIMUM = 500


@dataclass
class OwnGuide(LearnedGuide):
    """A guide with what it samples: name -> the node of the first run; summed: latents that it leaves to be summed out;
    of_rows: those of the sites that it samples of every row. inside: latents in a plate beside that of rows.

    parameters: of a guide that is a function, what ``pyro.param`` made, once it is learned: it then runs with them.
    """

    guide: Callable[..., Any]
    nodes: dict[str, Any] = field(default_factory=dict)
    summed: tuple[str, ...] = ()
    of_rows: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    parameters: Any = None

    is_own: ClassVar[bool] = True

    @property
    def is_laplace(self) -> bool:
        """Whether it is Pyro's AutoLaplaceApproximation, whose Gaussian is found once the steps have ended."""
        return isinstance(self.guide, AutoLaplaceApproximation)

    def points(self) -> dict[str, Tensor] | None:
        median = getattr(self.guide, "median", None)
        try:
            with torch.no_grad():
                return median and {site: value.detach() for site, value in median().items()}
        except (TypeError, NotImplementedError):
            return None

    def __call__(self, x: Tensor, **keywords: Any) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(default_dtype(dtype_of(x, *keywords.values())))  # of its constants, as in programs
            if self.parameters is not None:
                stack.enter_context(pyro.get_param_store().scope(self.parameters))
            return _call_guide(self.guide, x, keywords)

    def keep(self, parameters: StateDict) -> None:
        """What it runs with from now on, where it does not hold its parameters itself."""
        if not _is_module(self.guide):
            self.parameters = parameters

    @property
    def learned(self) -> Any:
        """The guide itself where it holds its parameters, else this."""
        return self.guide if _is_module(self.guide) else self

    def sample(self, data: Data) -> dict[str, Tensor]:
        """Draw every site that the guide samples once."""
        trace: Any = poutine.trace(self).get_trace(data.x, **data.arguments)
        return {name: node["value"].detach() for name, node in _sites(trace) if not node["infer"].get("is_auxiliary")}

    def draws(self, data: Data) -> dict[str, Tensor]:
        """(1, S, ...) of every site; S = 1 where two runs give the same, as points do."""
        with torch.no_grad():
            found = [self.sample(data), self.sample(data)]
            if all(torch.equal(value, found[1][name]) for name, value in found[0].items()):
                found = found[:1]
            else:
                found += [self.sample(data) for _ in range(_DRAWS - 2)]
        return {name: torch.stack([one[name] for one in found])[None].clone() for name in found[0]}

    def loss_kind(self, enumerates: bool) -> Callable[..., Any]:
        """The objective that suits the sites: sums where something is enumerated, scores of what has no gradient."""
        if enumerates or self.summed or any(node["infer"].get("enumerate") for node in self.nodes.values()):
            return TraceEnum_ELBO
        return Trace_ELBO if all(node["fn"].has_rsample for node in self.nodes.values()) else TraceGraph_ELBO

    def takes_minibatches(self, data: Data, size: int, plates: frozenset[str]) -> bool:
        """Whether each draw of a site of rows is of the rows of a minibatch, as a plate of rows gives them that has one
        of these names: those of the program, which takes the same rows then."""
        if not self.of_rows:
            return True
        with torch.no_grad(), _apart():
            found: Any = poutine.trace(self).get_trace(data.x, mask=data.mask, batch_size=size, **data.others)
        frames = (found.nodes[name]["cond_indep_stack"] for name in self.of_rows)
        return all(any(f.name in plates and f.size == size for f in stack) for stack in frames)


def _class_and_settings(guide: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    """Take what may be a class with settings (``functools.partial``) apart."""
    return (guide.func, guide.keywords) if isinstance(guide, functools.partial) else (guide, {})


def is_guide_class(guide: Callable[..., Any]) -> bool:
    """Whether it is a class of automatic guides, or one with settings."""
    kind, _ = _class_and_settings(guide)
    return isinstance(kind, type) and issubclass(kind, AutoGuide)


def _is_module(guide: Callable[..., Any]) -> TypeGuard[torch.nn.Module]:
    """Whether it holds its parameters itself."""
    return isinstance(guide, torch.nn.Module)


def _automatic_parts(module: torch.nn.Module) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, AutoGuide)]


def check_guide(guide: Callable[..., Any]) -> None:
    """Refuse what cannot be called as a guide."""
    if isinstance(guide, type) and not is_guide_class(guide):
        raise MethodError(f"guide = the class {guide.__name__}, expected an instance, or an AutoGuide's class")
    if not callable(guide):
        raise MethodError(f"guide = {guide!r}, expected a name, a Guide, or a Pyro guide that can be called")


def check_start(guide: Callable[..., Any]) -> None:
    """Refuse given values to start from, where the guide starts elsewhere whatever they are."""
    kind, settings = _class_and_settings(guide)
    if is_guide_class(guide):
        if issubclass(kind, AutoNormalizingFlow):
            raise MethodError(f"init= gives values, and {kind.__name__} starts at its own transformation of noise")
        if "init_loc_fn" in settings:
            raise MethodError("init= beside the guide's own init_loc_fn: give one of them")
        return
    if not _is_module(guide):
        raise MethodError("init= is for guides that SVI makes; a function starts where its parameters say")
    parts = [part for part in _automatic_parts(guide) if not _is_list(part)]
    if not parts:
        raise MethodError("init= is for automatic guides; a module starts where its parameters say")
    for part in parts:
        if part.prototype_trace is not None:
            raise MethodError(f"init= is for automatic guides that have not run; this {type(part).__name__} has values")


def make_own(
    guide: Callable[..., Any], model: Model, program: Callable[..., Any], data: Data, start: dict[str, Tensor] | None
) -> OwnGuide:
    """The guide as it is run, checked against the program.

    start: values that automatic guides begin at, None for their own. A module is copied: the caller's is not learned.

    Raises MethodError for a latent site left out, one that the model has not, shapes and supports that are not its;
    ModelError for a latent whose bounds depend on others, of an automatic guide.
    """
    if is_own_of_rows(model) and (is_guide_class(guide) or (_is_module(guide) and _automatic_parts(guide))):
        require_still(model, program, data, "an automatic guide")
    latents = _latents(program, data)
    finite = [name for name, node in latents.items() if getattr(node["fn"], "has_enumerate_support", False)]
    if is_guide_class(guide):
        own = OwnGuide(_make_guide(guide, poutine.block(program, hide=finite), start))
    else:
        own = OwnGuide(_copy_guide(guide, finite, start))
    with torch.no_grad():
        trace: Any = poutine.trace(own).get_trace(data.x, **data.arguments)
    own.nodes = {name: node for name, node in _sites(trace) if not node["infer"].get("is_auxiliary")}
    check_names(model, own.nodes, latents, finite)
    own.summed = tuple(name for name in latents if name not in own.nodes)
    for name, node in own.nodes.items():
        check_site(name, node, latents[name])
    if model.rows_are_independent:
        plates = plates_of_rows(model, data)
        own.of_rows = tuple(name for name in own.nodes if row_dim_of(latents[name], plates) is not None)
        own.inside = tuple(name for name, node in latents.items() if stands_inside(node, plates))
        check_enumerated(own.nodes, own.summed if own.of_rows else (), own.inside)
    return own


def laplace(own: OwnGuide, objective: Objective) -> OwnGuide:
    """The Gaussian of AutoLaplaceApproximation at the maximum, which L-BFGS climbs to from where the steps ended.

    The covariance is the inverse of the Hessian of -log p(x, z), discrete latents summed out, in unconstrained
    coordinates z.

    Raises MethodError where the log joint is not curved downwards there.
    """
    guide: Any = own.guide
    climb(objective, _TO_THE_MAXIMUM, Trace(), tolerance=1e-12)
    loss = objective.loss.differentiable_loss(objective.program, own, objective.data.x, **objective.keywords(None))
    (slope,) = torch.autograd.grad(loss, guide.loc, create_graph=True)
    rows = [torch.autograd.grad(one, guide.loc, retain_graph=True)[0] for one in slope]
    hessian = torch.stack(rows)
    hessian = (hessian + hessian.T) / 2
    flat = int((torch.linalg.eigvalsh(hessian) <= 1e-8 * hessian.diagonal().abs().max()).sum())
    if flat:
        raise MethodError(
            f"AutoLaplaceApproximation: the log joint has no maximum along {flat} of {len(hessian)} directions "
            "at the point reached; take more steps, proper priors, or another guide"
        )
    gaussian: Any = AutoMultivariateNormal(guide.model)
    gaussian._setup_prototype(objective.data.x, **objective.data.arguments)
    root = torch.linalg.cholesky(torch.linalg.inv(hessian))
    gaussian.loc = torch.nn.Parameter(guide.loc.detach().clone())
    gaussian.scale = root.diagonal().clone()
    gaussian.scale_tril = root / root.diagonal().unsqueeze(-1)
    return replace(own, guide=gaussian, parameters=None)


def _sites(trace: Any) -> Iterator[tuple[str, Any]]:
    for name, node in trace.nodes.items():
        if node["type"] == "sample" and not node["is_observed"] and type(node["fn"]).__name__ != "_Subsample":
            yield name, node


def _latents(program: Callable[..., Any], data: Data) -> dict[str, Any]:
    """The program's latent sites, but those whose value is known."""
    with torch.no_grad(), _apart():
        trace = poutine.trace(program).get_trace(data.x, **data.arguments)
    return {name: node for name, node in _sites(trace) if not _is_known(node["fn"])}


def _is_known(law: Any) -> bool:
    """Whether all mass is on one value."""
    return isinstance(law, Delta) or (hasattr(law, "base_dist") and _is_known(law.base_dist))


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """A run that leaves neither parameters nor the random state changed."""
    with own_store(), torch.random.fork_rng(devices=[]), poutine.block():
        yield


def _call_guide(guide: Callable[..., Any], x: Tensor, keywords: dict[str, Any]) -> Any:
    """Call the guide with those of the model's arguments that it takes."""
    parameters = inspect.signature(guide.forward if _is_module(guide) else guide).parameters.values()
    kinds = {one.kind for one in parameters}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        names = {one.name for one in parameters}
        keywords = {name: value for name, value in keywords.items() if name in names}
    by_name = {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD}
    return guide(**keywords) if kinds <= by_name else guide(x, **keywords)


def _make_guide(kind: Callable[..., Any], program: Callable[..., Any], start: dict[str, Tensor] | None) -> Any:
    """An automatic guide from its class."""
    made, given = _class_and_settings(kind)
    flow = issubclass(made, AutoNormalizingFlow)  # ignores it
    settings: dict[str, Any] = {}
    if start and not flow and "init_loc_fn" not in given:
        settings = {"init_loc_fn": init_to_value(values=start)}
    try:
        return kind(program, **settings)
    except TypeError as error:
        name = getattr(kind, "__name__", repr(kind))
        raise MethodError(f"guide = {name}: {error}; give its settings by functools.partial") from error


def _copy_guide(guide: Callable[..., Any], finite: list[str], start: dict[str, Tensor] | None) -> Any:
    """A copy of a module, with sites of finitely many values hidden from the automatic guides in it."""
    if not _is_module(guide):
        return guide
    parts = [(part, part._model, part.master) for part in _automatic_parts(guide)]
    try:
        copied = copy.deepcopy(guide)
    finally:
        for part, own, master in parts:  # copying an automatic guide takes its program away
            part._model, part.master = own, master
    for part, (_, own, _) in zip(_automatic_parts(copied), parts, strict=True):
        untouched = isinstance(part, AutoDiscreteParallel) or part.prototype_trace is not None or _is_list(part)
        part._model = own if untouched else (_hiding(own[0], finite, start),)
    return copied


def _is_list(part: torch.nn.Module) -> bool:
    return isinstance(part, torch.nn.ModuleList)


def _hiding(program: Callable[..., Any], finite: list[str], start: dict[str, Tensor] | None) -> Any:
    """The program of an automatic guide without some sites. They are hidden inside what gives the others their starting
    values, which has none for them."""
    bound = getattr(program, "args", ())
    outer, inner = bound if len(bound) == 2 and isinstance(bound[0], InitMessenger) else (None, program)
    inner = poutine.block(inner, hide=finite)
    if start:
        inner = InitMessenger(init_to_value(values=start, fallback=None))(inner)
    return inner if not isinstance(outer, Messenger) else outer(inner)
