"""What Pyro guides share: how they treat the global sites (points, independent normals, Dirichlets for sites on the
simplex), and the base of guides of local latents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.guide import Globals
from custom_inference.core.posteriors import (
    BernoulliPosterior,
    DirichletPosterior,
    GammaPosterior,
    GaussianPosterior,
    LocalPosterior,
    LogisticNormalPosterior,
)
from custom_inference.svi.guides.continuous import ClosedFormELBO, GuideDirichlet
from custom_inference.svi.guides.scaled import InUnitsOf
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.core.priors import support_of
from ppl_models.data import sparse
from ppl_models.data.device import device_of
from ppl_models.distributions import BernoulliVector, PaddedDirichlet

#: Names of treatments of the globals beside a guide of the locals.
GLOBAL_GUIDES = ("auto", "delta", "normal", "dirichlet")
#: How many pseudo-counts a start of a Dirichlet's concentrations has, as a fraction of what the data can say.
_START_WEIGHT = 0.03
#: Local guides sum over the codes inside the ELBO up to this many bits, and sample them beyond.
ENUMERATE_UP_TO = 10


class SoftmaxBasis(dist.Dirichlet):
    """A Dirichlet prior by its density in the softmax basis a, p = softmax(a): proportional to prod_v p_v^gamma_v.

    MacKay, *Choice of basis for Laplace approximation* (1998). In the simplex basis, prod_v p_v^(gamma_v - 1), the
    density is unbounded at the edge wherever a gamma_v is below 1, and has no maximum.
    """

    #: What every entry has as further powers, which models of padded simplexes read.
    powers = 1.0

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + value.log().sum(-1)


class LogitBasis(dist.Beta):
    """A Beta prior by its density in the logit basis, likewise."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + value.log() + torch.log1p(-value)


class LogBasis(dist.Gamma):
    """A Gamma prior by its density in the logarithmic basis, likewise."""

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value) + value.log()


#: Kind of prior -> its density in a basis where it has a mode.
_BASES: dict[type[Any], type[Any]] = {
    torch.distributions.Dirichlet: SoftmaxBasis,
    torch.distributions.Beta: LogitBasis,
    torch.distributions.Gamma: LogBasis,
}


def _kind_of(prior: Any) -> type[Any] | None:
    return next((kind for kind in _BASES if isinstance(prior, kind)), None)


def is_unbounded(prior: Any) -> bool:
    """Whether a Dirichlet, Beta or Gamma has a concentration below 1: its density is infinite at an edge."""
    kind = _kind_of(prior)
    names = [] if kind is None else [name for name in kind.arg_constraints if name.startswith("concentration")]
    return any(bool((getattr(prior, name) < 1).any()) for name in names)


def with_modes(model: Model, sites: Sequence[str]) -> Model:
    """The model with every unbounded prior of ``sites`` in a basis where it has a mode."""
    changed = {}
    for site in sites:
        prior = model.priors.get(site)
        kind = _kind_of(prior)
        if kind is not None and is_unbounded(prior):
            changed[site] = _BASES[kind](**{name: getattr(prior, name) for name in kind.arg_constraints})
    return model.with_priors(**changed) if changed else model


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


def _mean(prior: Any) -> Tensor:
    """The mean of a prior; of one without a known one that of draws."""
    try:
        return prior.mean
    except NotImplementedError:
        return prior.sample((1000,)).mean(0)


def _automatic(model: Model, kind: str, sites: list[str], init: dict[str, Tensor] | None, data: Data) -> Any:
    def globals_alone(x: Tensor | None = None, **_: Any) -> dict[str, Tensor]:
        return model.sample_globals(like=x if x is None or not sparse.is_sparse(x) else x.values())

    # Of graphs the statements of the globals alone: the whole program would number every dyad to set the guide up.
    only_globals = not model.rows_are_independent and set(sites) <= set(model.global_sites)
    program: Any = globals_alone if only_globals else model
    if model.site_units:
        program = InUnitsOf(model, data.stored)(program)
    exposed = poutine.block(program, expose=sites)
    settings = {} if init is None else {"init_loc_fn": init_to_value(values=init)}
    return {"delta": AutoDelta, "normal": AutoNormal}[kind](exposed, **settings)


class DirichletGlobals(PyroModule):
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

    def posterior(self) -> dict[str, DirichletPosterior]:
        """The Dirichlets, by site."""
        found = {site: self._dirichlet(site) for site in self.simplices}
        own = {site: getattr(q, "own", q.concentration) for site, q in found.items()}
        return {site: DirichletPosterior(value.detach().clone()) for site, value in own.items()}

    def median(self) -> dict[str, Tensor]:
        """Means of the Dirichlets, points, and medians of the normals."""
        values = {site: posterior.mean for site, posterior in self.posterior().items()}
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


class DerivedBound(ELBO):
    """A bound that was derived by hand, as a Pyro loss: minus the mean of ``particle`` over ``num_particles`` draws of
    what the guide draws, and its gradients by autograd.

    Raises MethodError for ``vectorize_particles``: a derivation is for one draw.
    """

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        if self.vectorize_particles:
            raise MethodError(f"{type(self).__name__} takes its particles in turn; use vectorize_particles=False")

    def particle(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Tensor:
        """Minus the bound at one draw."""
        raise NotImplementedError

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        particles = [self.particle(model, guide, args, kwargs) for _ in range(self.num_particles)]
        return torch.stack(particles).mean()

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        loss.backward()
        return float(loss.detach())


class LocalGuide(PyroModule):
    """A Pyro guide: globals by points, normals or Dirichlets (or fixed at given values), locals by a subclass.

    Takes the model's arguments, subsampling included: ``guide(x, mask=..., batch_size=...)``.
    """

    #: Makes the loss that the guide was derived with; None: the ELBO that suits its locals.
    own_loss: Callable[..., Any] | None = None
    #: Whether divergences from the priors are to be taken in closed form (TraceMeanField_ELBO).
    analytic: bool = False
    #: Sparse gradients of per-row parameters, for optimisers that take them so; guides without such ignore it.
    sparse_gradient: bool = False
    #: Sum over the 2^K codes inside the ELBO (an exact expectation, no sampling noise); needs TraceEnum_ELBO.
    sum_codes: bool = False
    #: Whether ``posterior`` finds the optimum at given globals by itself: no steps are taken before.
    by_coordinates: bool = False

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__()
        self.model_spec, self.num_rows = model, len(data)
        self.fixed = {} if isinstance(globals_, str) else dict(globals_)
        self.known = {site: value.to(dtype=data.x.dtype, device=data.x.device) for site, value in model.known.items()}
        kind = global_kind(model, globals_) if isinstance(globals_, str) else None
        self.globals_guide = None if kind is None else global_guide(model, kind, init, data)
        self.analytic = isinstance(self.globals_guide, DirichletGlobals) and model.has_continuous_locals

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        """Q of the local site of the rows in ``index``; ``x`` is the full matrix."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, mask: Tensor | None = None, batch_size: int | None = None, **others: Tensor
    ) -> dict[str, Tensor]:
        params = self.fixed
        if self.globals_guide is not None:
            params = dict(self.known) | dict(self.globals_guide(x, mask=mask, batch_size=batch_size, **others))
        self.draw_locals(x, mask, batch_size, params)
        return params

    def draw_locals(self, x: Tensor, mask: Tensor | None, batch_size: int | None, params: dict[str, Tensor]) -> None:
        """Draw the locals of the rows of a minibatch."""
        with pyro.plate("data", self.num_rows, subsample_size=batch_size, dim=-1, device=device_of(x)) as index:
            infer: Any = {"enumerate": "parallel"} if self.sum_codes else {}
            assert index is not None
            distribution = self.local_distribution(x, mask, index, params)
            pyro.sample(self.model_spec.local_site, distribution, infer=infer)

    def loss_kind(self, enumerates: bool) -> Callable[..., Any]:
        """Makes the loss that suits the locals; enumerates: whether the program marks sites to be summed out."""
        if self.own_loss is not None:
            return self.own_loss
        if enumerates:
            return TraceEnum_ELBO
        if self.analytic:
            return ClosedFormELBO
        if self.model_spec.has_continuous_locals:
            return Trace_ELBO
        if self.num_bits > ENUMERATE_UP_TO:
            return TraceGraph_ELBO
        self.sum_codes = True
        return TraceEnum_ELBO

    @property
    def num_bits(self) -> int:
        bits = self.model_spec.code_bits
        if bits is None:
            raise MethodError(f"this guide is for binary codes, which the locals of {self.model_spec!r} are not")
        return bits

    def posterior(self, data: Data, params: dict[str, Tensor]) -> LocalPosterior:
        """Q of every row."""
        with torch.no_grad():
            every = torch.arange(len(data), device=data.x.device)
            return posterior_of(self.local_distribution(data.x, data.mask, every, params))


def posterior_of(distribution: Any) -> LocalPosterior:
    """The posterior object of a guide's distribution of the local site."""
    if isinstance(distribution, BernoulliVector):
        return BernoulliPosterior(distribution.probs.detach())
    if isinstance(distribution, dist.Dirichlet):
        return DirichletPosterior(distribution.concentration.detach())
    if isinstance(distribution, dist.LogisticNormal):
        return LogisticNormalPosterior(distribution.loc.detach(), torch.diag_embed(distribution.scale.detach() ** 2))
    if isinstance(distribution.base_dist, dist.Gamma):
        gamma = distribution.base_dist
        return GammaPosterior(gamma.concentration.detach(), gamma.rate.detach())
    return GaussianPosterior(distribution.mean.detach(), torch.diag_embed(distribution.variance.detach()))
