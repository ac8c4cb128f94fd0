"""The model of a saved fit: named in the file, made of a class that is there already. Nothing is imported for a file.

A model of the suite stands under its name in ``MODELS``; any other under the import path of its class,
"package.module:Class", and the reader gives that class, or an instance. Beside it stand its settings, its sites, and
its priors, a prior that JSON cannot hold by its description alone: such a one is the given model's.
"""

from __future__ import annotations

import json
import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.store_priors import prior_from_json, prior_to_json, refuse, show
from ppl_models import IRM, MODELS, FileFormatError, Model, ModelError
from ppl_models.core.hierarchy import is_function
from ppl_models.core.priors import describe_prior

#: Name -> model of the suite, the unlisted ones with data of their own too.
_SUITE: Mapping[str, type[Model]] = ChainMap(MODELS, {"irm": IRM})
#: What stands for a prior that the model has by default, and which is a function.
_DEFAULT = {"default": "a function"}
#: Relative differences of numbers of priors that single precision makes.
_ROUNDING = 1e-6
#: More numbers than a prior that is in memory consists of.
_ANY = 2**62


def name_of(kind: type[Model]) -> str:
    """The name in ``MODELS``, or the import path "package.module:Class" of another class."""
    listed = next((name for name, known in _SUITE.items() if kind is known), None)
    return listed or f"{kind.__module__}:{kind.__qualname__}"


def model_to_json(model: Model) -> dict[str, Any]:
    """The part of a header that says what the model is.

    Raises ModelError for settings that JSON does not give back as they are.
    """
    settings, kind = model.settings(), type(model)
    for name, value in settings.items():
        try:
            same = tuples(json.loads(json.dumps(value))) == tuples(value)
        except (TypeError, ValueError):
            same = False
        if not same:
            problem = f"{kind.__name__}: {name} = {show(value)} cannot be saved"
            raise ModelError(f"{problem}; expected numbers, texts, and lists of them, or such from its settings()")
    native = model.default_priors()
    priors = {
        site: _DEFAULT if _same_function(prior, native.get(site)) else _prior_entry(prior, site)
        for site, prior in model.priors.items()
    }
    return {"model": name_of(kind), "settings": settings, "sites": _sites(model), "priors": priors}


def _same_function(prior: Any, native: Any) -> bool:
    """Whether a prior is the function of earlier sites that the model has by default."""
    plain = is_function(prior) and is_function(native) and not getattr(prior, "__closure__", None)
    return plain and getattr(prior, "__code__", prior) is getattr(native, "__code__", native)


def _sites(model: Model) -> dict[str, Any]:
    return {name: [site.role, *site.axes] for name, site in model.sites.items()}


def _prior_entry(prior: Any, site: str) -> dict[str, Any]:
    try:
        entry = prior_to_json(prior)
        prior_from_json(entry, torch.float64, most=_ANY)
    except (FileFormatError, AttributeError, TypeError, ValueError, RuntimeError):
        return {"given": describe_prior(prior)}
    return entry


def require_class(given: Any) -> None:
    """Raises ModelError for what is neither a model's class nor an instance of one."""
    if not (isinstance(given, Model) or (isinstance(given, type) and issubclass(given, Model))):
        raise ModelError(f"model = {show(given)}, expected the class of a model, or an instance")


def model_from_json(
    meta: Mapping[str, Any], params: Mapping[str, Tensor], sizes: set[int], most: int, given: Model | type[Model] | None
) -> Model:
    """The model that :func:`model_to_json` described.

    sizes: those that a tensor of the file has. most: numbers that a parameter of a prior may consist of. given: the
    class, or an instance, of a model that is not of the suite; also for priors that the file does not hold.
    """
    kind = _kind(meta["model"], given)
    settings = {name: tuples(value) for name, value in meta["settings"].items()}
    _check_settings(kind, settings, sizes)
    dtypes = {value.dtype for value in params.values() if value.is_floating_point()}
    refuse(len(dtypes) != 1, "parameters of no type of number, or of several")
    try:
        like = given if isinstance(given, Model) else None if kind in MODELS.values() else kind(**settings)
        if like is not None:
            _check_instance(like, settings, meta["sites"])
        read = {"dtype": dtypes.pop(), "most": most}
        given_priors = {site: entry for site, entry in meta["priors"].items() if entry != _DEFAULT}
        priors = {site: _prior(site, entry, like, read) for site, entry in given_priors.items()}
        return kind(**settings, priors=priors)
    except TypeError as error:
        raise FileFormatError(f"settings of {meta['model']}: {error}") from None


def _kind(name: str, given: Model | type[Model] | None) -> type[Model]:
    """The class that a file's name stands for. The name is compared, and nothing else is done with it."""
    path, _, last = name.partition(":")
    if given is None:
        if last:
            how = f"no code is loaded for a file; give the class: Fit.load(path, model={last.rpartition('.')[2][:60]})"
            raise FileFormatError(f"a fit of {show(name)}, which is not one of the suite's models; {how}")
        refuse(name not in _SUITE, f"model {name!r} is not known here; known: {', '.join(_SUITE)}")
        return _SUITE[name]
    kind = given if isinstance(given, type) else type(given)
    found = name_of(kind)
    # A script's or a notebook's own module is called __main__ as long as it runs, and by its name where it is imported.
    other, _, own = found.partition(":")
    moved = "__main__" in (path, other) and bool(last) and last == own
    refuse(found != name and not moved, f"a fit of {show(name)}, not of {found}")
    return kind


def _check_settings(kind: type[Model], settings: Mapping[str, Any], sizes: set[int]) -> None:
    """Before the model is made: its default priors take as much memory as its sizes ask for."""
    name, listed = name_of(kind), kind in MODELS.values()
    types = {f.name: f.type if isinstance(f.type, str) else f.type.__name__ for f in fields(kind) if f.name != "priors"}
    # A latent's number of values alone, which a caller's own class may have, is no parameter's size.
    known: Any = kind.sites if not listed and isinstance(kind.sites, Mapping) else None
    axes = None if known is None else {axis for site in known.values() if site.role == "global" for axis in site.axes}
    named = {field for axis, field in kind.axes.items() if axes is None or axis in axes}
    for one, value in settings.items():
        refuse(one not in types, f"{name} has no setting {show(one)}; it has {', '.join(types)}")
        plain = {"bool": bool, "int": int, "str": str}.get(types[one])
        refuse(plain is not None and type(value) is not plain, f"{one} = {show(value)}")
        is_size = one in named or (listed and (one.startswith("num_") or one.endswith("_size")))
        refuse(is_size and value != 1 and not _is_size(value, sizes), f"{one} = {show(value)} of no tensor")


def _is_size(value: Any, sizes: set[int]) -> bool:
    """Whether a size, 0 of what there is none of, or of several that one tensor has room for the largest, is that of a
    tensor."""
    each = value if isinstance(value, tuple) else (value,)
    whole = bool(each) and all(type(one) is int for one in each)
    return whole and max(each) in {0, *sizes} and (value is not each or len(each) in sizes)


def _check_instance(model: Model, settings: Mapping[str, Any], sites: Mapping[str, Any] | None) -> None:
    """Refuse a model of other settings or sites than the file's."""
    name = type(model).__name__
    for one, value in model.settings().items():
        refuse(one not in settings, f"no setting '{one}' of {name}")
        differs = tuples(value) != settings[one]
        refuse(differs, f"a fit of {name} with {one} = {show(settings[one])}, not {show(value)}")
    expected, found = _sites(model), dict(sites or {})
    for site in {**expected, **found}:
        if site not in expected or site not in found:
            where = "the file" if site in found else f"{name} here"
            raise FileFormatError(f"the site {show(site)}, which only {where} has: a fit of another version of {name}")
        one, other = expected[site], found[site]
        refuse(one != other, f"the site '{site}' as {show(other)}, where {name} has {show(one)}")


def _prior(site: str, entry: Any, like: Model | None, read: Mapping[str, Any]) -> Any:
    """A prior from its entry, or the one of ``like`` that the entry describes."""
    own = None if like is None else like.priors.get(site)
    if own is not None and _same(entry, _prior_entry(own, site)):
        return own
    if isinstance(entry, dict) and "given" in entry:
        which = f"under the prior {show(entry['given'])} of '{site}', which files do not hold"
        raise FileFormatError(f"a fit {which}; give a model that has it: Fit.load(path, model=...)")
    return prior_from_json(entry, **read)


def _same(one: Any, other: Any) -> bool:
    """Whether two entries of JSON are the same but for rounding."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=_ROUNDING)
    return type(one) is type(other) and one == other


def tuples(value: Any) -> Any:
    """Turn lists that JSON made of tuples back into tuples."""
    return tuple(tuples(one) for one in value) if isinstance(value, list | tuple) else value
