"""Programs whose rows have shares of their own: topics of tokens, with responses; rates that are sums by shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

from ppl_models import ComponentModel, Example, Site
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicOfTokens(ComponentModel):
    """LDA as one writes it: proportions of a row, a topic for every token, and its word."""

    num_words: int

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "word": "num_words"}
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": Site("global", ("component", "word"), support=constraints.simplex),
        "proportion": Site("latent", ("component",), ("row",), constraints.simplex),
        "z": Site("latent", (), ("row", "feature"), choice="component"),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": dist.Dirichlet(torch.full((self.num_words,), 1.5)),
            "proportion": dist.Dirichlet(torch.tensor([0.8, 1.1])),
        }

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        topic = self.sample("topic")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            proportion = self.sample("proportion")
            every = proportion.unsqueeze(-2).expand(*proportion.shape[:-1], self.num_features, -1)
            z = pyro.sample("z", dist.Categorical(every).to_event(1))
            return rows.observe("x", dist.Categorical(topic[z]))

    @classmethod
    def example(cls) -> Example:
        topic = [[0.6, 0.2, 0.1, 0.1], [0.05, 0.15, 0.4, 0.4]]
        return drawn(cls(num_components=2, num_features=3, num_words=4), {"topic": topic}, 24, seed=41, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SupervisedTopics(TopicOfTokens):
    """The same with a response: normal about the mean weight of a row's topics."""

    sites: ClassVar[Mapping[str, Site]] = {
        **TopicOfTokens.sites,
        "weight": Site("global", ("component",), support=constraints.real),
        "noise": Site("global", (), support=constraints.positive),
        "y": Site("observed", (), ("row",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "weight": dist.Normal(0.0, 2.0), "noise": dist.LogNormal(-0.5, 0.5)}

    def __call__(self, x=None, y=None, *, mask=None, batch_size=None, num_rows=1):
        topic, weight, noise = self.sample("topic"), self.sample("weight"), self.sample("noise")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            proportion = self.sample("proportion")
            every = proportion.unsqueeze(-2).expand(*proportion.shape[:-1], self.num_features, -1)
            z = pyro.sample("z", dist.Categorical(every).to_event(1))
            rows.observe("y", dist.Normal(weight[z].mean(-1), noise))
            return rows.observe("x", dist.Categorical(topic[z]))

    @classmethod
    def example(cls) -> Example:
        truth = {"topic": [[0.6, 0.2, 0.1, 0.1], [0.05, 0.15, 0.4, 0.4]], "weight": [-1.5, 2.0], "noise": 0.4}
        return drawn(cls(num_components=2, num_features=3, num_words=4), truth, 40, seed=43, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class RatesByShares(ComponentModel):
    """Counts with rates that are averages over the components, by proportions of a row."""

    sites: ClassVar[Mapping[str, Site]] = {
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "proportion": Site("latent", ("component",), ("row",), constraints.simplex),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"rate": dist.Gamma(1.5, 0.3), "proportion": dist.Dirichlet(torch.tensor([0.8, 1.1]))}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        rate = self.sample("rate")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            proportion = self.sample("proportion")
            return rows.observe("x", dist.Poisson(proportion @ rate))

    @classmethod
    def example(cls) -> Example:
        rate = [[12.0, 0.5, 6.0, 1.0, 9.0], [0.5, 10.0, 2.0, 8.0, 0.5]]
        return drawn(cls(num_components=2, num_features=5), {"rate": rate}, 60, seed=44, missing=0.1)
