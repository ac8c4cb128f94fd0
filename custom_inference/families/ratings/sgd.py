"""Matrix factorisation of ratings by stochastic gradient descent over the pairs (Murphy 2012, eqs. 27.87-27.93).

For a pair (i, j) with rating r, in random order, e = r - (mu + f_i + g_j + u_i'v_j), the steps of size eta down

    1/2 sum_pairs [e^2 + lambda_u |u_i|^2 + lambda_v |v_j|^2 + lambda_b (f_i^2 + g_j^2)]

are (eq. 27.89, with the regularisers of eq. 27.92; both factors are read before either moves)

    u_i += eta (e v_j - lambda_u u_i),  v_j += eta (e u_i - lambda_v v_j),  f_i += eta (e - lambda_b f_i),  g_j likewise

A regulariser counts once a rating rather than once a user, which is what stochastic gradient descent does in the
literature of figure 27.29: in the units of eq. 27.92 lambda_U of user i is lambda_u times the user's number of ratings.
Regularisers may differ between users and between items, so that lambda_u of user i can be lambda_U / n_i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_models import MethodError

Array = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class SGDFactors:
    """What gradient descent arrived at.

    user (U, K), item (I, K), user_bias (U,), item_bias (I,), mean: mu. trace (T,): the root mean square error on the
    training pairs after each pass.
    """

    user: Array
    item: Array
    user_bias: Array
    item_bias: Array
    mean: float
    trace: Array

    def predict(self, i: Places, j: Places) -> Array:
        """Compute mu + f_i + g_j + u_i'v_j of pairs (M,) by the numbers of user and item."""
        return self.mean + self.user_bias[i] + self.item_bias[j] + np.einsum("mk,mk->m", self.user[i], self.item[j])


def descent(
    user: Places,
    item: Places,
    value: Array,
    *,
    num_users: int,
    num_items: int,
    num_factors: int = 10,
    passes: int = 30,
    learning_rate: float = 0.01,
    decay: float = 1.0,
    user_regularizer: Array | float = 0.0,
    item_regularizer: Array | float = 0.0,
    bias_regularizer: tuple[Array, Array] | float = 0.0,
    biases: bool = True,
    spread: float = 0.1,
    seed: int = 0,
    start: tuple[Array, Array, Array, Array] | None = None,
) -> Iterator[SGDFactors]:
    """Yield factors, biases and trace after each pass over ratings: user, item (M,) numbers, value (M,).

    learning_rate: eta of the first pass, multiplied by ``decay`` after each. biases: whether there are f and g; mu is
    the mean rating. spread: standard deviation of the factors at the start, which ``start`` gives in their place: the
    factors of users and items and their biases. Regularisers are numbers or one a user (U,), one an item (I,); that of
    biases a pair of these, or one number. The next pass changes the arrays of what was given after the last.

    Raises MethodError where a pass ends in values that are not finite: the learning rate is too large.
    """
    of_biases = bias_regularizer if isinstance(bias_regularizer, tuple) else (bias_regularizer, bias_regularizer)
    of_rows = [
        np.broadcast_to(np.asarray(one, np.float64), (size,)).copy()
        for one, size in zip((user_regularizer, item_regularizer, *of_biases), (num_users, num_items) * 2, strict=True)
    ]
    from custom_inference.families.ratings.sgd_kernel import pass_over  # compiles when first used

    visit: Any = pass_over
    rng, mean = np.random.default_rng(seed), float(value.mean())
    u, v = (spread * rng.standard_normal((size, num_factors)) for size in (num_users, num_items))
    f, g = np.zeros(num_users), np.zeros(num_items)
    if start is not None:
        u, v, f, g = (np.array(one, np.float64, order="C") for one in start)
    trace, rate = [], learning_rate
    for step in range(passes):
        visit(rng.permutation(len(value)), user, item, value - mean, u, v, f, g, rate, *of_rows, biases)
        with np.errstate(over="ignore", invalid="ignore"):
            wrong = value - SGDFactors(u, v, f, g, mean, np.array(trace)).predict(user, item)
            trace.append(float(np.sqrt(np.mean(wrong**2))))
        if not np.isfinite(trace[-1]):
            raise MethodError(f"pass {step + 1} left the finite numbers; expected a learning_rate below {rate:g}")
        yield SGDFactors(u, v, f, g, mean, np.array(trace))
        rate *= decay
