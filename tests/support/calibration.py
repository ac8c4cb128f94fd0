"""Small models of every kind, for tests of calibration."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from ppl_models import MODELS, GraphModel, Model
from ppl_models.distributions import Flat
from tests.support.graphs import small_model


def proper_priors(model: Model) -> Model:
    """The model with priors that can be drawn from: the proposals of improper ones, which give them their draws."""
    proper = {site: prior.proposal for site, prior in model.priors.items() if isinstance(prior, Flat)}
    return model.with_priors(**proper) if proper else model


#: Sizes of what a model may need.
_SIZES = {
    "num_states": 2,
    "num_times": 2,
    "num_labels": 1,
    "num_covariates": 2,
    "topics_per_label": 1,
    "num_classes": 2,
}


def _needed(kind: type[Model]) -> dict[str, int]:
    """Those of the sizes that have no default."""
    fields = kind.__dataclass_fields__
    return {name: size for name, size in _SIZES.items() if name in fields and fields[name].default is MISSING}


def tiny(name: str) -> Model:
    """A small model of every kind; graphs are of few nodes."""
    kind: Any = MODELS[name]
    if issubclass(kind, GraphModel):
        return small_model(name, directed=False, num_nodes=6)
    if "num_topics" in kind.__dataclass_fields__:
        return kind(num_topics=2, vocabulary_size=4, document_length=6, **_needed(kind))
    if name == "hdp":
        return kind(max_topics=2, vocabulary_size=4, document_length=6)
    if name == "helmholtz_machine":
        return kind(layers=(1, 2, 3))
    if name in ("rbm", "replicated_softmax"):
        return kind(num_hidden=2, num_features=3)
    needed = {"num_components": 2, "num_features": 3, "num_categories": 3, "num_covariates": 2, "num_users": 4,
              "num_items": 3, "num_choices": 2}  # fmt: skip
    if name == "pmf":  # users have a posterior of their own at given priors alone
        needed["adaptive"] = False
    return kind(**{field: size for field, size in needed.items() if field in kind.__dataclass_fields__})
