"""Objectives of programs without engines in which the latents of the rows are summed or integrated out, and the part of
an objective that is of the globals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, config_enumerate
from torch import Tensor

from custom_inference.compiled.gaussian.rows import GaussianRows
from custom_inference.compiled.structure import Bound
from custom_inference.core.isolation import isolated, seed_of, torch_seeded
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import bind_to_sum, enumerate_table, sum_of
from custom_inference.core.programs.modes import Gaussians
from custom_inference.core.programs.quadrature import integrate
from custom_inference.core.programs.statements import learning, own_parameters, run
from custom_inference.core.programs.windows import is_settled, settle
from custom_inference.svi.guides.of_globals import LearnedGuide
from custom_inference.svi.guides.protocol import DerivedBound
from ppl_models import Data, MethodError, Model
from ppl_models.core.priors import is_flat
from ppl_models.core.row_models import RowModel

#: The first axis of values in runs that tell whether a program may be enumerated: beyond those of its plates.
_OUTSIDE = -9


def log_prior_of(program: Model, params: Mapping[str, Tensor], data: Data) -> Tensor:
    """The log density of the globals as the program states them, 0 of flat priors."""
    if type(program).__call__ is RowModel.__call__:  # which draws them from the priors
        return program.log_prior(params)
    nodes = run(program, data, params)
    sites = [site for site in program.unknown_sites if site in nodes and not is_flat(program.priors[site])]
    terms = [nodes[site]["fn"].log_prob(params[site]).sum() for site in sites]
    return torch.stack([data.x.new_zeros(()), *terms]).sum()


class GlobalsBound(DerivedBound):
    """The ELBO of a guide of the globals beside a bound on, or the value of, log p(x | globals):

        E_q(globals)[sum_n bound_n(globals) + log p(globals) - log q(globals)]

    program: the model with the priors that the objective takes. data: what it is evaluated on.
    """

    #: The part of its value by which two evaluations may differ: quadrature goes on from where it was.
    same = 1e-6

    def __init__(self, program: Model, data: Data, **settings: Any):
        super().__init__(**settings)
        self.program, self.data = program, program.as_read(data).dense()

    def bound(self, guide: Any, params: dict[str, Tensor]) -> Tensor:
        """(N,) at given globals."""
        raise NotImplementedError

    def settle(self) -> None:
        """Go about the next evaluation with all care: it is the one that is reported."""

    def _get_trace(self, *_: Any) -> Any:
        raise NotImplementedError  # of the program there is none: its density is evaluated at values

    def particle(
        self, model: Callable[..., Any], guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        trace: Any = poutine.trace(guide).get_trace(*args, **kwargs)
        sites, known = self.program.global_sites, self.program.known
        fixed = getattr(guide, "fixed", {})
        params = {**{site: value.to(self.data.x) for site, value in known.items()}, **fixed}
        params |= {site: trace.nodes[site]["value"] for site in sites if site in trace.nodes}
        for site, value in params.items():
            if not bool(value.isfinite().all()):
                raise MethodError(
                    f"site '{site}' of {type(self.program).__name__} became no finite number: log p(x | globals) has "
                    "no slope where it was; expected a program whose log density has one wherever its latents may be "
                    "(logits in place of probabilities, no exp of what is large)"
                ) from ValueError(site)  # which a search in steps takes for the edge of a support
        with learning():
            prior = self.data.x.new_zeros(()) if fixed else log_prior_of(self.program, params, self.data)
            return trace.log_prob_sum() - prior - self.bound(guide, params).sum()


class MarginalBound(GlobalsBound):
    """The objective with log p(x_n | globals) itself, by a sum over finite latents or by quadrature.

    model: the program with the priors that it has, which is compiled once.
    """

    def __init__(self, program: Model, data: Data, model: Model | None = None, **settings: Any):
        super().__init__(program, data, **settings)
        self.model = program if model is None else model

    #: The same part in the course of learning, where integrals are not made as fine as that.
    same_while_learning = 1e-4

    density: RowDensity | None = None
    about: Gaussians | None = None
    #: The rows as the compiled program reads them.
    rows: Bound | GaussianRows | None = None
    #: Whether the next evaluation asks which values whole numbers have.
    looks = True

    def settle(self) -> None:
        self.about, self.looks = None, True

    def bound(self, guide: Any, params: dict[str, Tensor]) -> Tensor:
        if self.density is None:
            detached = {name: value.detach() for name, value in params.items()}
            self.density = RowDensity.of(self.model, detached, self.data)
            self.rows = bind_to_sum(self.density)
        if self.rows is not None:
            return sum_of(self.rows, params)
        density, looks, self.looks = self.density.at(params), self.looks, False
        if not density.layout.num_reals:
            table = enumerate_table(density, looks=looks)
            self.density = table.density
            return table.log_joint.logsumexp(-1)
        if looks:
            before, density = density.layout.num_configurations, settle(density)
            self.density, self.about = density, self.about if density.layout.num_configurations == before else None
        found = integrate(density, start=self.about, thorough=self.about is None)
        self.about = found.gaussians
        codes = density.layout.configurations(density.like)
        self.looks = not is_settled(density, codes.repeat(found.log_joint.shape[1] // len(codes), 1), found.log_joint)
        return found.log_evidence


def is_enumerated_by_pyro(density: RowDensity) -> bool:
    """Whether Pyro's parallel enumeration sums out all latents of a program rightly: finite ones, each in the plate of
    rows alone."""
    if density.layout.num_reals:
        return False
    nodes = run(density.model, density.data, density.params)
    return all(
        not (latent.open or latent.moving)
        and nodes[latent.name]["fn"].has_enumerate_support
        and sum(frame.vectorized for frame in nodes[latent.name]["cond_indep_stack"]) == 1
        for latent in density.layout
    ) and _runs_enumerated(density)


def _runs_enumerated(density: RowDensity) -> bool:
    """Whether a program runs where latents have axes of their own for all of their values, which do not stack."""
    conditioned: Any = pyro.condition(density.model, data={**density.params})
    program: Any = poutine.enum(config_enumerate(conditioned, default="parallel"), first_available_dim=_OUTSIDE)
    try:
        with own_parameters(), torch_seeded(0), torch.no_grad():
            poutine.trace(program).get_trace(density.data.x, **density.data.arguments)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return True


#: Draws that the mean is taken over, and fewer, but no fewer than the second, where these would be more numbers.
_DRAWS, _FEWEST, _NUMBERS = 200, 10, 4_000_000
#: Objectives that are E_q[log p - log q].
_ELBOS = (Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, DerivedBound)


def prior_term(
    program: Model, guide: LearnedGuide, data: Data, loss: ELBO, seed: int, points: dict[str, Tensor] | None
) -> float | None:
    """What the globals' own terms add to the objective: at ``points``, if given, their log prior density, with the
    constants that flat priors have in the program (``GlobalsBound`` leaves flat ones out); else minus the divergence of
    the guide's distribution of them from the priors, a mean over draws. None of guides of the caller's own that draw,
    and of other losses than ELBOs.
    """
    if not isinstance(loss, _ELBOS):
        return None
    sites = program.unknown_sites
    if isinstance(loss, GlobalsBound):
        sites = tuple(site for site in sites if not is_flat(program.priors[site]))
    with torch.no_grad(), isolated(seed_of(seed, "terms of the globals")):
        if points is not None:
            return float(_log_density(program, {site: points[site] for site in program.global_sites}, sites))
        if guide.is_own:
            return None
        size = sum(math.prod(program.shapes[site]) for site in program.unknown_sites)
        number = max(_FEWEST, min(_DRAWS, _NUMBERS // max(1, size)))
        values, log_q = dict[str, Tensor](), torch.zeros(number, dtype=torch.float64, device=data.x.device)
        for site in program.unknown_sites:
            values[site], own = guide.of_globals.draw(site, number)
            log_q = log_q + own.double().reshape(number, -1).sum(-1)
        known = {site: value.to(data.x) for site, value in program.known.items()}
        if program.has_functions:
            each = [{site: value[s] for site, value in values.items()} for s in range(number)]
            log_p = torch.stack([_log_density(program, known | one, sites) for one in each])
        else:
            log_p = _log_density(program, known | values, sites)
        return float((log_p - log_q).mean())


def _log_density(program: Model, values: dict[str, Tensor], sites: tuple[str, ...]) -> Tensor:
    """The log prior density of some sites at one value of each, or at as many of each along a leading axis."""
    found = [program.prior(site, like=values[site], values=values).log_prob(values[site]).double() for site in sites]
    return torch.stack(found).sum(0) if found else torch.zeros((), dtype=torch.float64)
