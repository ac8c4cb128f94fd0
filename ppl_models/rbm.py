"""Restricted Boltzmann machine (RBM) with binary visible and hidden units.

Source 002, section 27.7 (eqs. 27.97-27.102; the first row of Table 27.2):

    p(x, h) = exp(x'b + h'c + h'W x) / Z                              h in {0, 1}^K, x in {0, 1}^D
    p(h)        = exp(h'c + sum_d softplus(b_d + (W'h)_d)) / Z        the visible layer summed out
    p(x_d = 1 | h) = sigmoid(b_d + (W'h)_d)                                                            (eq. 27.102)
    p(h_k = 1 | x) = sigmoid(c_k + (W x)_k)                                                            (eq. 27.101)

The model is undirected; as a program it is p(h) p(x | h), its exact joint: entries of x that were not observed drop out
of the second factor, and predictions given h are the program's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.model import Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions import Harmonium
from ppl_models.likelihoods import Bernoulli


@dataclass(frozen=True, kw_only=True, eq=False)
class RBM(RowModel):
    """Restricted Boltzmann machine: binary rows and K hidden units tied to all of their entries.

    log Z is exact, by the 2^min(K, D) states of the smaller layer.

    Sites
    -----
    weight: W (K, D); Normal(0, 3) by default. Weight decay l of the mean log-likelihood is Normal(0, (N l)^-1/2).
    visible_bias: b (D,); Normal(0, 3) by default.
    hidden_bias: c (K,); Normal(0, 3) by default.
    hidden: h (N, K), one event vector a row.
    x: (N, D), observed.

    Raises CapacityError, where log Z is needed, for two layers of more than 22 units.
    """

    num_hidden: int
    num_features: int

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {"component": "num_hidden", "feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "feature")),
        "visible_bias": Site("global", ("feature",)),
        "hidden_bias": Site("global", ("component",)),
        "hidden": Site("latent", ("component",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {site: dist.Normal(0.0, 3.0) for site in ("weight", "visible_bias", "hidden_bias")}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        harmonium: Any = Harmonium(site["weight"], site["hidden_bias"], site["visible_bias"])
        return pyro.sample("hidden", harmonium)

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(logits=site["visible_bias"] + local @ site["weight"])

    @classmethod
    def example(cls) -> Example:
        """Three hidden units over six features, two hundred rows, drawn exactly."""
        generator = torch.Generator().manual_seed(21)
        weight = torch.full((3, 6), -0.5)
        for k in range(3):
            weight[k, 2 * k : 2 * k + 2] = 3.0
        truth = {
            "weight": weight,
            "visible_bias": torch.full((6,), -1.0),
            "hidden_bias": torch.tensor([-1.5, -1.0, -2.0]),
        }
        harmonium = Harmonium(weight, truth["hidden_bias"], truth["visible_bias"])
        codes = harmonium.enumerate_support()
        chosen = torch.multinomial(harmonium.log_prob(codes).exp(), 200, replacement=True, generator=generator)
        hidden = codes[chosen]
        x = torch.bernoulli(torch.sigmoid(truth["visible_bias"] + hidden @ weight), generator=generator)
        return Example(model=cls(num_hidden=3, num_features=6), data=Data(x=x), truth={**truth, "hidden": hidden})
