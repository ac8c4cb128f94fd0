"""Exact sums over the subsets of a row's ones: against enumeration of codes, by draws, and what is out of reach."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from custom_inference import EM, Exact, Fit, VariationalEM, compare
from custom_inference.core.local_inference import is_feasible, log_likelihood, solve_local
from custom_inference.core.posteriors import CodePosterior, kullback_leibler
from custom_inference.families.noca import exact as exact_module
from custom_inference.families.noca.exact import NocaExact, find_reach
from custom_inference.families.noca.posterior import NoisyOrPosterior, SourceTables
from custom_inference.families.noca.subsets import Subsets, find_distinct
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import NOCA, CapacityError, Data, MethodError
from tests.references import noca as reference


def problem(seed: int, num_components: int, num_features: int, num_rows: int, *, rate: float = 0.4, seen: float = 1.0):
    """Random globals of sparse links and random rows, not drawn from them; some entries missing."""
    rng = np.random.default_rng(seed)
    links = rng.random((num_components, num_features)) < 0.4
    params = {
        "source_prior": rng.uniform(0.02, 0.8, num_components),
        "loading": rng.uniform(0.0, 0.98, (num_components, num_features)) * links,
        "leak": rng.uniform(0.001, 0.2, num_features),
    }
    x = (rng.random((num_rows, num_features)) < rate).astype(float)
    mask = rng.random(x.shape) < seen
    tensors = {site: torch.tensor(value) for site, value in params.items()}
    rows = BinaryRows.of(Data(x=torch.tensor(x), mask=None if seen == 1 else torch.tensor(mask)))
    return params, tensors, x, None if seen == 1 else mask, rows


def by_codes(tensors: dict[str, torch.Tensor], rows: BinaryRows) -> tuple[torch.Tensor, torch.Tensor]:
    """log p(x_n) and E[s_n | x_n] by the table of all codes."""
    tables = SourceTables.of(tensors, rows)
    joint = tables.joint(rows)
    return joint.logsumexp(-1), torch.softmax(joint, -1) @ tables.codes


@pytest.mark.quick
def test_a_thousand_rows_agree_with_the_codes():
    for seed, num_components in enumerate([1, 2, 4, 5, 7, 8, 10, 12, 13, 14]):
        _, tensors, _, _, rows = problem(seed, num_components, 15, 100, seen=0.9 if seed % 2 else 1.0)
        evidence, mean = by_codes(tensors, rows)
        found = Subsets.of(tensors, rows)
        expected = found.expect()
        assert (found.log_evidence() - evidence).abs().max() < 1e-10
        assert (expected.log_evidence - evidence).abs().max() < 1e-10
        assert (expected.mean - mean).abs().max() < 1e-10


@pytest.mark.parametrize("seen", [1.0, 0.7])
def test_expected_transmissions_agree_with_the_sum_over_codes(seen):
    """E[s_i z_ij | x] = sum_c p(c | x) c_i p_ij / P(x_j = 1 | c) of every one, and of the leak."""
    params, tensors, x, mask, rows = problem(3, 4, 7, 25, seen=seen)
    weight = reference.posterior(params, x, mask)
    codes = np.array(list(np.ndindex(*(2,) * 4)))
    on = 1 - (1 - params["leak"]) * np.prod(1 - codes[:, :, None] * params["loading"], axis=1)
    ones = x if mask is None else x * mask
    ratio = np.einsum("nc,nj->cj", weight, ones) / on
    found = Subsets.of(tensors, rows).expect()
    assert np.allclose(found.log_evidence, reference.log_evidence(params, x, mask), atol=1e-10)
    assert np.allclose(found.mean, weight @ codes, atol=1e-10)
    assert np.allclose(found.sent, params["loading"] * (codes.T @ ratio), atol=1e-10)
    assert np.allclose(found.sent_leak, params["leak"] * ratio.sum(0), atol=1e-10)


def test_expectations_are_the_slopes_of_the_evidence():
    """d log p(x) / d logit pi_i = E[s_i] - pi_i; d / dp_ij = E[s_i z_ij] / p_ij - E[s_i (1 - z_ij)] / (1 - p_ij)."""
    _, tensors, _, _, rows = problem(5, 20, 30, 1, rate=0.25)
    found, step = Subsets.of(tensors, rows).expect(), 1e-6

    def slope(site: str, index: tuple[int, ...]) -> float:
        high, low = ({**tensors, site: tensors[site].clone()} for _ in range(2))
        high[site][index] += step
        low[site][index] -= step
        return float(Subsets.of(high, rows).log_evidence() - Subsets.of(low, rows).log_evidence()) / (2 * step)

    one = int(rows.ones[0].nonzero()[0])
    zero = int(rows.zeros[0].nonzero()[0])
    for i in (0, 7, 19):
        pi, mean = tensors["source_prior"][i], found.mean[0, i]
        assert slope("source_prior", (i,)) == pytest.approx(float((mean - pi) / (pi * (1 - pi))), abs=1e-6)
        for j in (one, zero):
            p, sent = tensors["loading"][i, j], found.sent[i, j]
            expected = (sent / p if sent > 0 else 0.0) - (mean - sent) / (1 - p)
            assert p == 0 or slope("loading", (i, j)) == pytest.approx(float(expected), abs=1e-6)
    leak, sent = tensors["leak"][one], found.sent_leak[one]
    assert slope("leak", (one,)) == pytest.approx(float(sent / leak - (1 - sent) / (1 - leak)), abs=1e-5)


def test_rows_without_ones_or_entries_and_equal_rows():
    _, tensors, _, _, _ = problem(0, 5, 6, 1)
    x = torch.tensor([[0.0] * 6, [1.0] * 6, [0.0] * 6, [1.0, 0, 1, 0, 0, 0], [1.0, 0, 1, 0, 0, 0]])
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2] = False
    mask[4, 1] = False
    rows = BinaryRows(x * mask, mask)
    first, place = find_distinct(rows)
    assert len(first) == 5 and torch.equal(first[place], torch.arange(5))
    assert len(find_distinct(BinaryRows(x))[0]) == 3, "without a mask equal rows are one"
    evidence, mean = by_codes(tensors, rows)
    found = Subsets.of(tensors, rows).expect()
    assert torch.allclose(found.log_evidence, evidence, atol=1e-12) and torch.allclose(found.mean, mean, atol=1e-12)
    assert found.log_evidence[2] == pytest.approx(0.0, abs=1e-12)
    repeated = BinaryRows(x.repeat(3, 1))
    once, thrice = Subsets.of(tensors, BinaryRows(x)).expect(), Subsets.of(tensors, repeated).expect()
    assert torch.allclose(thrice.sent, 3 * once.sent) and torch.allclose(thrice.sent_leak, 3 * once.sent_leak)


def test_rows_that_are_next_to_impossible_are_taken_in_logarithms():
    """Four sources under a leak of 1e-100, of which none alone reaches all ones; and the same sums where both apply."""
    _, tensors, _, _, rows = problem(2, 4, 8, 6, rate=0.6)
    faint = {**tensors, "leak": torch.full((8,), 1e-100)}
    faint["loading"] = tensors["loading"] * (torch.arange(8) < 3)
    evidence, mean = by_codes(faint, rows)
    sums = Subsets.of(faint, rows)
    found = sums.expect()
    assert float(evidence.min()) < -700, "below what is a number"
    assert torch.allclose(found.log_evidence, evidence, atol=1e-9) and torch.allclose(found.mean, mean, atol=1e-9)
    assert torch.allclose(sums.log_evidence(), evidence, atol=1e-9)
    assert (sums.draw(4000, 0).double().mean(0) - mean).abs().max() < 0.05
    usual = Subsets.of(tensors, rows)
    expected = usual.expect()
    for row, at in enumerate(usual.place.tolist()):
        value, each, sent, leak = usual._in_logs(at).expect()
        assert value + float(usual.log_factor[at]) == pytest.approx(float(expected.log_evidence[row]), abs=1e-12)
        assert np.allclose(each, expected.mean[row], atol=1e-12)
        alone = Subsets.of(tensors, rows.select(slice(row, row + 1))).expect()
        on = rows.ones[row] > 0
        assert np.allclose(sent, alone.sent[:, on]) and np.allclose(leak, alone.sent_leak[on])


def test_draws_have_the_posterior_of_the_codes():
    _, tensors, _, _, rows = problem(6, 5, 8, 3, seen=0.9)
    tables = SourceTables.of(tensors, rows)
    weight = torch.softmax(tables.joint(rows), -1)
    drawn = Subsets.of(tensors, rows).draw(20000, 1).long()
    place = (drawn * 2 ** torch.arange(5)).sum(-1)
    for n in range(3):
        share = torch.bincount(place[:, n], minlength=32) / len(place)
        error = torch.sqrt(weight[n] * (1 - weight[n]) / len(place))
        assert ((share - weight[n]).abs() < 4.5 * error + 1e-4).all()


@pytest.fixture
def beyond_codes(monkeypatch):
    """Models of more than three sources count as having many."""
    monkeypatch.setattr(exact_module, "EXACT_UP_TO", 3)


@pytest.mark.parametrize("seen", [1.0, 0.8])
def test_steps_by_subsets_are_those_by_codes(beyond_codes, monkeypatch, seen):
    """Whatever the rows are summed by, posterior and M step are the same."""
    params, tensors, x, mask, rows = problem(8, 5, 9, 30, seen=seen)
    model, found = NOCA(num_components=5, num_features=9), []
    reach = find_reach(model, rows)
    for codes in (torch.zeros(30), torch.ones(30), torch.arange(30) % 2):
        monkeypatch.setattr(exact_module, "find_reach", lambda *_, codes=codes: reach._replace(by_codes=codes.bool()))
        engine = NocaExact()
        step = engine.e_step(model, tensors, rows)
        posterior = engine.posterior(model, tensors, rows, step)
        assert np.allclose(step.bound, reference.log_evidence(params, x, mask), atol=1e-10)
        assert np.allclose(posterior.mean, by_codes(tensors, rows)[1], atol=1e-10)
        assert (posterior.sample(3000).mean(0) - posterior.mean).abs().max() < 0.05
        found.append(engine.m_step(model, tensors, step, rows))
    monkeypatch.undo()
    engine = NocaExact(inner_steps=1)
    expected = engine.m_step(model, tensors, engine.e_step(model, tensors, rows), rows)
    for new in found:
        assert all(torch.allclose(new[site], expected[site], atol=1e-10) for site in expected)


def large(num_rows: int = 40, num_components: int = 30, rate: float = 0.12):
    _, tensors, x, _, _ = problem(1, num_components, 40, num_rows, rate=rate)
    tensors["source_prior"] *= 0.3
    x[0] = np.maximum(x[0], x.sum(0) == 0)  # every feature is on in some row
    return NOCA(num_components=num_components, num_features=40), tensors, torch.tensor(x)


def test_the_posterior_of_many_sources_is_one_of_codes():
    model, params, x = large()
    local = Exact().local_posterior(model, params, Data(x=x))
    posterior = local.posterior
    assert isinstance(posterior, NoisyOrPosterior) and local.what == "exact"
    draws, log_q = posterior.sample_with_density(2000, seed=3)
    assert draws.shape == (2000, 40, 30) and log_q.shape == (2000, 40)
    assert (draws.mean(0) - posterior.mean).abs().max() < 0.06
    assert torch.allclose(posterior.variance, posterior.mean * (1 - posterior.mean))
    # What is drawn most often has that probability, and the mode no less.
    same = (draws == posterior.mode).all(-1).double().mean(0)
    assert (same - posterior.log_prob(posterior.mode).exp()).abs().max() < 0.06
    assert (posterior.log_prob(posterior.mode) >= log_q.amax(0) - 1e-9).all()
    some = posterior.rows(torch.tensor([3, 5]))
    assert torch.equal(some.mean, posterior.mean[[3, 5]])
    assert torch.allclose(some.log_prob(posterior.mode[[3, 5]]), posterior.log_prob(posterior.mode)[[3, 5]])
    assert posterior.to("cpu") is posterior
    with pytest.raises(CapacityError, match=r"a table of 2\^30 codes a row"):
        posterior.table()


def test_divergences_are_evidence_less_bound():
    model, params, x = large()
    data = Data(x=x)
    exact = Exact().local_posterior(model, params, data)
    for guide in ("truncated", "mean_field"):
        local = VariationalEM(guide=guide).local_posterior(model, params, data)
        divergence = kullback_leibler(local.posterior, exact.posterior)
        assert torch.allclose(divergence, exact.bound - local.bound, atol=1e-6) and float(divergence.max()) > 0.01
    assert kullback_leibler(exact.posterior, exact.posterior).abs().max() < 1e-9
    every = CodePosterior(exact.posterior.sample(1).permute(1, 0, 2), torch.zeros(40, 1, dtype=torch.float64))
    assert torch.allclose(
        kullback_leibler(every, exact.posterior), -exact.posterior.log_prob(every.codes[:, 0]), atol=1e-9
    )


def test_comparison_of_many_sources_has_an_evidence():
    model, params, x = large()
    table = compare(["exact", "truncated", "mean_field", "factorized"], model, x, at=params, progress=False).table
    columns: dict[str, dict[str, float]] = table.drop(columns=["what", "posterior"]).to_dict()
    evidence, gap, divergence = (columns[name] for name in ("evidence", "gap_per_row", "kl_per_row"))
    worst = columns["worst_marginal_error"]
    assert len(set(evidence.values())) == 1 and np.isfinite(evidence["exact"]) and gap["exact"] == 0
    assert gap["truncated"] == pytest.approx(divergence["truncated"], abs=1e-6)
    assert gap["mean_field"] == pytest.approx(divergence["mean_field"], abs=1e-6)
    assert gap["factorized"] > divergence["factorized"] > 0
    assert min(worst[name] for name in worst if name != "exact") > worst["exact"] == 0


def test_fits_among_the_methods_have_their_own_bounds():
    """Of codes of each row's own, and of exact posteriors without a table and with one."""
    for size in (5, 20):
        model, params, x = large(20, num_components=size)
        start = {site: value.clamp(0.01, 0.9) for site, value in params.items()}
        fits = [one(search=None, max_iterations=2).fit(model, x, init=start, progress=False)
                for one in (EM, partial(VariationalEM, guide="truncated"))]  # fmt: skip
        for found in fits:
            line = compare([found], model, x, at=found, progress=False).table.iloc[0]
            assert found.local is not None
            assert line["bound"] == pytest.approx(float(found.local.bound.sum()), abs=1e-8)
            assert line["gap_per_row"] == pytest.approx(line["kl_per_row"], abs=1e-8)


def test_exact_sums_are_a_default_where_rows_have_few_ones():
    model, params, x = large()
    dense = torch.ones(3, 40, dtype=torch.float64)
    few, many = Data(x=x), Data(x=torch.cat([x, dense]))
    assert is_feasible(model, few) and not is_feasible(model, many) and not is_feasible(model)
    assert isinstance(solve_local(model, params, few).posterior, NoisyOrPosterior)
    assert find_reach(model, BinaryRows.of(many)).within.tolist() == [True] * 40 + [False] * 3
    assert torch.allclose(log_likelihood(model, params, few), Subsets.of(params, BinaryRows(x)).log_evidence())
    message = r"3 of 43 rows are out of reach: they have up to 40 ones, and beside 30 sources the subsets of up to \d+"
    with pytest.raises(CapacityError, match=message + r".*Lower bounds available: bound='truncated'"):
        log_likelihood(model, params, many)
    with pytest.raises(CapacityError, match=message):
        EM().fit(model, many, progress=False)
    with pytest.raises(CapacityError, match=r"\d+ of 40 rows are out of reach"):
        NocaExact(max_bytes=1000.0).check(model, BinaryRows(x))


def test_exact_em_of_many_sources(tmp_path):
    """It ascends, its objective is the evidence, and a saved fit is what it was."""
    model, params, x = large(60, num_components=20)
    start = {site: value.clamp(0.01, 0.9) for site, value in params.items()}
    fit = EM(search=None, max_iterations=15).fit(model, x, init=start, progress=False)
    assert bool((fit.elbo.diff() > -1e-9).all()) and fit.bound_name == "exact"
    assert float(fit.elbo[-1]) == pytest.approx(float(fit.log_likelihood().sum()), abs=1e-8)
    assert fit.bic() == pytest.approx(fit.bic(bound="exact"))
    assert torch.allclose(fit.transform(), fit.transform(x[:]), atol=1e-9)
    again = Fit.load(fit.save(tmp_path / "fit"))
    assert torch.allclose(again.transform(), fit.transform(), atol=1e-9)
    single = EM(search=None, max_iterations=15).fit(model, x, init=start, progress=False, dtype=torch.float32)
    assert float(single.elbo[-1]) == pytest.approx(float(fit.elbo[-1]), rel=1e-4)
    with pytest.raises(MethodError, match=r"a temperature of 0\.5 with 20 sources; expected 1"):
        NocaExact().e_step(model, start, BinaryRows(x), temperature=0.5)
