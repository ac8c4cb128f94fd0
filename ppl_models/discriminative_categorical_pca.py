"""Discriminative categorical PCA: labels whose logits are linear in scores, whose means are linear in inputs.

Murphy (2012), section 27.4.4.3, eqs. 27.73-27.74, with a bias of every label. Rows n = 1..N with inputs u_n (the site
``covariates``) and labels l = 1..L_n out of D:

    z_n        ~ Normal(U'(u_n - c), I_K)                                  U (P, K)                       (27.73)
    y_nl | z_n ~ Cat(softmax(b + sum_k z_nk w_k))                          exchangeable, L_n given        (27.74)

or one output for every feature, x_nj | z_n ~ Bernoulli(sigmoid(eta_nj)) or Normal(eta_nj, sigma), eta = b + z W. The
inputs are about a centre c, theirs by default (0 in the source). A covariance of the scores other than I is one of
other weights. With E experts the scores' prior is a mixture of Gaussians whose means the inputs give, sum_e pi_e
Normal(U_e'(u_n - c), I_K), the choice summed out. Given its inputs a row's labels are tied by its score: those that are
seen say what the others are (a neural network with a random bottleneck).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, Unpack

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.linear_scores import LinearScores
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Documents, Plate, Rows
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.core.turns import canonical_turn
from ppl_models.core.units import centre_and_unit_of, require_units
from ppl_models.data.matrix import Data
from ppl_models.distributions.tokens import SoftmaxTokens
from ppl_models.kinds.rows_beside import RowsWithInputs
from ppl_models.likelihoods import Bernoulli, Gaussian, Multinomial

#: What the outputs may be.
OUTPUTS = ("categorical", "bernoulli", "gaussian")


@dataclass(frozen=True, kw_only=True, eq=False)
class DiscriminativeCategoricalPCA(RowsWithInputs, LinearScores):
    """Discriminative categorical PCA: scores that inputs predict, labels whose logits are linear in the scores.

    outputs: "categorical", numbers of draws of each of D labels; "bernoulli", each label by itself; "gaussian", real
        numbers with the standard deviation ``scale``.
    scale: of Gaussian outputs, None: learned; a number: known.
    num_experts: E.
    labels_per_row: labels that the program generates a row. Of observed rows their number is given.
    centre, unit: c and d of every input, see :class:`~ppl_models.core.scales.OnOwnScale`: the scores have their common
        mean at c, and the default priors are those of weights per unit.
    output_centre, output_unit: c' and d' of Gaussian outputs, (x - c') / d' of which have the default priors below with
        c' = 0 and d' = 1; None: the mean and the standard deviation of the entries that are fitted, or 0 and 1.

    Sites
    -----
    weight: w (K, D); Normal(0, d') by default.
    bias: b (D,), the logits (means) at score 0; Normal(c', 5 d') by default.
    input_weight: U (P, K), with experts (E, P, K); Normal(0, 1 / d) by default.
    scale: sigma, of Gaussian outputs alone; LogNormal(log d', 1) by default, a number holds it.
    expert_proportion: pi (E,), with experts alone; flat on the simplex by default.
    score: z (N, K), one event vector a row; Normal(0, 1) by default, moved by U'(u_n - c).
    covariates: u (N, P), given, finite numbers: ``fit(model, x, covariates=u)``. NaN is refused: the model says nothing
        of inputs that are not known, so that only an imputation can fill them in. Data without any inputs at all leave
        them out of the model (``input_weight`` keeps its prior). There is no intercept among the scores, as the bias is
        one.
    x: (N, D), observed; NaN for unknown labels. Of categorical outputs draws of unknown labels are left out of L_n.

    Raises ModelError for unknown outputs, a scale that is not positive, a prior of the score that is not Normal, and
    for K > D: the weights would not be identified.
    """

    outputs: str = "categorical"
    scale: float | None = None
    num_experts: int = 1
    labels_per_row: int = 3
    output_centre: float | None = None
    output_unit: float | None = None

    axes: ClassVar[Mapping[str, str]] = {
        **ComponentModel.axes, "covariate": "num_covariates", "expert": "num_experts"
    }  # fmt: skip
    whole_fields: ClassVar[tuple[str, ...]] = ("labels_per_row",)
    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        several, dims = self.num_experts > 1, ("covariate", "component")
        experts = {"expert_proportion": Site("global", ("expert",), support=constraints.simplex)} if several else {}
        noise = {"scale": Site("global", (), support=constraints.positive)} if self.outputs == "gaussian" else {}
        return {
            "weight": LinearScores.sites["weight"],
            "bias": LinearScores.sites["bias"],
            **noise,
            "input_weight": Site("global", ("expert", *dims) if several else dims),
            **experts,
            "score": LinearScores.sites["score"],
            "covariates": Site("given", ("covariate",), ("row",), constraints.real),
            "x": LinearScores.sites["x"],
        }

    def __post_init__(self) -> None:
        if self.outputs not in OUTPUTS:
            raise ModelError(unknown_name("kind of outputs", self.outputs, OUTPUTS))
        if self.scale is not None and not self.scale > 0:
            raise ModelError(f"scale = {self.scale!r}, expected a positive number")
        require_units(self.output_centre, self.output_unit, " of the outputs")
        if self.outputs != "gaussian" and (self.output_centre, self.output_unit) != (None, None):
            found = f"output_centre = {self.output_centre!r}, output_unit = {self.output_unit!r}"
            raise ModelError(f"{found} of {self.outputs} outputs, expected None: only real ones have a scale")
        super().__post_init__()
        if not isinstance(self.priors["score"], dist.Normal):
            raise ModelError("the prior of 'score' is moved by the inputs; expected a Normal")

    @property
    def likelihood(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.outputs == "categorical":
            return Multinomial(self.labels_per_row, coefficient=False)
        return Bernoulli() if self.outputs == "bernoulli" else Gaussian()

    @property
    def data_kind(self) -> str:
        return {"categorical": "counts", "bernoulli": "binary", "gaussian": "real"}[self.outputs]

    def default_priors(self) -> dict[str, Any]:
        centre, unit = self.output_centre or 0.0, self.output_unit or 1.0
        scale = dist.LogNormal(math.log(unit), 1.0)
        scale = scale if self.scale is None else dist.Delta(torch.tensor(float(self.scale)))
        return {
            **super().default_priors(), **({"scale": scale} if self.outputs == "gaussian" else {}),
            "weight": dist.Normal(0.0, unit), "bias": dist.Normal(centre, 5.0 * unit),
            "input_weight": self.of_weights(1.0), "score": dist.Normal(0.0, 1.0),
        }  # fmt: skip

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """Return this model with open centres and units as those of the model ``like``, or of the data."""
        found = super().on_scale_of(data, like=like, weights=weights)
        if self.outputs != "gaussian" or None not in (self.output_centre, self.output_unit):
            return found
        centre, unit = centre_and_unit_of(data, weights)
        if isinstance(like, DiscriminativeCategoricalPCA) and like.output_unit is not None:
            centre, unit = like.output_centre or 0.0, like.output_unit
        known = {"output_centre": self.output_centre, "output_unit": self.output_unit}
        open_ = {"output_centre": centre, "output_unit": unit}
        settings: dict[str, Any] = {name: open_[name] if value is None else value for name, value in known.items()}
        return replace(found, **settings, priors=self.chosen_priors)

    def __call__(self, x: Tensor | None = None, *, covariates: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        weight = self.sample("weight")
        bias = self.sample("bias")
        scale = self.sample("scale") if self.outputs == "gaussian" else None
        input_weight = self.sample("input_weight")
        proportion = self.sample("expert_proportion") if self.num_experts > 1 else None
        with self.rows(x, **plate) as rows:
            prior = self.score_prior(rows.of(covariates), input_weight, proportion)
            score = pyro.sample("score", prior)
            eta = bias + score @ weight
            if scale is not None:
                return rows.observe("x", dist.Normal(eta, scale.unsqueeze(-1)))
            if self.outputs == "bernoulli":
                return rows.observe("x", dist.Bernoulli(logits=eta))
            return rows.observe("x", SoftmaxTokens(eta, rows.lengths))

    def score_prior(self, covariates: Tensor | None, input_weight: Tensor, proportion: Tensor | None) -> Any:
        """Return p(z_n | u_n) of rows with inputs (N, P), None: 0 about the centre; a mixture where there are experts.

        input_weight: (P, K), or (E, P, K) with the experts' ``proportion`` (E,).
        """
        prior: Any = self.priors["score"]
        # Not .to(tensor): of a dtype alone no picture of the model draws an edge.
        dtype, device = input_weight.dtype, input_weight.device
        loc, scale = (part.to(device, dtype).expand(self.num_components) for part in (prior.loc, prior.scale))
        centre, _ = self.scale_of_columns(input_weight)
        inputs = torch.zeros_like(centre).unsqueeze(0) if covariates is None else covariates.to(device, dtype) - centre
        if proportion is None:
            return dist.Normal(loc + inputs @ input_weight, scale).to_event(1)
        means = loc + (inputs @ input_weight).movedim(-3, -2)
        expert = dist.Categorical(proportion.expand(*means.shape[:-2], self.num_experts))
        return dist.MixtureSameFamily(expert, dist.Normal(means, scale).to_event(1))

    def rows(
        self, x: Tensor | None, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Rows:
        """Return the plate "data" of the program's rows; labels of categorical outputs are drawn as words are."""
        if self.outputs != "categorical":
            return super().rows(x, mask, batch_size, num_rows)
        return Documents(self, x, mask, batch_size, num_rows, self.labels_per_row)

    def predict(self, site: Mapping[str, Tensor], local: Tensor) -> Tensor:
        """Return the probabilities of labels, of reals the means, (..., N, D), of rows with scores (..., N, K)."""
        eta = site["bias"] + local @ site["weight"]
        return torch.softmax(eta, -1) if self.outputs == "categorical" else self.likelihood.mean(eta)

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Turn scores and weights as other models of scores do, and ``input_weight`` alike."""
        turned = super().standard_form(values)
        if "input_weight" in values:
            turned["input_weight"] = values["input_weight"] @ canonical_turn(values["weight"]).T
        return turned

    @classmethod
    def example(cls) -> Example:
        """Two components over six labels and three inputs, sixty rows of two to five labels."""
        generator = torch.Generator().manual_seed(37)
        truth = {
            "weight": torch.tensor([[1.5, 1.2, 0.0, -0.2, -1.0, -1.5], [0.3, -0.6, 1.2, -1.2, 0.8, -0.4]]),
            "bias": torch.tensor([0.3, -0.2, 0.0, 0.4, -0.3, 0.0]),
            "input_weight": torch.tensor([[1.0, 0.2], [-0.4, 0.9], [0.0, -0.5]]),
        }
        inputs = torch.randn((60, 3), generator=generator)
        truth["score"] = inputs @ truth["input_weight"] + torch.randn((60, 2), generator=generator)
        chance = torch.softmax(truth["bias"] + truth["score"] @ truth["weight"], -1)
        drawn = torch.multinomial(chance, 5, replacement=True, generator=generator)
        kept = torch.arange(5) < torch.randint(2, 6, (60, 1), generator=generator)
        x = torch.zeros_like(chance).scatter_add_(1, drawn, kept.to(chance))
        model = cls(num_components=2, num_features=6, num_covariates=3)
        return Example(model=model, data=Data(x=x, others={"covariates": inputs}), truth=truth)
