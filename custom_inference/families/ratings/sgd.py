"""Matrix factorisation of ratings by stochastic gradient descent over the pairs (002, eqs. 27.87-27.93).

For a pair (i, j) with rating r, in random order, e = r - (mu + f_i + g_j + u_i'v_j), the steps of size eta down

    1/2 sum_pairs [e^2 + lambda_u |u_i|^2 + lambda_v |v_j|^2 + lambda_b (f_i^2 + g_j^2)]

are (eq. 27.89, with the regularisers of eq. 27.92; both factors are read before either moves)

    u_i += eta (e v_j - lambda_u u_i),  v_j += eta (e u_i - lambda_v v_j),  f_i += eta (e - lambda_b f_i),  g_j likewise

A regulariser counts once a rating rather than once a user, which is what stochastic gradient descent does in the
literature of figure 27.29: in the units of eq. 27.92 lambda_U of user i is lambda_u times the user's number of ratings.
Regularisers may differ between users and between items, so that lambda_u of user i can be lambda_U / n_i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_models import DataError, MethodError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SGDFactors:
    """What gradient descent arrived at.

    user (U, K), item (I, K), user_bias (U,), item_bias (I,), mean: mu. trace (T,): the root mean square error on the
    training pairs after each pass; held_trace (T,) of the pairs held out, empty without such.
    """

    user: Array
    item: Array
    user_bias: Array
    item_bias: Array
    mean: float
    trace: Array
    held_trace: Array

    def predict(self, user: Any, item: Any) -> Array:
        """Compute mu + f_i + g_j + u_i'v_j of pairs (M,) by the numbers of user and item."""
        i, j = np.asarray(user), np.asarray(item)
        return self.mean + self.user_bias[i] + self.item_bias[j] + np.einsum("mk,mk->m", self.user[i], self.item[j])


def sgd_factors(*arguments: Any, progress: Callable[[int, float], None] | None = None, **settings: Any) -> SGDFactors:
    """Run :func:`descent` to its last pass. progress: called after each pass with its number and training error."""
    found = None
    for found in descent(*arguments, **settings):
        if progress is not None:
            progress(len(found.trace), float(found.trace[-1]))
    assert found is not None
    return found


def descent(
    user: Any,
    item: Any,
    value: Any,
    *,
    num_users: int,
    num_items: int,
    num_factors: int = 10,
    passes: int = 30,
    learning_rate: float = 0.01,
    decay: float = 1.0,
    user_regularizer: Any = 0.0,
    item_regularizer: Any = 0.0,
    bias_regularizer: Any = 0.0,
    biases: bool = True,
    spread: float = 0.1,
    seed: int = 0,
    held: tuple[Any, Any, Any] | None = None,
    start: tuple[Array, Array, Array, Array] | None = None,
) -> Iterator[SGDFactors]:
    """Yield factors, biases and trace after each pass over ratings: user, item (M,) numbers, value (M,).

    learning_rate: eta of the first pass, multiplied by ``decay`` after each. biases: whether there are f and g; mu is
    the mean rating. spread: standard deviation of the factors at the start, which ``start`` gives in their place: the
    factors of users and items and their biases. held: user, item, value of pairs held out,
    for their trace. Regularisers are numbers or one a user (U,), one an item (I,); that of biases a pair of these, or
    one number. The next pass changes the arrays of what was given after the last.

    Raises DataError for arrays of different lengths or numbers that are out of range; MethodError for settings that are
    none, and where a pass ends in values that are not finite (the learning rate is too large).
    """
    _check_settings(num_factors, passes, learning_rate, decay, spread)
    of_biases = bias_regularizer if isinstance(bias_regularizer, tuple) else (bias_regularizer, bias_regularizer)
    of_rows = [
        np.broadcast_to(np.asarray(one, np.float64), (size,)).copy()
        for one, size in zip((user_regularizer, item_regularizer, *of_biases), (num_users, num_items) * 2, strict=True)
    ]
    _check_settings(1, 1, 1.0, 1.0, *(float(one.min(initial=0.0)) for one in of_rows))
    i, j, r = _pairs(user, item, value, num_users, num_items)
    apart = None if held is None else _pairs(*held, num_users, num_items)
    from custom_inference.families.ratings.sgd_kernel import pass_over  # compiles when first used

    visit: Any = pass_over
    rng, mean = np.random.default_rng(seed), float(r.mean())
    u, v = (spread * rng.standard_normal((size, num_factors)) for size in (num_users, num_items))
    f, g = np.zeros(num_users), np.zeros(num_items)
    if start is not None:
        u, v, f, g = (np.array(one, np.float64, order="C") for one in start)
    trace, held_trace, rate = [], [], learning_rate
    for step in range(passes):
        visit(rng.permutation(len(r)), i, j, r - mean, u, v, f, g, rate, *of_rows, biases)
        found = SGDFactors(u, v, f, g, mean, np.array(trace), np.array(held_trace))
        trace.append(_error(found, i, j, r))
        if not np.isfinite(trace[-1]):
            raise MethodError(f"pass {step + 1} left the finite numbers; expected a learning_rate below {rate:g}")
        if apart is not None:
            held_trace.append(_error(found, *apart))
        yield SGDFactors(u, v, f, g, mean, np.array(trace), np.array(held_trace))
        rate *= decay


def _error(found: SGDFactors, i: Any, j: Any, r: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.mean((r - found.predict(i, j)) ** 2)))


def _pairs(user: Any, item: Any, value: Any, num_users: int, num_items: int) -> tuple[Any, Any, Array]:
    i, j = (np.ascontiguousarray(one, dtype=np.int64).ravel() for one in (user, item))
    r = np.ascontiguousarray(value, dtype=np.float64).ravel()
    if not len(i) == len(j) == len(r) or not len(r):
        found = f"{len(i)} users, {len(j)} items, {len(r)} values"
        raise DataError(found, axis="pair", expected="one of each for every pair, and at least one pair")
    for site, number, size in (("user", i, num_users), ("item", j, num_items)):
        if number.min() < 0 or number.max() >= size:
            raise DataError(f"numbers from {number.min()} to {number.max()}", site=site, expected=f"0 to {size - 1}")
    if not np.isfinite(r).all():
        raise DataError(
            f"{int((~np.isfinite(r)).sum())} values are not finite", site="value", expected="finite numbers"
        )
    return i, j, r


def _check_settings(factors: int, passes: int, rate: float, decay: float, *rest: float) -> None:
    if factors < 1 or passes < 1 or not rate > 0 or not 0 < decay <= 1 or min(rest) < 0:
        found = f"num_factors = {factors}, passes = {passes}, learning_rate = {rate}, decay = {decay}, {rest}"
        raise MethodError(f"{found}; expected positive ones, decay at most 1, and regularizers of at least 0")
