"""log p(x_n, true class | globals) of annotators with confusions."""

import numpy as np

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen


def annotators(params, latents, data):
    truth = latents["truth"].astype(int)
    said = np.log(np.moveaxis(params["confusion"], 1, 0)[truth])
    return np.log(params["weight"])[truth] + seen(chosen(said, data["x"]), data)


ANNOTATORS = Reference(
    annotators,
    lambda params, data: {"truth": of.choice(3)},
    {"weight": ("dirichlet", 1), "confusion": ("dirichlet", 1 + 3 * np.eye(3))},
)
CROWD = Reference(
    annotators,
    lambda params, data: {"truth": of.choice(4)},
    {"weight": ("dirichlet", 1), "confusion": ("dirichlet", 1 + 3 * np.eye(4))},
)
