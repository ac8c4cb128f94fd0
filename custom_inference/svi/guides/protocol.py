"""What Pyro guides of local latents share, and bounds that were derived by hand as losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from pyro.nn import PyroModule
from torch import Tensor

from custom_inference.core.guide import Globals
from custom_inference.core.posteriors import (
    BernoulliPosterior,
    ContinuousPosterior,
    DirichletPosterior,
    GammaPosterior,
    GaussianPosterior,
    LocalPosterior,
    LogisticNormalPosterior,
)
from custom_inference.svi.guides.continuous import ClosedFormELBO
from custom_inference.svi.guides.of_globals import LearnedGuide, global_guide, global_kind
from ppl_models import Data, MethodError, Model
from ppl_models.data.device import device_of
from ppl_models.distributions import BernoulliVector

#: Local guides sum over the codes inside the ELBO up to this many bits, and sample them beyond.
ENUMERATE_UP_TO = 10


class DerivedBound(ELBO):
    """A bound that was derived by hand, as a Pyro loss: minus the mean of ``particle`` over ``num_particles`` draws of
    what the guide draws, and its gradients by autograd.

    Raises MethodError for ``vectorize_particles``: a derivation is for one draw.
    """

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        if self.vectorize_particles:
            raise MethodError(f"{type(self).__name__} takes its particles in turn; use vectorize_particles=False")

    def particle(self, model: Callable[..., Any], guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Minus the bound at one draw."""
        raise NotImplementedError

    def differentiable_loss(self, model: Callable[..., Any], guide: LearnedGuide, *args: Any, **kwargs: Any) -> Tensor:
        particles = [self.particle(model, guide, args, kwargs) for _ in range(self.num_particles)]
        return torch.stack(particles).mean()

    def loss(self, model: Callable[..., Any], guide: LearnedGuide, *args: Any, **kwargs: Any) -> float:
        with torch.no_grad():
            return float(self.differentiable_loss(model, guide, *args, **kwargs))

    def loss_and_grads(self, model: Callable[..., Any], guide: LearnedGuide, *args: Any, **kwargs: Any) -> float:
        loss = self.differentiable_loss(model, guide, *args, **kwargs)
        loss.backward()
        return float(loss.detach())


class LocalGuide(LearnedGuide, PyroModule):
    """A Pyro guide: globals by points, normals or Dirichlets (or fixed at given values), locals by a subclass.

    Takes the model's arguments, subsampling included: ``guide(x, mask=..., batch_size=...)``.
    """

    #: Makes the loss that the guide was derived with; None: the ELBO that suits its locals.
    own_loss: Callable[..., Any] | None = None
    #: Sparse gradients of per-row parameters, for optimisers that take them so; guides without such ignore it.
    sparse_gradient: bool = False
    #: Sum over the 2^K codes inside the ELBO (an exact expectation, no sampling noise); needs TraceEnum_ELBO.
    sum_codes: bool = False
    #: Whether ``posterior`` finds the optimum at given globals by itself: no steps are taken before.
    by_coordinates: bool = False

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__()
        self.model_spec, self.num_rows = model, len(data)
        named = isinstance(globals_, str)
        self.fixed = {} if named else dict(globals_)
        self.known = {site: value.to(dtype=data.x.dtype, device=data.x.device) for site, value in model.known.items()}
        kind = global_kind(model, globals_) if named else None
        self.globals_guide: Any = None if kind is None else global_guide(model, kind, init, data)
        self.analytic = kind == "dirichlet" and model.has_continuous_locals

    @property
    def of_globals(self) -> Any:
        return self.globals_guide

    def global_posterior(self) -> dict[str, ContinuousPosterior]:
        return self.globals_guide.global_posterior()

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


@functools.singledispatch
def posterior_of(distribution: Any) -> LocalPosterior:
    """Return the posterior object of a guide's distribution of the local site: by default of independent numbers."""
    law = distribution.base_dist
    if isinstance(law, dist.Gamma):
        return GammaPosterior(law.concentration.detach(), law.rate.detach())
    return GaussianPosterior(distribution.mean.detach(), torch.diag_embed(distribution.variance.detach()))


@posterior_of.register
def _(distribution: BernoulliVector) -> LocalPosterior:
    return BernoulliPosterior(distribution.probs.detach())


@posterior_of.register
def _(distribution: dist.Dirichlet) -> LocalPosterior:
    return DirichletPosterior(distribution.concentration.detach())


@posterior_of.register
def _(distribution: dist.LogisticNormal) -> LocalPosterior:
    return LogisticNormalPosterior(distribution.loc.detach(), torch.diag_embed(distribution.scale.detach() ** 2))
