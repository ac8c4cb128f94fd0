"""One pass of stochastic gradient descent over ratings, compiled: import inside functions only (``sgd``)."""

from __future__ import annotations

from custom_inference.families.common.compiled import Ints, Reals, entry


@entry
def pass_over(
    order: Ints,
    user: Ints,
    item: Ints,
    residual: Reals,
    u: Reals,
    v: Reals,
    f: Reals,
    g: Reals,
    rate: float,
    of_u: Reals,
    of_v: Reals,
    of_f: Reals,
    of_g: Reals,
    biases: bool,
):
    """Take steps of size ``rate`` for the pairs in ``order``, in place: u (U, K), v (I, K), f (U,), g (I,).

    residual (M,): ratings less their mean. of_u, of_f (U,), of_v, of_g (I,): regularisers, once a rating.
    """
    factors = u.shape[1]
    for at in order:
        i, j = user[at], item[at]
        error = residual[at] - f[i] - g[j]
        for k in range(factors):
            error -= u[i, k] * v[j, k]
        for k in range(factors):
            one, other = u[i, k], v[j, k]
            u[i, k] += rate * (error * other - of_u[i] * one)
            v[j, k] += rate * (error * one - of_v[j] * other)
        if biases:
            f[i] += rate * (error - of_f[i] * f[i])
            g[j] += rate * (error - of_g[j] * g[j])
