"""What an estimate of the evidence of a model says, and its difference from that of another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtri, stdtrit

from ppl_models import MethodError

Array = NDArray[np.float64]
#: The probability below the upper end of an interval of two standard errors.
_TAIL = 0.975


class BayesFactor(NamedTuple):
    """log p(x | one model) - log p(x | another), in nats, and its standard error."""

    log: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """log p(x) of a model, globals and latents of the rows integrated out under its priors, in nats.

    log_evidence: NaN where the seconds did not suffice (``remarks`` say why). standard_error: 0 where it is exact, NaN
    where there is but one run. method: "exact", "smc", "chib" or "labelings"; how: the same in words.
    chains: the estimates of the independent runs or chains, (R,), whose mean (of p(x) itself) ``log_evidence`` is.
    ess: how many independent draws from the posterior the draws of all runs are worth in the mean of
    log p(x | globals); r_hat: whether the runs agree in it. NaN of what is exact.
    """

    log_evidence: float
    standard_error: float
    method: str
    how: str
    model: str
    chains: Array = field(default_factory=lambda: np.empty(0))
    ess: float = math.nan
    r_hat: float = math.nan
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether there is no error beyond rounding."""
        return self.method == "exact"

    def log_bayes_factor(self, other: Evidence) -> BayesFactor:
        """Return log p(x | this model) - log p(x | the other), with its standard error.

        Both are of the same data, which is for the caller to see to.

        Parameters
        ----------
        other: the evidence of another model.

        Returns
        -------
        log: the difference in nats; above 0 it speaks for this model. standard_error: of independent estimates.

        Raises
        ------
        MethodError: ``other`` is no evidence.
        """
        if not hasattr(other, "log_evidence"):
            raise MethodError(f"other = {other!r}, expected what marginal_likelihood returns")
        error = math.hypot(self.standard_error, other.standard_error)
        return BayesFactor(self.log_evidence - other.log_evidence, error)

    def __repr__(self) -> str:
        error = "" if self.is_exact else f" ± {self.standard_error:.2g}"
        found = f"log p(x) = {self.log_evidence:.2f}{error} of {self.model}, {self.how}, in {self.seconds:.1f} s"
        return "; ".join([found, *self.remarks])


def combine(log_estimates: Array) -> tuple[float, float]:
    """Average independent unbiased estimates of p(x), given their logarithms (R,); return log p(x) and its error.

    The error is that of the mean by the delta method, sd(Z_r) / (mean Z sqrt R), but no less than sd(log Z_r) / sqrt R:
    where the logarithms differ by more than one, a few estimates decide the mean, and its own error is not to be had
    from them. Of few estimates it is larger by what Student's quantile is above the normal's, so that two standard
    errors hold the truth in 95 % of cases. NaN of one estimate.
    """
    runs = len(log_estimates)
    mean = float(np.asarray(logsumexp(log_estimates))) - math.log(runs)
    if runs < 2 or not np.isfinite(mean):
        return mean, math.nan
    share = np.exp(log_estimates - mean)
    with np.errstate(invalid="ignore"):
        spread = np.std(log_estimates, ddof=1)
    error = max(float(np.std(share, ddof=1)), float(spread) if np.isfinite(spread) else math.inf)
    return mean, error / math.sqrt(runs) * float(stdtrit(runs - 1, _TAIL) / ndtri(_TAIL))
