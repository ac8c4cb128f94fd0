"""Upper bounds of noisy-or rows by conjugate duals, and brackets of the evidence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from custom_inference import EM, bracket, fit
from custom_inference.core.local_inference import log_likelihood
from custom_inference.families.noca.subsets import Subsets
from custom_inference.families.noca.upper import bound_above, conjugate
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import CTM, NOCA, Data, MethodError
from tests.families.noca.subsets_test import problem
from tests.references import noca as reference


def upper_of(tensors, data: Data, exact_ones: int) -> torch.Tensor:
    model = NOCA(num_components=len(tensors["source_prior"]), num_features=data.x.shape[1])
    return bound_above(model, tensors, data, exact_ones=exact_ones)[0]


def reference_bound(params, x, slope) -> float:
    """U(lambda) of one row by the sum over all codes: each one's P(x_j = 1 | s) replaced by its bound."""
    theta, theta0 = -np.log1p(-params["loading"]), -np.log1p(-params["leak"])
    codes = np.array(list(np.ndindex(*(2,) * len(theta))))
    activation = theta0 + codes @ theta
    dual = (slope + 1) * np.log(slope + 1) - slope * np.log(slope)
    each = x * (slope * activation - dual) - (1 - x) * activation
    prior = codes @ np.log(params["source_prior"]) + (1 - codes) @ np.log1p(-params["source_prior"])
    return float(np.logaddexp.reduce(each.sum(1) + prior))


@pytest.mark.quick
@pytest.mark.parametrize("seen", [1.0, 0.8])
def test_upper_bounds_are_above_and_fall_to_the_evidence(seen):
    for seed in range(4):
        params, tensors, x, mask, _ = problem(seed, 5, 9, 40, seen=seen)
        data = Data(x=torch.tensor(x), mask=None if mask is None else torch.tensor(mask))
        evidence = reference.log_evidence(params, x, mask)
        before = np.full(40, np.inf)
        for exact_ones in range(10):
            found = upper_of(tensors, data, exact_ones).numpy()
            assert (found >= evidence - 1e-10).all()
            assert found.mean() <= before.mean() + 1e-10
            before = found
        assert np.allclose(before, evidence, atol=1e-10), "all ones are exact"


def test_where_all_ones_are_bounded_lambda_is_the_best():
    for seed in range(3):
        params, tensors, x, _, _ = problem(seed, 4, 6, 6, rate=0.6)
        found = upper_of(tensors, Data(x=torch.tensor(x)), 0)
        for row, ours in zip(x, found.tolist(), strict=True):
            if row.sum() == 0:
                continue

            def objective(log_slope, row=row, params=params):
                return reference_bound(params, row, np.exp(log_slope))

            best = minimize(objective, np.zeros(6), method="BFGS", options={"gtol": 1e-8}).fun
            assert ours == pytest.approx(best, abs=1e-5)


def test_the_dual_touches_the_noisy_or():
    """log(1 - e^-a) = min over lambda of lambda a - F(lambda), at lambda = 1 / (e^a - 1)."""
    activation = torch.logspace(-6, 1.5, 200, dtype=torch.float64)
    own = 1 / torch.expm1(activation)
    assert torch.allclose(own * activation - conjugate(own), torch.log(-torch.expm1(-activation)), atol=1e-8)
    for factor in (0.3, 0.9, 1.1, 4.0):
        bound = factor * own * activation - conjugate(factor * own)
        assert (bound >= torch.log(-torch.expm1(-activation)) - 1e-9).all()


def test_extreme_globals_are_bounded_too():
    """A leak next to nothing, links and priors at the edges."""
    _, tensors, x, _, _ = problem(4, 6, 10, 30, rate=0.5)
    tensors["leak"] = torch.full((10,), 1e-6, dtype=torch.float64)
    tensors["loading"][0], tensors["loading"][1] = 1 - 1e-6, 1e-6
    tensors["source_prior"][:2] = torch.tensor([1e-6, 1 - 1e-6])
    data = Data(x=torch.tensor(x))
    evidence = Subsets.of(tensors, BinaryRows.of(data)).log_evidence()
    for exact_ones in (0, 2, 4):
        found = upper_of(tensors, data, exact_ones)
        assert torch.isfinite(found).all() and (found >= evidence - 1e-9).all()


def test_brackets_hold_the_evidence():
    """Of rows beyond a default's reach: dense ones beside sparse ones."""
    _, tensors, x, _, _ = problem(7, 24, 40, 30, rate=0.15)
    tensors["source_prior"] *= 0.3
    x[:3] = np.random.default_rng(0).random((3, 40)) < 0.6
    data, model = Data(x=torch.tensor(x)), NOCA(num_components=24, num_features=40)
    found = bracket(model, tensors, data, exact_ones=6)
    count = data.x.sum(1)
    assert torch.equal(found.exact, count <= 6) and bool(found.exact.any()) and not bool(found.exact.all())
    within = count <= 15
    evidence = Subsets.of(tensors, BinaryRows(data.x[within])).log_evidence()
    assert (found.lower[within] <= evidence + 1e-9).all() and (evidence <= found.upper[within] + 1e-9).all()
    assert (found.width[found.exact] == 0).all() and (found.width[~found.exact] > 0).all()
    rest = data.rows((~found.exact).nonzero().flatten())
    own = [log_likelihood(model, tensors, rest, bound=name) for name in ("truncated", "mean_field", "factorized")]
    assert torch.equal(found.lower[~found.exact], torch.stack(own).amax(0))  # no estimate, which may be above
    narrower = bracket(model, tensors, data, exact_ones=9)
    assert float(narrower.width.mean()) < float(found.width.mean())
    assert repr(found).endswith(f"exact for {int(found.exact.sum())} of 30 rows") and "nats a row" in repr(found)


def test_brackets_are_points_where_sums_are_cheap():
    example = NOCA.example()
    found = fit(example.model, example.data, progress=False)
    both = bracket(example.model, found, example.data)
    assert torch.equal(both.lower, both.upper) and both.exact.all() and "exact for all of 60 rows" in repr(both)
    assert torch.allclose(both.lower, found.log_likelihood(), atol=1e-9)
    learned = EM().fit(example.model, example.data, progress=False)
    assert bracket(learned.model, learned, example.data.x[:7]).width.shape == (7,)


def test_what_has_no_bracket_is_refused():
    example = CTM.example()
    truth = {site: example.truth[site] for site in example.model.global_sites}
    with pytest.raises(MethodError, match="nothing bounds log p"):
        bracket(example.model, truth, example.data)
    model, (_, tensors, x, _, _) = NOCA(num_components=3, num_features=5), problem(0, 3, 5, 4)
    with pytest.raises(MethodError, match="exact_ones = -1, expected a whole number"):
        bracket(model, tensors, torch.tensor(x), exact_ones=-1)
