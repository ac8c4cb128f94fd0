"""Mixture of categoricals: every row of responses belongs to one of K classes (latent class analysis).

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.2.1, eq. 27.3, the unsupervised analogue
of naive Bayes. With rows i, response variables r = 1..R, each with categories 0..C_r - 1:

    q_i ~ Categorical(pi)
    p(y_i | q_i = k) = prod_r Cat(y_ir | b_k^(r))                                   (eq. 27.3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from ppl_models.core.answer_models import ResponseModel, draw_responses
from ppl_models.core.model import Example
from ppl_models.core.row_models import MixtureOf
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfCategoricals(ResponseModel, MixtureOf):
    """Mixture of categoricals: each row of responses is drawn from one of K classes.

    num_categories: of every response, one number or a tuple of R; each at least 2. C is the largest.

    Sites
    -----
    mixing_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    response: b (K, R, C), P(response r is c | class k), 0 of categories that a response has not; flat (Dirichlet of
        ones) by default. A prior states C concentrations, of which each response has those of its categories.
    assignment: q (N, K), one-hot.
    x: (N, R), observed, whole numbers 0..C_r - 1; NaN for missing responses, which drop out of the product.

    With the flat default priors EM gives maximum likelihood; ``with_priors(response=dist.Dirichlet(...))`` keeps off
    the edges. A concentration below 1 adds to the counts (the mode in the softmax basis).
    """

    sites: ClassVar[Mapping[str, Site]] = {**MixtureOf.sites, **ResponseModel.sites}

    @classmethod
    def example(cls) -> Example:
        """Three classes, five questions of four answers, eighty rows."""
        generator = torch.Generator().manual_seed(3)
        proportion = torch.tensor([0.5, 0.3, 0.2])
        favourite = torch.tensor([[0, 1, 2, 3, 0], [3, 1, 0, 0, 2], [1, 3, 2, 1, 1]])
        response = torch.full((3, 5, 4), 0.1).scatter(-1, favourite.unsqueeze(-1), 0.7)
        assignment = torch.eye(3)[torch.multinomial(proportion, 80, replacement=True, generator=generator)]
        x = draw_responses(assignment, response, generator)
        truth = {"mixing_proportion": proportion, "response": response, "assignment": assignment}
        return Example(model=cls(num_components=3, num_features=5, num_categories=4), data=Data(x=x), truth=truth)
