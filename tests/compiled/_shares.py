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
            share = pyro.sample("share", dist.Dirichlet(self.alpha))
            return self.state_row(rows, share, values)

    @property
    def alpha(self) -> torch.Tensor:
        return torch.tensor(ALPHA[: self.num_components])

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
class EvenTopics(TopicOfTokens):
    """The same with shares that tell no topics apart."""

    @property
    def alpha(self) -> torch.Tensor:
        return torch.full((self.num_components,), 0.5)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class SharesOfRates(OfShares):
    """Poisson rates that are averages over the components, with shares of the row."""

    sites: ClassVar[Any] = {
        "rate": Site("global", ("component", "feature"), support=constraints.positive), "share": SHARE, "x": WORDS,
    }  # fmt: skip

    def default_priors(self) -> dict[str, Any]:
        return {"rate": dist.Gamma(1.5, 0.3)}

    def state_row(self, rows, share, values):
        return rows.observe("x", dist.Poisson(share @ values["rate"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class BetaOfBits(ComponentModel):
    """Bits by a share of the row: p_0 with 1 - share, p_1 with share; chosen or summed."""

    chosen: bool = False
    sites: ClassVar[Any] = {**ASPECT, "share": Site("latent", (), ROW, constraints.unit_interval)}

    def default_priors(self) -> dict[str, Any]:
        return {"p": dist.Beta(1.5, 2.0)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        p = self.sample("p")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            share = pyro.sample("share", dist.Beta(0.8, 0.6))
            return self.state_row(rows, share.unsqueeze(-1), p)

    def state_row(self, rows, share, p):
        return rows.observe("x", dist.Bernoulli((1 - share) * p[0] + share * p[1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class BetaOfChoices(BetaOfBits):
    """The same with a choice of every bit."""

    sites: ClassVar[Any] = {
        **BetaOfBits.sites,
        "z": Site("latent", ("feature",), ("row",), support=constraints.boolean),
    }

    def state_row(self, rows, share, p):
        z = pyro.sample("z", dist.Bernoulli(share.expand(*share.shape[:-1], self.num_features)).to_event(1))
        return rows.observe("x", dist.Bernoulli(p[z.long(), torch.arange(self.num_features)]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Supervised(TopicOfTokens):
    """Tokens with a response of the row: normal about the mean weight of its tokens' topics, or of its shares."""

    by_tokens: bool = True
    sites: ClassVar[Any] = {
        **TopicOfTokens.sites, "weight": Site("global", ("component",), support=constraints.real),
        "scale": Site("global", (), support=constraints.positive), "y": Site("observed", (), ROW, constraints.real),
    }  # fmt: skip

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "weight": dist.Normal(0.0, 10.0), "scale": dist.LogNormal(0.0, 1.0)}

    def __call__(self, x=None, y=None, *, mask=None, batch_size=None, num_rows=1):
        values = self.sample_globals()
        with self.rows(x, mask, batch_size, num_rows) as rows:
            share = pyro.sample("share", dist.Dirichlet(torch.tensor(ALPHA[: self.num_components])))
            z = self.choose(share)
            rows.observe("y", dist.Normal(self.average(share, z, values["weight"]), values["scale"]))
            return rows.observe("x", dist.Categorical(values["topic"][z]))

    def average(self, share, z, weight):
        return weight[z].mean(-1) if self.by_tokens else share @ weight


@dataclass(frozen=True, kw_only=True, eq=False)
class SquaredResponse(Supervised):
    """A response that is no average."""

    def average(self, share, z, weight):
        return weight[z].mean(-1) ** 2


@dataclass(frozen=True, kw_only=True, eq=False)
class ExposedRates(SharesOfRates):
    """The same times what a row is exposed to."""

    sites: ClassVar[Any] = {**SharesOfRates.sites, "exposure": Site("given", (), ROW, constraints.positive)}

    def __call__(self, x=None, exposure=None, *, mask=None, batch_size=None, num_rows=1):
        rate = self.sample("rate")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            share = pyro.sample("share", dist.Dirichlet(self.alpha))
            return rows.observe("x", dist.Poisson(rows.of(exposure).unsqueeze(-1) * (share @ rate)))
