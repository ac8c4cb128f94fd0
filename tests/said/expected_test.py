"""Expected entries are sums and integrals where there are such; where only draws serve, their errors are told."""

from __future__ import annotations

import io
import itertools
from contextlib import redirect_stderr

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from scipy.stats import norm

from custom_inference import Fit, fit
from custom_inference.core import predictive
from custom_inference.core.expected import expect_entries
from custom_inference.core.posteriors import BernoulliPosterior, GaussianPosterior
from custom_inference.faces.command_line.app import app
from custom_inference.faces.command_line.saved import predict_entries
from ppl_models import MODELS, NOCA, RBM, Data, LogisticPCA, MixtureOfBernoullis
from tests.support.cases import GRAPHS, globals_of, problem_of
from tests.support.fits import given

ROWS = [name for name in MODELS if name not in GRAPHS]
#: Those whose default posterior of a row makes means of entries estimates.
DRAWN: set[str] = set()


def at_truth(name: str) -> Fit:
    example = problem_of(name)
    data = example.model.prepare(example.data, dtype=torch.float64)
    return given(example.model, globals_of(example), data)


@pytest.mark.parametrize("name", ROWS)
def test_every_model_expects_what_many_draws_of_its_latents_do(name):
    found = at_truth(name)
    mean, error = found.reconstruct(how="mean", standard_error=True)
    assert bool((error > 0).any()) == (name in DRAWN) and bool(torch.isfinite(mean).all())
    total = squares = torch.zeros_like(mean)
    number = 150 if found.model.has_continuous_locals else 500  # rare codes are few among the draws
    draws = found.posterior_of(found.data).sample(number, seed=11)
    for one in draws:
        each = predictive.feature_mean(found.model, found.globals, one, like=found.data)
        total, squares = total + each, squares + each.square()
    average = total / len(draws)
    spread = (squares / len(draws) - average.square()).clamp_min(0).sqrt()
    # What few draws hold has no spread among these.
    apart = (mean - average).abs() / (spread / len(draws) ** 0.5 + 5e-3 * (1 + mean.abs()))
    assert float(apart.max()) < 5


@pytest.mark.parametrize("name", ROWS)
def test_neither_seeds_nor_neighbours_matter(name):
    found = at_truth(name)
    twice = found.data.rows(torch.tensor([3, 0, 3]))
    mean, again = expect_entries(found, twice).mean, expect_entries(found, found.data).mean
    if name not in ("bilinear_pmf", "pmf", "choice_pmf", "rtm"):  # whose rows are users of their own, or linked
        assert torch.allclose(mean[0], mean[2], rtol=1e-9)
        assert torch.allclose(mean[0], again[3], rtol=1e-6, atol=1e-8)
    found.seed = 5
    assert torch.allclose(expect_entries(found, found.data).mean, again, rtol=1e-6, atol=1e-8)


def noisy_or(size: int, columns: int = 20) -> tuple[Fit, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    weight, leak, prior = rng.uniform(0.1, 0.9, (size, columns)), np.full(columns, 0.05), rng.uniform(0.1, 0.4, size)
    x = (rng.random((12, columns)) < 0.4).astype(float)
    x[0, 2], x[1] = np.nan, np.nan
    params = {"source_prior": prior, "loading": weight, "leak": leak}
    model = NOCA(num_components=size, num_features=columns)
    made = given(model, {site: torch.tensor(v) for site, v in params.items()}, model.prepare(x, dtype=torch.float64))
    return made, x, weight, prior


def test_noisy_or_is_a_sum_over_all_codes():
    made, x, weight, prior = noisy_or(3)
    codes = np.array(list(itertools.product([0, 1], repeat=3)))
    on = 1 - 0.95 * np.prod(np.where(codes[:, :, None] == 1, 1 - weight, 1.0), 1)
    each = np.where(np.isnan(x)[:, None], 0.0, np.log(np.where(x[:, None] == 1, on, 1 - on))).sum(2)
    each = each + codes @ np.log(prior) + (1 - codes) @ np.log1p(-prior)
    share = np.exp(each - np.logaddexp.reduce(each, 1, keepdims=True))
    mean, error = made.reconstruct(how="mean", standard_error=True)
    assert np.allclose(mean, share @ on, atol=1e-10) and not error.any()


@pytest.mark.parametrize("size", [4, 20])
def test_independent_bits_of_a_noisy_or_need_no_sum(size):
    made, x, weight, _ = noisy_or(size)
    q = torch.tensor(np.random.default_rng(1).uniform(0.05, 0.95, (len(x), size)))
    made.posterior_of = lambda data, **asked: BernoulliPosterior(q)  # type: ignore[method-assign]
    mean, error = made.reconstruct(how="mean", standard_error=True)
    want = 1 - 0.95 * np.prod(1 - q.numpy()[:, :, None] * weight, 1)
    assert np.allclose(mean, want, atol=1e-10) and not error.any()


@pytest.mark.parametrize("size", [6, 18])
def test_many_units_of_a_machine_are_drawn_and_their_error_is_told(size):
    rng = np.random.default_rng(size)
    model = RBM(num_hidden=size, num_features=5)
    params = {"weight": rng.normal(size=(size, 5)), "visible_bias": rng.normal(size=5), "hidden_bias": np.zeros(size)}
    params = {site: torch.tensor(value) for site, value in params.items()}
    x = model.prepare((rng.random((30, 5)) < 0.5).astype(float), dtype=torch.float64)
    made = given(model, params, x)
    mean, error = made.reconstruct(how="mean", standard_error=True)
    q = made.posterior_of(x).mean.numpy()
    some = np.arange(4) if size > 6 else np.arange(30)
    codes = np.array(list(itertools.product([0, 1], repeat=size)), dtype=np.float32)
    weight, bias = params["weight"].numpy(), params["visible_bias"].numpy()
    chance = expit(codes @ weight + bias)
    want = np.stack([np.prod(np.where(codes == 1, q[n], 1 - q[n]), 1) @ chance for n in some])
    apart = np.abs(mean.numpy()[some] - want)
    assert bool(error.any()) == (size > 12)
    assert (apart < 5 * error.numpy()[some] + 1e-6).all() and float(error.max()) < 0.012


def test_gaussian_factors_have_a_closed_form():
    made = at_truth("gaussian_pca")
    w, offset, noise = (made.params[site].numpy() for site in ("weight", "bias", "scale"))
    x = made.data.x.numpy()
    precision = np.eye(len(w)) + (w / noise**2) @ w.T
    score = np.linalg.solve(precision, (w / noise**2) @ (x - offset).T).T
    assert np.allclose(made.reconstruct(how="mean"), score @ w + offset, atol=1e-9)


def test_logistic_factors_are_integrated():
    """E[sigmoid] under the very posterior of two scores, by a rule of 160,000 nodes."""
    rng = np.random.default_rng(3)
    model = LogisticPCA(num_components=2, num_features=3)
    weight, bias = 2 * rng.normal(size=(2, 3)), rng.normal(size=3)
    params = {"weight": torch.tensor(weight), "bias": torch.tensor(bias)}
    x = np.array([[1.0, 0.0, np.nan], [1.0, 1.0, 1.0]])
    made = given(model, params, model.prepare(x, dtype=torch.float64))
    mean, error = made.reconstruct(how="mean", standard_error=True)
    assert not error.any()

    node, share = np.polynomial.legendre.leggauss(400)
    place = 9 * np.array(list(itertools.product(node, node)))
    chance = expit(place @ weight + bias)
    for n in range(2):
        each = np.where(np.isnan(x[n]), 1.0, np.where(x[n] == 1, chance, 1 - chance)).prod(1)
        each = each * norm.pdf(place).prod(1) * np.outer(share, share).ravel()
        assert np.allclose(mean[n], each @ chance / each.sum(), atol=1e-5)


def test_sigmoids_of_many_normal_scores_are_integrals_of_one():
    rng = np.random.default_rng(4)
    model = LogisticPCA(num_components=5, num_features=7)
    sizes = {site: model.shapes[site] for site in model.global_sites}
    params = {site: torch.tensor(rng.normal(size=shape)) for site, shape in sizes.items()}
    made = given(model, params, model.prepare(np.ones((4, 7)), dtype=torch.float64))
    root = torch.tensor(0.5 * rng.normal(size=(4, 5, 5)))
    q = GaussianPosterior(torch.tensor(rng.normal(size=(4, 5))), root @ root.mT + 0.1 * torch.eye(5))
    made.posterior_of = lambda data, **asked: q  # type: ignore[method-assign]
    mean, error = made.reconstruct(how="mean", standard_error=True)
    drawn = torch.stack([predictive.feature_mean(model, params, s, like=made.data) for s in q.sample(1000, seed=1)])
    assert not error.any() and float((mean - drawn.mean(0)).abs().max()) < 5 * 0.5 / 1000**0.5


def test_draws_of_the_globals_are_averaged_over():
    rng = np.random.default_rng(5)
    model = MixtureOfBernoullis(num_components=2, num_features=4)
    shape, share = rng.beta(1, 1, (1, 6, 2, 4)), rng.dirichlet([2, 2], (1, 6))
    sites = {site: (share if model.shapes[site] == (2,) else shape) for site in model.global_sites}
    draws = {site: torch.tensor(value) for site, value in sites.items()}
    x = (rng.random((9, 4)) < 0.5).astype(float)
    data = model.prepare(x, dtype=torch.float64)
    made = given(model, {site: value.mean((0, 1)) for site, value in draws.items()}, data, draws=draws)
    want = []
    for p, w in zip(shape[0], share[0], strict=True):
        each = np.log(w) + x @ np.log(p).T + (1 - x) @ np.log1p(-p).T
        each = np.exp(each - np.logaddexp.reduce(each, 1, keepdims=True))
        want.append(each @ p)
    mean, error = made.reconstruct(how="mean", standard_error=True)
    # Draws are repeated in turn where there are fewer than are asked for.
    assert np.allclose(mean, np.mean(want, 0), atol=1e-10) and bool((error > 0).all())


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_dyads_are_sums_over_the_blocks_of_their_nodes(name):
    example = problem_of(name)
    found = fit(example.model, example.data, progress=False, max_iterations=3)
    mean = found.reconstruct(how="mean")
    model, q = found.model, found.posterior
    states = [found.posterior.mean] if not hasattr(q, "labels") else [one.long() for one in q.labels]
    weight = [1.0] if not hasattr(q, "labels") else q.log_weight.exp().tolist()
    for i, j in ((0, 1), (2, 3), (3, 1)):
        total, one = 0.0, (torch.tensor([i]), torch.tensor([j]))
        for share, state in zip(weight, states, strict=True):
            if state.ndim == 1:
                edge = model.edges_between(found.globals, state[[i]], state[[j]], *one)
                total += share * float(edge.mean)
                continue
            if model.has_continuous_locals:
                total += float(model.edge_distribution(found.globals, state, *one).mean)
                continue
            for a, b in itertools.product(range(state.shape[1]), repeat=2):
                blocks = torch.tensor([a]), torch.tensor([b])
                edge = model.edges_between(found.globals, *blocks, *one)
                total += float(state[i, a] * state[j, b] * edge.mean)
        assert float(mean[i, j]) == pytest.approx(total, rel=1e-9)


def run_app(*arguments):
    with pytest.raises(SystemExit) as ended:
        app([str(one) for one in arguments])
    assert not ended.value.code


def test_what_is_printed_has_the_digits_that_are_known(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame((rng.random((30, 5)) < 0.4).astype(float), columns=list("abcde"))
    table.iloc[3, 2] = np.nan
    table.to_csv(tmp_path / "x.csv", index=False)
    run_app("fit", "noca", tmp_path / "x.csv", "-k", "2", "--out", tmp_path / "fit")
    capsys.readouterr()
    run_app("predict", tmp_path / "fit", tmp_path / "x.csv", "--fill")
    out = capsys.readouterr()
    filled = pd.read_csv(io.StringIO(out.out))
    loaded = Fit.load(tmp_path / "fit")
    want = float(loaded.reconstruct(table, how="mean").iloc[3, 2])
    assert float(filled.iloc[3]["c"]) == pytest.approx(want, abs=1e-6) and "means over draws" not in out.err


def test_estimates_are_printed_to_their_errors():
    rng = np.random.default_rng(18)
    model = RBM(num_hidden=16, num_features=5)
    params = {site: torch.tensor(rng.normal(size=model.shapes[site])) for site in model.global_sites}
    made = given(model, params, model.prepare((rng.random((30, 5)) < 0.5).astype(float), dtype=torch.float64))
    told = io.StringIO()
    with redirect_stderr(told):
        table = predict_entries(made, made.data, fill=False)
    error = expect_entries(made, made.data).standard_error.numpy()
    units = 10 ** np.ceil(np.log10(error))
    apart = table.to_numpy() / units
    assert np.allclose(apart, np.round(apart)) and (units >= error).all() and (units <= 10 * error).all()
    assert f"means over draws, right to {error.max():.1g}" in told.getvalue()


def test_answers_are_the_most_probable_ones_by_sums():
    made = at_truth("mixture_of_categoricals")
    table = predict_entries(made, made.data, fill=False)
    weight = made.posterior_of(made.data).mean.numpy()
    site = next(s for s in made.model.global_sites if len(made.model.shapes[s]) == 3)
    chance = np.einsum("nk,kdc->ndc", weight, made.params[site].numpy())
    assert isinstance(made.data, Data) and (table.to_numpy() == chance.argmax(-1)).all()
