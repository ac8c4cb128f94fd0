"""Programs whose rows have shares of their own, in the ways that people write them, with components of few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

from ppl_models import ComponentModel, Site
from ppl_models.distributions import Tokens

SIMPLEX, ROW = constraints.simplex, ("row",)
SHARE = Site("latent", ("component",), ROW, SIMPLEX)
WORDS = Site("observed", ("feature",), ROW, constraints.nonnegative_integer)
ALPHA = (0.6, 1.3, 0.9)


@dataclass(frozen=True, kw_only=True, eq=False)
class OfShares(ComponentModel):
    """Rows with shares of the components, Dirichlet; ``state_row`` says what is observed."""

    num_categories: int = 3
    axes: ClassVar[Any] = {**ComponentModel.axes, "category": "num_categories"}

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "topic": dist.Dirichlet(torch.full((self.num_categories,), 0.4))}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        values = self.sample_globals()
        with self.rows(x, mask, batch_size, num_rows) as rows:
            share = pyro.sample("share", dist.Dirichlet(torch.tensor(ALPHA[: self.num_components])))
            return self.state_row(rows, share, values)

    def state_row(self, rows: Any, share: Any, values: Any) -> Any:
        raise NotImplementedError

    def choose(self, share: Any) -> Any:
        """State a choice for every feature."""
        every = share.unsqueeze(-2).expand(*share.shape[:-1], self.num_features, -1)
        return pyro.sample("z", dist.Categorical(every).to_event(1))


TOPIC = {"topic": Site("global", ("component", "category"), support=SIMPLEX), "share": SHARE, "x": WORDS}
CHOICES = {"z": Site("latent", (), ("row", "feature"), choice="component")}
ASPECT = {
    "p": Site("global", ("component", "feature"), support=constraints.unit_interval), "share": SHARE,
    "x": Site("observed", ("feature",), ROW, constraints.boolean),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicOfTokens(OfShares):
    """A topic for every token."""

    sites: ClassVar[Any] = {**TOPIC, **CHOICES}

    def default_priors(self) -> dict[str, Any]:
        return {"topic": dist.Dirichlet(torch.full((self.num_categories,), 0.4))}

    def state_row(self, rows, share, values):
        return rows.observe("x", dist.Categorical(values["topic"][self.choose(share)]))


@dataclass(frozen=True, kw_only=True, eq=False)
class SumsOfTokens(TopicOfTokens):
    """The same with topics summed out."""

    sites = TOPIC

    def state_row(self, rows, share, values):
        law = dist.Categorical((share @ values["topic"]).unsqueeze(-2))
        return rows.observe("x", law.expand((*share.shape[:-1], self.num_features)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents(TopicOfTokens):
    """Counts of words."""

    sites: ClassVar[Any] = {**TOPIC, "x": Site("observed", ("category",), ROW, constraints.nonnegative_integer)}

    def state_row(self, rows, share, values):
        return rows.observe("x", Tokens(share, values["topic"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class AspectOfBits(OfShares):
    """An aspect for every bit."""

    sites: ClassVar[Any] = {**ASPECT, **CHOICES}

    def default_priors(self) -> dict[str, Any]:
        return {"p": dist.Beta(1.5, 2.0)}

    def state_row(self, rows, share, values):
        return rows.observe("x", dist.Bernoulli(values["p"][self.choose(share), torch.arange(self.num_features)]))


@dataclass(frozen=True, kw_only=True, eq=False)
class SumsOfBits(AspectOfBits):
    """The same with aspects summed out."""

    sites = ASPECT

    def state_row(self, rows, share, values):
        return rows.observe("x", dist.Bernoulli(share @ values["p"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class MeansOfChoices(AspectOfBits):
    """Numbers whose means are chosen, feature by feature."""

    sites: ClassVar[Any] = {
        "loc": Site("global", ("component", "feature"), support=constraints.real),
        "scale": Site("global", ("feature",), support=constraints.positive),
        "share": SHARE, "x": Site("observed", ("feature",), ROW, constraints.real), **CHOICES,
    }  # fmt: skip

    def default_priors(self) -> dict[str, Any]:
        return {"loc": dist.Normal(0.0, 3.0), "scale": dist.LogNormal(0.0, 1.0)}

    def state_row(self, rows, share, values):
        loc = values["loc"][self.choose(share), torch.arange(self.num_features)]
        return rows.observe("x", dist.Normal(loc, values["scale"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkedShares(AspectOfBits):
    """Bits by a link of shares: no sum over the components."""

    sites = ASPECT

    def state_row(self, rows, share, values):
        return rows.observe("x", dist.Bernoulli(logits=4 * share @ values["p"] - 2))


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedActivations(ComponentModel):
    """Poisson rates that add up over components with activations of the row."""

    sites: ClassVar[Any] = {
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "activation": Site("latent", ("component",), ROW, constraints.positive), "x": WORDS,
    }  # fmt: skip

    def default_priors(self) -> dict[str, Any]:
        return {"rate": dist.Gamma(1.5, 0.8)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        rate = self.sample("rate")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            shape = torch.tensor(ALPHA[: self.num_components])
            activation = pyro.sample("activation", dist.Gamma(shape, 0.7).to_event(1))
            return rows.observe("x", dist.Poisson(activation @ rate))
