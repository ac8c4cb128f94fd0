"""Factor models with Gaussian scores: Jaakkola's bound, quadrature, points."""

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.factors.logistic_pca import LogisticGaussian, LogisticMap
from custom_inference.families.factors.poisson import PoissonGaussian, PoissonVariational
from custom_inference.families.factors.quadrature import LogisticQuadrature
from ppl_models import LogisticPCA, PoissonPCA

FAMILIES = (
    Family(
        model=LogisticPCA,
        engines={"exact": LogisticQuadrature, "gaussian": LogisticGaussian, "map": LogisticMap},
        default="gaussian",
        presentation=Presentation(
            value="weight on the log odds",
            local="score",
            # The standard deviation of each component's part of the log-odds.
            prominence=lambda _, params: params["weight"].norm(dim=-1),
            columns=lambda _, params: {"norm": params["weight"].norm(dim=-1)},
        ),
    ),
    Family(
        model=PoissonPCA,
        engines={"gaussian": PoissonGaussian, "variational": PoissonVariational},
        default="gaussian",
        presentation=Presentation(
            value="weight on the log rate",
            local="score",
            # The standard deviation of each component's part of the log rates.
            prominence=lambda _, params: params["weight"].norm(dim=-1),
            columns=lambda _, params: {"norm": params["weight"].norm(dim=-1)},
        ),
    ),
)
