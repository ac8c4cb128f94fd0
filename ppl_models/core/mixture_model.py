"""What the mixtures share: every row belongs to one of K classes, which has a likelihood of its own."""

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
from ppl_models.data.device import device_of


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOf(Model):
    """Rows that belong to one of K classes (002, section 27.2.1):

        q_n ~ Categorical(pi),    x_nj | q_n = k ~ likelihood with the mean that class k has of entry j

    The class is the one-hot local site ``assignment``, pi the global ``mixing_proportion`` (K,). Models add a
    ``likelihood`` (of :mod:`ppl_models.likelihoods`) and the component site, the means of entries in the K classes.
    """

    proportion_site: ClassVar[str] = "mixing_proportion"

    sites: ClassVar[Mapping[str, Site]] = {
        "mixing_proportion": Site("global", ("component",)),
        "assignment": Site("latent", ("component",), ("row",), constraints.one_hot),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require_simplex(self, "mixing_proportion")

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        batch_size: int | None = None,
        num_rows: int = 1,
        **given: Any,
    ) -> Tensor:
        """The Pyro program. ``x`` (N, D) without NaN, or ``None`` to generate ``num_rows`` rows.

        ``mask`` (N, D): True where observed; masked entries have no influence, whatever ``x`` holds there.
        ``given``: what else the rows are drawn by, see the model's ``observe_rows``.
        """
        site = self.sample_globals(like=x)
        total = num_rows if x is None else x.shape[0]
        with pyro.plate("data", total, subsample_size=batch_size, dim=-1, device=device_of(x)) as index:
            assignment = pyro.sample("assignment", dist.OneHotCategorical(site["mixing_proportion"]))
            chosen = None if batch_size is None else index
            return self.observe_rows(assignment, site[self.component_site], x, mask, chosen, **given)

    def observe_rows(
        self, assignment: Tensor, component: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None
    ) -> Tensor:
        """The statement of x inside the plate of rows, those in ``index`` or, where that is None, all."""
        model: Any = self  # rows of entries, a ComponentModel; others say themselves what a row is
        likelihood = model.likelihood.with_mean(torch.tensordot(assignment, component, 1))
        return model.observe(likelihood, x, mask, index)

    def proportion_prior(self) -> dict[str, Any]:
        """Flat on the simplex of K classes: the default prior of ``mixing_proportion``."""
        return {"mixing_proportion": dist.Dirichlet(torch.ones(self.sizes["component"]))}

    def num_parameters(self, num_rows: int) -> int:
        """The entries of the globals, one less for each simplex, whatever the number of rows."""
        del num_rows
        return super().num_parameters(0)
