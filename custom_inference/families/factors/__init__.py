"""Factor models with Gaussian scores: bounds, Laplace, quadrature, points; exact for real numbers."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from custom_inference.core.presentation import Params, Presentation
from custom_inference.core.registry import Family
from custom_inference.families.factors.discriminative import DiscriminativeVariational, predict_outputs
from custom_inference.families.factors.discriminative_engines import (
    DiscriminativeExact,
    DiscriminativeGaussian,
    DiscriminativeLaplace,
    DiscriminativeMap,
)
from custom_inference.families.factors.gaussian import GaussianExact
from custom_inference.families.factors.logistic_pca import LogisticGaussian, LogisticMap
from custom_inference.families.factors.newton import FactorGaussian, FactorLaplace, FactorMap, FactorVariational
from custom_inference.families.factors.poisson import PoissonBayesian, PoissonVariational
from custom_inference.families.factors.quadrature import FactorQuadrature, LogisticQuadrature
from ppl_models import (
    CategoricalPCA,
    DiscriminativeCategoricalPCA,
    ExponentialFamilyPCA,
    GaussianPCA,
    LogisticPCA,
    PoissonPCA,
    SoftmaxPCA,
)


def _norm(model: Any, params: Params) -> Tensor:
    """Compute the standard deviation of each component's part of the natural parameters."""
    del model
    return params["weight"].flatten(1).norm(dim=-1)


def _present(value: str) -> Presentation:
    norm: Callable[[Any, Params], Tensor] = _norm
    return Presentation(
        value=value, local="score", prominence=norm, columns=lambda model, params: {"norm": norm(model, params)}
    )


#: Of any likelihood.
_COMPONENTS = ("principal components, then random ones",)
#: Of counts, from residuals that have the same variance everywhere.
_RESIDUALS = ("principal components of Pearson residuals, then random ones",)
_ANY = {"exact": FactorQuadrature, "variational": FactorVariational, "laplace": FactorLaplace, "map": FactorMap}
#: Of those whose curvature has a bound.
_BOUNDED = {**_ANY, "gaussian": FactorGaussian}
#: The first faster than that of any likelihood.
_POISSON = {**_ANY, "variational": PoissonVariational, "bayesian": PoissonBayesian}
_OF_COUNTS = dict.fromkeys(_ANY, _COMPONENTS) | dict.fromkeys(("variational", "bayesian"), _RESIDUALS)
_DISCRIMINATIVE = {
    "exact": DiscriminativeExact,
    "variational": DiscriminativeVariational,
    "gaussian": DiscriminativeGaussian,
    "laplace": DiscriminativeLaplace,
    "map": DiscriminativeMap,
}
_LOGISTIC = {
    "exact": LogisticQuadrature,
    "gaussian": LogisticGaussian,
    "map": LogisticMap,
    "variational": FactorVariational,
    "laplace": FactorLaplace,
}

FAMILIES = (
    Family(
        model=GaussianPCA,
        engines={"exact": GaussianExact},
        stages=_COMPONENTS,
        default="exact",
        presentation=_present("weight on the mean"),
    ),
    Family(
        model=LogisticPCA,
        engines=_LOGISTIC,
        stages=_COMPONENTS,
        default="gaussian",
        presentation=_present("weight on the log odds"),
    ),
    Family(
        model=PoissonPCA,
        engines=_POISSON,
        stages=_OF_COUNTS,
        default="bayesian",
        presentation=_present("weight on the log rate"),
    ),
    *(
        Family(model=model, engines=_BOUNDED, stages=_COMPONENTS, default="variational", presentation=_present(value))
        for model, value in (
            (CategoricalPCA, "weight on the logit"),
            (SoftmaxPCA, "weight on the logit"),
            (ExponentialFamilyPCA, "weight on the natural parameter"),
        )
    ),
    Family(
        model=DiscriminativeCategoricalPCA,
        engines=_DISCRIMINATIVE,
        stages=_COMPONENTS,
        default=lambda model, _: "exact" if model.outputs == "gaussian" else "variational",
        presentation=_present("weight on the logit"),
        predict=predict_outputs,
    ),
)
