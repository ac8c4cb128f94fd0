"""What one run of a program states, element by element: laws, the numbers that they take, values, and what is masked.

A program is run on copies of rows, each copy at values of the latents of its own, so that one run tells what many
values do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.distributions import Distribution

from custom_inference.compiled.laws import (
    BernoulliLaw,
    BetaLaw,
    BinomialLaw,
    CategoricalLaw,
    ExponentialLaw,
    FactorLaw,
    GammaLaw,
    GeometricLaw,
    Law,
    MultinomialLaw,
    NormalLaw,
    PoissonLaw,
    SignsLaw,
    TokensLaw,
    ZeroInflatedPoissonLaw,
)
from custom_inference.core.programs.latents import Layout
from custom_inference.core.programs.row_plates import row_dim_of
from custom_inference.core.programs.statements import run
from ppl_models import Data, MethodError, Model

#: Class of distributions -> its law, and its parameters; of alternatives ("probs|logits") the one it was made by.
_KNOWN: Mapping[str, tuple[type[Law], tuple[str, ...]]] = {
    "Bernoulli": (BernoulliLaw, ("probs|logits",)), "NoisyOr": (BernoulliLaw, ("probs",)),
    "BernoulliVector": (BernoulliLaw, ("probs",)), "Geometric": (GeometricLaw, ("probs|logits",)),
    "Binomial": (BinomialLaw, ("probs|logits",)), "Categorical": (CategoricalLaw, ("probs|logits",)),
    "OneHotCategorical": (CategoricalLaw, ("probs|logits",)), "Signs": (SignsLaw, ("probs",)),
    "Multinomial": (MultinomialLaw, ("probs|logits",)),
    "Tokens": (MultinomialLaw, ("probs",)),
    "Poisson": (PoissonLaw, ("rate",)), "Exponential": (ExponentialLaw, ("rate",)),
    "Normal": (NormalLaw, ("loc", "scale")), "Gamma": (GammaLaw, ("concentration", "rate")),
    "Beta": (BetaLaw, ("concentration1", "concentration0")), "Unit": (FactorLaw, ("log_factor",)),
    "ZeroInflatedPoisson": (ZeroInflatedPoissonLaw, ("rate", "gate")),
}  # fmt: skip
#: What a distribution may be made by in place of each other.
_ALTERNATIVES = {"logits": "probs", "gate_logits": "gate"}


def parameters_of(stated: Distribution, *, tabulated: bool = False) -> tuple[type[Law], dict[str, Tensor]]:
    """Return the kind of law of a distribution without wrappers, and the numbers that it was made by.

    tabulated: take the law as one of few values, with all of its numbers.

    Raises ValueError where these cannot be read.
    """
    made: Any = stated
    own = vars(getattr(made, "_categorical", made))
    # A subclass that says otherwise what log p is has another law.
    kinds = type(made).__mro__
    last = next(place for place, kind in enumerate(kinds) if "log_prob" in vars(kind))
    known = (_KNOWN[kind.__name__] for kind in kinds[: last + 1] if kind.__name__ in _KNOWN)
    law, names = next(known, (None, ()))
    if law is not None and not tabulated:
        chosen = [next((one for one in name.split("|") if one in own), name.split("|")[0]) for name in names]
        law = TokensLaw if getattr(made, "coefficient", True) is False else law
        return law, {name: getattr(made, name) for name in chosen}
    names = [n for n in made.arg_constraints if not (n in _ALTERNATIVES and _ALTERNATIVES[n] in made.arg_constraints)]
    swapped = {short: other for other, short in _ALTERNATIVES.items() if other in own and short not in own}
    found: dict[str, Tensor] = {}
    for name in names:
        name = str(swapped.get(name, name))
        value = getattr(made, name, None)
        if not torch.is_tensor(value) and type(value) not in (float, int):
            raise ValueError(f"{type(made).__name__} has no '{name}' to be read")
        found[name] = torch.as_tensor(value)
    return Law, found


class NotCompiled(MethodError):
    """Why a program is not compiled: what it states is not made of factors that can be read."""


@dataclass(frozen=True)
class Statement:
    """The elements of a statement in one run on B rows.

    law: of all of them. parameters: (B, E, P). value: (B, E), or (B, E, V) of vectors (of binomials x and the
    number of trials). seen: (B, E), None: all.
    """

    law: Law
    parameters: Tensor
    value: Tensor
    seen: Tensor | None = None


@dataclass(frozen=True)
class Variables:
    """The elements of the latents of a row, each a variable of few values.

    plates: the names of the plates of rows. places: where each variable's code lies in a row's code. options: (S, w),
    what it may be. names: the latents that they are elements of.
    """

    layout: Layout
    plates: frozenset[str]
    places: tuple[slice, ...]
    options: tuple[Tensor, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, layout: Layout, plates: frozenset[str]) -> Variables:
        """Take the elements of finite latents; codes have 0 where real ones stand."""
        places, options, names = [], [], []
        for latent in layout.finite:
            assert latent.options is not None
            start, width = layout.slices[latent.name].start, latent.options.shape[1]
            for element in range(latent.elements):
                places.append(slice(start + element * width, start + (element + 1) * width))
                options.append(latent.options.double())
                names.append(latent.name)
        return cls(layout, plates, tuple(places), tuple(options), tuple(names))

    def __len__(self) -> int:
        return len(self.places)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each has."""
        return tuple(len(one) for one in self.options)

    @property
    def ranges(self) -> list[list[list[float]]]:
        """What each may be, as numbers."""
        return [options.tolist() for options in self.options]

    def of_site(self, name: str) -> list[int]:
        """The variables that are elements of a latent, in order."""
        return [place for place, own in enumerate(self.names) if own == name]

    def codes(self, chosen: Tensor, like: Tensor) -> Tensor:
        """Return codes (..., W) of the numbers (..., V) of the values that are chosen."""
        found = like.new_zeros(*chosen.shape[:-1], self.layout.width)
        for place, (part, options) in enumerate(zip(self.places, self.options, strict=True)):
            found[..., part] = options.to(like)[chosen[..., place]]
        return found

    def own_values(self, variable: int) -> Tensor:
        """Return the numbers (S,) that laws know the values by: of a choice and a one-hot vector their places."""
        options = self.options[variable]
        return options[:, 0] if options.shape[1] == 1 else torch.arange(len(options)).double()


def read(
    model: Model,
    data: Data,
    params: Mapping[str, Tensor],
    variables: Variables,
    chosen: Tensor,
    tabulated: frozenset[str] = frozenset(),
) -> dict[str, Statement]:
    """Run the program on rows at chosen values (B, V) of their variables, and read what it states, but the globals.

    tabulated: statements whose laws are taken as those of few values.

    Raises NotCompiled for statements that are not read.
    """
    codes = variables.codes(chosen, data.x)
    return read_codes(model, data, params, variables.layout, variables.plates, codes, tabulated)


def read_codes(
    model: Model,
    data: Data,
    params: Mapping[str, Tensor],
    layout: Layout,
    plates: frozenset[str],
    codes: Tensor,
    tabulated: frozenset[str] = frozenset(),
) -> dict[str, Statement]:
    """Run the program on rows at codes (B, W) of their latents, and read what it states, but the globals.

    Raises NotCompiled for statements that are not read.
    """
    with pyro.validation_enabled(False):
        nodes = run(model, data, {**params, **layout.decode(codes)})
    return {
        name: read_statement(name, node, row_dim_of(node, plates), len(data), name in tabulated)
        for name, node in nodes.items()
        if name not in params
    }


def read_statement(name: str, node: Mapping[str, Any], dim: int | None, rows: int, tabulated: bool) -> Statement:
    scale = node.get("scale", 1.0)
    if dim is None:
        raise NotCompiled(f"'{name}' is stated outside the plate of rows")
    if bool(torch.as_tensor(scale != 1.0).any()):
        raise NotCompiled(f"'{name}' is scaled")
    made, shape, masks, inner = without_wrappers(node["fn"])
    if node.get("mask") is not None and node["mask"] is not True:
        masks.append((torch.as_tensor(node["mask"]), 0))
    try:
        law, parameters = parameters_of(made, tabulated=tabulated)
    except ValueError as error:
        raise NotCompiled(f"'{name}': {error}") from None
    vector = type(made).__name__ == "BernoulliVector"
    batch, inner = ((*shape, *made.event_shape), inner + 1) if vector else (tuple(shape), inner)
    event = () if vector else tuple(made.event_shape)
    axis = dim - inner + len(batch)
    if event and not issubclass(law, CategoricalLaw):
        raise NotCompiled(f"'{name}' has entries that are vectors, of {type(made).__name__}")
    if not 0 <= axis < len(batch) or batch[axis] != rows:
        raise NotCompiled(f"'{name}' has no axis of rows")

    def elements(value: Tensor, own: tuple[int, ...] = ()) -> Tensor:
        """Bring what there is of the elements to (B, E, ...)."""
        return value.expand(*batch, *own).movedim(axis, 0).reshape(rows, -1, *own)

    sizes = [own.shape[-1] if issubclass(law, CategoricalLaw) else 0 for own in parameters.values()]
    parts = [
        elements(own, (size,)) if size else elements(own).unsqueeze(-1)
        for own, size in zip(parameters.values(), sizes, strict=True)
    ]
    found = law(type(made), tuple(parameters), tuple(sizes))
    seen = None
    for mask, outside in masks:
        own = elements(mask.reshape(*mask.shape, *[1] * (inner - outside)))
        seen = own if seen is None else seen & own
    return Statement(found, torch.cat(parts, -1), _values(made, law, node["value"], parts[0], elements, event), seen)


def without_wrappers(stated: Distribution) -> tuple[Any, tuple[int, ...], list[tuple[Tensor, int]], int]:
    """Return a distribution without what is about it, its batch shape, masks with the number of axes of events outside
    of each, and that of all."""
    made: Any = stated
    masks: list[tuple[Tensor, int]] = []
    shape, inner = made.batch_shape, 0
    while True:
        kind = type(made).__name__
        if kind == "Independent":
            inner, made = inner + made.reinterpreted_batch_ndims, made.base_dist
            shape = made.batch_shape
        elif kind == "MaskedDistribution":
            if made._mask is not True:
                masks.append((torch.as_tensor(made._mask), inner))
            made = made.base_dist
        elif kind == "ExpandedDistribution":
            made = made.base_dist
        else:
            return made, tuple(shape), masks, inner


def _values(
    stated: Distribution,
    law: type[Law],
    value: Tensor,
    like: Tensor,
    elements: Callable[..., Tensor],
    event: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """Return the values (B, E) of the elements, (B, E, V) of vectors."""
    made: Any = stated
    if law is FactorLaw:
        return torch.ones_like(like[..., 0])
    found = elements(value, event).to(like)
    if "OneHot" in type(made).__name__:
        return found.argmax(-1).to(like)
    if law is BinomialLaw:
        return torch.stack([found, elements(torch.as_tensor(made.total_count)).to(like)], -1)
    return found
