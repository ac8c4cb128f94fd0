"""What the brute-force references share: data tables, log prior densities, sums over tables, moments and integrals over
the simplex. Imports no project code."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.integrate import quad
from scipy.special import betaln, digamma, gammaln, logsumexp, softmax, xlogy

Array = NDArray[np.float64]
Labels = NDArray[np.int_]
Maybe = ArrayLike | None
Params = Mapping[str, Array]
Pair = tuple[float, float]
#: ("beta", a, b), ("normal", mean, sd), ("lognormal", mean of log, sd of log), ("inverse_gamma", shape, scale),
#: ("gamma", shape, rate), ("spike_gamma", probability of 0, shape, rate),
#: ("dirichlet", concentration), or a bare (a, b) for Beta.
Prior = Sequence
Priors = Mapping[str, Prior] | None
Function = Callable[..., Array]


def observed(x: ArrayLike, mask: Maybe) -> NDArray[np.bool_]:
    """Boolean (N, D): which entries were observed."""
    return np.ones(np.shape(x), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)


def filled(x: ArrayLike, mask: Maybe) -> Array:
    """``x`` with 0 at unobserved entries (which may hold NaN)."""
    return np.where(observed(x, mask), np.asarray(x, dtype=np.float64), 0.0)


def log_density(value: ArrayLike, prior: Prior) -> float:
    """Sum of the log prior density of every element (of every row, for a Dirichlet)."""
    name, *arguments = prior if isinstance(prior[0], str) else ("beta", *prior)
    value = np.asarray(value, dtype=np.float64)
    if name == "dirichlet":
        alpha = concentration_of(arguments[0], value.shape[-1])
        normaliser = gammaln(alpha.sum()) - gammaln(alpha).sum()
        return float((normaliser + xlogy(alpha - 1.0, value).sum(-1)).sum())
    densities = {
        "beta": lambda a, b: stats.beta.logpdf(value, a, b),
        "normal": lambda m, s: stats.norm.logpdf(value, m, s),
        "lognormal": lambda m, s: stats.lognorm.logpdf(value, s=s, scale=np.exp(m)),
        "inverse_gamma": lambda a, b: stats.invgamma.logpdf(value, a, scale=b),
        "gamma": lambda a, b: stats.gamma.logpdf(value, a, scale=1.0 / np.asarray(b, dtype=np.float64)),
        "spike_gamma": lambda rho, a, b: np.where(
            value > 0, np.log1p(-rho) + stats.gamma.logpdf(np.where(value > 0, value, 1.0), a, scale=1 / b), np.log(rho)
        ),
    }
    return float(densities[name](*arguments).sum())


def log_priors(params: Params, priors: Priors) -> float:
    """Sum over the sites of ``params`` that ``priors`` names; a site left out is flat, adding 0."""
    return sum(log_density(params[site], prior) for site, prior in (priors or {}).items() if site in params)


def log_joint_of(log_likelihood: Function, local_site: str, density: Prior | None = None) -> Callable[..., float]:
    """The log joint of a model with one continuous local site, from log p(x_n | local_n, globals) (N,)."""

    def log_joint(params, x, local, mask=None, priors=None, *more) -> float:
        """log p(globals) + sum_n log p(local_n) + sum_n log p(x_n | local_n, globals). What ``priors`` leaves out
        is flat, adding 0; the local one has ``density`` then, if any."""
        priors = {**({} if density is None else {local_site: density}), **(priors or {})}
        densities = log_priors({**params, local_site: np.asarray(local)}, priors)
        return float(log_likelihood(params, x, local, mask, *more).sum()) + densities

    return log_joint


# ----- discrete latents: sums over a table ----------------------------------------------------------------------------


def all_codes(num_bits: int) -> Array:
    """All binary codes, (2^K, K), in counting order: the last bit varies fastest."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=num_bits)))


def assignments(size: int, number: int) -> Labels:
    """All values of ``number`` variables of ``size`` values, (size^number, number)."""
    return np.array(list(itertools.product(range(size), repeat=number)), dtype=int).reshape(size**number, number)


def counts_of_values(q: Labels, size: int) -> Array:
    """c_k = sum_l [q_l = k] over the last axis, (..., K)."""
    return np.stack([(q == k).sum(-1) for k in range(size)], axis=-1).astype(float)


def summed_out(table: Function) -> tuple[Function, Function]:
    """(log_evidence, posterior) from a table of log p(x_n, s) of every row and every value s, (N, S)."""

    def log_evidence(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
        """log p(x_n) = log sum_s p(x_n, s), (N,)."""
        return np.asarray(logsumexp(table(params, x, mask), axis=1))

    def posterior(params: Params, x: ArrayLike, mask: Maybe = None) -> Array:
        """P(s | x_n), (N, S), columns in the order of the table."""
        return softmax(table(params, x, mask), axis=1)

    return log_evidence, posterior


def likelihood_table(
    log_likelihood: Function, params: Params, x: ArrayLike, local: ArrayLike, mask: Maybe, *more
) -> Array:
    """log p(x_n | s_m) of every row under every one of the locals s (M, K), (N, M)."""
    local, table = np.asarray(local), []
    for row, keep in zip(np.asarray(x), observed(x, mask), strict=True):
        rows, keeps = (np.repeat(one[None], len(local), 0) for one in (row, keep))
        table.append(log_likelihood(params, rows, local, keeps, *more))
    return np.array(table)


def empirical_bayes_of(log_likelihood: Function) -> Function:
    """The evidence with the locals s_m of other rows for a prior (source 001, eqs. 23 and 25)."""

    def empirical_bayes_log_likelihood(params, train_local, x_test, mask=None, *more) -> Array:
        """log (1/M) sum_m p(x_n | s_m), one value a test row, (N,)."""
        table = likelihood_table(log_likelihood, params, x_test, train_local, mask, *more)
        return np.asarray(logsumexp(table, axis=1)) - np.log(table.shape[1])

    return empirical_bayes_log_likelihood


# ----- Dirichlet: moments, expectations, integrals --------------------------------------------------------------------


def concentration_of(value: ArrayLike, size: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (size,))


def log_dirichlet_moment(counts: ArrayLike, concentration: ArrayLike) -> Array:
    """log E[prod_k pi_k^c_k] under Dirichlet(alpha), over the last axis, for an alpha of any shape: the
    Dirichlet-multinomial without its coefficient, log G(a.) / G(a. + c.) + sum_k log G(a_k + c_k) / G(a_k)."""
    counts = np.asarray(counts, dtype=np.float64)
    alpha = concentration_of(concentration, counts.shape[-1])
    rise = (gammaln(alpha + counts) - gammaln(alpha)).sum(-1)
    return rise + gammaln(alpha.sum()) - gammaln(alpha.sum() + counts.sum(-1))


def mean_given_counts(log_weight: Array, counts: Array, concentration: ArrayLike) -> Array:
    """E[pi] (..., K), where given the m-th of M configurations pi is Dirichlet(alpha + c_m), c (M, ..., K)."""
    after = counts + np.asarray(concentration, dtype=np.float64)
    return np.einsum("m,m...->...", softmax(log_weight), after / after.sum(-1, keepdims=True))


def expected_log_dirichlet(weight: ArrayLike) -> Array:
    """E[log p_k] = Psi(w_k) - Psi(sum w) under Dirichlet(w), over the last axis (eq. 27.40 of source 002; for topics
    (K, V) this normalises over the vocabulary, which eq. 27.48 and algorithm 27.1 leave in doubt)."""
    weight = np.asarray(weight, dtype=np.float64)
    return digamma(weight) - digamma(weight.sum(-1, keepdims=True))


def dirichlet_divergence(weight: ArrayLike, alpha: ArrayLike) -> Array:
    """KL(Dirichlet(w) || Dirichlet(alpha)) over the last axis."""
    weight = np.asarray(weight, dtype=np.float64)
    alpha = np.broadcast_to(np.asarray(alpha, dtype=np.float64), weight.shape)
    normaliser = gammaln(weight.sum(-1)) - gammaln(weight).sum(-1) - gammaln(alpha.sum(-1)) + gammaln(alpha).sum(-1)
    return normaliser + ((weight - alpha) * expected_log_dirichlet(weight)).sum(-1)


def log_beta_integral(height: Callable[[Array], Array], alpha: ArrayLike, power: int = 0) -> float:
    """log int s^power exp(height(s)) Beta(s | alpha) ds by adaptive quadrature, ``height`` of a grid of s (M,).

    The weight s^(a-1) (1-s)^(b-1) is left to QUADPACK's algebraic rule, so that alpha < 1 does no harm.
    """
    a, b = concentration_of(alpha, 2)
    with np.errstate(divide="ignore"):
        peak = float(np.max(height(np.linspace(0.0, 1.0, 201))))
        area, _ = quad(
            lambda s: s**power * np.exp(height(np.array([s]))[0] - peak), 0.0, 1.0,
            weight="alg", wvar=(a - 1, b - 1), epsabs=0, epsrel=1e-11, limit=200,
        )  # fmt: skip
    return float(peak + np.log(area) - betaln(a, b))


def multiplied_out(factors: Iterable[Mapping[tuple[int, ...], float]], size: int) -> tuple[Array, Array]:
    """A product of sums as a polynomial in s_1..s_size: exponents (M, size) and log coefficients (M,).

    A factor maps the variables of each of its terms (repeated where squared) to the term's coefficient. Multiplied out
    one factor at a time: of T linear ones there are C(T + size - 1, size - 1) terms, not size^T.
    """
    terms = {(0,) * size: 1.0}
    for factor in factors:
        product: dict[tuple[int, ...], float] = {}
        for (exponents, value), (variables, coefficient) in itertools.product(terms.items(), factor.items()):
            raised = list(exponents)
            for k in variables:
                raised[k] += 1
            product[tuple(raised)] = product.get(tuple(raised), 0.0) + value * coefficient
        terms = product
    with np.errstate(divide="ignore"):
        return np.array(list(terms), dtype=float), np.log(np.array(list(terms.values())))


def linear(coefficients: ArrayLike) -> dict[tuple[int, ...], float]:
    """sum_k b_k s_k, a factor of ``multiplied_out``."""
    return {(k,): float(b) for k, b in enumerate(np.asarray(coefficients))}


# ----- normal: product rules ------------------------------------------------------------------------------------------


def product_rule(dimensions: int, points: Array, log_weights: Array) -> tuple[Array, Array]:
    """(places (M, d), log weights (M,)) of a rule of one dimension, taken in each of d."""
    places = np.stack(np.meshgrid(*[points] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
    each = np.stack(np.meshgrid(*[log_weights] * dimensions, indexing="ij"), -1).reshape(-1, dimensions)
    return places, each.sum(1)


def hermite(dimensions: int, num_points: int) -> tuple[Array, Array]:
    """Gauss and Hermite's rule for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(num_points)
    with np.errstate(divide="ignore"):
        return product_rule(dimensions, points, np.log(weights / weights.sum()))
