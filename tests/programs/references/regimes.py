"""log p(x_n, latents_n | globals) of a change of level and of a chain of two states."""

import numpy as np
from scipy import stats

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, seen


def change_point(params, latents, data):
    change = latents["change"].astype(int)
    level = np.where(np.arange(data["x"].shape[1]) < change[..., None], params["before"], params["after"])
    return np.log(params["weight"])[change] + seen(stats.norm.logpdf(data["x"], level, params["noise"]), data)


def chain(times):
    def rows(params, latents, data):
        states = np.stack([latents[f"state_{t}"] for t in range(times)], -1).astype(int)
        start, switch = params["start"], params["switch"]
        prior = np.log(np.array([1 - start, start]))[states[..., 0]]
        step = np.log(np.stack([1 - switch, switch], -1))
        for t in range(1, times):
            prior = prior + step[states[..., t - 1], states[..., t]]
        return prior + seen(stats.poisson.logpmf(data["x"], params["rate"][states]), data)

    return rows


CHANGE_POINT = Reference(
    change_point,
    lambda params, data: {"change": of.choice(len(params["weight"]))},
    {"weight": ("dirichlet", 2), "before": ("normal", 0, 3), "after": ("normal", 0, 3), "noise": ("lognormal", 0, 0.5)},
)
CHAIN = Reference(
    chain(5),
    lambda params, data: {f"state_{t}": of.bit() for t in range(5)},
    {"start": ("beta", 1, 1), "switch": ("beta", 1, 1), "rate": ("gamma", 2, 0.5)},
)
