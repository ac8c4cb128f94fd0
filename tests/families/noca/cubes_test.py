"""NOCA's compiled E step on cubes of codes: against sums over the cube's codes, the dense steps, and any threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from custom_inference.core.engine import Params
from custom_inference.core.posteriors import CodePosterior
from custom_inference.families.noca import truncated as module
from custom_inference.families.noca.split import _Climber, split
from custom_inference.families.noca.truncated import Chosen, NocaTruncated, Transmission
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import NOCA, Data
from tests.references import noca as reference

pytestmark = pytest.mark.quick


def problem(seed: int, missing: float, rows: int = 40, dtype: torch.dtype = torch.float64) -> tuple[Params, BinaryRows]:
    """Random globals, of which some links are all but certain, and rows that were not drawn from them."""
    rng = np.random.default_rng(seed)
    loading = rng.uniform(0.0, 0.98, (9, 14)) * (rng.random((9, 14)) < 0.4)
    loading[0, 0], leak = 1.0, rng.uniform(1e-6, 0.2, 14)
    params = {"source_prior": rng.uniform(0.05, 0.6, 9), "loading": loading, "leak": leak}
    mask = torch.tensor(rng.random((rows, 14)) >= missing) if missing else None
    data = Data(x=torch.tensor((rng.random((rows, 14)) < 0.5) * 1.0).to(dtype), mask=mask)
    return {site: torch.tensor(value).to(dtype) for site, value in params.items()}, BinaryRows.of(data)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_bounds_and_means_are_sums_over_the_codes_of_the_cube(missing):
    params, rows = problem(0, missing)
    engine, step = NocaTruncated(free=3), NocaTruncated(free=3).infer(params, rows)
    arrays = {site: value.numpy() for site, value in params.items()}
    x, mask = rows.ones.numpy(), None if rows.mask is None else rows.mask.numpy()
    found = engine.posterior(NOCA(num_components=9, num_features=14), params, rows, step)
    assert isinstance(found, CodePosterior)
    codes, weight = found.codes.numpy().astype(float), found.log_weight.exp().numpy()
    for n in range(8):
        seen = np.ones(x.shape[1], bool) if mask is None else mask[n]
        off = (1 - arrays["leak"]) * np.prod(1 - codes[n][:, :, None] * arrays["loading"], axis=1)
        chance = np.where(x[n] > 0, 1 - off, off)[:, seen].prod(1)
        prior = np.where(codes[n] > 0, arrays["source_prior"], 1 - arrays["source_prior"]).prod(1)
        joint = chance * prior
        assert np.isclose(float(step.bound[n]), np.log(joint.sum()), atol=1e-10)
        assert np.allclose(weight[n], joint / joint.sum(), atol=1e-10)
        assert np.allclose(step.locals["mean"][n], (joint / joint.sum()) @ codes[n], atol=1e-10)
    assert (step.bound.numpy() <= reference.log_evidence(arrays, x, mask) + 1e-9).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_steps_are_those_of_dense_products(missing, dtype, within):
    """Step after step, of old and new cubes, tempered ones among them; the statistics too."""
    params, rows = problem(1, missing, dtype=dtype)
    engine, warm, other = NocaTruncated(free=3, refresh_every=2), None, None
    for temperature in (1.0, 1.0, 0.5, 1.0):
        step = engine.infer(params, rows, warm, temperature)
        dense = engine.cube_step(Transmission(params, rows), params, rows, other, temperature)
        warm, other = step.locals, dense.locals
        assert torch.allclose(step.bound, dense.bound, atol=within)
        assert torch.allclose(warm["mean"], other["mean"], atol=within) and warm["base"].equal(other["base"])
        for name, value in dense.statistics.items():
            assert torch.allclose(step.statistics[name], value, rtol=100 * within, atol=100 * within), name


def test_chosen_rows_do_without_a_source():
    params, rows = problem(2, 0.2)
    place, forbid = torch.tensor([3, 3, 7, 0]), torch.tensor([0, 4, 2, 8])
    found = NocaTruncated(free=4).infer(params, rows, chosen=Chosen(place, forbid))
    for n, source in enumerate(forbid.tolist()):
        without = {**params, "source_prior": params["source_prior"].clone(), "loading": params["loading"].clone()}
        without["loading"][source] = 0.0
        one = NocaTruncated(free=9).infer(without, rows.select(place[n : n + 1]))
        # All codes of the other sources; that one is off, with its own log(1 - pi).
        exact = float(one.bound) + float(torch.log1p(-params["source_prior"][source]))
        assert float(found.locals["mean"][n, source]) == 0.0 and float(found.bound[n]) <= exact + 1e-9
    every = NocaTruncated(free=9).infer(params, rows, chosen=Chosen(place, forbid)).bound
    assert (found.bound <= every + 1e-9).all()


def test_many_improbable_ones_stay_within_numbers():
    """A row of 3000 ones that nothing explains: log p(x) is far below what numbers hold."""
    params = {"source_prior": torch.full((4,), 0.1), "loading": torch.full((4, 3000), 1e-6)}
    params = {site: value.double() for site, value in params.items()} | {"leak": torch.full((3000,), 1e-6).double()}
    rows = BinaryRows(torch.ones(1, 3000, dtype=torch.float64))
    step = NocaTruncated(free=4).infer(params, rows)
    number = torch.arange(5, dtype=torch.float64)
    ways = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]).double()
    on = 1 - (1 - 1e-6) * (1 - 1e-6) ** number
    joint = ways.log() + 3000 * on.log() + number * np.log(0.1) + (4 - number) * np.log(0.9)
    assert torch.allclose(step.bound, torch.logsumexp(joint, 0, keepdim=True), rtol=1e-9)


def test_the_same_bits_on_any_number_of_threads(monkeypatch):
    params, rows = problem(3, 0.1, rows=300)
    whole = NocaTruncated().infer(params, rows)
    monkeypatch.setattr(module, "count_shards", lambda *_: 3)
    found = []
    for number in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda number=number: number)
        found.append(NocaTruncated().infer(params, rows))
    alone, several = found
    for name, value in alone.statistics.items():
        assert value.equal(several.statistics[name]) and torch.allclose(value, whole.statistics[name], rtol=1e-12)
    assert alone.bound.equal(several.bound) and alone.bound.equal(whole.bound)


def test_an_overlay_of_two_sources_is_split_into_them():
    """Half of the rows have the first seven features on, the others the rest; one source stands for both."""
    x = torch.zeros(60, 14, dtype=torch.float64)
    x[::2, :7], x[1::2, 7:] = 1.0, 1.0
    params = {"source_prior": torch.tensor([0.9]), "loading": torch.full((1, 14), 0.5), "leak": torch.full((14,), 0.01)}
    params = {site: value.double() for site, value in params.items()}
    climber = _Climber(NOCA(num_components=1, num_features=14), BinaryRows(x), NocaTruncated(free=1))
    halves = split(climber, climber.start(params, 1), 1, torch.Generator().manual_seed(0))
    found = halves.params["loading"] > 0.5
    assert len(found) == 2 and found.long().sum(0).equal(torch.ones(14, dtype=torch.long))
    assert sorted(found[0].nonzero().flatten().tolist()) in ([*range(7)], [*range(7, 14)])
    assert torch.allclose(halves.params["source_prior"], torch.full((2,), 0.5).double(), atol=0.05)
