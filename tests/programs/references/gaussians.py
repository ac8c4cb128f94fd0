"""log p(x_n, latents_n | globals) of programs with Gaussian latents."""

import itertools

import numpy as np
from scipy import stats

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, seen

SCALE = ("lognormal", -0.5, 0.7)


def kalman_chain(params, latents, data):
    level = [latents[f"u{t}"] for t in range(data["x"].shape[-1])]
    total = stats.norm.logpdf(level[0], params["start"], 1)
    for before, now in itertools.pairwise(level):
        total = total + stats.norm.logpdf(now, params["keep"] * before, params["move"])
    return total + seen(stats.norm.logpdf(data["x"], np.stack(level, -1), params["noise"]), data)


def random_slopes(params, latents, data):
    intercept, slope = latents["intercept"], latents["slope"]
    prior = stats.norm.logpdf(intercept, 0, params["base_spread"])
    prior = prior + stats.norm.logpdf(slope, params["growth"], params["growth_spread"])
    mean = params["base"] + intercept[..., None] + slope[..., None] * data["t"]
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["noise"]), data)


def factors(params, latents, data):
    mean = params["mean"] + latents["z"] @ params["loading"]
    prior = stats.norm.logpdf(latents["z"]).sum(-1)
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["scale"]), data)


def intercept_mixture(params, latents, data):
    z, b = latents["z"].astype(int), latents["b"]
    prior = np.log(params["size"][z]) + stats.norm.logpdf(b, 0, params["spread"][z])
    mean = (params["level"][z] + b)[..., None] + params["slope"][z][..., None] * data["t"]
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["noise"]), data)


def factor_mixture(params, latents, data):
    z, f = latents["z"].astype(int), latents["f"]
    mean = params["mean"][z] + (f[..., None] * params["loading"][z]).sum(-2)
    prior = np.log(params["size"][z]) + stats.norm.logpdf(f).sum(-1)
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["scale"]), data)


KALMAN_CHAIN = Reference(
    kalman_chain,
    lambda params, data: {f"u{t}": of.real(-7, 9, 241) for t in range(2)},
    {"start": ("normal", 0, 3), "keep": ("normal", 0.8, 0.5), "move": SCALE, "noise": SCALE},
)
RANDOM_SLOPES = Reference(
    random_slopes,
    lambda params, data: {"intercept": of.real(-7, 7, 241), "slope": of.real(-3, 4, 301)},
    {
        "base": ("normal", 0, 3), "growth": ("normal", 0, 2), "base_spread": SCALE, "growth_spread": SCALE,
        "noise": SCALE,
    },
)  # fmt: skip
FACTORS = Reference(
    factors,
    lambda params, data: {"z": of.reals(2, -8, 8, 193)},
    {"loading": ("normal", 0, 1), "mean": ("normal", 0, 10), "scale": ("lognormal", 0, 1)},
)
INTERCEPT_MIXTURE = Reference(
    intercept_mixture,
    lambda params, data: {"z": of.choice(2), "b": of.real(-9, 9, 401)},
    {
        "size": ("dirichlet", 1), "level": ("normal", 0, 5), "slope": ("normal", 0, 2), "spread": SCALE,
        "noise": SCALE,
    },
)  # fmt: skip
FACTOR_MIXTURE = Reference(
    factor_mixture,
    lambda params, data: {"z": of.choice(2), "f": of.reals(1, -8, 8, 301)},
    {
        "size": ("dirichlet", 1), "loading": ("normal", 0, 1), "mean": ("normal", 0, 10),
        "scale": ("lognormal", 0, 1),
    },
)  # fmt: skip
