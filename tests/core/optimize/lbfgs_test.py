"""L-BFGS up a function, with its own slopes or differentiated, and around places where it is not finite."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from custom_inference.core.ended import Ended
from custom_inference.core.optimize.lbfgs import maximise, minimise


@pytest.mark.parametrize("sloped", [False, True])
def test_the_maximum_of_a_quadratic_is_found(sloped):
    goal = torch.tensor([[1.0, -2.0], [0.5, 3.0]])

    def objective(at):
        gap = at["a"] - goal
        value = -gap.square().sum() - (at["b"] - 4).square()
        return (value, {"a": -2 * gap, "b": -2 * (at["b"] - 4)}) if sloped else value

    start = {"a": torch.zeros(2, 2), "b": torch.tensor(0.0)}
    found, value = maximise(objective, start, 50, sloped=sloped)
    assert torch.allclose(found["a"], goal, atol=1e-4) and abs(float(found["b"]) - 4) < 1e-4
    assert found["a"].dtype == torch.get_default_dtype() and abs(value) < 1e-7


def test_places_that_are_not_finite_are_avoided():
    def objective(at):
        return torch.log(2 - at["a"]) + 10 * at["a"]  # not a number beyond 2

    found, _ = maximise(objective, {"a": torch.tensor(0.0)}, 100)
    assert abs(float(found["a"]) - 1.9) < 1e-4


def test_products_of_scipy_have_one_thread_while_it_climbs():
    """Those beside torch's would wait for each other's processors."""
    threads = []

    def objective(at):
        blas = [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]
        threads.append(max(blas, default=1))
        return -(at["x"] - 1).square().sum()

    before = threadpool_info()
    maximise(objective, {"x": torch.zeros(3, dtype=torch.float64)}, 5)
    assert set(threads) == {1} and threadpool_info() == before


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e8])
def test_a_function_is_minimised_within_bounds_whatever_its_scale(scale):
    """Beyond 2 there is no number, and beyond the bounds there are lower values."""
    reported = []

    def function(at):
        value, slope = (
            scale * (at[0] ** 2 - np.log(2 - at[0]) + at[1]),
            scale * np.array([2 * at[0] + 1 / (2 - at[0]), 1]),
        )
        return (value, slope) if at[0] < 2 else (np.nan, slope)

    with np.errstate(all="ignore"):
        found, value, _ = minimise(
            function,
            np.array([1.9, 0.0]),
            bounds=[(-9.0, 9.0), (-0.5, 9.0)],
            callback=lambda at, value: reported.append(value),
            gtol=1e-9 * scale,
            ftol=1e-14,
        )
    # 2 x (2 - x) + 1 = 0
    assert np.allclose(found, [1 - np.sqrt(1.5), -0.5], atol=1e-4)
    assert value == reported[-1] == min(reported)


@pytest.mark.parametrize(
    ("slope", "options", "ended"),
    [
        (lambda at: 2 * at, {}, Ended.CONVERGED),
        (lambda at: 2 * at, {"maxiter": 1}, Ended.LIMIT),
        (lambda at: -2 * at, {}, Ended.FAILED),  # a wrong slope: there is no lower point that way
    ],
)
def test_how_it_ended_is_told(slope, options, ended):
    weight = np.array([1.0, 30.0, 4.0])
    assert minimise(lambda at: (float(weight @ at**2), slope(at) * weight), np.ones(3), **options)[2] is ended


def test_a_minimum_that_rounding_hides_counts_as_one():
    """The value comes in steps, so that no lower point is found next to the minimum, from there least of all."""

    def function(at):
        return float(np.round(300 + (at**2).sum(), 7)), 2 * at

    tight = {"ftol": 0.0, "gtol": 0.0}
    found, _, ended = minimise(function, np.ones(3), **tight)
    assert ended is Ended.CONVERGED and np.abs(found).max() < 1e-3
    assert minimise(function, found + 1e-5, **tight)[2] is Ended.CONVERGED


def test_a_minimum_to_begin_with_is_one_though_its_value_does_not_come_again():
    """As of integrals, whose last digits depend on what was evaluated before."""
    drift = iter(range(1000))
    start = np.full(3, 1e-9)
    found, value, ended = minimise(lambda at: (300 + (at**2).sum() + 1e-9 * next(drift), 2 * at), start, gtol=1e-12)
    assert ended is Ended.CONVERGED and found is start and value == 300 + (start**2).sum()
