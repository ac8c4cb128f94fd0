"""Whether chains agree, and how many independent draws theirs are worth.

Vehtari, Gelman, Simpson, Carpenter & Burkner, *Rank-normalization, folding, and localization: an improved R-hat*,
Bayesian Analysis 2021: rank-normalised split chains, as ArviZ computes them, for all quantities at once. ArviZ itself
goes through them one by one (59 s for the effective sizes of 100,000 entries of topics in 4 chains of 100 draws, where
these take 12), takes 3 s to import, and has no R-hat of a single chain. The tests hold these functions against it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]


#: Chains with a larger R-hat have not converged (the paper's recommendation).
CONVERGED = 1.01


class Convergence(NamedTuple):
    """The largest R-hat and the smallest effective size over all entries of all quantities, and which those are of.

    NaN where there are fewer than four draws a chain, or nothing varies. size: (chains, draws of each).
    """

    r_hat: float
    r_hat_of: str
    ess: float
    ess_of: str
    size: tuple[int, int]

    def __str__(self) -> str:
        chains, length = self.size
        if math.isnan(self.r_hat):
            return "no R-hat: " + ("fewer than 4 draws a chain" if length < 4 else "nothing varies")
        # Of one chain its two halves are compared.
        kind = "R-hat" if chains > 1 else "split R-hat"
        found = f"worst {kind} {self.r_hat:.3f} ({self.r_hat_of})"
        found += f", smallest effective size {self.ess:.0f} of {chains * length} draws ({self.ess_of})"
        if self.r_hat > CONVERGED:
            found += f"; not converged (R-hat above {CONVERGED}): take more draws"
        return found + ("; one chain cannot show modes that it missed" if chains == 1 else "")


def convergence(draws: Mapping[str, Array]) -> Convergence:
    """Return the worst R-hat and effective size among quantities by name, (chain, draw, ...) each."""
    worst = [
        _extreme(measure, pick, draws) for measure, pick in ((r_hat, np.nanargmax), (effective_size, np.nanargmin))
    ]
    size = next(iter(draws.values())).shape[:2]
    return Convergence(*worst[0], *worst[1], (size[0], size[1]))


def round_for_file(value: float) -> float | None:
    """Round to four decimals, for files; None for values that are not finite."""
    return round(float(value), 4) if np.isfinite(value) else None


def _extreme(
    measure: Callable[[Array], Array], pick: Callable[[Array], np.intp], draws: Mapping[str, Array]
) -> tuple[float, str]:
    """The worst value over all entries, and the name of that entry; NaN where there is none."""
    found: list[tuple[float, str]] = []
    for name, values in draws.items():
        each = measure(values)
        if not np.isnan(each).all():
            place = np.unravel_index(pick(each), each.shape)
            found.append((float(each[place]), f"{name}[{', '.join(map(str, place))}]" if place else name))
    return found[int(pick(np.array([value for value, _ in found])))] if found else (math.nan, "")


def r_hat(draws: Array) -> Array:
    """(chain, draw, ...) -> (...): the larger of the R-hats of bulk and tails; NaN below four draws."""
    split = _split(draws)
    if split.shape[1] < 2:
        return np.full(draws.shape[2:], np.nan)
    folded = np.abs(split - np.median(split, (0, 1)))
    return np.maximum(_r_hat(_normal_scores(split)), _r_hat(_normal_scores(folded)))


def effective_size(draws: Array) -> Array:
    """(chain, draw, ...) -> (...): effective sample size of the bulk; NaN below four draws, or where nothing varies."""
    split = _normal_scores(_split(draws))
    chains, length = split.shape[:2]
    if length < 2:
        return np.full(draws.shape[2:], np.nan)
    covariance = _autocovariance(split)
    within = covariance[:, 0].mean(0) * length / (length - 1)
    total = within * (length - 1) / length
    if chains > 1:
        total = total + split.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (within - covariance.mean(0) * length / (length - 1)) / total
    correlation[0] = 1.0
    return chains * length / _correlation_time(correlation, chains * length)


def describe_draws(draws: Array) -> dict[str, Array]:
    """(chain, draw, ...) -> column -> (...): mean, standard deviation, the ends of the central 90 % interval, effective
    size and R-hat (of one chain that of its two halves)."""
    low, high = np.quantile(draws, (0.05, 0.95), axis=(0, 1))
    moments = {"mean": draws.mean((0, 1)), "sd": draws.std((0, 1), ddof=1), "q5": low, "q95": high}
    return {**moments, "ess": effective_size(draws), "r_hat": r_hat(draws)}


def _split(draws: Array) -> Array:
    """Every chain as two; the middle draw of an odd number is left out."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]]).astype(np.float64)


def _normal_scores(draws: Array) -> Array:
    from scipy.stats import rankdata  # not at the top: it takes half a second to import

    flat = draws.reshape(-1, *draws.shape[2:])
    ranks = rankdata(flat, axis=0)
    return np.asarray(ndtri((ranks - 0.375) / (len(flat) + 0.25))).reshape(draws.shape)


def _r_hat(draws: Array) -> Array:
    length = draws.shape[1]
    within, between = draws.var(1, ddof=1).mean(0), length * draws.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + length - 1) / length)


def _autocovariance(draws: Array) -> Array:
    """Return the autocovariance of every chain, divided by its length, (chain, lag, ...)."""
    length = draws.shape[1]
    centred = draws - draws.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * length, axis=1)
    return np.fft.irfft(np.abs(spectrum) ** 2, 2 * length, axis=1)[:, :length] / length


def _correlation_time(correlation: Array, total: int) -> Array:
    """-1 + 2 sum of the autocorrelations, by Geyer's initial monotone sequence of positive pairs.

    At least 1 / log10 of the number of draws: what antithetic chains may gain is bounded.
    """
    even = correlation.shape[0] // 2 * 2
    pairs = correlation[0:even:2] + correlation[1:even:2]
    # The last lags are noise, and the first pair always counts.
    kept = np.logical_and.accumulate(pairs[: max(1, len(pairs) - 1)] > 0, axis=0)
    kept[0] = True
    monotone = np.minimum.accumulate(np.maximum(pairs[: len(kept)], 0), axis=0)
    return np.maximum(2 * (monotone * kept).sum(0) - 1, 1 / np.log10(total))
