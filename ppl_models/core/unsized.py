"""Models whose sizes are those of the data that they will be fitted to: ``NOCA(num_components=4)``."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from ppl_models.core.doors import needs_no_number, read_for
from ppl_models.core.errors import DataError, ModelError, unknown_name
from ppl_models.data.adapt import adapt
from ppl_models.data.answers import ANSWERS
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.factors import Factors
from ppl_models.data.held import Source
from ppl_models.data.matrix import Data
from ppl_models.data.names import encode_classes, encode_labels
from ppl_models.data.row_blocks import RowBlocks
from ppl_models.data.times import count_slices

#: What data of any model may have beside them, by name.
_BESIDE = ("covariates", "labels", "time", "user_covariates", "item_covariates")
#: A class of models, which this module is imported by, and a model.
ModelType = Any


class NoSizesError(ModelError, AttributeError):
    """A model without sizes was asked for what depends on them."""


@dataclass(frozen=True, eq=False)
class UnsizedModel:
    """What ``NOCA(num_components=4)`` gives, without ``num_features``: a model that takes the sizes that are not among
    its settings from the data it is fitted to, or from those of :meth:`for_data`.

    Anything else of a model raises ModelError, which says so.
    """

    kind: ModelType
    settings: Mapping[str, Any]
    missing: tuple[str, ...]
    priors: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        return f"{self.kind.__name__}({known}; {', '.join(self.missing)}: those of the data)"

    def with_priors(self, **priors: Any) -> UnsizedModel:
        """Return the same with other priors, which are checked once there are sizes."""
        return UnsizedModel(self.kind, self.settings, self.missing, {**self.priors, **priors})

    def for_data(self, data: Source | RowBlocks, **others: Any) -> Any:
        """Return the model of the data's sizes. others: what stands beside x, by the names of its sites."""
        if type(data) is RowBlocks:
            raise self._lacks("for rows that are read block by block")
        read = read_for(self.kind, data, self.settings)
        found, sizes = _read_beside(self.kind, read, {n: adapt(v) for n, v in others.items() if v is not None})
        model = self.kind.for_data(found, **{**sizes, **self.settings})
        return model.with_priors(**self.priors) if self.priors else model

    def require_sizes(self) -> None:
        """Raise ModelError, as there are none."""
        raise self._lacks("for this")

    def __call__(self, *_: Tensor, **__: Tensor) -> Any:
        raise self._lacks("to be run")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._lacks(f"to say its {name}")

    def _lacks(self, purpose: str) -> NoSizesError:
        known = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        call = f"{self.kind.__name__}({known}, {', '.join(f'{name}=...' for name in self.missing)})"
        return NoSizesError(
            f"{self!r} has no sizes yet {purpose}; expected fit(model, x), {self.kind.__name__}.for_data(x, ...), or "
            f"{call}"
        )


def sizes_lacking(kind: ModelType, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The sizes that a class of models needs, and that settings leave to the data.

    None where something else is lacking, or the number of components is that ``number_for`` does not say, or a setting
    is not known: these the class itself refuses.
    """
    named = {one.name: one for one in fields(cast(Any, kind))}
    needed = [
        name for name, one in named.items()
        if one.default is MISSING and one.default_factory is MISSING and name not in settings
    ]  # fmt: skip
    if not needed or not set(settings) <= set(named) or not kind.has_example():
        return ()
    component = kind.axes.get("component")
    of_data = set(kind.axes.values()) - (set() if component in needed and needs_no_number(kind) else {component})
    sizes = all(name in of_data or (name.startswith("num_") and name not in kind.axes.values()) for name in needed)
    return tuple(needed) if sizes else ()


@functools.cache
def _settings_of(kind: ModelType) -> list[inspect.Parameter]:
    return [*inspect.signature(kind.__init__).parameters.values()][1:]


def require_settings(kind: ModelType, unnamed: tuple[Any, ...], settings: Mapping[str, Any]) -> None:
    """Raise ModelError where a class of models is called with settings that it does not have, or without some that it
    needs."""
    known = _settings_of(kind)
    if any(one.kind is one.VAR_KEYWORD for one in known):
        return
    needed = [one.name for one in known if one.default is one.empty]
    lacking = [name for name in needed if name not in settings]
    call = f"{kind.__name__}({', '.join(f'{name}=...' for name in needed)})"
    if unnamed and all(one.kind is one.KEYWORD_ONLY for one in known):
        raise ModelError(f"{kind.__name__}({', '.join(map(repr, unnamed))}): settings have names; expected {call}")
    for name in settings:
        if name not in [one.name for one in known]:
            raise ModelError(unknown_name(f"setting of {kind.__name__}", name, [one.name for one in known]))
    if lacking and not unnamed:
        found = f"{kind.__name__} without {', '.join(lacking)}"
        raise ModelError(f"{found}; expected {call}, or {kind.__name__}.for_data(x, ...), of the sizes of the data x")


def with_sizes(model: ModelType, data: Source | RowBlocks, others: Mapping[str, Any]) -> tuple[Any, Any]:
    """The model, with the sizes of the data if it has none yet, and the data: answers, whose numbers these sizes are,
    and documents as they were read for it. others: what is given beside x, among other things."""
    if type(model) is not UnsizedModel:
        return model, data
    example = model.kind.example().model
    known = {name: value for name, value in others.items() if name in example.other_sites}
    beside = {name: others[name] for name in _BESIDE if name in others}
    read = data if type(data) is RowBlocks else read_for(model.kind, data, model.settings)
    sized = model.for_data(read, **{**beside, **known})
    kept = type(read) is not RowBlocks and (ANSWERS in read.coords or example.data_kind == "documents")
    return sized, read if kept else data


def _read_beside(kind: ModelType, data: Data, others: Mapping[str, Any]) -> tuple[Data, dict[str, Any]]:
    """Data with what stands beside them, as far as numbers of columns and classes depend on it; and the sizes that only
    its names say, of labels and of times."""
    sizes: dict[str, Any] = {}
    held = dict(data.others)
    named = {one.name for one in fields(cast(Any, kind))}
    for site, value in others.items():
        if site == "response" and "class" in kind.axes:
            with contextlib.suppress(DataError):  # several columns, whose classes have no names
                value, classes = encode_classes(value, None)
                data = data.with_labels("class", classes)
        names = encode_labels(value, None, None)[1] if site == "labels" else None
        blocks = f"{site.removesuffix('_covariates')}_blocks"
        parts: Any = value
        if type(parts) is dict and blocks in named:
            sizes[blocks] = tuple(as_tensor(unpack(part)[0], torch.float64).shape[1] for part in parts.values())
        elif site == "time" and "num_times" in named:
            sizes["num_times"] = count_slices(value)
        elif names is not None:
            sizes["num_labels" if "num_labels" in named else "num_classes"] = len(names)
        elif site != "covariates" or site not in named:  # which are a field of graphs
            with contextlib.suppress(TypeError, ValueError):  # words and pairs have no columns to be counted
                encoded = Factors().encode(site, value) if site.endswith("covariates") else value
                held[site] = as_tensor(unpack(encoded)[0], torch.float64)
    return replace(data, others=held), sizes
