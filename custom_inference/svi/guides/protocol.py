"""What the Pyro guides of local latents share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from pyro.nn import PyroModule
from torch import Tensor

from custom_inference.core.guide import Globals
from custom_inference.core.posteriors import BernoulliPosterior, DirichletPosterior, GaussianPosterior, LocalPosterior
from custom_inference.svi.guides.continuous import ClosedFormELBO
from custom_inference.svi.guides.globals import DirichletGlobals, global_guide, global_kind
from ppl_models import Data, MethodError, Model
from ppl_models.data.device import device_of
from ppl_models.distributions import BernoulliVector

#: Local guides sum over the codes inside the ELBO up to this many bits, and sample them beyond.
ENUMERATE_UP_TO = 10


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

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__()
        self.model_spec, self.num_rows = model, len(data)
        self.fixed = {} if isinstance(globals_, str) else dict(globals_)
        kind = global_kind(model, globals_) if isinstance(globals_, str) else None
        self.globals_guide = None if kind is None else global_guide(model, kind, init, data)
        self.analytic = isinstance(self.globals_guide, DirichletGlobals) and model.has_continuous_locals

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        """Q of the local site of the rows in ``index``; ``x`` is the full matrix."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, mask: Tensor | None = None, batch_size: int | None = None, **others: Tensor
    ) -> dict[str, Tensor]:
        params = self.draw_globals(x, mask, batch_size, **others)
        with pyro.plate("data", self.num_rows, subsample_size=batch_size, dim=-1, device=device_of(x)) as index:
            infer: Any = {"enumerate": "parallel"} if self.sum_codes else {}
            assert index is not None
            distribution = self.local_distribution(x, mask, index, params)
            pyro.sample(self.model_spec.local_site, distribution, infer=infer)
        return params

    def draw_globals(
        self, x: Tensor, mask: Tensor | None, batch_size: int | None, **others: Tensor
    ) -> dict[str, Tensor]:
        """The globals, drawn or fixed."""
        if self.globals_guide is None:
            return self.fixed
        return dict(self.globals_guide(x, mask=mask, batch_size=batch_size, **others))

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
    return GaussianPosterior(distribution.mean.detach(), torch.diag_embed(distribution.variance.detach()))
