"""Helmholtz machine: a sigmoid belief network, learned with a recognition network or by exact sums.

Dayan, Hinton, Neal & Zemel, *The Helmholtz machine*, 1995. Layers of binary units, from the top to the visible one,
n_0, ..., n_L; every unit is the child of all units of the layer above:

    h_0i ~ Bernoulli(sigmoid(b_0i)),    h_lj | h_{l-1} ~ Bernoulli(sigmoid(b_lj + (W_l'h_{l-1})_j)),    x = h_L
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, require_whole
from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions import SigmoidBelief
from ppl_models.likelihoods import Bernoulli


@dataclass(frozen=True, kw_only=True, eq=False)
class HelmholtzMachine(RowModel):
    """Helmholtz machine: binary rows from layers of binary causes, each the parents of the next.

    layers: units of each layer, from the top to the visible one, of which there are as many as columns: (1, 8, 16).

    Sites
    -----
    bias_l: b_l (n_l,), of the layers l = 0, ..., L; Normal(0, 10) by default.
    weight_l: W_l (n_{l-1}, n_l), of l = 1, ..., L; Normal(0, 10) by default.
    hidden: the hidden layers from the top, one event vector a row, (N, n_0 + ... + n_{L-1}).
    hidden_l: its parts, (N, n_l).
    x: (N, n_L), observed.

    The units of the last hidden layer are the components. Weight decay l of the mean log-likelihood is
    Normal(0, (2 N l)^-1/2).

    Raises ModelError for fewer than two layers.
    """

    layers: tuple[int, ...] = (1, 8, 16)

    likelihood: ClassVar[Any] = Bernoulli()
    axes: ClassVar[Mapping[str, str]] = {"component": "num_hidden", "feature": "num_features"}

    def __post_init__(self) -> None:
        layers = tuple(self.layers)
        if len(layers) < 2:
            raise ModelError(f"layers = {self.layers!r}, expected two or more: units from the top to the visible one")
        require_whole({f"layers = {self.layers!r}: layer {layer}": size for layer, size in enumerate(layers)})
        object.__setattr__(self, "layers", layers)
        super().__post_init__()

    @property
    def num_hidden(self) -> int:
        """Units of the last hidden layer."""
        return self.layers[-2]

    @property
    def num_features(self) -> int:
        return self.layers[-1]

    @property
    def sizes(self) -> dict[str, int]:
        own = {self._axis(layer): size for layer, size in enumerate(self.layers)}
        return own | {"coordinate": sum(self.layers[:-1])} | dict(self.hyper_sizes)

    def _axis(self, layer: int) -> str:
        """Return the name of the units of a layer: the last hidden ones are the components."""
        names = {len(self.layers) - 1: "feature", len(self.layers) - 2: "component"}
        return names.get(layer, f"unit_{layer}")

    @property
    def sites(self) -> Mapping[str, Site]:
        depth = len(self.layers)
        found = {"bias_0": Site("global", (self._axis(0),))}
        for layer in range(1, depth):
            found[f"weight_{layer}"] = Site("global", (self._axis(layer - 1), self._axis(layer)))
            found[f"bias_{layer}"] = Site("global", (self._axis(layer),))
        found["hidden"] = Site("latent", ("coordinate",), ("row",), constraints.boolean)
        for layer in range(depth - 1):
            found[f"hidden_{layer}"] = Site("latent", (self._axis(layer),), ("row",), constraints.boolean)
        return found | {"x": Site("observed", ("feature",), ("row",), constraints.boolean)}

    @property
    def part_sites(self) -> tuple[str, ...]:
        return tuple(f"hidden_{layer}" for layer in range(len(self.layers) - 1))

    @property
    def component_site(self) -> str:
        """The weights of the last hidden layer, (K, D)."""
        return f"weight_{len(self.layers) - 1}"

    @property
    def before_components(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        above = enumerate(self.layers[:-2])
        return tuple(f"unit_{layer}_{place}" for layer, size in above for place in range(size))

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> HelmholtzMachine:
        """Return a machine with so many units in the last hidden layer and one above, unless ``layers`` says more."""
        layers = tuple(settings.pop("layers", (1, num_components, data.num_features)))
        if layers[-2:] != (num_components, data.num_features):
            expected = f"the last two to be {num_components} components and {data.num_features} columns"
            raise ModelError(f"layers = {layers}, expected {expected}")
        return cls(layers=layers, **settings)

    def default_priors(self) -> dict[str, Any]:
        return {site: dist.Normal(0.0, 10.0) for site in self.global_sites}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        """Run the program, from the top layer down.

        With two hidden layers its statements are "bias_0", "weight_1", "bias_1", "weight_2", "bias_2" of the network,
        and "hidden", its parts "hidden_0", "hidden_1", and "x" of every row.
        """
        bias, weight = [self.sample("bias_0")], []
        for layer in range(1, len(self.layers)):
            weight.append(self.sample(f"weight_{layer}"))
            bias.append(self.sample(f"bias_{layer}"))
        with self.rows(x, **plate) as rows:
            belief: Any = SigmoidBelief(bias[:-1], weight[:-1])
            hidden: Any = pyro.sample("hidden", belief)
            parts = hidden.split(self.layers[:-1], -1)
            for layer, part in enumerate(parts):
                pyro.deterministic(f"hidden_{layer}", part, event_dim=1)
            return rows.observe("x", dist.Bernoulli(logits=bias[-1] + parts[-1] @ weight[-1]))

    def network(self, site: Mapping[str, Tensor]) -> Any:
        """Return p(hidden)."""
        hidden = range(len(self.layers) - 1)
        return SigmoidBelief([site[f"bias_{n}"] for n in hidden], [site[f"weight_{n}"] for n in hidden[1:]])

    def local_parts(self, local: Tensor) -> dict[str, Tensor]:
        """Return the hidden layers, hidden_l (..., n_l)."""
        return dict(zip(self.part_sites, local.split(self.layers[:-1], -1), strict=True))

    @classmethod
    def example(cls) -> Example:
        """One unit over two over six features: which half of two images is on."""
        generator = torch.Generator().manual_seed(4)
        truth = {
            "bias_0": torch.tensor([0.3]),
            "weight_1": torch.tensor([[3.0, -3.0]]),
            "bias_1": torch.tensor([-1.5, 1.0]),
            "weight_2": torch.tensor([[4.0, 4.0, 4.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0, 4.0, 4.0]]),
            "bias_2": torch.full((6,), -2.0),
        }
        model = cls(layers=(1, 2, 6))
        codes = model.network(truth).enumerate_support()
        chance = model.network(truth).log_prob(codes).exp()
        hidden = codes[torch.multinomial(chance, 200, replacement=True, generator=generator)]
        x = torch.bernoulli(torch.sigmoid(truth["bias_2"] + hidden[:, 1:] @ truth["weight_2"]), generator=generator)
        return Example(model=model, data=Data(x=x), truth={**truth, "hidden": hidden})
