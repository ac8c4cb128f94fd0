"""The aspect Bernoulli tools on planted data: phantoms, attribution, denoising, expansion, empirical Bayes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from custom_inference import EM, VariationalEM
from custom_inference.checks.empirical_bayes import empirical_bayes_log_likelihood
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import PointPosterior
from custom_inference.families.aspects.explain import attribute, denoise, expand, phantoms
from ppl_models import (
    CVQ,
    NOCA,
    AspectBernoulli,
    CapacityError,
    Data,
    DataError,
    LogisticPCA,
    MethodError,
    MixtureOfBernoullis,
    ModelError,
)
from tests.references import aspect_bernoulli as reference
from tests.references import logistic_pca as logistic_reference
from tests.support.fits import given

WORDS = [f"word{t}" for t in range(24)]


def corrupted(black: bool = False, num_rows: int = 500, seed: int = 0):
    """Three groups of rows, each with eight features of its own; then a share of the ones (zeros) is flipped."""
    rng = np.random.default_rng(seed)
    group = rng.integers(3, size=num_rows)
    clean = (np.arange(24) // 8 == group[:, None]).astype(float)
    clean = np.where(rng.random(clean.shape) < 0.03, 1 - clean, clean)
    hit = rng.random(clean.shape) < rng.uniform(0, 0.7, (num_rows, 1))
    return clean, np.where(hit & (clean == black * 0.0 if black else clean == 1), 1 - clean, clean), group


@pytest.fixture(scope="module", params=["white", "black"])
def planted(request):
    clean, noisy, group = corrupted(black=request.param == "black")
    frame = pd.DataFrame(noisy, columns=WORDS, index=[f"doc{n}" for n in range(len(noisy))])
    model = AspectBernoulli(num_components=4, num_features=24)
    fit = VariationalEM(guide="map").fit(model, frame, seed=0, progress=False)
    return request.param, fit, clean, noisy, group


def hand_made(num_rows: int = 6, seed: int = 0, total_count: int = 1, mask=None) -> Fit:
    """A fit with known parameters, for identities that hold at any parameters."""
    rng = np.random.default_rng(seed)
    aspect, membership = rng.uniform(0.05, 0.95, (3, 5)), rng.dirichlet(np.ones(3), num_rows)
    x = rng.integers(0, total_count + 1, (num_rows, 5)).astype(float)
    model = AspectBernoulli(num_components=3, num_features=5, total_count=total_count)
    params = {"aspect_probability": torch.tensor(aspect), "membership": torch.tensor(membership)}
    local = Local(PointPosterior(params["membership"]), torch.full((num_rows,), torch.nan))
    return given(model, params, model.prepare(x, mask=mask, dtype=torch.float64), local=local)


def test_the_planted_phantom_is_found(planted):
    kind, fit, _, _, _ = planted
    table = phantoms(fit)
    assert table["kind"].tolist() == [kind], table
    aspect = fit.params["aspect_probability"]
    k = int(table.index[0])
    line = table.loc[k]
    assert np.allclose([line["mean"], line["max"], line["sum"]], [aspect[k].mean(), aspect[k].max(), aspect[k].sum()])
    assert np.isclose(line["share"], fit.params["membership"][:, k].mean())
    assert (line["mean"] < 0.02) if kind == "white" else (line["mean"] > 0.98)


def test_the_phantoms_share_goes_with_the_corruption(planted):
    _, fit, clean, noisy, _ = planted
    share = fit.params["membership"][:, int(phantoms(fit).index[0])].numpy()
    assert np.corrcoef(share, (clean != noisy).sum(1))[0, 1] > 0.7


def test_thresholds_say_what_counts_as_a_phantom(planted):
    _, fit, _, _, _ = planted
    assert len(phantoms(fit, mean=0.0)) == 0
    assert phantoms(fit, mean=0.0).columns.tolist() == phantoms(fit).columns.tolist()
    assert len(phantoms(fit, mean=1.0, extreme=1.0, relative=np.inf)) == 8


def test_data_without_corruption_have_no_phantom():
    clean, _, _ = corrupted()
    model = AspectBernoulli(num_components=3, num_features=24)
    fit = VariationalEM(guide="map").fit(model, clean, progress=False)
    assert len(phantoms(fit)) == 0
    with pytest.raises(MethodError, match=r"no white phantom: the nearest is aspect \d.*raise the thresholds"):
        denoise(fit)
    with pytest.raises(MethodError, match="no black phantom"):
        expand(fit, 0, phantom="black")


@pytest.mark.quick
@pytest.mark.parametrize("total_count", [1, 2])
def test_attribution_is_equation_7(total_count):
    fit = hand_made(total_count=total_count)
    params = {"aspect_probability": fit.params["aspect_probability"].numpy()}
    on, off = reference.responsibilities(params, fit.params["membership"].numpy())
    ones = fit.data.x.numpy()[..., None] / total_count
    expected = np.moveaxis(ones * on + (1 - ones) * off, -1, 0)
    q = attribute(fit)
    assert q.dims == ("component", "row", "feature")
    assert np.allclose(q, expected, atol=1e-12) and np.allclose(q.sum("component"), 1)


def test_attribution_of_missing_entries_is_the_membership():
    mask = np.random.default_rng(1).random((6, 5)) > 0.4
    fit = hand_made(mask=mask)
    q = attribute(fit).values
    assert np.allclose(q.sum(0), 1)
    expected = np.broadcast_to(fit.params["membership"].T.numpy()[:, :, None], q.shape)
    assert np.allclose(q[:, ~mask], expected[:, ~mask]) and not np.allclose(q[:, mask], expected[:, mask])


def test_attribution_has_labels_takes_parts_and_new_rows(planted):
    _, fit, _, noisy, _ = planted
    q = attribute(fit)
    assert q.coords["feature"].values.tolist() == WORDS and q.coords["row"].values[3] == "doc3"
    part = attribute(fit, rows=slice(10, 13))
    assert part.shape == (4, 3, 24)
    xr.testing.assert_allclose(part, q.isel(row=slice(10, 13)), rtol=1e-12)
    xr.testing.assert_allclose(attribute(fit, rows=[5, 2]), q.isel(row=[5, 2]), rtol=1e-12)
    new = attribute(fit, noisy[:7])
    assert np.allclose(new.sum("component"), 1) and np.abs(new.values - q.values[:, :7]).mean() < 0.01


def test_false_entries_are_the_phantoms(planted):
    """Flipped entries are attributed to the phantom far more than true ones of the same value."""
    kind, fit, clean, noisy, _ = planted
    q = attribute(fit).sel(component=int(phantoms(fit).index[0])).values
    same = noisy == (kind == "black")
    flipped = clean != noisy
    assert q[same & flipped].mean() > 2 * q[same & ~flipped].mean()


def test_attribution_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("custom_inference.families.aspects.explain.memory_limit", lambda: 100.0)
    monkeypatch.setattr("custom_inference.families.aspects.explain._NEGLIGIBLE_BYTES", 1)
    with pytest.raises(CapacityError, match="30 entries to 3 aspects.*rows="):
        attribute(hand_made())


def test_denoising_removes_the_planted_corruption(planted):
    kind, fit, clean, noisy, _ = planted
    restored = (denoise(fit, drop=kind) > 0.5).numpy().astype(float)
    flipped = clean != noisy
    assert (restored == clean)[flipped].mean() > 0.85
    assert (restored == clean).mean() > 0.95 > (noisy == clean).mean()
    plain = (fit.reconstruct() > 0.5).numpy().astype(float)
    assert (restored == clean).mean() > (plain == clean).mean()
    number = int(phantoms(fit).index[0])
    assert torch.equal(denoise(fit, drop=number), denoise(fit, drop=kind))


def test_denoising_new_rows_and_missing_entries(planted):
    kind, fit, clean, noisy, _ = planted
    mask = np.random.default_rng(0).random(noisy[:100].shape) > 0.2
    restored = denoise(fit, noisy[:100], mask=mask, drop=kind)
    assert ((restored.numpy() > 0.5) == clean[:100]).mean() > 0.9
    other = denoise(fit, np.where(mask, noisy[:100], 1 - noisy[:100]), mask=mask, drop=kind)
    assert torch.equal(restored, other), "what fills a missing entry has no influence"


def test_rows_of_nothing_but_the_phantom_get_average_shares():
    fit = hand_made()
    fit.params["membership"][0] = torch.tensor([0.0, 1.0, 0.0])
    rest = fit.params["membership"].mean(0) * torch.tensor([1.0, 0.0, 1.0])
    expected = rest / rest.sum() @ fit.params["aspect_probability"]
    assert torch.allclose(denoise(fit, drop=1)[0], expected)
    kept = fit.params["membership"][1] * torch.tensor([1.0, 0.0, 1.0])
    assert torch.allclose(denoise(fit, drop=1)[1], kept / kept.sum() @ fit.params["aspect_probability"])


def test_expansion_proposes_the_removed_words():
    clean, noisy, group = corrupted()
    frame = pd.DataFrame(noisy, columns=WORDS)
    fit = VariationalEM(guide="map").fit(AspectBernoulli(num_components=4, num_features=24), frame, progress=False)
    hits = []
    for row in range(60):
        own = set(WORDS[8 * group[row] : 8 * group[row] + 8])
        missing = {WORDS[t] for t in range(24) if clean[row, t] == 1 and noisy[row, t] == 0}
        if noisy[row].sum() < 3 or not missing & own:
            continue
        table = expand(fit, row, top=len(missing & own))
        assert table["probability"].is_monotonic_decreasing
        assert all(noisy[row, WORDS.index(word)] == 0 for word in table.index)
        hits.append(np.mean([word in own for word in table.index]))
    # Of the absent words of such a row about four in ten are its group's.
    assert len(hits) > 20 and np.mean(hits) > 0.8


def test_expansion_takes_labels_and_new_rows(planted):
    kind, fit, _, noisy, _ = planted
    by_number, by_label = expand(fit, 3, phantom=kind), expand(fit, "doc3", phantom=kind)
    pd.testing.assert_frame_equal(by_number, by_label)
    new = expand(fit, noisy[3], phantom=kind)
    assert len(new) and set(new.columns) == {"probability", "mean"}
    value = 1.0 if kind == "black" else 0.0
    assert all(noisy[3, WORDS.index(word)] == value for word in new.index)
    q = attribute(fit).sel(row="doc3", component=int(phantoms(fit).index[0]))
    assert np.allclose(by_number["probability"], [float(q.sel(feature=word)) for word in by_number.index])
    assert np.allclose(by_number["mean"], [float(denoise(fit, drop=kind)[3, WORDS.index(w)]) for w in by_number.index])
    missing = noisy[3].astype(float)
    missing[:4] = np.nan
    missing.flags.writeable = False  # as pandas hands rows out
    assert not set(expand(fit, missing, phantom=kind).index) & set(WORDS[:4]), "missing entries are not absences"


def test_wrong_questions_are_refused(planted):
    _, fit, _, _, _ = planted
    with pytest.raises(MethodError, match="unknown kind of phantom 'grey'; valid: black, white, or"):
        denoise(fit, drop="grey")
    with pytest.raises(MethodError, match="no aspect 9; there are 4"):
        denoise(fit, drop=9)
    with pytest.raises(DataError, match="no row 'doc9999'"):
        expand(fit, "doc9999", phantom=0)
    with pytest.raises(MethodError, match="top = 0"):
        expand(fit, 0, top=0)
    mixture = EM().fit(MixtureOfBernoullis(num_components=2, num_features=24), corrupted()[1], progress=False)
    for tool in (phantoms, attribute, denoise):
        with pytest.raises(ModelError, match="MixtureOfBernoullis; phantoms are aspects"):
            tool(mixture)
    one = VariationalEM(guide="map").fit(
        AspectBernoulli(num_components=1, num_features=24), corrupted()[1], progress=False
    )
    with pytest.raises(MethodError, match="nothing is left"):
        denoise(one, drop=0)


def test_other_posteriors_serve_too():
    _, noisy, _ = corrupted(num_rows=300)
    model = AspectBernoulli(num_components=4, num_features=24)
    fit = VariationalEM(guide="dirichlet").fit(model, noisy, progress=False)
    assert np.allclose(attribute(fit).sum("component"), 1)
    assert phantoms(fit)["kind"].tolist() == ["white"]
    assert denoise(fit).shape == (300, 24)


@pytest.mark.quick
@pytest.mark.parametrize("total_count", [1, 2])
@pytest.mark.parametrize("missing", [False, True])
def test_empirical_bayes_of_aspects_is_equation_23(missing, total_count, monkeypatch):
    fit = hand_made(total_count=total_count)
    rng = np.random.default_rng(3)
    x = rng.integers(0, total_count + 1, (4, 5)).astype(float)
    mask = rng.random(x.shape) > 0.3 if missing else None
    membership = fit.params["membership"].numpy()
    expected = reference.empirical_bayes_log_likelihood(
        {"aspect_probability": fit.params["aspect_probability"].numpy()}, membership, x, mask, total_count
    )
    assert np.allclose(empirical_bayes_log_likelihood(fit, x, mask), expected, atol=1e-12)
    monkeypatch.setattr("custom_inference.checks.empirical_bayes._BLOCK_ENTRIES", 1)
    assert np.allclose(empirical_bayes_log_likelihood(fit, x, mask), expected, atol=1e-12)


@pytest.mark.parametrize("guide", ["map", "gaussian"])
def test_empirical_bayes_of_logistic_pca_is_equation_25(guide):
    example = LogisticPCA.example()
    fit = VariationalEM(guide=guide).fit(example.model, example.data.x[:60], progress=False)
    x = example.data.x[60:].numpy()
    params = {site: value.numpy() for site, value in fit.globals.items()}
    expected = logistic_reference.empirical_bayes_log_likelihood(params, fit.posterior.mean.numpy(), x)
    assert np.allclose(empirical_bayes_log_likelihood(fit, x), expected, atol=1e-9)


def test_empirical_bayes_of_finite_latents_is_the_evidence():
    for model in (MixtureOfBernoullis, NOCA):
        example = model.example()
        fit = EM().fit(example.model, example.data.x[:50], progress=False)
        x = example.data.x[50:]
        torch.testing.assert_close(empirical_bayes_log_likelihood(fit, x), fit.log_likelihood(x), rtol=1e-12, atol=0)


def test_empirical_bayes_of_impossible_entries_stays_finite():
    fit = hand_made()
    fit.params["aspect_probability"][:] = 1.0
    assert torch.isfinite(empirical_bayes_log_likelihood(fit, np.zeros((2, 5)))).all()


def test_cvq_has_codes_and_so_an_evidence():
    example = CVQ.example()
    fit = EM().fit(example.model, example.data, progress=False)
    torch.testing.assert_close(
        empirical_bayes_log_likelihood(fit, example.data.x), fit.log_likelihood(), rtol=1e-12, atol=0
    )
    assert isinstance(fit.data, Data)
