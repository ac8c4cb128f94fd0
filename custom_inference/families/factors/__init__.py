"""Factor models with Gaussian scores: Jaakkola's bound, quadrature, points."""

from custom_inference.core.registry import Family
from custom_inference.families.factors.logistic_pca import LogisticGaussian, LogisticMap
from custom_inference.families.factors.presentation import PRESENTATION
from custom_inference.families.factors.quadrature import LogisticQuadrature
from ppl_models import LogisticPCA

FAMILIES = (
    Family(
        model=LogisticPCA,
        engines={"exact": LogisticQuadrature, "gaussian": LogisticGaussian, "map": LogisticMap},
        default="gaussian",
        presentation=PRESENTATION,
    ),
)
