"""log p(x_n, latents_n | globals) of programs whose rows have shares of their own."""

import itertools

import numpy as np

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, Space, chosen, seen

SIZE, LENGTH = 2, 3


def topic_of_tokens(params, latents, data):
    z = latents["z"].astype(int)
    picked = (np.log(latents["proportion"])[..., None, :] * np.eye(SIZE)[z]).sum((-1, -2))
    return picked + seen(chosen(np.log(params["topic"])[z], data["x"]), data)


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
