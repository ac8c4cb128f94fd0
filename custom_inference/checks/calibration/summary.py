"""From ranks to a table and a sentence."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from custom_inference.checks.calibration.bands import Array, binomial_interval, holm, uniformity_p_value

#: Central intervals whose coverage is reported, and the columns of the table.
COVERAGE = {0.5: "coverage_50", 0.8: "coverage_80", 0.95: "coverage_95"}
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


def lines_of(ranks: xr.Dataset) -> dict[str, Array]:
    """Quantity -> ranks that are independent and uniform under exact inference.

    An array's attribute "independent" names the axes along which its entries are independent; "lines" one whose entries
    are quantities of their own. Of all other entries, which depend on each other through what they share (the globals,
    the graph), one is taken at random: nothing then depends on how strong that dependence is.
    """
    found: dict[str, Array] = {}
    for name, array in ranks.data_vars.items():
        own = array.attrs["lines"]
        if own and array.sizes[own] <= _LINES:
            for label in array[own].values.tolist():
                found[f"{name}[{label}]"] = _one_of(array.sel({own: label}), str(name), ranks.attrs["seed"])
        else:
            found[str(name)] = _one_of(array, str(name), ranks.attrs["seed"])
    return found


def _one_of(array: xr.DataArray, name: str, seed: int) -> Array:
    independent = array.attrs["independent"].split()
    values = array.transpose(*independent, ...).values
    units = int(np.prod(values.shape[: len(independent)]))
    flat = values.reshape(units, -1)
    rng = np.random.default_rng([int(seed) % 2**64, zlib.crc32(name.encode())])
    return flat[np.arange(units), rng.integers(flat.shape[1], size=units)]


def table_of(ranks: xr.Dataset, significance: float) -> pd.DataFrame:
    """One line a quantity; see ``Calibration.table``."""
    lines = lines_of(ranks)
    p_values = np.array([uniformity_p_value(values) for values in lines.values()])
    adjusted = holm(p_values)
    rows = []
    for i, (name, values) in enumerate(lines.items()):
        finding = GOOD if adjusted[i] >= significance else deviation(values, density=is_density(ranks, name))
        moments = {"bias": 0.5 - float(values.mean()), "dispersion": float(np.sqrt(12 * ((values - 0.5) ** 2).mean()))}
        covered = {column: float(_inside(values, level).mean()) for level, column in COVERAGE.items()}
        tests = {"ranks": len(values), "p_value": p_values[i], "p_adjusted": adjusted[i]}
        rows.append({"quantity": name, **tests, **moments, **covered, "finding": finding})
    return pd.DataFrame(rows).set_index("quantity")


def is_density(ranks: xr.Dataset, name: str) -> bool:
    """Whether a line is one of log p."""
    return name in ranks and ranks[name].attrs["kind"] == "density"


def _inside(values: Array, level: float) -> Any:
    return np.abs(2 * values - 1) < level


def coverage_of(ranks: xr.Dataset, confidence: float) -> pd.DataFrame:
    """How often central intervals hold the truth, with intervals that are right all at once (Bonferroni)."""
    lines = lines_of(ranks)
    each = 1 - (1 - confidence) / (len(lines) * len(COVERAGE))
    rows = []
    for name, values in lines.items():
        for level in COVERAGE:
            inside = int(_inside(values, level).sum())
            low, high = binomial_interval(inside, len(values), each)
            rows.append((name, level, inside / len(values), low, high, low <= level <= high))
    columns = ["quantity", "nominal", "covered", "low", "high", "agrees"]
    return pd.DataFrame(rows, columns=columns).set_index(["quantity", "nominal"])


def deviation(values: Array, *, density: bool) -> str:
    """What the larger of two shifts, in standard errors under uniformity, says: of the mean, or of the spread."""
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


def verdict_of(ranks: xr.Dataset, table: pd.DataFrame, significance: float) -> str:
    """A sentence: calibrated, or what is wrong, and where it shows most."""
    size = ranks.sizes["simulation"]
    simulations = f"{size} simulation{'s' * (size != 1)}"
    lines = table.reset_index().to_dict("records")
    failed = [line for line in lines if line["finding"] != GOOD]
    if not failed:
        fewest, most = (f([line["ranks"] for line in lines]) for f in (min, max))
        number = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        caution = "; so few show gross errors only" if fewest < _FEW else ""
        smallest = min(line["p_adjusted"] for line in lines)
        return (
            f"calibrated: no rank deviates from uniform in {simulations} ({number} ranks a quantity, smallest adjusted "
            f"p = {smallest:.2g}){caution}"
        )
    # That draws fit worse has many reasons; a site that deviates names one.
    telling = [line for line in failed if line["finding"] != WORSE] or failed
    worst = min(telling, key=lambda line: line["p_value"])
    kind = f"biased ({worst['finding']})" if worst["finding"] in (HIGH, LOW) else worst["finding"]
    return (
        f"{kind}: {_evidence(worst)}; {len(failed)} of {len(table)} quantities deviate from uniform ranks in "
        f"{simulations} (adjusted p < {significance:g})"
    )


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
