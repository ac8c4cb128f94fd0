"""What simulation-based calibration returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from custom_inference.checks.calibration.summary import coverage_of, lines_of, table_of, verdict_of
from ppl_models import FileFormatError
from ppl_models.data.atomic import written


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws, and whether they are uniform.

    ranks: quantity -> (simulation, ...), in [0, 1]: the share of draws below the truth, ties broken at random;
        uniform under exact inference. ``floor((num_draws + 1) * rank)`` is the usual whole number. Coordinates of the
        simulations: ``num_draws``, and ``refused``, the data sets that the method refused before.
    significance: of the test of all quantities together.
    """

    ranks: xr.Dataset
    significance: float = 0.01

    @cached_property
    def table(self) -> pd.DataFrame:
        """One line a quantity.

        ranks: how many independent ranks are tested: one of each row and simulation where rows are independent (locals
            at given globals), else one of each simulation, of an entry taken at random where there are several.
        p_value: exact, of their uniformity (the smallest tail probability over the ECDF). p_adjusted: Holm's, for all.
        bias: 1/2 less the mean rank: above 0 where the posterior is too high.
        dispersion: root mean square of rank - 1/2, in units of that of uniform ranks: above 1 where the posterior is
            too narrow.
        coverage_50, coverage_80, coverage_95: how often central intervals hold the truth; bounds are in ``coverage``.
        finding: "calibrated", or what is wrong where the adjusted p-value is below ``significance``.
        """
        return table_of(self.ranks, self.significance)

    @cached_property
    def coverage(self) -> pd.DataFrame:
        """Coverage of central 50, 80 and 95 % intervals: Clopper & Pearson's bounds, at 95 % for all lines at once."""
        return coverage_of(self.ranks, 0.95)

    @property
    def passed(self) -> bool:
        """Whether no quantity deviates from uniform ranks, at ``significance`` for all together."""
        return bool((self.table["finding"] == "calibrated").all())

    @property
    def verdict(self) -> str:
        """A sentence: calibrated, or what is wrong, and where it shows most."""
        return verdict_of(self.ranks, self.table, self.significance)

    @property
    def status(self) -> str:
        """How the simulations ended."""
        return str(self.ranks.attrs["status"])

    def __len__(self) -> int:
        return self.ranks.sizes["simulation"]

    def __repr__(self) -> str:
        about = self.ranks.attrs
        level = "local latents at given globals" if about["of"] == "locals" else "whole fits"
        shown = self.table.to_string(float_format=lambda value: f"{value:.3g}")
        return (
            f"Calibration of {about['model']} by {about['method']}: {level}; {self.status}\n"
            f"  verdict: {self.verdict}\n{shown}"
        )

    def lines(self) -> dict[str, Any]:
        """Quantity -> the ranks that its line of the table tests, (M,)."""
        return lines_of(self.ranks)

    def plot(self, kind: str = "ecdf") -> Any:
        """A figure with 95 % simultaneous bands.

        kind: "ecdf" (difference of the ranks' distribution function from the uniform's: a slope up at both ends and
        down between is a posterior too narrow), "ranks" (histograms) or "coverage" (of central intervals of any size).
        """
        from custom_inference.checks.calibration.plots import plot_calibration

        return plot_calibration(self, kind)

    def save(self, path: str | Path) -> Path:
        """Write one netCDF file."""
        path = Path(path)
        with written(path) as temporary:
            self.ranks.assign_attrs(significance=self.significance).to_netcdf(temporary, engine="h5netcdf")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what :meth:`save` wrote. Raises FileFormatError for anything else."""
        try:
            ranks = xr.load_dataset(Path(path), engine="h5netcdf")
            significance = float(ranks.attrs.pop("significance"))
            complete = all("independent" in array.attrs for array in ranks.data_vars.values())
        except (OSError, KeyError, ValueError) as error:
            raise FileFormatError(f"{path}: not a file that Calibration.save wrote: {error}") from error
        if not complete:
            raise FileFormatError(f"{path}: a netCDF file, but not one that Calibration.save wrote")
        return cls(ranks, significance)
