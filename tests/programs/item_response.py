"""Item response: people of an ability each answer items of a difficulty each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import ComponentModel, Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.likelihoods import Bernoulli
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class Rasch(RowModel):
    """One parameter an item: P(x_nj = 1) = sigmoid(ability_n - difficulty_j), ability_n ~ Normal(0, 1)."""

    num_items: int

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {"item": "num_items"}
    sites: ClassVar[Mapping[str, Site]] = {
        "difficulty": Site("global", ("item",), support=constraints.real),
        "ability": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("item",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"difficulty": dist.Normal(0.0, 2.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("ability", dist.Normal(0.0, 1.0))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(logits=local.unsqueeze(-1) - site["difficulty"])

    @classmethod
    def example(cls) -> Example:
        return drawn(cls(num_items=6), {"difficulty": [-1.5, -0.6, 0.0, 0.4, 0.9, 1.6]}, 60, seed=1, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoParameter(ComponentModel):
    """P(x_nj = 1) = sigmoid(discrimination_j (ability_n - difficulty_j)); the ability a vector of one number."""

    sites: ClassVar[Mapping[str, Site]] = {
        "discrimination": Site("global", ("feature",), support=constraints.positive),
        "difficulty": Site("global", ("feature",), support=constraints.real),
        "ability": Site("latent", ("component",), plates=("row",), support=constraints.real_vector),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"discrimination": dist.LogNormal(0.0, 0.5), "difficulty": dist.Normal(0.0, 2.0)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        size = self.num_components
        return pyro.sample("ability", dist.Normal(torch.zeros(size), torch.ones(size)).to_event(1))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return dist.Bernoulli(logits=site["discrimination"] * (local - site["difficulty"]))

    @classmethod
    def example(cls) -> Example:
        truth = {"discrimination": [0.6, 1.0, 1.8, 1.2, 0.8], "difficulty": [-1.2, -0.4, 0.2, 0.7, 1.5]}
        return drawn(cls(num_components=1, num_features=5), truth, 60, seed=2)


@dataclass(frozen=True, kw_only=True, eq=False)
class GradedResponse(RowModel):
    """Ordered answers 0..C-1: P(x_nj > c) = sigmoid(slope_j ability_n - cut_jc), cut_jc = first_j + sum of c gaps.

    The people are a plate on the left, the items one on the right of it.
    """

    num_features: int
    num_grades: int

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features", "step": "num_steps"}
    sites: ClassVar[Mapping[str, Site]] = {
        "slope": Site("global", ("feature",), support=constraints.positive),
        "first": Site("global", ("feature",), support=constraints.real),
        "gap": Site("global", ("feature", "step"), support=constraints.positive),
        "ability": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    @property
    def num_steps(self) -> int:
        return self.num_grades - 2

    def default_priors(self) -> dict[str, Any]:
        return {"slope": dist.LogNormal(0.0, 0.5), "first": dist.Normal(-1.0, 2.0), "gap": dist.Gamma(2.0, 1.0)}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        site = self.sample_globals(like=x)
        first = site["first"].unsqueeze(-1)
        cut = torch.cat([first, first + site["gap"].cumsum(-1)], -1)
        with pyro.plate("data", num_rows if x is None else len(x), subsample_size=batch_size, dim=-2) as index:
            ability = pyro.sample("ability", dist.Normal(0.0, 1.0))
            above = torch.sigmoid((site["slope"] * ability).unsqueeze(-1) - cut)
            one, zero = torch.ones_like(above[..., :1]), torch.zeros_like(above[..., :1])
            grade = dist.Categorical(torch.cat([one, above], -1) - torch.cat([above, zero], -1))
            with pyro.plate("items", self.num_features, dim=-1):
                if mask is not None:
                    grade = grade.mask(mask[index])
                return pyro.sample("x", grade, obs=None if x is None else x[index])

    @classmethod
    def example(cls) -> Example:
        truth = {
            "slope": [1.0, 1.5, 0.7, 2.0],
            "first": [-1.0, -1.6, -0.5, -1.2],
            "gap": [[0.8, 1.0], [1.2, 1.5], [0.9, 0.6], [1.0, 1.4]],
        }
        return drawn(cls(num_features=4, num_grades=4), truth, 60, seed=3, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedRasch(ComponentModel):
    """Two kinds of people, for whom other items are hard: a class and an ability a row."""

    likelihood: ClassVar[Any] = Bernoulli()
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "difficulty": Site("global", ("component", "feature"), support=constraints.real),
        "kind": Site("latent", ("component",), ("row",), constraints.one_hot),
        "ability": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "difficulty": dist.Normal(0.0, 1.5)}

    def draw_locals(self, site: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        kind = pyro.sample("kind", dist.OneHotCategorical(site["weight"]))
        return kind, pyro.sample("ability", dist.Normal(0.0, 1.2))

    def entries(self, site: Mapping[str, Tensor], local: tuple[Tensor, Tensor]) -> Any:
        kind, ability = local
        return dist.Bernoulli(logits=ability.unsqueeze(-1) - kind @ site["difficulty"])

    @classmethod
    def example(cls) -> Example:
        hard = [[-1.8, -1.2, -0.5, 0.8, 1.4, 1.9], [1.6, 1.0, 0.2, -0.6, -1.2, -2.0]]
        truth = {"weight": [0.6, 0.4], "difficulty": hard}
        return drawn(cls(num_components=2, num_features=6), truth, 60, seed=4, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SkillPlate(RowModel):
    """Who has all the skills that an item needs answers right, unless by a slip; who lacks one may guess (DINA).

    The skills are a plate of bits inside the plate of the rows.
    """

    needed: tuple[tuple[int, ...], ...]

    axes: ClassVar[Mapping[str, str]] = {"skill": "num_skills", "feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "mastery": Site("global", ("skill",), support=constraints.unit_interval),
        "guess": Site("global", ("feature",), support=constraints.unit_interval),
        "slip": Site("global", ("feature",), support=constraints.unit_interval),
        "skill": Site("latent", ("skill",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    @property
    def num_skills(self) -> int:
        return len(self.needed[0])

    @property
    def num_features(self) -> int:
        return len(self.needed)

    def default_priors(self) -> dict[str, Any]:
        return {"mastery": dist.Beta(1.0, 1.0), "guess": dist.Beta(1.0, 4.0), "slip": dist.Beta(1.0, 4.0)}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        site = self.sample_globals(like=x)
        needed = torch.tensor(self.needed).to(site["guess"])
        with pyro.plate("data", num_rows if x is None else len(x), subsample_size=batch_size, dim=-2) as index:
            with pyro.plate("skills", self.num_skills, dim=-1):
                skill = pyro.sample("skill", dist.Bernoulli(site["mastery"]))
            able = ((1 - skill) @ needed.T == 0).to(skill)
            right = able * (1 - site["slip"]) + (1 - able) * site["guess"]
            with pyro.plate("items", self.num_features, dim=-1):
                answer = dist.Bernoulli(right)
                if mask is not None:
                    answer = answer.mask(mask[index])
                return pyro.sample("x", answer, obs=None if x is None else x[index])

    @classmethod
    def example(cls) -> Example:
        needed = ((1, 0), (0, 1), (1, 1), (1, 0), (0, 1), (1, 1))
        truth = {"mastery": [0.6, 0.45], "guess": [0.2, 0.15, 0.1, 0.25, 0.1, 0.2], "slip": [0.1] * 6}
        return drawn(cls(needed=needed), truth, 60, seed=5)


@dataclass(frozen=True, kw_only=True, eq=False)
class SkillVector(SkillPlate):
    """The same of more skills, all of them one event, with the product over skills as it is written down:
    able_nj = prod_k skill_nk^needed_jk, where a skill that an item does not need has no effect."""

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        mastery, guess, slip = self.sample("mastery"), self.sample("guess"), self.sample("slip")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            skill = pyro.sample("skill", dist.Bernoulli(mastery).to_event(1))
            able = (skill.unsqueeze(-2) ** torch.tensor(self.needed).to(mastery)).prod(-1)
            return rows.observe("x", dist.Bernoulli((1 - slip) ** able * guess ** (1 - able)))

    @classmethod
    def example(cls) -> Example:
        truth = {
            "mastery": [0.7, 0.6, 0.5, 0.4],
            "guess": [0.1, 0.2, 0.1, 0.2, 0.15, 0.1, 0.2, 0.1],
            "slip": [0.1, 0.05, 0.1, 0.2, 0.1, 0.15, 0.1, 0.1],
        }
        return drawn(cls(needed=NEEDED), truth, 80, seed=41, missing=0.1)


#: Which of four skills each of eight items needs.
NEEDED = (
    (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 1, 0, 0), (0, 1, 1, 0), (0, 0, 1, 1), (1, 0, 1, 1)
)  # fmt: skip
