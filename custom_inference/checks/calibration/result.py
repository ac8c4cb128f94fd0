"""The result of simulation-based calibration: ranks, summarised as a table and a sentence."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import binomtest

from custom_inference.checks.calibration.bands import Array, holm, uniformity_p_value
from ppl_models import FileFormatError
from ppl_models.data.atomic import write_atomically

#: Central intervals whose coverage is reported, and the columns of the table.
COVERAGE = {0.5: "coverage_50", 0.8: "coverage_80", 0.95: "coverage_95"}
#: Probability that the bounds of all coverages hold.
_CONFIDENCE = 0.95
#: Components that get a line of their own; of more, one at random of every row.
_LINES = 12
#: Standard errors by which mean or spread of ranks must be off to be called the reason of a deviation.
_CLEAR = 2.0
#: Fewer ranks than this find gross errors only.
_FEW = 50
GOOD = "calibrated"
OVER, UNDER, HIGH, LOW, SHAPE = "over-confident", "under-confident", "too high", "too low", "wrong shape"
#: Of log p: the true values are more probable than the draws, as where dependences or the data are ignored.
WORSE = "draws fit worse than the truth"


@dataclass(frozen=True)
class Calibration:
    """Ranks of true values among posterior draws, and whether they are uniform.

    ranks: quantity -> (simulation, ...), in [0, 1]: the share of draws below the truth, ties broken at random;
        uniform under exact inference. ``floor((num_draws + 1) * rank)`` is the usual whole number. Coordinates of the
        simulations: ``num_draws``, and ``refused``, the data sets that the method refused before.
    significance: of the test of all quantities together.

    Quantities: every site, and log p(data | latents) and log p(data, latents), which depend on the data and on no
    labels and have the most power: a posterior that is the prior passes without them (Modrak et al., *Simulation-based
    calibration checking for Bayesian computation*, Bayesian Analysis 2023).

    Ranks of discrete quantities break ties at random. Components that are exchangeable are named by one rule for the
    truth and all draws, their matching to the fit's point estimate, under which the ranks of an exact posterior stay
    uniform (``checks/calibration/labels.py`` says why). At given globals names are known.
    """

    ranks: xr.Dataset
    significance: float = 0.01

    def lines(self) -> dict[str, Array]:
        """Quantity -> the ranks that its line of the table tests, (M,): independent and uniform under exact inference.

        An array's attribute "independent" names the axes along which its entries are independent; "lines" one whose
        entries are quantities of their own. Of all other entries, which depend on each other through what they share
        (the globals, the graph), one is taken at random: nothing then depends on how strong that dependence is.
        """
        found: dict[str, Array] = {}
        for name, array in self.ranks.data_vars.items():
            own, seed = array.attrs["lines"], self.ranks.attrs["seed"]
            if own and array.sizes[own] <= _LINES:
                for label in array[own].values.tolist():
                    found[f"{name}[{label}]"] = _one_of(array.sel({own: label}), str(name), seed)
            else:
                found[str(name)] = _one_of(array, str(name), seed)
        return found

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
        lines, rows = self.lines(), []
        p_values = np.array([uniformity_p_value(values) for values in lines.values()])
        for (name, values), p_value, adjusted in zip(lines.items(), p_values, holm(p_values), strict=True):
            density = name in self.ranks and self.ranks[name].attrs["kind"] == "density"
            rows.append(
                {
                    "quantity": name,
                    "ranks": len(values),
                    "p_value": p_value,
                    "p_adjusted": adjusted,
                    "bias": 0.5 - float(values.mean()),
                    "dispersion": float(np.sqrt(12 * ((values - 0.5) ** 2).mean())),
                    **{column: float((np.abs(2 * values - 1) < level).mean()) for level, column in COVERAGE.items()},
                    "finding": GOOD if adjusted >= self.significance else _deviation(values, density=density),
                }
            )
        return pd.DataFrame(rows).set_index("quantity")

    @cached_property
    def coverage(self) -> pd.DataFrame:
        """Coverage of central 50, 80 and 95 % intervals: Clopper & Pearson's bounds, at 95 % for all lines at once."""
        lines, rows = self.lines(), []
        each = 1 - (1 - _CONFIDENCE) / (len(lines) * len(COVERAGE))  # Bonferroni
        for name, values in lines.items():
            for level in COVERAGE:
                inside = int((np.abs(2 * values - 1) < level).sum())
                low, high = binomtest(inside, len(values)).proportion_ci(each, method="exact")
                rows.append((name, level, inside / len(values), low, high, low <= level <= high))
        columns = ["quantity", "nominal", "covered", "low", "high", "agrees"]
        return pd.DataFrame(rows, columns=columns).set_index(["quantity", "nominal"])

    @property
    def passed(self) -> bool:
        """Whether no quantity deviates from uniform ranks, at ``significance`` for all together."""
        return bool((self.table["finding"] == GOOD).all())

    @property
    def verdict(self) -> str:
        """A sentence: calibrated, or what is wrong, and where it shows most."""
        simulations = f"{len(self)} simulation{'s' * (len(self) != 1)}"
        lines = self.table.reset_index().to_dict("records")
        failed = [line for line in lines if line["finding"] != GOOD]
        if not failed:
            fewest, most = (f([line["ranks"] for line in lines]) for f in (min, max))
            number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            caution = "; so few show gross errors only" if fewest < _FEW else ""
            smallest = min(line["p_adjusted"] for line in lines)
            return (
                f"calibrated: no rank deviates from uniform in {simulations} ({number} ranks a quantity, smallest "
                f"adjusted p = {smallest:.2g}){caution}"
            )
        # That draws fit worse has many reasons; a site that deviates names one.
        named = [line for line in failed if line["finding"] != WORSE] or failed
        worst = min(named, key=lambda line: line["p_value"])
        kind = f"biased ({worst['finding']})" if worst["finding"] in (HIGH, LOW) else worst["finding"]
        return (
            f"{kind}: {_evidence(worst)}; {len(failed)} of {len(lines)} quantities deviate from uniform ranks in "
            f"{simulations} (adjusted p < {self.significance:g})"
        )

    @property
    def status(self) -> str:
        """How the simulations ended."""
        return str(self.ranks.attrs["status"])

    def __len__(self) -> int:
        return self.ranks.sizes["simulation"]

    def __repr__(self) -> str:
        shown = self.table.to_string(float_format=lambda value: f"{value:.3g}")
        return f"{self._title}; {self.status}\n  verdict: {self.verdict}\n{shown}"

    @property
    def _title(self) -> str:
        about = self.ranks.attrs
        level = "local latents at given globals" if about["of"] == "locals" else "whole fits"
        return f"Calibration of {about['model']} by {about['method']}: {level}"

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report(self._title, self.status, self.verdict, table=self.table, plot=self.plot)

    def plot(self, kind: str = "ecdf", **settings: Any) -> Any:
        """A figure with 95 % simultaneous bands.

        kind: "ecdf" (difference of the ranks' distribution function from the uniform's: a slope up at both ends and
        down between is a posterior too narrow), "ranks" (histograms) or "coverage" (of central intervals of any size).
        settings: ``title``, and ``axes`` to draw on, one for each panel; returns those, or a new Figure.
        """
        from custom_inference.checks.plots import plot_calibration

        return plot_calibration(self, kind, **settings)

    def save(self, path: str | Path) -> Path:
        """Write one netCDF file."""
        path = Path(path)
        with write_atomically(path) as temporary:
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


def _one_of(array: xr.DataArray, name: str, seed: int) -> Array:
    independent = array.attrs["independent"].split()
    values = array.transpose(*independent, ...).values
    units = int(np.prod(values.shape[: len(independent)]))
    flat = values.reshape(units, -1)
    rng = np.random.default_rng([int(seed) % 2**64, zlib.crc32(name.encode())])
    return flat[np.arange(units), rng.integers(flat.shape[1], size=units)]


def _deviation(values: Array, *, density: bool) -> str:
    """Describe the larger of two shifts, in standard errors under uniformity: of the mean, or of the spread."""
    size = len(values)
    mean = (values.mean() - 0.5) * np.sqrt(12 * size)
    spread = (((values - 0.5) ** 2).mean() - 1 / 12) * np.sqrt(180 * size)
    if max(abs(mean), abs(spread)) < _CLEAR:
        return SHAPE
    if abs(spread) > abs(mean):
        return OVER if spread > 0 else UNDER
    if density:  # draws that are all too probable come from too small a part of the posterior
        return OVER if mean < 0 else WORSE
    return LOW if mean > 0 else HIGH


def _evidence(worst: dict[Any, Any]) -> str:
    name, finding, mean = worst["quantity"], worst["finding"], f"{0.5 - worst['bias']:.2f}"
    if finding in (OVER, UNDER) and (worst["dispersion"] > 1) == (finding == OVER):
        # The interval that says most: where the coverage is furthest from nominal.
        level = max(COVERAGE, key=lambda one: abs(worst[COVERAGE[one]] - one))
        return f"{100 * level:.0f} % intervals of {name} hold the truth in {100 * worst[COVERAGE[level]]:.0f} %"
    if finding in (OVER, WORSE):
        return f"draws have a {'larger' if finding == OVER else 'smaller'} {name} than the truth, of mean rank {mean}"
    if finding in (HIGH, LOW):
        return f"the truth has a mean rank of {mean} among the draws of {name}"
    return f"the ranks of {name} are not uniform"
