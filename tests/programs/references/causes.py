"""log p(x_n, bits_n | globals) of noisy AND, noisy MAX and a network of two layers."""

import numpy as np
from scipy.special import expit, log_expit

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen


def of_bits(value, chance):
    return np.where(value == 1, np.log(chance), np.log1p(-chance)).sum(-1)


def noisy_and(params, latents, data):
    source = latents["source"]
    on = params["base"] * np.prod(1 - source[..., None] * params["veto"], -2)
    return of_bits(source, params["presence"]) + seen(np.where(data["x"] == 1, np.log(on), np.log1p(-on)), data)


def noisy_max(params, latents, data):
    cause = latents["cause"]
    below = np.cumsum(params["leak"], -1) * np.prod(
        np.where(cause[..., None, None] == 1, np.cumsum(params["contribution"], -1), 1.0), -3
    )
    each = np.diff(below, prepend=0.0)
    return of_bits(cause, params["presence"]) + seen(chosen(np.log(each), data["x"]), data)


def two_layers(params, latents, data):
    top, middle = latents["top"], latents["middle"]
    eta = params["bias"] + middle @ params["lower"]
    prior = of_bits(top, params["chance"]) + of_bits(middle, expit(top @ params["upper"] - 1))
    return prior + seen(np.where(data["x"] == 1, log_expit(eta), log_expit(-eta)), data)


def noisy_or(cause, chance, leak):
    return 1 - (1 - leak) * np.prod(1 - cause[..., None] * chance, -2)


def causes_of_causes(params, latents, data):
    top, middle = latents["top"], latents["middle"]
    prior = of_bits(top, params["chance"]) + of_bits(middle, noisy_or(top, params["upper"], params["spark"]))
    on = noisy_or(middle, params["lower"], params["leak"])
    return prior + seen(np.where(data["x"] == 1, np.log(on), np.log1p(-on)), data)


NOISY_AND = Reference(
    noisy_and,
    lambda params, data: {"source": of.bits(3)},
    {"presence": ("beta", 2, 2), "veto": ("beta", 1, 1), "base": ("beta", 9, 1)},
)
NOISY_MAX = Reference(
    noisy_max,
    lambda params, data: {"cause": of.bits(2)},
    {"presence": ("beta", 2, 2), "contribution": ("dirichlet", 1), "leak": ("dirichlet", [4, 2.5, 1])},
)
TWO_LAYERS = Reference(
    two_layers,
    lambda params, data: {"top": of.bits(2), "middle": of.bits(3)},
    {"chance": ("beta", 1, 1), "upper": ("normal", 0, 3), "lower": ("normal", 0, 3), "bias": ("normal", 0, 3)},
)
CAUSES_OF_CAUSES = Reference(
    causes_of_causes,
    lambda params, data: {"top": of.bits(2), "middle": of.bits(3)},
    {
        "chance": ("beta", 1, 1),
        "upper": ("beta", 1, 1),
        "spark": ("beta", 1, 5),
        "lower": ("beta", 2, 2),
        "leak": ("beta", 1, 5),
    },
)
