"""Mean field: the coordinates of each row's latent independent, each row with parameters of its own; and the nodes of a
graph independent, by their blocks or memberships.

A graph's plate holds dyads, which meet in their nodes: every step draws all nodes, and a minibatch of dyads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroParam
from torch import Tensor
from torch.distributions import constraints, kl_divergence

from custom_inference.core.dyads import EveryPair, expected_log_likelihood
from custom_inference.core.guide import Globals, Guide
from custom_inference.core.posteriors import CodePosterior, LocalPosterior
from custom_inference.core.posteriors.logistic_normal import coordinates
from custom_inference.svi.guides.continuous import continuous_family, log_dirichlet, logistic_normal
from custom_inference.svi.guides.programs import ProgramGuide, takes_program_guide
from custom_inference.svi.guides.protocol import DerivedBound, LocalGuide, posterior_of
from custom_inference.svi.initialisation import local_of_labels, match_partition, soft_labels
from ppl_models import Data, GraphModel, MethodError, Model
from ppl_models.distributions import BernoulliVector, Labelling

#: How concentrated memberships begin: as after so many dyads for every block.
_START_WEIGHT = 2.0


@dataclass(frozen=True, kw_only=True)
class MeanField(Guide):
    """Mean-field posterior, of a binary code Q(s_n) = prod_i Bernoulli(lambda_ni).

    In VariationalEM by coordinate ascent, with E[log(1 - e^{-a})] of NOCA evaluated to a known accuracy; in SVI with
    lambda as constrained per-row parameters. Of programs without engines all finite latents are independent, and the
    real numbers that stand for continuous ones have independent normals. Continuous latents of others get, in SVI, a
    Dirichlet (memberships) or independent normals (scores) a row.

    Of a graph's nodes, in SVI: blocks independent, Q = prod_i Cat(phi_i), or a Dirichlet a membership.
    """

    name: ClassVar[str] = "mean_field"

    def bind(
        self, model: Model, data: Data, *, globals_: Globals = "delta", init: dict[str, Tensor] | None = None
    ) -> LocalGuide:
        if takes_program_guide(model, data):
            return ProgramGuide(model, data, globals_, init)
        of_rows, of_nodes = (MeanFieldGuide, ContinuousMeanFieldGuide), (LabellingGuide, MembershipGuide)
        kind: Any = (of_rows if model.rows_are_independent else of_nodes)[model.has_continuous_locals]
        return kind(model, data, globals_, init)


class MeanFieldGuide(LocalGuide):
    """lambda (N, K) as a Pyro parameter; starts at 1/2 give no direction, so at slightly spread values."""

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__(model, data, globals_, init)
        start = 0.2 + 0.1 * torch.rand(len(data), self.num_bits).to(data.x)
        self.source_mean: Any = PyroParam(start, constraint=constraints.unit_interval)

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        return BernoulliVector(self.source_mean[index])


class ContinuousMeanFieldGuide(LocalGuide):
    """The family's unconstrained parameters of every row, (N, P), as a Pyro parameter.

    With ``sparse_gradient`` the gradient of a minibatch is a sparse tensor of its rows.
    """

    def __init__(self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        super().__init__(model, data, globals_, init)
        size, self.distribution, start, analytic = continuous_family(model, data)
        self.analytic = self.analytic or analytic
        self.local_parameters: Any = PyroParam(start + 0.1 * torch.randn(len(data), size).to(start))

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        if self.sparse_gradient:
            return self.distribution(torch.nn.functional.embedding(index, self.local_parameters, sparse=True))
        return self.distribution(self.local_parameters[index])


class LabellingBound(DerivedBound):
    """The ELBO of independent blocks, as a Pyro loss (negative, minimised), without sampling of the blocks:

        sum_dyads sum_ab phi_ia phi_jb log p(x_ij | q_i = a, q_j = b) - sum_i KL(phi_i || pi) - KL(q(globals) || p)

    for guides that sample the local site from a ``Labelling``. The program is evaluated at all K^2 pairs of blocks of
    every dyad. The globals are drawn, and their divergence is that of the draw.
    """

    def particle(
        self, model: Callable[..., Any], guide: GraphGuide, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        model_trace, guide_trace = self._get_trace(model, guide, args, kwargs)
        spec: Any = guide.model_spec
        q = guide_trace.nodes[guide.model_spec.local_site]["fn"]
        expected = expected_log_likelihood(spec, model_trace, q.probs)
        divergence = kl_divergence(q, model_trace.nodes[spec.local_site]["fn"])
        drawn = [name for name in spec.global_sites if name in guide_trace.nodes]
        prior, log_q = (trace.log_prob_sum(lambda name, _: name in drawn) for trace in (model_trace, guide_trace))
        return log_q - prior - expected + divergence

    def _get_trace(
        self, model: Callable[..., Any], guide: GraphGuide, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Traces of the guide, and of the model at the guide's globals with all pairs of blocks at every dyad."""
        guide_trace: Any = poutine.trace(guide).get_trace(*args, **kwargs)
        site = guide.model_spec.local_site
        q = guide_trace.nodes.get(site, {}).get("fn")
        if not isinstance(q, Labelling):
            raise MethodError("LabellingBound needs a guide whose blocks are one Labelling, such as MeanField()'s")
        replayed = EveryPair.of(site, q)(poutine.replay(model, trace=guide_trace))
        model_trace: Any = poutine.trace(replayed).get_trace(*args, **kwargs)
        model_trace.compute_log_prob(site_filter=lambda name, _: name != site)
        return model_trace, guide_trace


class GraphGuide(LocalGuide):
    """Base class of guides of graphs: their starts, and that nodes are not subsampled."""

    def __init__(self, model: GraphModel, data: Data, globals_: Globals, init: dict[str, Tensor] | None):
        named = isinstance(globals_, str)
        known = init if named else globals_
        params = {} if known is None else {site: known[site] for site in model.global_sites}
        super().__init__(model, data, globals_ if named else params, init)
        local = None if known is None else known.get(model.local_site)
        if local is None:
            seed = int(torch.randint(2**31, ()))
            local = local_of_labels(model, match_partition(model, data, params, seed), data)
        self.start(local, data)

    def start(self, local: Tensor, data: Data) -> None:
        """Parameters that begin near values of the local site."""
        raise NotImplementedError


class LabellingGuide(GraphGuide):
    """q(block) = prod_i Cat(phi_i): the logits of phi (N, K) as a Pyro parameter."""

    own_loss = LabellingBound

    def start(self, local: Tensor, data: Data) -> None:
        like = data.stored
        self.block_logit: Any = PyroParam(soft_labels(local, self.model_spec.local_shape[0]).to(like).log())

    def draw_locals(self, x: Tensor, mask: Tensor | None, batch_size: int | None, params: dict[str, Tensor]) -> None:
        pyro.sample(self.model_spec.local_site, Labelling(torch.softmax(self.block_logit, -1), validate_args=False))

    def posterior(self, data: Data, params: dict[str, Tensor]) -> LocalPosterior:
        log_weight = torch.log_softmax(self.block_logit.detach(), -1)
        return CodePosterior(torch.eye(log_weight.shape[-1]).to(log_weight), log_weight)


class MembershipGuide(GraphGuide):
    """q(membership_i) = Dirichlet(gamma_i): the logarithms of gamma (N, K) as a Pyro parameter.

    Under a prior that is no Dirichlet, independent normals of the stick-breaking coordinates: parameters (N, 2 K - 2).
    """

    def start(self, local: Tensor, data: Data) -> None:
        prior: Any = self.model_spec.prior(self.model_spec.local_site, like=local)
        self.analytic = isinstance(prior, dist.Dirichlet)
        if self.analytic:
            start = prior.concentration + _START_WEIGHT * local.shape[-1] * local
            self.log_concentration: Any = PyroParam(start.log())
        else:
            location = coordinates(local)
            self.stick_parameters: Any = PyroParam(torch.cat([location, torch.zeros_like(location)], -1))

    @property
    def distribution(self) -> Any:
        return log_dirichlet(self.log_concentration) if self.analytic else logistic_normal(self.stick_parameters)

    def draw_locals(self, x: Tensor, mask: Tensor | None, batch_size: int | None, params: dict[str, Tensor]) -> None:
        with pyro.plate("nodes", self.num_rows, dim=-1):
            pyro.sample(self.model_spec.local_site, self.distribution)

    def posterior(self, data: Data, params: dict[str, Tensor]) -> LocalPosterior:
        return posterior_of(self.distribution)
