"""What the mixtures share: every row belongs to one of K classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.core.model import Model
from ppl_models.core.priors import require_simplex


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureModel(Model):
    """Rows that belong to one of K classes, q_n ~ Categorical(pi) (002, section 27.2.1).

    The class is the one-hot local site ``assignment``, pi the global ``mixing_proportion`` (K,). Models add what a row
    looks like in each class.
    """

    local_site: ClassVar[str] = "assignment"
    local_meaning: ClassVar[str] = "P(class | row)"
    proportion_site: ClassVar[str] = "mixing_proportion"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_simplex(self, "mixing_proportion")

    def proportion_prior(self) -> dict[str, Any]:
        """Flat on the simplex of K classes: the default prior of ``mixing_proportion``."""
        return {"mixing_proportion": dist.Dirichlet(torch.ones(self.local_shape[0]))}

    @property
    def proportion_shape(self) -> dict[str, tuple[int, ...]]:
        return {"mixing_proportion": self.local_shape}

    @property
    def assignment_dims(self) -> dict[str, tuple[str, ...]]:
        return {"mixing_proportion": ("component",), "assignment": (self.row_axis, "component")}

    def draw_assignment(self, proportion: Tensor) -> Tensor:
        """The statement of the class of every row, one-hot, inside the plate of rows."""
        return pyro.sample("assignment", dist.OneHotCategorical(proportion))

    def report_columns(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"proportion": params["mixing_proportion"]}

    def prominence(self, params: Mapping[str, Tensor]) -> Tensor:
        """The share of the rows that each class draws, (K,)."""
        return params["mixing_proportion"]

    def num_parameters(self, num_rows: int) -> int:
        """The entries of the globals, one less for each simplex, whatever the number of rows."""
        del num_rows
        return super().num_parameters(0)
