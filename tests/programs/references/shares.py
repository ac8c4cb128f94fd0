"""log p(x_n, latents_n | globals) of programs whose rows have shares of their own."""

import itertools

import numpy as np
from scipy import stats

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, Space, chosen, seen

SIZE, LENGTH = 2, 3


def topic_of_tokens(params, latents, data):
    z = latents["z"].astype(int)
    picked = (np.log(latents["proportion"])[..., None, :] * np.eye(SIZE)[z]).sum((-1, -2))
    return picked + seen(chosen(np.log(params["topic"])[z], data["x"]), data)


def supervised_topics(params, latents, data):
    mean = params["weight"][latents["z"].astype(int)].mean(-1)
    answer = np.nan_to_num(stats.norm.logpdf(data["y"], mean, params["noise"]))  # NaN where it is missing
    return topic_of_tokens(params, latents, data) + answer


def rates_by_shares(params, latents, data):
    return seen(stats.poisson.logpmf(data["x"], latents["proportion"] @ params["rate"]), data)


def choices() -> Space:
    """All topics of all tokens."""
    every = np.array(list(itertools.product(range(SIZE), repeat=LENGTH)))
    return Space.finite(every, np.eye(SIZE)[every])


TOPIC_OF_TOKENS = Reference(
    topic_of_tokens,
    lambda params, data: {"proportion": of.simplex(SIZE), "z": choices()},
    {"topic": ("dirichlet", 1.5)},
    {"proportion": ("dirichlet", [0.8, 1.1])},
)
SUPERVISED_TOPICS = Reference(
    supervised_topics,
    TOPIC_OF_TOKENS.spaces,
    {"topic": ("dirichlet", 1.5), "weight": ("normal", 0, 2), "noise": ("lognormal", -0.5, 0.5)},
    TOPIC_OF_TOKENS.latents,
)
RATES_BY_SHARES = Reference(
    rates_by_shares,
    lambda params, data: {"proportion": of.simplex(SIZE, -40.0, 40.0, 1601)},
    {"rate": ("gamma", 1.5, 0.3)},
    {"proportion": ("dirichlet", [0.8, 1.1])},
)
