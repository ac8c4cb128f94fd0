"""Guides of the global sites: points, independent normals, Dirichlets for sites on the simplex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pyro
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import Distribution, biject_to, constraints

from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior, LocalPosterior
from custom_inference.core.programs.ranges import require_still
from custom_inference.svi.guides.bases import is_unbounded
from custom_inference.svi.guides.continuous import GuideDirichlet
from custom_inference.svi.guides.scaled import InUnitsOf
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.core.priors import support_of
from ppl_models.data import sparse
from ppl_models.distributions import PaddedDirichlet

#: Names of treatments of the globals beside a guide of the locals.
GLOBAL_GUIDES = ("auto", "delta", "normal", "dirichlet")
#: How many pseudo-counts a start of a Dirichlet's concentrations has, as a fraction of what the data can say.
_START_WEIGHT = 0.03


def simplices_of(model: Model) -> list[str]:
    """The global sites that lie on the simplex."""
    return [site for site in model.unknown_sites if support_of(model.priors[site]) is constraints.simplex]


def global_kind(model: Model, kind: str) -> str:
    """The treatment that "auto" stands for: "dirichlet" where a simplex has no maximum a posteriori, else "delta"."""
    if kind not in GLOBAL_GUIDES:
        raise MethodError(unknown_name("guide for the globals", kind, GLOBAL_GUIDES))
    if kind != "auto":
        return kind
    return "dirichlet" if any(is_unbounded(model.priors[site]) for site in simplices_of(model)) else "delta"


def global_guide(model: Model, kind: str, init: dict[str, Tensor] | None, data: Data, *, locals_: bool = False) -> Any:
    """A Pyro guide of the global sites, and with ``locals_`` of continuous local ones too."""
    if kind == "dirichlet":
        return DirichletGlobals(model, init, data)
    exposed = [*model.unknown_sites, *([model.local_site] if model.has_continuous_locals and locals_ else [])]
    return _automatic(model, kind, exposed, init, data)


def _mean(prior: Distribution) -> Tensor:
    """The mean of a prior; of one without a known one that of draws."""
    try:
        return prior.mean
    except NotImplementedError:
        return prior.sample((1000,)).mean(0)


class LearnedGuide:
    """What SVI asks of the guides that it makes, with the answers of one of the globals alone."""

    #: Whether it is the caller's.
    is_own: ClassVar[bool] = False
    #: Latents that it leaves to be summed out.
    summed: tuple[str, ...] = ()
    #: Whether divergences from the priors are to be taken in closed form (TraceMeanField_ELBO).
    analytic: bool = False

    @property
    def of_globals(self) -> Any:
        """The guide of the globals in it."""
        return self

    def loss_kind(self, enumerates: bool) -> Callable[..., Any]:
        """Makes the loss that suits it; enumerates: whether the program marks sites to be summed out."""
        return TraceEnum_ELBO if enumerates else Trace_ELBO

    def posterior(self, data: Data, params: dict[str, Tensor]) -> LocalPosterior | None:
        """Q of every row; None of one of the globals alone."""
        del data, params
        return None

    def global_posterior(self) -> dict[str, ContinuousPosterior]:
        """The posteriors of the globals, by site, where they have a known form."""
        return {}

    def points(self) -> dict[str, Tensor] | None:
        """Point values of the globals, of guides that have such."""
        with torch.no_grad():
            return {site: value.detach() for site, value in self.of_globals.median().items()}


class Points(LearnedGuide, AutoDelta):
    """Points of sites."""

    def draw(self, site: str, number: int) -> tuple[Tensor, Tensor]:
        """Repeat the point of a site (S, ...), with the log density 0."""
        value = self.median()[site]
        return value.expand(number, *value.shape), value.new_zeros(number)


class Normals(LearnedGuide, AutoNormal):
    """Independent normals of the unconstrained coordinates of sites."""

    def draw(self, site: str, number: int) -> tuple[Tensor, Tensor]:
        """Draw a site (S, ...), with the log density (S, ...)."""
        loc, scale = self._get_loc_and_scale(site)
        transform: Any = biject_to(self.prototype_trace.nodes[site]["fn"].support)  # pyright: ignore
        free = loc + scale * torch.randn(number, *loc.shape, dtype=loc.dtype, device=loc.device)
        value = transform(free)
        volume = transform.log_abs_det_jacobian(free, value).reshape(number, -1).sum(-1)
        return value, torch.distributions.Normal(loc, scale).log_prob(free).reshape(number, -1).sum(-1) - volume


def _automatic(model: Model, kind: str, sites: list[str], init: dict[str, Tensor] | None, data: Data) -> Any:
    def globals_alone(x: Tensor | None = None, **_: Any) -> dict[str, Tensor]:
        return model.sample_globals(like=x if x is None or not sparse.is_sparse(x) else x.values())

    # Of graphs the statements of the globals alone: the whole program would number every dyad to set the guide up.
    if is_own_of_rows(model) and not set(sites) <= set(model.global_sites):
        require_still(model, model, data, "a guide of points")
    only_globals = not model.rows_are_independent and set(sites) <= set(model.global_sites)
    program: Any = globals_alone if only_globals else model
    if model.site_units:
        program = InUnitsOf(model, data.stored)(program)
    exposed = poutine.block(program, expose=sites)
    settings = {} if init is None else {"init_loc_fn": init_to_value(values=init)}
    return {"delta": Points, "normal": Normals}[kind](exposed, **settings)


class DirichletGlobals(LearnedGuide, PyroModule):
    """q(site) = prod_k Dirichlet(lambda_k) for sites on the simplex; points for the others (AutoDelta).

    Others without a maximum a posteriori get AutoNormal. The gradients are those through the draw (pathwise, Jankowiak
    & Obermeyer 2018), and lambda is learned by its logarithm: steps are relative, whatever its order of magnitude.
    """

    def __init__(self, model: Model, init: dict[str, Tensor] | None, data: Data):
        super().__init__()
        self.names, self.event_axes = model.unknown_sites, {s: len(v) - 1 for s, v in model.shapes.items()}
        self.simplices = simplices_of(model)
        self.possible = {site: model.possible(site) for site in self.simplices}
        if not self.simplices:
            found = ", ".join(self.names)
            raise MethodError(f'globals_="dirichlet" is for sites on the simplex; the globals of the model are {found}')
        for site in self.names:
            if site in self.simplices:
                start = init[site] if init and site in init else _mean(model.prior(site, like=data.x))
                value: Any = PyroParam(_start(model, site, start.to(data.x), data), constraint=constraints.positive)
                setattr(self, f"{site}_concentration", value)
            else:
                kind = "normal" if is_unbounded(model.priors[site]) else "delta"
                setattr(self, f"{site}_guide", _automatic(model, kind, [site], init, data))

    def forward(self, *arguments: Any, **keywords: Any) -> dict[str, Tensor]:
        values = {}
        for site in self.names:  # in the program's order, as closed-form divergences want it
            if site in self.simplices:
                posterior = self._dirichlet(site)
                values[site] = pyro.sample(site, posterior.to_event(self.event_axes[site]))
            else:
                values |= dict(getattr(self, f"{site}_guide")(*arguments, **keywords))
        return values

    def _dirichlet(self, site: str) -> Any:
        """q of a site; of one with places that are always 0 that of the others."""
        concentration, possible = getattr(self, f"{site}_concentration"), self.possible[site]
        if possible is None:
            return GuideDirichlet(concentration, validate_args=False)
        sizes = possible.sum(-1).to(concentration.device)
        return PaddedDirichlet(concentration, sizes, validate_args=False)

    def global_posterior(self) -> dict[str, ContinuousPosterior]:
        """The Dirichlets, by site."""
        found = {site: self._dirichlet(site) for site in self.simplices}
        own = {site: getattr(q, "own", q.concentration) for site, q in found.items()}
        return {site: DirichletPosterior(value.detach().clone()) for site, value in own.items()}

    def draw(self, site: str, number: int) -> tuple[Tensor, Tensor]:
        """Draw a site (S, ...), with the log density (S, ...)."""
        if site not in self.simplices:
            return getattr(self, f"{site}_guide").draw(site, number)
        q = torch.distributions.Dirichlet(getattr(self, f"{site}_concentration"))
        value = q.sample((number,))
        return value, q.log_prob(value)

    def median(self) -> dict[str, Tensor]:
        """Means of the Dirichlets, points, and medians of the normals."""
        values = {site: posterior.mean for site, posterior in self.global_posterior().items()}
        for site in set(self.names) - set(self.simplices):
            values |= {k: v.detach().clone() for k, v in getattr(self, f"{site}_guide").median().items()}
        return {site: values[site] for site in self.names}


def _start(model: Model, site: str, value: Tensor, data: Data) -> Tensor:
    """Prior plus pseudo-counts in the proportions of the starting values."""
    prior: Any = model.priors[site]
    concentration = getattr(prior, "concentration", torch.ones(()))
    rows = value.numel() // value.shape[-1]
    total = sparse.column_sums(data.x).sum() if site == model.component_site else value.new_tensor(float(len(data)))
    return concentration.to(value) + _START_WEIGHT * total / rows * value
