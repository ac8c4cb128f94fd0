"""One pass of stochastic gradient descent over ratings, compiled: import inside functions only (``sgd``)."""

from __future__ import annotations

import numba


@numba.njit(nogil=True, cache=True)
def pass_over(order, user, item, residual, u, v, f, g, rate, regularizer, biases):
    """Steps of size ``rate`` for the pairs in ``order``, in place: u (U, K), v (I, K), f (U,), g (I,).

    residual (M,): ratings less their mean. regularizer (3,): lambda_u, lambda_v, lambda_b.
    """
    factors = u.shape[1]
    for at in order:
        i, j = user[at], item[at]
        error = residual[at] - f[i] - g[j]
        for k in range(factors):
            error -= u[i, k] * v[j, k]
        for k in range(factors):
            one, other = u[i, k], v[j, k]
            u[i, k] += rate * (error * other - regularizer[0] * one)
            v[j, k] += rate * (error * one - regularizer[1] * other)
        if biases:
            f[i] += rate * (error - regularizer[2] * f[i])
            g[j] += rate * (error - regularizer[2] * g[j])
