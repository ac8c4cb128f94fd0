"""log p(x_n, class | globals) of the mixtures."""

import numpy as np
from scipy import stats
from scipy.special import gammaln, log_ndtr

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, seen

FLAT = {"weight": ("dirichlet", 1)}


def mixture(entries, site, space, priors):
    """From log p(x_nj | class k) of (globals, x), (K, N, D); ``site`` holds the class as ``space`` has it."""

    def rows(params, latents, data):
        each = np.log(params["weight"])[:, None] + seen(entries(params, data["x"]), data)
        given = latents[site]
        if given.ndim == 3:  # one-hot
            return np.einsum("cnk,kn->cn", np.broadcast_to(given, (len(given), each.shape[1], len(each))), each)
        return np.take_along_axis(each, np.broadcast_to(given, (len(given), each.shape[1])).astype(int), 0)

    return Reference(rows, lambda params, data: {site: space(len(params["weight"]))}, {**FLAT, **priors})


def zero_inflated(params, x):
    gate, rate = params["gate"], params["rate"][:, None]
    counted = np.log1p(-gate) + stats.poisson.logpmf(x, rate)
    return np.where(x == 0, np.log(gate + (1 - gate) * np.exp(-rate)), counted)


def student(params, x):
    return stats.t.logpdf(x, 4, params["place"][:, None], params["width"][:, None])


def von_mises(params, x):
    return stats.vonmises.logpdf(x, params["concentration"][:, None, None], loc=params["direction"][:, None])


def beta_binomial(params, x):
    mean, precision = params["mean"][:, None], params["precision"]
    return stats.betabinom.logpmf(x, 10, mean * precision, (1 - mean) * precision)


def negative_binomial(params, x):
    mean, shape = params["mean"][:, None], params["shape"][:, None, None]
    ways = gammaln(x + shape) - gammaln(shape) - gammaln(x + 1)
    return ways + shape * np.log(shape / (shape + mean)) + x * np.log(mean / (shape + mean))


def censored(params, x, limit=2.0):
    place, width = params["place"][:, None], params["width"][:, None, None]
    return np.where(x < limit, stats.norm.logpdf(x, place, width), log_ndtr(-(limit - place) / width))


ZERO_INFLATED = mixture(zero_inflated, "membership", of.one_hot, {"rate": ("gamma", 1, 0.1), "gate": ("beta", 1, 1)})
STUDENT = mixture(student, "kind", of.choice, {"place": ("normal", 0, 5), "width": ("lognormal", 0, 1)})
VON_MISES = mixture(von_mises, "kind", of.one_hot, {"direction": ("normal", 0, 2), "concentration": ("gamma", 2, 0.5)})
BETA_BINOMIAL = mixture(beta_binomial, "kind", of.one_hot, {"mean": ("beta", 1, 1), "precision": ("gamma", 2, 0.2)})
NEGATIVE_BINOMIAL = mixture(
    negative_binomial, "kind", of.choice, {"mean": ("gamma", 1, 0.1), "shape": ("lognormal", 1, 1)}
)
CENSORED = mixture(censored, "kind", of.one_hot, {"place": ("normal", 0, 3), "width": ("lognormal", 0, 0.5)})
