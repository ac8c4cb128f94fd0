"""Methods that are right or wrong in a known way, for tests of calibration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyro.distributions as dist
import torch

from custom_inference import Exact, VariationalEM
from custom_inference.engines import Local
from custom_inference.posterior import CodePosterior, GammaPosterior
from ppl_models import CVQ, MODELS, NOCA, MixtureOfPoissons, Model
from ppl_models.distributions import Flat
from tests._graphs import small_model


def explaining_away(name: str) -> Model:
    """Sources that account for the same features: given these they depend on each other, which mean field ignores."""
    if name == "noca":
        priors: Any = {"source_prior": dist.Beta(4.0, 6.0), "loading": dist.Beta(6.0, 2.0), "leak": dist.Beta(1.0, 30.)}
        return NOCA(num_components=3, num_features=4).with_priors(**priors)
    priors = {"source_prior": dist.Beta(4.0, 4.0), "weight": dist.Normal(1.0, 0.3), "scale": dist.LogNormal(-0.7, 0.2)}
    return CVQ(num_components=3, num_features=3).with_priors(**priors)


@dataclass(frozen=True)
class Spoiled:
    """The exact posterior of codes, raised to a power (above 1: too narrow), or of the prior alone."""

    power: float = 1.0
    name: str = "spoiled"

    def local_posterior(self, model: Model, params: Any, data: Any, *, seed: int = 0) -> Local:
        if self.power == 0:  # nothing is observed
            data = replace(data, mask=torch.zeros(data.x.shape, dtype=torch.bool))
        found = Exact().local_posterior(model, params, data, seed=seed)
        codes, log_weight = found.posterior.table()
        return Local(CodePosterior(codes, torch.log_softmax((self.power or 1.0) * log_weight, -1)), found.bound)


@dataclass(frozen=True)
class OneRate:
    """Variational Bayes, exact for a mixture of one component: every rate has a Gamma posterior. Spoiled afterwards.

    narrow: shape and rate times this: the same mean, a smaller variance. shift: of all rates, as a factor.
    """

    narrow: float = 1.0
    shift: float = 1.0
    name: str = "one rate"

    def fit(self, model: Model, data: Any, **settings: Any) -> Any:
        fit = VariationalEM(guide="vb", search=None).fit(model, data, **settings)
        right: Any = fit.global_posterior["rate"]
        fit.global_posterior["rate"] = GammaPosterior(right.shape * self.narrow, right.rate * self.narrow / self.shift)
        return fit


def one_rate() -> Model:
    return MixtureOfPoissons(num_components=1, num_features=3).with_priors(rate=dist.Gamma(2.0, 0.5))


def proper_priors(model: Model) -> Model:
    """The model with priors that can be drawn from: the proposals of improper ones, which give them their draws."""
    proper = {site: prior.proposal for site, prior in model.priors.items() if isinstance(prior, Flat)}
    return model.with_priors(**proper) if proper else model


def tiny(name: str) -> Model:
    """A small model of every kind; graphs are of few nodes."""
    kind: Any = MODELS[name]
    if kind.is_graph:
        return small_model(name, directed=False, num_nodes=6)
    if "num_topics" in kind.__dataclass_fields__:
        return kind(num_topics=2, vocabulary_size=4, document_length=6)
    settings = {"num_categories": 3} if "num_categories" in kind.__dataclass_fields__ else {}
    return kind(num_components=2, num_features=3, **settings)
