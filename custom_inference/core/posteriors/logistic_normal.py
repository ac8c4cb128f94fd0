"""Posteriors over memberships on the simplex that are Gaussian in stick-breaking coordinates.

A point pi of the simplex of K has the coordinates u (K - 1), those of ``torch.distributions.biject_to(simplex)``:

    pi_k = s_k prod_{j<k} (1 - s_j),    s_j = sigmoid(u_j - log(K - 1 - j)),  j = 0 .. K - 2,    s_{K-1} = 1

so that u = 0 has equal shares. torch's and Pyro's ``LogisticNormal`` is Gaussian there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import StickBreakingTransform
from torch.nn.functional import logsigmoid, pad

from custom_inference.core.posteriors.continuous import GaussianPosterior
from custom_inference.core.posteriors.nodes import AXIS_NODES, standard_nodes
from custom_inference.core.posteriors.protocol import ContinuousPosterior, WeightedValues

#: Draws that means are taken by, which cost less than those of a likelihood.
_MEAN_DRAWS = 1024
#: Entries of an array of rows by draws by components.
_BLOCK_ENTRIES = 2**22


class Sticks(NamedTuple):
    """log_share: log pi (..., K); broken: s_j (..., K - 1); log_volume: log |d pi / d u| (...)."""

    log_share: Tensor
    broken: Tensor
    log_volume: Tensor

    @classmethod
    def of(cls, u: Tensor) -> Sticks:
        """Break the stick at coordinates (..., K - 1)."""
        offset = torch.arange(u.shape[-1], 0, -1).to(u).log()
        taken, left = logsigmoid(u - offset), logsigmoid(offset - u)
        log_share = pad(taken, (0, 1)) + pad(left.cumsum(-1), (1, 0))
        return cls(log_share, taken.exp(), (log_share[..., :-1] + left).sum(-1))


def coordinates(share: Tensor) -> Tensor:
    """u (..., K - 1) of points (..., K) inside the simplex."""
    found: Any = StickBreakingTransform().inv(share)
    return found


@dataclass(frozen=True)
class LogisticNormalPosterior(ContinuousPosterior):
    """q(s_n) of a point of the simplex: Normal(location_n, covariance_n) of its stick-breaking coordinates.

    location (N, K - 1), covariance (N, K - 1, K - 1). The density is that on the simplex, by its first K - 1 entries.
    """

    location: Annotated[Tensor, "nj"]
    covariance: Annotated[Tensor, "njj", "covariances"]

    @property
    def mean(self) -> Tensor:
        """The mean, by the product rule of :func:`standard_nodes` for K up to 4, else by its draws: to about 2e-3."""
        size = self.location.shape[-1]
        nodes = standard_nodes(size, None if size in AXIS_NODES else _MEAN_DRAWS).to(self.location)
        weight, root = nodes.log_weight.exp(), torch.linalg.cholesky(self.covariance)
        rows = max(1, _BLOCK_ENTRIES // max(nodes.place.numel(), 1))
        parts = zip(self.location.split(rows), root.split(rows), strict=True)
        return torch.cat([weight @ Sticks.of(m[:, None] + nodes.place @ r.mT).log_share.exp() for m, r in parts])

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        drawn = GaussianPosterior(self.location, self.covariance).sample(num_samples, seed=seed)
        return Sticks.of(drawn).log_share.exp()

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        found = GaussianPosterior(self.location, self.covariance).weigh_values(number, seed=seed)
        return found._replace(value=Sticks.of(found.value).log_share.exp())

    def log_prob(self, local: Tensor) -> Tensor:
        edge = torch.finfo(local.dtype).tiny
        inside = local.clamp_min(edge)
        u = coordinates(inside)
        settings = {"covariance_matrix": self.covariance, "validate_args": False}
        return torch.distributions.MultivariateNormal(self.location, **settings).log_prob(u) - Sticks.of(u).log_volume
