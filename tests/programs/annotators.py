"""Several annotators label the same things, each with confusions of their own (Dawid & Skene, 1979)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro.ops.indexing import Vindex
from torch import Tensor
from torch.distributions import constraints

from ppl_models import Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Annotators(RowModel):
    """One true class a row; annotator j says class c of a thing of class k with probability confusion_jkc.

    The rows are a plate on the left, the annotators one on the right of it; who said nothing is missing.
    """

    num_classes: int
    num_annotators: int

    axes: ClassVar[Mapping[str, str]] = {
        "class": "num_classes", "feature": "num_annotators", "answer": "num_classes"
    }  # fmt: skip
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("class",), support=constraints.simplex),
        "confusion": Site("global", ("feature", "class", "answer"), support=constraints.simplex),
        "truth": Site("latent", (), plates=("row",), choice="class"),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        """Annotators are rather right than wrong."""
        size = self.num_classes
        return {"weight": dist.Dirichlet(torch.ones(size)), "confusion": dist.Dirichlet(1.0 + 3.0 * torch.eye(size))}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        site = self.sample_globals(like=x)
        with pyro.plate("data", num_rows if x is None else len(x), subsample_size=batch_size, dim=-2) as index:
            truth = pyro.sample("truth", dist.Categorical(site["weight"]))
            with pyro.plate("annotators", self.num_annotators, dim=-1) as annotator:
                said = dist.Categorical(Vindex(site["confusion"])[annotator, truth])
                if mask is not None:
                    said = said.mask(mask[index])
                return pyro.sample("x", said, obs=None if x is None else x[index])

    @classmethod
    def example(cls) -> Example:
        """Three classes, a careful annotator, two of the usual kind, one who says 2 too often and one who guesses."""
        right = torch.tensor([0.9, 0.7, 0.7])
        confusion = (right[:, None, None] - (1 - right[:, None, None]) / 2) * torch.eye(3)
        confusion = confusion + (1 - right[:, None, None]) / 2
        others = torch.tensor([[[0.5, 0.1, 0.4], [0.1, 0.5, 0.4], [0.05, 0.05, 0.9]], [[0.4, 0.3, 0.3]] * 3])
        truth = {"weight": [0.5, 0.3, 0.2], "confusion": torch.cat([confusion, others])}
        return drawn(cls(num_classes=3, num_annotators=5), truth, 60, seed=6, missing=0.25)


@dataclass(frozen=True, kw_only=True, eq=False)
class Crowd(Annotators):
    """The same of many annotators, of whom a few see each thing."""

    @classmethod
    def example(cls) -> Example:
        """Four classes, twenty-five annotators from good to bad."""
        right = torch.linspace(0.9, 0.4, 25)[:, None, None]
        confusion = (right - (1 - right) / 3) * torch.eye(4) + (1 - right) / 3
        truth = {"weight": [0.4, 0.3, 0.2, 0.1], "confusion": confusion}
        return drawn(cls(num_classes=4, num_annotators=25), truth, 60, seed=36, missing=0.6)
