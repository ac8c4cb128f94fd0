"""What the models of categorical responses share: sizes, the door for categories, the statement of the responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.component_model import ComponentModel
from ppl_models.core.priors import require_simplex
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data, check_columns
from ppl_models.likelihoods import Categorical


class Response(dist.Categorical):
    """A categorical of 0..C-1 whose mean is that of the number of the category: what ratings are averaged by."""

    @property
    def mean(self) -> Tensor:
        return self.probs @ torch.arange(self.probs.shape[-1]).to(self.probs)


@dataclass(frozen=True, kw_only=True, eq=False)
class ResponseModel(ComponentModel):
    """A model of R categorical responses a row, x (N, R) in 0..C-1, by tables ``response`` (K, R, C).

    Raises
    ------
    ModelError: a size below 1; a prior of ``response`` that is not over the simplex of C categories.
    """

    num_categories: int

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "category": "num_categories"}
    sites: ClassVar[Mapping[str, Site]] = {
        "response": Site("global", ("component", "feature", "category")),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_simplex(self, "response")

    @property
    def likelihood(self) -> Categorical:
        return Categorical(self.num_categories)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any):
        """The model whose number of features is the data's, with categories up to the largest that occurs."""
        settings.setdefault("num_categories", max(2, int(data.x.max()) + 1))
        return cls(num_components=num_components, num_features=data.num_features, **settings)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses questions that nobody answered; warns of those that all answer alike."""
        check_columns(data, site=self.observed_site, constant=range(self.num_categories))

    def observe_responses(
        self, weight: Tensor, response: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None
    ) -> Tensor:
        """The statement of x inside the plate of rows: x_nr ~ Cat(sum_k weight_nk b_k^(r)) (002, eqs. 27.3, 27.14)."""
        likelihood: Any = Response(torch.tensordot(weight, response, 1))
        rows, seen = (v if v is None or index is None else v[index] for v in (x, mask))
        if seen is not None:
            # A category that does not exist would be looked up in the table, masked or not.
            rows = None if rows is None else torch.where(seen, rows, torch.zeros_like(rows))
            likelihood = likelihood.mask(seen)
        return pyro.sample(self.observed_site, likelihood.to_event(1), obs=rows)


def draw_responses(weight: Tensor, response: Tensor, generator: torch.Generator) -> Tensor:
    """x (N, R) from the mixed tables of every row."""
    table = torch.tensordot(weight, response, 1)
    drawn = torch.multinomial(table.flatten(0, 1), 1, generator=generator)
    return drawn.view(table.shape[:2]).to(response)
