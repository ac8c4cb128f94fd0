"""A toy factorisation in plain NumPy: its log joint, and draws from its prior that weighed give its posterior."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from custom_inference.families.ratings.sides import unpack_symmetric

USER = np.array([0, 0, 1, 1, 2])
ITEM = np.array([0, 1, 0, 1, 1])
VALUE = np.array([4.0, 2.5, 3.0, 1.0, 3.5])
USERS, ITEMS, FACTORS = 3, 2, 1
#: strength, degrees, spread of both sides, unit_shape, noise_shape, noise_rate.
STRENGTH, DEGREES, SPREAD, UNIT, SHAPE, RATE = 1.0, 3.0, 0.4, 4.0, 3.0, 2.0
#: Of users, and the Gamma prior of their coefficients' precision, with the log density of the log of one value.
FEATURES = np.array([[1.0, -0.5], [0.3, 0.7], [-1.3, -0.2]])
RIDGE, RIDGE_SHAPE, RIDGE_RATE = 2.0, 2.0, 1.0
LOG_RIDGE = np.log(RIDGE**2 * np.exp(-RIDGE))


def wishart_draws(rng, n, degrees, scale_inverse):
    """L ~ Wishart(degrees, scale_inverse^-1), n draws (n, d, d)."""
    d = len(scale_inverse)
    lower = np.tril(rng.standard_normal((n, d, d)), -1)
    for j in range(d):
        lower[:, j, j] = np.sqrt(rng.chisquare(degrees - j, n))
    root = np.linalg.cholesky(np.linalg.inv(scale_inverse)) @ lower
    return root @ root.transpose(0, 2, 1)


def normal_draws(rng, mean, precision):
    """Rows (n, N, d) with a precision (n, d, d) shared by the N rows of a draw."""
    root = np.linalg.cholesky(precision)
    noise = rng.standard_normal(mean.shape)
    return mean + np.linalg.solve(root.transpose(0, 2, 1), noise.transpose(0, 2, 1)).transpose(0, 2, 1)


def prior_draws(rng, n, columns=None):
    """columns (USERS, P): of users' features."""
    d, draws = FACTORS + 1, {}
    degrees = DEGREES + d - 1
    for side, size in (("user", USERS), ("item", ITEMS)):
        precision = wishart_draws(rng, n, degrees, SPREAD * degrees * np.eye(d))
        mean = normal_draws(rng, np.zeros((n, 1, d)), STRENGTH * precision)
        centre = np.broadcast_to(mean, (n, size, d))
        if side == "user" and columns is not None:
            draws["ridge"] = rng.gamma(RIDGE_SHAPE, 1 / RIDGE_RATE, n)
            scaled = draws["ridge"][:, None, None] * precision
            centre = mean + columns @ normal_draws(rng, np.zeros((n, columns.shape[1], d)), scaled)
        draws[side] = normal_draws(rng, centre, precision)
        draws[f"{side}_precision"], draws[f"{side}_mean"] = precision, mean[:, 0]
        draws[f"{side}_gain"] = rng.gamma(UNIT, 1 / UNIT, (n, size))
    draws["tau"] = rng.gamma(SHAPE, 1 / RATE, n)
    return draws


def pair_means(draws, user, item):
    w, z = draws["user"][:, user], draws["item"][:, item]
    return w[..., 0] + z[..., 0] + (w[..., 1:] * z[..., 1:]).sum(-1)


def predict(at, user, item):
    """The mean of ratings by a variational fit, the standard deviation of what is not known of it, and a rating's."""
    w, z = at.user.mean[user], at.item.mean[item]
    p, q = (unpack_symmetric(side.covariance, w.shape[1])[i] for side, i in ((at.user, user), (at.item, item)))
    left, right = (np.concatenate([np.ones_like(row[:, :1]), row[:, 1:]], 1) for row in (w, z))
    mean = at.ratings.centre + w[:, 0] + z[:, 0] + (w[:, 1:] * z[:, 1:]).sum(1)
    variance = np.einsum("mi,mij,mj->m", right, p, right) + np.einsum("mi,mij,mj->m", left, q, left)
    variance += (p[:, 1:, 1:] * q[:, 1:, 1:]).sum((1, 2))
    noise = np.full(len(mean), at.tau_rate / (at.tau_shape - 1))
    for side, index in ((at.user, user), (at.item, item)):  # E[1 / x] = shape / (shape - 1) / E[x] under a Gamma
        shape = at.settings.unit_shape + 0.5 * side.ratings.counts[index]
        noise *= shape / (shape - 1) / side.gain[index]
    return mean, np.sqrt(variance), np.sqrt(variance + noise)


def log_likelihood(draws, value=None):
    y = (VALUE if value is None else value) - VALUE.mean()
    precision = draws["tau"][:, None] * draws["user_gain"][:, USER] * draws["item_gain"][:, ITEM]
    error = y - pair_means(draws, USER, ITEM)
    return 0.5 * (np.log(precision / (2 * np.pi)) - precision * error**2).sum(-1)


def log_normal(x, mean, precision):
    """Rows (n, N, d), precision (n, d, d) or (N, d, d) or (n, N, d, d): summed over rows."""
    rest = x - mean
    precision = precision[:, None] if precision.ndim == 3 else precision
    square = np.einsum("...a,...ab,...b->...", rest, np.broadcast_to(precision, (*rest.shape, x.shape[-1])), rest)
    log_det = np.broadcast_to(np.linalg.slogdet(precision)[1], square.shape)
    return 0.5 * (log_det - x.shape[-1] * np.log(2 * np.pi) - square).sum(-1)


def log_wishart(x, degrees, scale_inverse):
    d = x.shape[-1]
    found = 0.5 * (degrees - d - 1) * np.linalg.slogdet(x)[1] - 0.5 * np.einsum("nab,ba->n", x, scale_inverse)
    found += 0.5 * degrees * np.linalg.slogdet(scale_inverse)[1] - 0.5 * degrees * d * np.log(2)
    return found - gammaln((degrees - np.arange(d)) / 2).sum() - d * (d - 1) / 4 * np.log(np.pi)


def log_gamma(x, shape, rate):
    return shape * np.log(rate) - gammaln(shape) + (shape - 1) * np.log(x) - rate * x


def log_prior(draws, features=None, ridge=None):
    """features: {"user": (USERS, P)}: their rows have coefficients ``user_beta`` (n, P, d) in the draws."""
    d, found = FACTORS + 1, log_gamma(draws["tau"], SHAPE, RATE)
    degrees = DEGREES + d - 1
    for side in ("user", "item"):
        precision, mean = draws[f"{side}_precision"], draws[f"{side}_mean"][:, None]
        found = found + log_wishart(precision, degrees, SPREAD * degrees * np.eye(d))
        found = found + log_normal(mean, 0.0, STRENGTH * precision)
        if features and side in features:
            beta = draws[f"{side}_beta"]
            found = found + log_normal(beta, 0.0, ridge * precision)
            mean = mean + features[side] @ beta
        found = found + log_normal(draws[side], mean, precision)
        found = found + log_gamma(draws[f"{side}_gain"], UNIT, UNIT).sum(-1)
    return found
