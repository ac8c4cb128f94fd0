"""Draws from PG(1, z), compiled: import inside functions only.

Polson, Scott & Windle, *Bayesian inference for logistic models using Polya-Gamma latent variables*, JASA 108 (2013),
section 4: Devroye's alternating series, whose terms are those of an exponential right of .64 and of an inverse Gaussian
left of it.
"""

from __future__ import annotations

import math

import numpy as np

from custom_inference.families.common.compiled import Reals, entry, inner, part

#: Where the two forms of the series meet.
_CUT = 0.64


@entry
def polya_gamma(z: Reals, generator: np.random.Generator, out: Reals):
    """Fill out (M,) with a draw from PG(1, z_m) each."""
    for m in range(len(z)):
        out[m] = _draw(0.5 * abs(z[m]), generator)


@part
def _draw(z: float, generator: np.random.Generator):
    rate = 0.125 * math.pi**2 + 0.5 * z * z
    right = 0.5 * math.pi / rate * math.exp(-rate * _CUT)
    # The distribution function of the inverse Gaussian (1 / z, 1) at the cut.
    root = math.sqrt(1 / _CUT)
    below = _normal(root * (_CUT * z - 1)) + math.exp(2 * z) * _normal(-root * (_CUT * z + 1))
    left = 2 * math.exp(-z) * below
    while True:
        if generator.random() * (right + left) < right:
            x = _CUT + generator.standard_exponential() / rate
        else:
            x = _draw_truncated(z, generator)
        total, n = _term(0, x), 0
        y = generator.random() * total
        while True:
            n += 1
            if n % 2 == 1:
                total -= _term(n, x)
                if y <= total:
                    return 0.25 * x
            else:
                total += _term(n, x)
                if y > total:
                    break


@inner
def _term(n: int, x: float):
    k = n + 0.5
    if x <= _CUT:
        return math.pi * k * (2 / (math.pi * x)) ** 1.5 * math.exp(-2 * k * k / x)
    return math.pi * k * math.exp(-0.5 * k * k * math.pi**2 * x)


@inner
def _normal(x: float):
    return 0.5 * math.erfc(-x / math.sqrt(2))


@part
def _draw_truncated(z: float, generator: np.random.Generator):
    """Draw from the inverse Gaussian (1 / z, 1) left of the cut."""
    if z * _CUT < 1:  # its mean lies right of the cut: a chi-square's reciprocal, thinned
        while True:
            while True:
                one, two = generator.standard_exponential(), generator.standard_exponential()
                if one * one <= 2 * two / _CUT:
                    break
            x = _CUT / (1 + _CUT * one) ** 2
            if generator.random() <= math.exp(-0.5 * z * z * x):
                return x
    mean = 1 / z
    while True:
        y = generator.standard_normal() ** 2
        x = mean + 0.5 * mean * mean * y - 0.5 * mean * math.sqrt(4 * mean * y + (mean * y) ** 2)
        if generator.random() > mean / (mean + x):
            x = mean * mean / x
        if x < _CUT:
            return x
