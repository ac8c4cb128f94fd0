"""Models as a user would write them, beside those of the suite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import ComponentModel, Example
from ppl_models.core.sites import Site
from ppl_models.distributions import BernoulliVector
from ppl_models.likelihoods import Bernoulli


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyAnd(ComponentModel):
    """Noisy AND: an entry is on unless a source that is present forbids it, or noise does.

    P(x_nj = 1 | s_n) = (1 - noise) prod_k (1 - s_nk veto_kj)
    """

    noise: float = 0.05
    sharpness: float = 1.0

    likelihood: ClassVar[Any] = Bernoulli()
    sites: ClassVar[Mapping[str, Site]] = {
        "presence": Site("global", ("component",), support=constraints.unit_interval),
        "veto": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "source": Site("latent", ("component",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"presence": dist.Beta(2.0, 2.0), "veto": Peaked(torch.tensor(self.sharpness))}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("source", BernoulliVector(site["presence"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        allowed = (1 - local.unsqueeze(-1) * site["veto"]).prod(-2)
        return dist.Bernoulli((1 - self.noise) * allowed.clamp(1e-6, 1 - 1e-6))

    @classmethod
    def example(cls) -> Example:
        """Two sources that forbid three of six entries each, sixty rows."""
        generator = torch.Generator().manual_seed(4)
        veto = torch.full((2, 6), 0.05)
        veto[0, :3] = veto[1, 3:] = 0.9
        source = torch.bernoulli(torch.full((60, 2), 0.4), generator=generator)
        chance = 0.95 * (1 - source.unsqueeze(-1) * veto).prod(-2)
        x = torch.bernoulli(chance, generator=generator)
        truth = {"presence": torch.full((2,), 0.4), "veto": veto, "source": source}
        return Example.of(cls(num_components=2, num_features=6), x, truth)


class Peaked(dist.Beta):
    """A distribution of a user's own: Beta(1 + sharpness, 1 + sharpness)."""

    arg_constraints: ClassVar[Any] = {"sharpness": constraints.positive}

    def __init__(self, sharpness: Tensor, validate_args: Any = None):
        self.sharpness = sharpness
        super().__init__(1 + sharpness, 1 + sharpness, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return Peaked(self.sharpness.expand(batch_shape))
