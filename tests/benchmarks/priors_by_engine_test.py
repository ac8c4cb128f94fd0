"""Priors that a method once ignored, left, or failed at, by the program that tries all of them."""

from __future__ import annotations

import pytest

from benchmarks.quality.priors_by_engine import STEPS, asked, ran, small
from ppl_models import ModelError

CASES = [
    ("helmholtz_machine", "bias_0", "known", "wake_sleep", "held"),
    ("helmholtz_machine", "weight_1", "narrow", "reweighted_wake_sleep", "honoured"),
    ("rbm", "weight", "narrow", "pcd", "honoured"),
    ("rtm", "link_bias", "narrow", "gibbs", "honoured"),
    ("dirichlet_multinomial_regression", "prevalence_bias", "uniform", "gibbs", "slice"),
    ("infinite_sbm", "edge_probability", "uniform", "mean_field", "numerical"),
]


def exchanged(name, site, kind):
    plain, data = small(name)
    made = {(one, other): make for one, other, make in asked(plain)}[site, kind]
    shape = plain.shapes[site]
    return lambda: plain.with_priors(**{site: made(shape[-1] if shape else 1)}), data


@pytest.mark.parametrize(("name", "site", "kind", "method", "expected"), CASES)
def test_priors_are_honoured(name, site, kind, method, expected, monkeypatch):
    monkeypatch.setitem(STEPS, "pcd", 300)
    model, data = exchanged(name, site, kind)
    assert ran(model(), data, method, site, kind) == expected


def test_walks_have_no_bounded_first_step():
    model, _ = exchanged("dtm", "topic_logit", "uniform")
    with pytest.raises(ModelError, match="any real number"):
        model()
