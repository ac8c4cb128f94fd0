"""A caller's own guide at given globals: its statements of the globals are replaced by their values, and what it says
of the rows' latents is a posterior like any other.

What the guide leaves out, finite latents, is summed out: of these its posterior is the exact one given what it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta
from pyro.infer.autoguide import AutoContinuous
from torch import Tensor

from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.posteriors import ContinuousPosterior, LocalPosterior, PointPosterior
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import Layout, sum_but_rows
from custom_inference.core.programs.row_plates import row_dim_of
from custom_inference.core.programs.statements import is_statement
from custom_inference.core.programs.windows import settle
from custom_inference.svi.guides.own import OwnGuide, is_guide_class, make_own
from ppl_models import Data, MethodError, Model

#: Runs of the guide by which its means are estimated where they are not at hand.
_RUNS = 1000
#: What automatic guides call the real numbers that stand for a site.
_UNCONSTRAINED = "_unconstrained"


def require_program(model: Model, name: str) -> None:
    """Refuse a guide of one's own for models whose latents are not those of a plain program of rows."""
    if not model.rows_are_independent:
        raise MethodError(f"{name}: a custom Pyro guide of a graph has no posterior at given globals")


@dataclass(frozen=True)
class _AtGlobals:
    """The guide with the globals held, and hidden from its trace."""

    guide: OwnGuide
    params: Mapping[str, Tensor]

    def __call__(self, x: Tensor, **keywords: Any) -> Any:
        hidden = {*self.params, *(f"{site}{_UNCONSTRAINED}" for site in self.params)}
        with poutine.block(hide=[*hidden]), pyro.condition(data=dict(self.params)):  # type: ignore[call-arg]
            return self.guide(x, **keywords)


def hold_globals(guide: OwnGuide, params: Mapping[str, Tensor]) -> OwnGuide:
    """A guide, fitted or not, whose statements of the globals are replaced by given values.

    Raises MethodError for automatic guides that draw globals and latents of rows in one vector.
    """
    joint = isinstance(guide.guide, AutoContinuous) and any(site in guide.nodes for site in params)
    if joint:
        name = type(guide.guide).__name__
        raise MethodError(
            f"{name} draws the globals and the latents of the rows as one vector: it has no posterior of the latents "
            "at given globals once it is made; give its class, guide=" + name
        )
    nodes = {name: node for name, node in guide.nodes.items() if name not in params}
    return replace(guide, guide=_AtGlobals(guide, dict(params)), nodes=nodes, parameters=None)


def make_at_globals(
    guide: Callable[..., Any], model: Model, program: Callable[..., Any], params: Mapping[str, Tensor], data: Data
) -> OwnGuide:
    """A guide as the caller gave it, checked against the program, at given globals."""
    if is_guide_class(guide):
        return make_own(guide, model, program, data, None)
    return hold_globals(make_own(guide, model, model, data, None), params)


def posterior_of_guide(
    guide: OwnGuide, model: Model, params: Mapping[str, Tensor], data: Data, seed: int
) -> LocalPosterior:
    """Return the posterior of the rows' latents by a guide at given globals."""
    if not is_own_of_rows(model):
        raise MethodError(
            f"what a custom Pyro guide says of the latents of {type(model).__name__} cannot be compared: "
            "use the guides and engines that the model has"
        )
    data = model.as_read(data).dense()
    density = settle(RowDensity.of(model, params, data))
    found = GuidePosterior(guide, density, data.x.new_zeros(0), seed)
    drawn, log_q = found.sample_with_density(2, seed=seed)
    if not log_q.numel() or bool(torch.isinf(log_q).all()):
        return PointPosterior(drawn[0])
    return replace(found, average=found.estimate_mean())


@dataclass(frozen=True)
class GuidePosterior(ContinuousPosterior):
    """guide: at given globals. density: of the program there. average (N, W): estimated means of the codes."""

    guide: OwnGuide
    density: RowDensity
    average: Annotated[Tensor, "*"]
    seed: int

    stored = False

    @property
    def mean(self) -> Tensor:
        return self.average

    @property
    def _layout(self) -> Layout:
        return self.density.layout

    def _run(self, values: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
        """The guide's statements in one run, some sites at given values."""
        data = self.density.data
        with pyro.condition(data=dict(values or {})) if values else poutine.block(hide=[]):  # type: ignore[call-arg]
            trace: Any = poutine.trace(self.guide).get_trace(data.x, **data.arguments)
        trace.compute_log_prob()
        return {name: node for name, node in trace.nodes.items() if is_statement(node)}

    def _log_q(self, nodes: Mapping[str, Any]) -> Tensor:
        """(N,), or (1,) where the guide draws the rows together."""
        rows, terms, together, plates = len(self.density), [], False, self._plates_of_rows(nodes)
        for node in nodes.values():
            dim = row_dim_of(node, plates)
            together = together or dim is None
            terms.append(node["log_prob"].sum() if dim is None else sum_but_rows(node["log_prob"], dim))
        if together:
            return torch.stack([term.sum() for term in terms]).sum().reshape(1)
        return torch.stack([term.expand(rows) for term in terms]).sum(0)

    def _plates_of_rows(self, nodes: Mapping[str, Any]) -> frozenset[str]:
        """The names of the guide's plates of rows: those in which latents have the axis that is of rows in the program;
        and the program's."""
        own = set(self.density.plates)
        for latent in self._layout:
            if latent.name in nodes:
                node = nodes[latent.name]
                dim = latent.row_axis + node["fn"].event_dim
                own |= {frame.name for frame in node["cond_indep_stack"] if frame.vectorized and frame.dim == dim}
        return frozenset(own)

    def _complete(self, values: dict[str, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Codes (N, W) with the latents that the guide leaves out drawn given the others, the log-probability of these
        (N,), and the code with their means."""
        like, layout = self.density.like, self._layout
        missing = [latent for latent in layout if latent.name not in values]
        if not missing:
            code = layout.encode(values, like)
            return code, like.new_zeros(len(code)), code
        own = Layout(tuple(missing))
        every = own.configurations(like)
        rows, full = len(self.density), like.new_zeros(len(every), len(self.density), layout.width)
        slices, place = layout.slices, own.slices
        for latent in layout:
            if latent.name in values:
                full[..., slices[latent.name]] = latent.encode(values[latent.name], like)
            else:
                full[..., slices[latent.name]] = every[:, None, place[latent.name]]
        share = torch.log_softmax(self.density(full).T, -1)
        chosen = torch.multinomial(share.exp().cpu(), 1, generator=generator)[:, 0].to(share.device)
        each = torch.arange(rows, device=share.device)
        return full[chosen, each], share[each, chosen], torch.einsum("nc,cnw->nw", share.exp(), full)

    def _draws(self, number: int, seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        found, generator = [], torch.Generator().manual_seed(seed)
        with torch.no_grad(), isolated(seed), default_dtype(self.density.like.dtype), pyro.validation_enabled(False):
            for _ in range(number):
                nodes = self._run()
                values = {name: nodes[name]["value"] for name in self._layout.names if name in nodes}
                code, log_c, mean = self._complete(values, generator)
                exact = {n: node["fn"].mean for n, node in nodes.items() if n in values and _has_mean(node)}
                if len(exact) == len(self._layout.latents) and not any(one.places for one in self._layout):
                    mean = self._layout.encode({n: v.expand(nodes[n]["fn"].shape()) for n, v in exact.items()}, code)
                found.append((code, self._log_q(nodes) + (log_c if len(log_c) else 0.0), mean))
        return found

    def sample_with_density(self, num_samples: int = 1, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        found = self._draws(num_samples, seed)
        return torch.stack([code for code, *_ in found]), torch.stack([log_q for _, log_q, _ in found])

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return self.sample_with_density(num_samples, seed=seed)[0]

    def estimate_mean(self) -> Tensor:
        """Take the guide's own means where it states them, else those of many draws."""
        few = self._draws(2, self.seed)
        if torch.equal(few[0][2], few[1][2]):
            return few[0][2]
        return torch.stack([mean for *_, mean in self._draws(_RUNS, self.seed)]).mean(0)

    def log_prob(self, local: Tensor) -> Tensor:
        raise MethodError("the density of a custom guide is known at its own draws: use sample_with_density")

    def rows(self, index: Tensor | slice) -> Any:
        raise MethodError("a custom guide says all rows together; take rows of what it draws")


def _has_mean(node: Mapping[str, Any]) -> bool:
    if isinstance(node["fn"], Delta):
        return False
    try:
        return bool(torch.isfinite(node["fn"].mean).all())
    except NotImplementedError:
        return False
