"""Families of local posteriors, as settings: give one to ``VariationalEM(guide=...)`` or ``SVI(guide=...)``."""

from custom_inference.guides._protocol import Guide, LocalGuide
from custom_inference.guides.amortized import Amortized
from custom_inference.guides.closed_form import (
    AllCodes,
    CollapsedVariationalBayes,
    DirichletMembership,
    GaussianScore,
    PointEstimate,
    VariationalBayes,
)
from custom_inference.guides.factorized_noisy_or import FactorizedBound, FactorizedNoisyOr
from custom_inference.guides.mean_field import MeanField
from custom_inference.guides.truncated import Truncated

#: By the names that ``guide="..."`` takes.
GUIDES: dict[str, type[Guide]] = {
    "exact": AllCodes,
    "factorized": FactorizedNoisyOr,
    "mean_field": MeanField,
    "truncated": Truncated,
    "map": PointEstimate,
    "dirichlet": DirichletMembership,
    "vb": VariationalBayes,
    "cvb0": CollapsedVariationalBayes,
    "gaussian": GaussianScore,
    "amortized": Amortized,
}

__all__ = [
    "GUIDES",
    "AllCodes",
    "Amortized",
    "CollapsedVariationalBayes",
    "DirichletMembership",
    "FactorizedBound",
    "FactorizedNoisyOr",
    "GaussianScore",
    "Guide",
    "LocalGuide",
    "MeanField",
    "PointEstimate",
    "Truncated",
    "VariationalBayes",
]
