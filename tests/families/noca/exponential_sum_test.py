"""The exponential sum behind the mean-field bound, against extended precision off its own grid."""

import numpy as np
import pytest

from custom_inference.families.noca.exponential_sum import exponential_sum

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("a_min", [3.0, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-7])
def test_error_is_what_it_says(a_min, tolerance):
    terms = exponential_sum(a_min, tolerance)
    rng = np.random.default_rng(0)
    a = np.exp(rng.uniform(np.log(a_min), np.log(a_min) + 20, 20000)).astype(np.longdouble)
    exact = -np.log1p(-np.exp(-a))
    value = np.exp(-np.outer(a, terms.nodes.numpy())) @ terms.weights.numpy().astype(np.longdouble)
    assert np.abs(value - exact).max() <= terms.error <= 1.1 * tolerance
    assert (terms.weights > 0).all() and (terms.weights * terms.nodes).max() < 1e30, "must survive float32"
    assert len(terms.nodes) < 90


def test_bad_arguments():
    for a_min, tolerance in ((0.0, 1e-6), (float("nan"), 1e-6), (0.1, 0.0)):
        with pytest.raises(ValueError, match="expected positive"):
            exponential_sum(a_min, tolerance)
