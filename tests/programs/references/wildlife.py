"""log p(x_n, latents_n | globals) of occupancy and abundance."""

import numpy as np
from scipy import stats
from scipy.special import gammaln, log_expit, logsumexp

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, seen


def occupancy(params, latents, data):
    occupied = latents["occupied"]
    odds = params["base"] + params["slope"] * data["elevation"]
    with np.errstate(divide="ignore"):
        each = stats.bernoulli.logpmf(data["x"], occupied[..., None] * params["detection"])
    return np.where(occupied == 1, log_expit(odds), log_expit(-odds)) + seen(each, data)


def abundance(largest):
    def rows(params, latents, data):
        number = latents["abundance"]
        with np.errstate(divide="ignore"):
            each = stats.binom.logpmf(data["x"], number[..., None], params["catch"])
        return stats.binom.logpmf(number, largest, params["present"]) + seen(each, data)

    return rows


def truncated(size):
    def rows(params, latents, data):
        number, expected = latents["abundance"], params["expected"]
        every = np.arange(size) * np.log(expected) - gammaln(np.arange(size) + 1)
        prior = number * np.log(expected) - gammaln(number + 1) - logsumexp(every)
        return prior + seen(stats.poisson.logpmf(data["x"], number[..., None] * params["sign"] + 0.1), data)

    return rows


OCCUPANCY = Reference(
    occupancy,
    lambda params, data: {"occupied": of.bit()},
    {"base": ("normal", 0, 2), "slope": ("normal", 0, 2), "detection": ("beta", 1, 1)},
)
ABUNDANCE = Reference(
    abundance(9), lambda params, data: {"abundance": of.whole(9)}, {"present": ("beta", 1, 1), "catch": ("beta", 1, 1)}
)
TRUNCATED = Reference(
    truncated(8),
    lambda params, data: {"abundance": of.choice(8)},
    {"expected": ("gamma", 2, 1), "sign": ("gamma", 2, 2)},
)
