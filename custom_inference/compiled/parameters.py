"""What a distribution was made by: its law, and the numbers that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    ZeroInflatedPoissonLaw,
)

#: Class of distributions -> its law, and its parameters; of alternatives ("probs|logits") the one it was made by.
_KNOWN: Mapping[str, tuple[type[Law], tuple[str, ...]]] = {
    "Bernoulli": (BernoulliLaw, ("probs|logits",)), "NoisyOr": (BernoulliLaw, ("probs",)),
    "BernoulliVector": (BernoulliLaw, ("probs",)), "Geometric": (GeometricLaw, ("probs|logits",)),
    "Binomial": (BinomialLaw, ("probs|logits",)), "Categorical": (CategoricalLaw, ("probs|logits",)),
    "OneHotCategorical": (CategoricalLaw, ("probs|logits",)), "Multinomial": (MultinomialLaw, ("probs|logits",)),
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
