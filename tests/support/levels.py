"""The smallest program with a real latent: its evidence is a normal density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
from torch.distributions import constraints

from ppl_models import RowModel
from ppl_models.core.sites import Site


@dataclass(frozen=True, kw_only=True, eq=False)
class Levels(RowModel):
    """Numbers about a level of their row: x_nj ~ Normal(mean + level_n, 1), level_n ~ Normal(0, 1), two a row."""

    num_features: int = 2
    axes: ClassVar = {"feature": "num_features"}
    sites: ClassVar = {
        "mean": Site("global", (), support=constraints.real),
        "level": Site("latent", (), plates=("row",), support=constraints.real),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.real),
    }

    def default_priors(self):
        return {"mean": dist.Normal(0.0, 100.0)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        mean = self.sample("mean")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
            return rows.observe("x", dist.Normal((mean + level).unsqueeze(-1).expand(*level.shape, 2), 1.0))
