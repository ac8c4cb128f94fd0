"""Categorical PCA: rows of categorical responses whose logits are linear in a few Gaussian scores.

Source 002, section 27.2.2, eq. 27.7, with a bias of every category. Features r = 1..R, of C_r categories each:

    s_n        ~ Normal(0, I_K)                                                   n = 1..N
    eta_nr     = b_r + sum_k s_nk w_kr    in R^C_r
    x_nr | s_n ~ Cat(softmax(eta_nr))

A number added to all logits of a feature changes nothing: the priors of weights and biases say where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.answer_models import ABSENT, AnswerModel
from ppl_models.core.errors import ModelError
from ppl_models.core.model import Example
from ppl_models.core.row_models import Response
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.exponential_family_pca import LinearScores


@dataclass(frozen=True, kw_only=True, eq=False)
class CategoricalPCA(LinearScores, AnswerModel):
    """Categorical PCA: the logits of the categories of x are linear in K Gaussian scores.

    num_categories: of every feature, one number or a tuple of D; each at least 2. C is the largest.

    Sites
    -----
    weight: w (K, D, C); Normal(0, 1) by default.
    bias: b (D, C), the logits at score 0; Normal(0, 10) by default.
    score: s (N, K), one event vector a row; Normal(0, 1) by default.
    x: (N, D), observed, whole numbers 0..C_j - 1; NaN for missing ones.

    Categories that a feature lacks have probability 0, and their weights and biases no influence but by the prior.

    Raises ModelError for numbers of categories that are no whole numbers above 1, or not one a feature, and for more
    components than the logits have dimensions.
    """

    information: ClassVar[float] = 0.25
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "feature", "category")),
        "bias": Site("global", ("feature", "category")),
        "score": LinearScores.sites["score"],
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_components > self.num_natural:
            found = f"num_components = {self.num_components} exceeds the {self.num_natural} dimensions of the logits"
            raise ModelError(f"{found}: the weights span no more; expected at most as many")

    @property
    def num_natural(self) -> int:
        return sum(size - 1 for size in self.categories)

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 10.0), "score": dist.Normal(0.0, 1.0)}

    def natural(self, site: Mapping[str, Tensor], local: Tensor) -> Tensor:
        """eta of rows with scores (..., N, K), (..., N, D, C); far below the others for categories that are not."""
        eta = super().natural(site, local)
        return torch.where(self.present(eta), eta, torch.full_like(eta, ABSENT))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return Response(logits=self.natural(site, local))

    @classmethod
    def example(cls) -> Example:
        """Two components over four features of two to four categories, fifty-two rows."""
        generator = torch.Generator().manual_seed(29)
        model = cls(num_components=2, num_features=4, num_categories=(3, 2, 4, 3))
        present = model.present(torch.ones(()))
        truth = {
            "weight": torch.randn((2, 4, 4), generator=generator) * present,
            "bias": 0.5 * torch.randn((4, 4), generator=generator) * present,
            "score": torch.randn((52, 2), generator=generator),
        }
        chance = torch.softmax(model.natural(truth, truth["score"]), -1)
        x = torch.multinomial(chance.flatten(0, 1), 1, generator=generator).view(52, 4).to(chance)
        return Example(model=model, data=Data(x=x), truth=truth)
