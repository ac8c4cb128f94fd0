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
from typing import Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, ModelError
from ppl_models.core.model import Example
from ppl_models.core.row_models import ComponentModel, Response, zeros_where_missing
from ppl_models.core.sites import Site
from ppl_models.data.columns import check_columns
from ppl_models.data.matrix import Data
from ppl_models.exponential_family_pca import LinearScores
from ppl_models.likelihoods import Categorical

#: The logit of a category that a feature lacks.
ABSENT = -1e9


@dataclass(frozen=True, kw_only=True, eq=False)
class CategoricalPCA(LinearScores, ComponentModel):
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

    num_categories: Any

    information: ClassVar[float] = 0.25
    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "category": "most_categories"}
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "feature", "category")),
        "bias": Site("global", ("feature", "category")),
        "score": LinearScores.sites["score"],
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def __post_init__(self) -> None:
        given, each = self.num_categories, isinstance(self.num_categories, tuple | list)
        sizes = tuple(given) if each else (given,)
        if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 2 for size in sizes):
            raise ModelError(f"num_categories = {given!r}, expected whole numbers of at least 2")
        if each and len(sizes) != self.num_features:
            found = f"num_categories of {len(sizes)} features"
            raise ModelError(f"{found}, expected one number or one for each of num_features = {self.num_features}")
        object.__setattr__(self, "num_categories", sizes if each else given)
        super().__post_init__()
        if self.num_components > self.num_natural:
            found = f"num_components = {self.num_components} exceeds the {self.num_natural} dimensions of the logits"
            raise ModelError(f"{found}: the weights span no more; expected at most as many")

    @property
    def categories(self) -> tuple[int, ...]:
        """C_j of every feature."""
        each = isinstance(self.num_categories, tuple)
        return self.num_categories if each else (self.num_categories,) * self.num_features

    @property
    def most_categories(self) -> int:
        """C."""
        return max(self.categories)

    @property
    def num_natural(self) -> int:
        return sum(size - 1 for size in self.categories)

    @property
    def likelihood(self) -> Categorical:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Categorical(self.most_categories)

    def present(self, like: Tensor) -> Tensor:
        """Which categories a feature has, bool (D, C)."""
        sizes = torch.tensor(self.categories, device=like.device)
        return torch.arange(self.most_categories, device=like.device) < sizes.unsqueeze(-1)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model whose number of features is the data's, with categories up to the largest that occurs in each."""
        sizes = [max(2, int(most) + 1) for most in data.observed_x.amax(0)]
        settings.setdefault("num_categories", sizes[0] if len(set(sizes)) == 1 else tuple(sizes))
        return cls(num_components=num_components, num_features=data.num_features, **settings)

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 10.0), "score": dist.Normal(0.0, 1.0)}

    def natural(self, site: Mapping[str, Tensor], local: Tensor) -> Tensor:
        """eta of rows with scores (..., N, K), (..., N, D, C); far below the others for categories that are not."""
        eta = super().natural(site, local)
        return torch.where(self.present(eta), eta, torch.full_like(eta, ABSENT))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return Response(logits=self.natural(site, local))

    def observe(self, likelihood: Any, x: Tensor | None, mask: Tensor | None, index: Tensor | None) -> Tensor:
        return super().observe(likelihood, *zeros_where_missing(x, mask, index))

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None) -> Data:
        """A matrix of numbers of categories; NaN is missing. Raises DataError for a category that its feature lacks."""
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        sizes = torch.tensor(self.categories, device=checked.x.device)
        wrong = (checked.observed_x >= sizes).nonzero()
        if len(wrong):
            row, column = wrong[0].tolist()
            value, has = int(checked.x[row, column]), self.categories[column]
            name = checked.feature_names[column]
            found = f"{len(wrong)} entries are no category of their feature (the first: {value} in row {row}, column"
            raise DataError(
                f"{found} {name!r}, which has {has})", site="x", axis="feature", expected=f"numbers 0 to {has - 1}"
            )
        return checked

    def check_for_fitting(self, data: Data) -> None:
        """Refuses features that are never observed; warns of those that are always the same."""
        check_columns(data, constant=range(self.most_categories))

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
