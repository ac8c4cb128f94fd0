"""log p(x_n, latents_n | globals) of programs with a number of every row."""

import numpy as np
from scipy import stats

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen


def spike_and_slab(params, latents, data):
    on, amount = latents["on"], latents["amount"]
    prior = np.where(on == 1, np.log(params["chance"]), np.log1p(-params["chance"])) + stats.norm.logpdf(amount, 1, 1.5)
    mean = (on * amount)[..., None] * params["shape"]
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["noise"]), data)


def random_effects(params, latents, data):
    effect = latents["effect"]
    rate = np.exp(params["bias"] + effect[..., None])
    return stats.norm.logpdf(effect, 0, params["spread"]) + seen(stats.poisson.logpmf(data["x"], rate), data)


def frailty(params, latents, data):
    value, shape = latents["frailty"], params["shape"]
    prior = stats.gamma.logpdf(value, shape, scale=1 / shape)
    return prior + seen(stats.poisson.logpmf(data["x"], value[..., None] * params["rate"]), data)


def speeds(params, latents, data):
    rate = latents["speed"] * params["pace"]
    return seen(np.log(rate) - rate * data["x"], data)


def skill(params, latents, data):
    right = 0.25 + 0.75 * latents["skill"][..., None] * params["ease"]
    return seen(np.where(data["x"] == 1, np.log(right), np.log1p(-right)), data)


def shares(params, latents, data):
    return seen(chosen(np.log(np.tensordot(latents["share"], params["table"], 1)), data["x"]), data)


SPIKE_AND_SLAB = Reference(
    spike_and_slab,
    lambda params, data: {"on": of.bit(), "amount": of.real(-14, 16, 601)},
    {"chance": ("beta", 1, 1), "shape": ("normal", 0, 1), "noise": ("lognormal", -0.5, 0.5)},
)
RANDOM_EFFECTS = Reference(
    random_effects,
    lambda params, data: {"effect": of.real(-9 * params["spread"], 9 * params["spread"])},
    {"bias": ("normal", 0, 2), "spread": ("lognormal", -0.5, 0.5)},
)
FRAILTY = Reference(
    frailty,
    lambda params, data: {"frailty": of.positive(-40 / max(float(params["shape"]), 1), 4, 1201)},
    {"rate": ("gamma", 1, 0.3), "shape": ("gamma", 3, 1)},
)
SPEEDS = Reference(
    speeds,
    lambda params, data: {"speed": of.positive(-9, 9, 481, vector=True)},
    {"pace": ("lognormal", 0, 1)},
    {"speed": ("lognormal", 0, 0.6)},
)
SKILL = Reference(
    skill, lambda params, data: {"skill": of.probability()}, {"ease": ("beta", 2, 1)}, {"skill": ("beta", 2, 1.5)}
)
SHARES = Reference(
    shares,
    lambda params, data: {"share": of.simplex(3)},
    {"table": ("dirichlet", 1)},
    {"share": ("dirichlet", [1.2, 0.8, 1.0])},
)
