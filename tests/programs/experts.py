"""Rows that are explained by covariates: classes that these predict, and experts that each predict the response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import Data, Example, Model
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.data.covariates import covariates_of
from ppl_models.data.matrix import as_matrix
from ppl_models.likelihoods import Bernoulli
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentClassRegression(RowModel):
    """Latent classes of yes-no answers; covariates say which class is likely: softmax(u_n coefficient)."""

    num_components: int
    num_features: int
    num_covariates: int

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {
        "component": "num_components",
        "feature": "num_features",
        "covariate": "num_covariates",
    }
    sites: ClassVar[Mapping[str, Site]] = {
        "coefficient": Site("global", ("covariate", "component"), support=constraints.real),
        "chance": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "membership": Site("latent", ("component",), ("row",), constraints.one_hot),
        "covariates": Site("given", ("covariate",), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "coefficient": dist.Normal(0.0, 1.5)}

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
        batch_size: int | None = None,
        num_rows: int = 1,
    ) -> Tensor:
        coefficient = self.sample("coefficient")
        chance = self.sample("chance")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            given = rows.of(covariates)
            given = torch.zeros(rows.number, self.num_covariates).to(coefficient) if given is None else given
            membership = pyro.sample("membership", dist.OneHotCategorical(logits=given @ coefficient))
            return rows.observe("x", dist.Bernoulli(membership @ chance))

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, covariates: Any = None) -> Data:
        found = data.others.get("covariates") if isinstance(data, Data) and covariates is None else covariates
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if found is None:
            found = checked.x.new_zeros(len(checked), self.num_covariates)
        return replace(checked, others={"covariates": covariates_of(found, checked, self.num_covariates)})

    @classmethod
    def example(cls) -> Example:
        truth = {
            "coefficient": [[0.5, -0.5], [1.2, -1.2], [-0.4, 0.4]],
            "chance": [[0.9, 0.8, 0.7, 0.2, 0.1], [0.2, 0.3, 0.1, 0.8, 0.7]],
        }
        generator = torch.Generator().manual_seed(16)
        inputs = torch.cat([torch.ones(60, 1), torch.randn(60, 2, generator=generator)], 1)
        model = cls(num_components=2, num_features=5, num_covariates=3)
        return drawn(model, truth, 60, seed=16, missing=0.1, covariates=inputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfExperts(Model):
    """A response x_n that expert k predicts as u_n . slope_k, up to noise_k; the gate softmax(u_n gate) chooses one."""

    num_experts: int
    num_inputs: int
    num_responses: int = 1

    axes: ClassVar[Mapping[str, str]] = {
        "expert": "num_experts", "response": "num_responses", "input": "num_inputs"
    }  # fmt: skip
    sites: ClassVar[Mapping[str, Site]] = {
        "gate": Site("global", ("input", "expert"), support=constraints.real),
        "slope": Site("global", ("expert", "input"), support=constraints.real),
        "noise": Site("global", ("expert",), support=constraints.positive),
        "expert": Site("latent", (), plates=("row",), choice="expert"),
        "inputs": Site("given", ("input",), plates=("row",), support=constraints.real),
        "x": Site("observed", ("response",), plates=("row",), support=constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"gate": dist.Normal(0.0, 1.5), "slope": dist.Normal(0.0, 3.0), "noise": dist.LogNormal(-0.5, 0.5)}

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        batch_size: int | None = None,
        num_rows: int = 1,
        inputs: Tensor | None = None,
    ) -> Tensor:
        site = self.sample_globals(like=x)
        if inputs is None:
            inputs = torch.zeros(num_rows if x is None else len(x), self.num_inputs).to(site["gate"])
        with pyro.plate("data", len(inputs), subsample_size=batch_size) as index:
            given = inputs[index]
            expert = pyro.sample("expert", dist.Categorical(logits=given @ site["gate"]))
            mean = (site["slope"][expert] * given).sum(-1, keepdim=True)
            response = dist.Normal(mean, site["noise"][expert].unsqueeze(-1))
            if mask is not None:
                response = response.mask(mask[index])
            return pyro.sample("x", response.to_event(1), obs=None if x is None else x[index])

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, inputs: Any = None) -> Data:
        found = data.others.get("inputs") if isinstance(data, Data) and inputs is None else inputs
        checked = as_matrix(data, mask=mask, dtype=dtype, device=device, num_features=1, site="x")
        if found is None:
            found = checked.x.new_zeros(len(checked), self.num_inputs)
        return replace(checked, others={"inputs": covariates_of(found, checked, self.num_inputs)})

    @classmethod
    def example(cls) -> Example:
        truth = {"gate": [[0.0, 0.0], [1.5, -1.5]], "slope": [[1.0, 2.0], [-1.0, -1.0]], "noise": [0.5, 0.8]}
        generator = torch.Generator().manual_seed(17)
        inputs = torch.cat([torch.ones(70, 1), 1.5 * torch.randn(70, 1, generator=generator)], 1)
        return drawn(cls(num_experts=2, num_inputs=2), truth, 70, seed=17, inputs=inputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class GrowthClasses(RowModel):
    """Classes of growth over time: x_nt about intercept_k + slope_k t; covariates say which class is likely."""

    num_components: int
    num_times: int
    num_covariates: int

    axes: ClassVar[Mapping[str, str]] = {
        "component": "num_components",
        "feature": "num_times",
        "covariate": "num_covariates",
    }
    sites: ClassVar[Mapping[str, Site]] = {
        "coefficient": Site("global", ("covariate", "component"), support=constraints.real),
        "intercept": Site("global", ("component",), support=constraints.real),
        "slope": Site("global", ("component",), support=constraints.real),
        "noise": Site("global", (), support=constraints.positive),
        "kind": Site("latent", (), ("row",), choice="component"),
        "covariates": Site("given", ("covariate",), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        wide = dist.Normal(0.0, 3.0)
        return {
            "coefficient": dist.Normal(0.0, 1.5), "intercept": wide, "slope": wide, "noise": dist.LogNormal(-0.5, 0.5)
        }  # fmt: skip

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        covariates: Tensor | None = None,
        mask: Tensor | None = None,
        batch_size: int | None = None,
        num_rows: int = 1,
    ) -> Tensor:
        site = self.sample_globals(like=x)
        with self.rows(x, mask, batch_size, num_rows) as rows:
            given = rows.of(covariates)
            given = torch.zeros(rows.number, self.num_covariates).to(site["slope"]) if given is None else given
            kind = pyro.sample("kind", dist.Categorical(logits=given @ site["coefficient"]))
            time = torch.arange(self.num_times).to(site["slope"])
            mean = site["intercept"][kind].unsqueeze(-1) + site["slope"][kind].unsqueeze(-1) * time
            return rows.observe("x", dist.Normal(mean, site["noise"]))

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, covariates: Any = None) -> Data:
        found = data.others.get("covariates") if isinstance(data, Data) and covariates is None else covariates
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if found is None:
            found = checked.x.new_zeros(len(checked), self.num_covariates)
        return replace(checked, others={"covariates": covariates_of(found, checked, self.num_covariates)})

    @classmethod
    def example(cls) -> Example:
        truth = {
            "coefficient": [[0.6, -0.3, -0.3], [1.0, 0.0, -1.0]],
            "intercept": [0.0, 1.5, 3.0],
            "slope": [1.0, 0.0, -0.8],
            "noise": 0.6,
        }
        generator = torch.Generator().manual_seed(40)
        inputs = torch.cat([torch.ones(70, 1), torch.randn(70, 1, generator=generator)], 1)
        model = cls(num_components=3, num_times=5, num_covariates=2)
        return drawn(model, truth, 70, seed=40, missing=0.1, covariates=inputs)
