"""Stochastic block model with features of the nodes.

Murphy (2012), section 27.5.1. Nodes i, j with features x_i, x_j:

    p(x_ij = 1 | q_i = a, q_j = b, x_i, x_j, w) = sigmoid(w_ab' f(x_i, x_j))                           (eq. 27.76)

The source writes Ber(r | w' f), which is no probability as it stands; here w' f is its logit. f combines the features
of the two nodes; it starts with a constant 1, so that without features this is :class:`SBM` with eta = sigmoid(w_ab0).
Features are taken about a centre, which the source leaves open: of a product of two it matters where they begin, and
with that of the data nothing depends on it, as nothing does on their units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.block_models import BlockModel
from ppl_models.core.errors import ModelError, about, unknown_name
from ppl_models.core.graph_model import graph_example
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Plate
from ppl_models.core.scales import OnOwnScale
from ppl_models.core.sites import Site
from ppl_models.data.adapt import adapt
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.covariates import beside
from ppl_models.data.factors import Factors
from ppl_models.data.matrix import Data
from ppl_models.distributions import ScaledNormal
from ppl_models.distributions.labellings import EndBlocks, Labelling

_COMBINATIONS = ("product", "difference", "concatenate")


@dataclass(frozen=True, kw_only=True, eq=False)
class CovariateSBM(OnOwnScale, BlockModel):
    """Stochastic block model whose edges depend on features of the nodes too.

    covariates: (N, P) features of the nodes, part of the model as a design matrix is: of a regression on them.
    combine: f(x_i, x_j) is 1 followed by "product" x_i * x_j, "difference" |x_i - x_j|, or "concatenate" [x_i, x_j]
        (directed graphs only: an undirected dyad has no first node), of x = covariates - centre.
    centre, unit: of each feature, one number or P. None: when the model is fitted the features' means (of differences,
        on which it has no influence, 0) and their standard deviations, of features with two values how far these are
        apart; 0 and 1 where the program runs by itself.

    Sites
    -----
    block_proportion, block, x: as :class:`SBM`'s.
    weight: w (K, K, F), in the units of the features; Normal(0, 2.5 / u) by default, with u = 1 of the constant, the
        unit of a feature and of products its square. Symmetric in the blocks where the model is undirected.

    Raises ModelError for covariates that are no finite (N, P) matrix, for an unknown combination, and for centres and
    units that are no numbers of them.
    """

    num_nodes: int = 0
    covariates: Any = None
    combine: str = "product"

    axes: ClassVar[Mapping[str, str]] = {**BlockModel.axes, "covariate": "num_weights"}
    sites: ClassVar[Mapping[str, Site]] = {
        **BlockModel.sites,
        "weight": Site("global", ("component", "to_component", "covariate")),
    }
    pair_sites: ClassVar[tuple[str, ...]] = ("weight",)
    scaled_site: ClassVar[str] = "covariates"
    scaled_size: ClassVar[str] = "num_covariates"

    def __post_init__(self) -> None:
        if self.covariates is None:
            raise ModelError("no covariates; expected features of the nodes, (N, P); without any there is SBM")
        with about("covariates"):
            values, labels = unpack(self.covariates)
        if "row" in labels:  # the model does not see which nodes the graph calls so
            found = f"covariates with labels of their rows (the first: {labels['row'][0]!r})"
            raise ModelError(f"{found}, expected numbers in the order of the nodes: frame.loc[graph.nodes].to_numpy()")
        features = as_tensor(values, torch.float64)  # of years, single precision has three digits of a day
        if features.ndim != 2 or 0 in features.shape or not bool(torch.isfinite(features).all()):
            raise ModelError(f"covariates of shape {tuple(features.shape)}, expected a finite (N, P) matrix")
        if self.num_nodes not in (0, len(features)):
            raise ModelError(f"num_nodes = {self.num_nodes}, but covariates of {len(features)} nodes")
        if self.combine not in _COMBINATIONS:
            raise ModelError(unknown_name("combination of covariates", self.combine, _COMBINATIONS))
        if self.combine == "concatenate" and not self.directed:
            raise ModelError('combine = "concatenate" is for directed graphs; an undirected dyad has no first node')
        object.__setattr__(self, "covariates", features)
        object.__setattr__(self, "num_nodes", len(features))
        super().__post_init__()

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of the graph's nodes; covariates under labels are put in their order, and words and
        Categoricals among these are indicators of all levels but the first."""
        given = adapt(settings.get("covariates"))
        if given is not None:
            with about("covariates"):
                settings["covariates"] = beside(Factors().encode("covariates", given), data, dtype=torch.float64)
        return super().for_data(data, num_components, **settings)

    def settings(self) -> dict[str, Any]:
        """The dataclass fields other than ``priors``; the covariates as nested lists."""
        return {**super().settings(), "covariates": self.covariates.tolist()}

    @property
    def num_covariates(self) -> int:
        """P."""
        return self.covariates.shape[1]

    @property
    def num_weights(self) -> int:
        """F: entries of f(x_i, x_j)."""
        return 1 + self.num_covariates * (2 if self.combine == "concatenate" else 1)

    def default_priors(self) -> dict[str, Any]:
        weight: Any = dist.Normal(0.0, 2.5)
        if self.unit is not None:
            unit = self.weight_units()
            weight = ScaledNormal(torch.zeros_like(unit), 2.5 / unit)
        return {**super().default_priors(), "weight": weight}

    def weight_units(self, like: Tensor | None = None) -> Tensor:
        """The units of the entries of f, (F,), of which weights are one over."""
        _, unit = self.scale_of_columns(like)
        of_pairs = {"product": [unit.square()], "difference": [unit], "concatenate": [unit, unit]}
        return torch.cat([torch.ones_like(unit[:1]), *of_pairs[self.combine]])

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """With the centre and unit of the model ``like``, or of the features, where these are open."""
        del weights  # dyads have none
        features = None if data is None else Data(x=self.covariates, others={"covariates": self.covariates})
        return super().on_scale_of(features, like=like)

    def measure_scale(self, value: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means, of differences 0, and units about the means."""
        centre, unit = super().measure_scale(value, weights)
        return torch.zeros_like(centre) if self.combine == "difference" else centre, unit

    def dyad_features(self, i: Tensor, j: Tensor, *, like: Tensor | None = None) -> Tensor:
        """f(x_i, x_j) of dyads (E,), (E, F), in double precision or the type of ``like``."""
        features = (self.covariates - self.scale_of_columns(self.covariates)[0]).to(i.device)
        features = features if like is None else features.to(like)
        first, second = features[i], features[j]
        one = torch.ones_like(first[..., :1])
        if self.combine == "product":
            return torch.cat([one, first * second], -1)
        if self.combine == "difference":
            return torch.cat([one, (first - second).abs()], -1)
        return torch.cat([one, first, second], -1)

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        proportion = self.sample("block_proportion")
        weight = self.sample("weight")
        graph = self.graph(x, **plate)
        block = pyro.sample("block", Labelling(proportion.expand(graph.num_nodes, -1)))
        with graph as (i, j):
            first, second = EndBlocks.at(block, i, j)
            return graph.observe("x", self.edges_between({"weight": weight}, first, second, i, j))

    def edges_between(self, site: Mapping[str, Tensor], first: Tensor, second: Tensor, i: Tensor, j: Tensor) -> Any:
        weight = site["weight"]
        return dist.Bernoulli(logits=(weight[first, second] * self.dyad_features(i, j, like=weight)).sum(-1))

    @classmethod
    def example(cls) -> Example:
        """Two blocks, undirected; edges within blocks, and between nodes of like sign of the one feature."""
        rng = np.random.default_rng(15)
        feature, block = rng.standard_normal((22, 1)), np.repeat([0, 1], 11)
        weight = np.array([[[0.8, 1.0], [-2.0, 0.5]], [[-2.0, 0.5], [0.5, -0.8]]])
        model = cls(num_blocks=2, covariates=feature, directed=False, centre=0.0, unit=1.0)  # as they were drawn
        i, j = np.triu_indices(22, 1)
        logit = (weight[block[i], block[j]] * model.dyad_features(torch.as_tensor(i), torch.as_tensor(j)).numpy()).sum(
            -1
        )
        upper = np.zeros((22, 22))
        upper[i, j] = rng.random(len(i)) < 1 / (1 + np.exp(-logit))
        truth = {"block_proportion": np.array([0.5, 0.5]), "weight": weight, "block": block}
        return graph_example(model, upper + upper.T, truth)
