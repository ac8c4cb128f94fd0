"""User rating profile: every response of a row comes from one of K profiles, in the row's own mix.

Murphy (2012), section 27.2.3, eq. 27.14 (the user rating profile
model of Marlin, NIPS 2003; the simplex factor model of Bhattacharya & Dunson, 2011). With rows i, responses r = 1..R:

    pi_i ~ Dirichlet(alpha)
    p(y_i | pi_i) = prod_r Cat(y_ir | sum_k pi_ik b_k^(r))                          (eq. 27.14)

Latent Dirichlet allocation with a vocabulary of R C words "response r is c", of which every row has one for each r.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.answer_models import ResponseModel, draw_responses
from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.row_models import Response
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class UserRatingProfile(ResponseModel):
    """User rating profile: each response comes from one of K profiles, in the row's own mix.

    num_categories: of every response, one number or a tuple of R; each at least 2. C is the largest.

    Sites
    -----
    response: b (K, R, C), P(response r is c | profile k), 0 of categories that a response has not; Dirichlet(.5, ...,
        .5) by default.
    membership: pi (N, K), local; Dirichlet(.3, ..., .3) by default.
    x: (N, R), observed, whole numbers 0..C_r - 1; NaN for missing responses, which drop out of the product.
    """

    sites: ClassVar[Mapping[str, Site]] = {
        **ResponseModel.sites,
        "membership": Site("latent", ("component",), ("row",), constraints.simplex),
    }

    def default_priors(self) -> dict[str, Any]:
        return {
            "response": dist.Dirichlet(torch.full((self.most_categories,), 0.5)),
            "membership": dist.Dirichlet(torch.full((self.num_components,), 0.3)),
        }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        response = self.sample("response")
        with self.rows(x, **plate) as rows:
            membership = self.sample("membership")
            return rows.observe("x", Response(torch.tensordot(membership, response, 1)))

    @classmethod
    def example(cls) -> Example:
        """Two profiles, six questions of three answers, sixty rows."""
        generator = torch.Generator().manual_seed(8)
        favourite = torch.tensor([[0, 0, 1, 2, 0, 2], [2, 1, 2, 0, 1, 0]])
        response = torch.full((2, 6, 3), 0.1).scatter(-1, favourite.unsqueeze(-1), 0.8)
        first = torch.rand((60, 1), generator=generator)
        membership = torch.cat([first, 1 - first], -1)
        x = draw_responses(membership, response, generator)
        truth = {"response": response, "membership": membership}
        return Example(model=cls(num_components=2, num_features=6, num_categories=3), data=Data(x=x), truth=truth)
