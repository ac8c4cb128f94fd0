"""Restricted Boltzmann machine (RBM): visible units of any kind tied to hidden units, none to its own layer.

Murphy (2012), section 27.7.1: five of the six rows of Table 27.2 (the other is :mod:`ppl_models.replicated_softmax`).
With statistics t of a row x, t_d = x_d or the C indicators of a category, and the sites W, b, c,

    p(x, h)  proportional to  r(x) s(h) exp(b't + c'h + h'W t)                        (eqs. 27.97-27.99, 27.105, 27.108)

    visible binary       x_d | h ~ Bernoulli(sigmoid(b_d + (W'h)_d))                                       (eq. 27.102)
    visible categorical  x_d | h ~ Cat(softmax(b_d + sum_k h_k w_kd)),   W (K, D, C)                       (eq. 27.106)
    visible gaussian     (x_d - centre) / unit | h ~ Normal(b_d + (W'h)_d, 1)                              (eq. 27.110)
    hidden binary        h_k | x ~ Bernoulli(sigmoid(c_k + (W t)_k))                            (eqs. 27.101 and 27.111)
    hidden gaussian      h_k | x ~ Normal(c_k + (W t)_k, 1)                                          (section 27.7.1.4)

The model is undirected; as a program it is p(h) p(x | h), its exact joint (:mod:`ppl_models.distributions.energy`):
entries of x that were not observed drop out of the second factor, and predictions given h are the program's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.answer_models import ABSENT, check_categories, of_each
from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Plate
from ppl_models.core.row_models import Response, RowModel
from ppl_models.core.sites import Site
from ppl_models.core.units import require_units, set_centre_and_unit
from ppl_models.data.matrix import Data
from ppl_models.distributions import Energy, Harmonium
from ppl_models.distributions.padded import present_of
from ppl_models.kinds.units import UnitModel
from ppl_models.likelihoods import Bernoulli, Categorical, Gaussian

VISIBLE = {
    "binary": constraints.boolean, "probability": constraints.unit_interval,
    "categorical": constraints.nonnegative_integer, "gaussian": constraints.real,
}  # fmt: skip
HIDDEN = {"binary": constraints.boolean, "gaussian": constraints.real}


class _Share(dist.Bernoulli):
    """Draws 0 and 1, and scores the means of such draws."""

    support = constraints.unit_interval


@dataclass(frozen=True)
class Probability(Bernoulli):
    """x in [0, 1], the probability that a draw with log odds eta is 1: the mean over such draws of their log p."""

    refusal = ("are no probabilities", "numbers from 0 to 1, or NaN for missing")

    def valid(self, x: Tensor) -> Tensor:
        return (x >= 0) & (x <= 1)

    def distribution(self, eta: Tensor) -> Any:
        return _Share(logits=eta)


@dataclass(frozen=True, kw_only=True, eq=False)
class HarmoniumModel(RowModel):
    """A model whose rows are the visible layers of a harmonium: the program p(h) p(x | h)."""

    def energy(self, site: Mapping[str, Tensor]) -> Energy:
        """Return the exponent at values of the globals, all with the same axes (...) in front."""
        bias, batch = site["hidden_bias"], site["hidden_bias"].ndim - 1
        weight, visible = site["weight"].flatten(batch + 1), site["visible_bias"].flatten(batch)
        return Energy(weight, visible, bias, self.likelihood, self.hidden_likelihood)

    @property
    def hidden_likelihood(self) -> Any:
        """p(h_k | zeta_k)."""
        return Bernoulli()

    @property
    def units(self) -> tuple[float, float]:
        """c and s of the visible units (x - c) / s, of which everything else is."""
        return 0.0, 1.0

    def times(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return how often each visible unit is there in rows x (N, D), (N, D) or (N, 1); None: once."""
        raise NotImplementedError

    def energy_of_rows(self, site: Mapping[str, Tensor], times: Tensor | None) -> Energy:
        """Return the exponent of rows with these numbers of units: by default the same but for what is not there."""
        energy = self.energy(site)
        if times is None:
            return energy
        bias = energy.hidden_bias.unsqueeze(-2)
        return energy.of_rows(bias.expand(*bias.shape[:-2], len(times), -1), times)

    def natural(self, site: Mapping[str, Tensor], local: Tensor) -> Tensor:
        """Return b + sum_k h_k w_k of rows with hidden units (..., N, K), in the shape of the weights."""
        weight = site["weight"]
        return site["visible_bias"] + (local @ weight.flatten(1)).unflatten(-1, weight.shape[1:])


@dataclass(frozen=True, kw_only=True, eq=False)
class RBM(UnitModel, HarmoniumModel):
    """Restricted Boltzmann machine: rows of 0/1, categories or real numbers, and K hidden units tied to all entries.

    visible: what x holds: "binary", "categorical" (softmax units), "gaussian" (of one variance, ``unit`` squared), or
        "probability": P(x_d = 1) of binary units, as intensities of pixels are; -F is convex, so that log p(x) then is
        at most the expectation of log p of independent binary entries with these probabilities.
    hidden: "binary" or "gaussian". With gaussian visible units these are undirected PCA, with binary ones undirected
        binary PCA.
    num_categories: C_j of categorical visible units alone, one number or a tuple of D; C is the largest. Weights and
        biases of categories that a unit lacks have no influence but by their priors.
    centre, unit: of gaussian visible units, which are (x_d - centre) / unit of variance 1 given h: weights and visible
        biases are theirs. None: the mean and the standard deviation of the entries that are fitted, or 0 and 1 where
        the program runs by itself.
    missing: what an entry is that was not observed: "summed", a unit of unknown value, which is summed out; or
        "absent", a unit that the row does not have, as an item that a user did not rate: every row then is a machine of
        its own units with the weights that all share (Salakhutdinov, Mnih & Hinton, ICML 2007), and has a Z of its own.

    Sites
    -----
    weight: W (K, D), of categories (K, D, C); Normal(0, 1) by default, of two gaussian layers Normal(0, .3). Weight
        decay l of the mean log-likelihood is Normal(0, (N l)^-1/2).
    visible_bias: b (D,) or (D, C); Normal(0, 3) by default.
    hidden_bias: c (K,); Normal(0, 3) by default.
    hidden: h (N, K), one event vector a row.
    x: (N, D), observed; categories as numbers 0..C-1, or indicators (N, D, C).

    log Z is exact by the states of the smaller layer; where neither has few, methods estimate it, and the program
    raises CapacityError where it is needed. Raises ModelError for unknown kinds, and fewer than two categories.
    """

    num_hidden: int
    num_features: int
    visible: str = "binary"
    hidden: str = "binary"
    num_categories: Any = 1
    missing: str = "summed"
    centre: float | None = None
    unit: float | None = None

    axes: ClassVar[Mapping[str, str]] = {
        "component": "num_hidden",
        "feature": "num_features",
        "category": "most_categories",
    }

    def __post_init__(self) -> None:
        for name, known in (("visible", VISIBLE), ("hidden", HIDDEN), ("missing", ("summed", "absent"))):
            if getattr(self, name) not in known:
                kind = name if name == "missing" else f"{name} units"
                raise ModelError(unknown_name(kind, getattr(self, name), known))
        if self.visible == "categorical":
            object.__setattr__(self, "num_categories", check_categories(self.num_categories, self.num_features))
        super().__post_init__()
        require_units(self.centre, self.unit)
        if self.visible != "gaussian" and (self.centre, self.unit) != (None, None):
            found = f"centre = {self.centre!r}, unit = {self.unit!r} of {self.visible} units"
            raise ModelError(f"{found}, expected None: only gaussian ones have a scale")

    @property
    def units(self) -> tuple[float, float]:
        return self.centre or 0.0, self.unit or 1.0

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """Take mean and standard deviation of gaussian units for ``centre`` and ``unit``, where these are open."""
        return self if self.visible != "gaussian" else set_centre_and_unit(self, data, weights)

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        unit = ("feature", "category") if self.visible == "categorical" else ("feature",)
        return {
            "weight": Site("global", ("component", *unit)),
            "visible_bias": Site("global", unit),
            "hidden_bias": Site("global", ("component",)),
            "hidden": Site("latent", ("component",), ("row",), HIDDEN[self.hidden]),
            "x": Site("observed", ("feature",), ("row",), VISIBLE[self.visible]),
        }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        weight = self.sample("weight")
        visible_bias = self.sample("visible_bias")
        hidden_bias = self.sample("hidden_bias")
        site = {"weight": weight, "visible_bias": visible_bias, "hidden_bias": hidden_bias}
        with self.rows(x, **plate) as rows:
            times = None if x is None else self.times(rows.of(x), rows.of(rows.mask))
            harmonium: Any = Harmonium(self.energy_of_rows(site, times))
            hidden = pyro.sample("hidden", harmonium)
            return rows.observe("x", self.visible_units(self.natural(site, hidden)))

    def visible_units(self, natural: Tensor) -> Any:
        """Return p(x_d | h) at natural parameters b + W'h, (..., D) or (..., D, C)."""
        centre, unit = self.units
        if self.visible == "gaussian":
            return dist.Normal(centre + unit * natural, unit * torch.ones_like(natural))
        return Response(logits=natural) if self.visible == "categorical" else self.likelihood.distribution(natural)

    @property
    def likelihood(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Categorical(self.most_categories) if self.visible == "categorical" else _KINDS[self.visible]

    @property
    def categories(self) -> tuple[int, ...]:
        """C_j of every unit; 1 of units that are no categories."""
        return of_each(self.num_categories, self.num_features)

    @property
    def most_categories(self) -> int:
        """C."""
        return max(self.categories)

    def present(self, like: Tensor) -> Tensor | None:
        """Return which categories a unit has, bool (D, C); None where all have the same number."""
        sizes = torch.tensor(self.categories, device=like.device)
        return present_of(sizes, self.most_categories) if len(set(self.categories)) > 1 else None

    def energy(self, site: Mapping[str, Tensor]) -> Energy:
        """Return the exponent; categories that a unit lacks have a bias far below all others, and no weights."""
        present = self.present(site["hidden_bias"])
        if present is None:
            return super().energy(site)
        weight, bias = site["weight"], site["visible_bias"]
        masked = {"weight": torch.where(present, weight, 0.0), "visible_bias": torch.where(present, bias, ABSENT)}
        return super().energy({**site, **masked})

    def natural(self, site: Mapping[str, Tensor], local: Tensor) -> Tensor:
        eta = super().natural(site, local)
        present = self.present(eta)
        return eta if present is None else torch.where(present, eta, torch.full_like(eta, ABSENT))

    @property
    def hidden_likelihood(self) -> Any:
        return _KINDS[self.hidden]

    def default_priors(self) -> dict[str, Any]:
        bias, size = dist.Normal(0.0, 3.0), 0.3 if self.visible == self.hidden == "gaussian" else 1.0
        return {"weight": dist.Normal(0.0, size), "visible_bias": bias, "hidden_bias": bias}

    def times(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        return None if mask is None or self.missing == "summed" else mask.to(x)

    def num_unseen(self, num_rows: int) -> int:
        """Count a number that may be added to the logits of each feature's categories, and those that it does not
        have."""
        del num_rows
        if self.visible != "categorical":
            return 0
        own = math.prod(self.shapes["visible_bias"]) - sum(size - 1 for size in self.categories)
        return own * (("visible_bias" in self.unknown_sites) + self.num_hidden * ("weight" in self.unknown_sites))

    @classmethod
    def example(cls) -> Example:
        """Three hidden units over six features, two hundred rows, drawn exactly."""
        generator = torch.Generator().manual_seed(21)
        weight = torch.full((3, 6), -0.5)
        for k in range(3):
            weight[k, 2 * k : 2 * k + 2] = 3.0
        truth = {
            "weight": weight,
            "visible_bias": torch.full((6,), -1.0),
            "hidden_bias": torch.tensor([-1.5, -1.0, -2.0]),
        }
        model = cls(num_hidden=3, num_features=6)
        hidden = model.energy(truth).sampled_hidden(200, generator=generator)
        x = torch.bernoulli(torch.sigmoid(truth["visible_bias"] + hidden @ weight), generator=generator)
        return Example(model=model, data=Data(x=x), truth={**truth, "hidden": hidden})


_KINDS: dict[str, Any] = {"binary": Bernoulli(), "probability": Probability(), "gaussian": Gaussian()}
