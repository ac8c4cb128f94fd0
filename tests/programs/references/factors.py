"""log p(x_n, factors_n | globals) of probit and ordinal factors."""

import numpy as np
from scipy import stats
from scipy.special import expit, log_ndtr

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen


def probit(params, latents, data):
    eta = params["bias"] + latents["factor"] @ params["weight"]
    return seen(np.where(data["x"] == 1, log_ndtr(eta), log_ndtr(-eta)), data)


def ordinal(params, latents, data):
    first, second = latents["first"], latents["second"]
    prior = stats.norm.logpdf(first) + stats.norm.logpdf(second, 0.5 * first, 0.8)
    eta = params["loading"] * first[..., None] + params["twist"] * second[..., None]
    below = expit(np.array([-1.0, 0.5]) - eta[..., None])
    ends = [np.zeros_like(below[..., :1]), below, np.ones_like(below[..., :1])]
    return prior + seen(chosen(np.log(np.diff(np.concatenate(ends, -1))), data["x"]), data)


PROBIT = Reference(
    probit,
    lambda params, data: {"factor": of.reals(2, -11, 11, 121)},
    {"weight": ("normal", 0, 1), "bias": ("normal", 0, 1)},
    {"factor": ("normal", 0, 1)},
)
ORDINAL = Reference(
    ordinal,
    lambda params, data: {"first": of.real(-7, 7, 91), "second": of.real(-7, 7, 91)},
    {"loading": ("lognormal", 0, 0.5), "twist": ("normal", 0, 1)},
)
