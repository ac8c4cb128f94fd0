"""Models of real rows with Gaussian noise: what cannot be learned from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ppl_models.core.errors import DataError, ModelError, warn_of_data
from ppl_models.core.priors import is_flat
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.units import centre_and_unit, require_units
from ppl_models.data.columns import check_columns
from ppl_models.data.matrix import Data
from ppl_models.likelihoods import Gaussian


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyRows(ComponentModel):
    """Real rows x (N, D) with noise of the standard deviation ``scale``: one, or one for every feature.

    Raises ModelError for a ``per_feature_scale`` that is neither True nor False.
    """

    per_feature_scale: bool = False

    likelihood: ClassVar[Any] = Gaussian()  # with another scale; it says which data are valid

    def __post_init__(self) -> None:
        if self.per_feature_scale is not True and self.per_feature_scale is not False:
            raise ModelError(f"per_feature_scale = {self.per_feature_scale!r}, expected True or False")
        super().__post_init__()

    def check_for_fitting(self, data: Data) -> None:
        """Refuse columns without any observed entry, and data in which none varies where the scale is to be learned
        under a flat prior: the likelihood is unbounded as the scale goes to 0."""
        check_columns(data)
        if bool(_is_constant(data).all()) and is_flat(self.priors["scale"]):
            found = "one row" if len(data) == 1 else f"all {data.num_features} columns are constant"
            expected = "columns that vary, or a proper prior of 'scale': the likelihood is unbounded as that goes to 0"
            raise DataError(found, site="x", axis="row" if len(data) == 1 else "feature", expected=expected)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseAboutCentre(NoisyRows):
    """Real rows that are noise about ``centre`` where none of their sources is active.

    Raises ModelError for a centre that is no finite number.
    """

    centre: float | None = 0.0

    def __post_init__(self) -> None:
        require_units(self.centre, None)
        super().__post_init__()

    def check_for_fitting(self, data: Data) -> None:
        """Refuse columns without any entry, and constant ones where every feature has its own scale.

        There the likelihood is unbounded: the scale of a constant feature goes to 0. With one shared scale they only
        carry no information, which is warned of, as is a centre that is farther from all entries than they are apart.
        """
        check_columns(data)
        self._warn_of_far_centre(data)
        constant = _is_constant(data).nonzero().flatten().tolist()
        if not constant or len(data) == 1:
            return
        first = data.feature_names[constant[0]]
        problem = f"{len(constant)} of {data.num_features} columns are constant (the first: {first!r})"
        if len(constant) == data.num_features:
            raise DataError(problem, site="x", axis="feature", expected="at least one column that varies")
        if self.per_feature_scale:
            problem += ", and with a scale for every feature the likelihood is unbounded as theirs goes to 0"
            raise DataError(problem, site="x", axis="feature", expected="columns that vary, or per_feature_scale=False")
        warn_of_data(f"{problem}; they carry no information about the sources and lower the shared scale")

    def _warn_of_far_centre(self, data: Data) -> None:
        """Warn of data that are all on one side of the centre, and far: a source is spent on how far."""
        if self.centre is None:
            return
        value = data.entries.double()
        least, most, (mean, spread) = float(value.min()), float(value.max()), centre_and_unit(value)
        if max(least - self.centre, self.centre - most) > spread and least < most:
            found = f"entries of x lie between {least:.6g} and {most:.6g}, far from centre = {self.centre:.6g}"
            means = "which those of a row without active sources are about"
            warn_of_data(f"{found}, {means}; expected such a value, or centre=None, their mean {mean:.6g}")


def _is_constant(data: Data) -> Tensor:
    """Return whether the observed entries of each column are all the same, bool (D,)."""
    seen = data.observed
    return data.x.masked_fill(~seen, torch.inf).amin(0) == data.x.masked_fill(~seen, -torch.inf).amax(0)
