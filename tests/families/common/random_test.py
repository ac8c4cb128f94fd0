"""Random numbers of compiled loops are SplitMix64's, whose outputs from the seed 1234567 are published."""

import math

import numpy as np

from custom_inference.families.common.compiled import entry
from custom_inference.families.common.random import draw_next, draw_single, draw_uniform, log_gamma

OUTPUTS = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


@entry
def _gamma(x):
    return log_gamma(x)


@entry
def _next(rng):
    return draw_next(rng)


def test_numbers_are_the_leading_bits_of_splitmix64():
    state, single, rng = np.uint64(1234567), np.uint64(1234567), np.array([1234567], np.uint64)
    for output in OUTPUTS:
        uniform, state = draw_uniform(np.uint64(state))
        assert uniform == (output >> 11) / 2**53 == _next(rng)
        short, single = draw_single(np.uint64(single))
        assert short == np.float32((output >> 40) / 2**24)


def test_log_gamma_is_that_of_the_standard_library():
    for x in (0.01, 0.5, 1.0, 7.99, 8.0, 123.4, 1e6):
        assert math.isclose(_gamma(x), math.lgamma(x), rel_tol=1e-12, abs_tol=1e-12)
