"""What the mixtures share: every row belongs to one of K classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.model import Model
from ppl_models.core.priors import require_simplex
from ppl_models.core.sites import Site


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureModel(Model):
    """Rows that belong to one of K classes, q_n ~ Categorical(pi) (002, section 27.2.1).

    The class is the one-hot local site ``assignment``, pi the global ``mixing_proportion`` (K,). Models add what a row
    looks like in each class.
    """

    proportion_site: ClassVar[str] = "mixing_proportion"

    sites: ClassVar[Mapping[str, Site]] = {
        "mixing_proportion": Site("global", ("component",)),
        "assignment": Site("latent", ("component",), ("row",), constraints.one_hot),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_simplex(self, "mixing_proportion")

    def proportion_prior(self) -> dict[str, Any]:
        """Flat on the simplex of K classes: the default prior of ``mixing_proportion``."""
        return {"mixing_proportion": dist.Dirichlet(torch.ones(self.sizes["component"]))}

    def draw_assignment(self, proportion: Tensor) -> Tensor:
        """The statement of the class of every row, one-hot, inside the plate of rows."""
        return pyro.sample("assignment", dist.OneHotCategorical(proportion))

    def num_parameters(self, num_rows: int) -> int:
        """The entries of the globals, one less for each simplex, whatever the number of rows."""
        del num_rows
        return super().num_parameters(0)
