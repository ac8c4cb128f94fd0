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


def seasons(number):
    def rows(params, latents, data):
        occupied = np.stack([latents[f"occupied_{t}"] for t in range(number)], -1)
        chance = np.where(occupied[..., :-1] == 1, 1 - params["extinct"], params["colonised"])
        chance = np.concatenate([np.full_like(occupied[..., :1], params["first"]), chance], -1)
        prior = np.where(occupied == 1, np.log(chance), np.log1p(-chance)).sum(-1)
        detected = np.repeat(occupied, len(params["detection"]), -1) * np.tile(params["detection"], number)
        with np.errstate(divide="ignore"):
            return prior + seen(stats.bernoulli.logpmf(data["x"], detected), data)

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
SEASONS = Reference(
    seasons(5),
    lambda params, data: {f"occupied_{t}": of.bit() for t in range(5)},
    {"first": ("beta", 1, 1), "colonised": ("beta", 1, 1), "extinct": ("beta", 1, 1), "detection": ("beta", 2, 2)},
)
