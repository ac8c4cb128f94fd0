"""All kinds of units of Table 27.2 against sums and integrals written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import norm

import custom_inference as ci
from custom_inference.core.local_inference import log_likelihood, solve_local
from ppl_models import RBM, CapacityError, DataError, ModelError, ReplicatedSoftmax
from tests.references import replicated_softmax as documents

#: visible, hidden -> K, D, C.
KINDS = {
    ("binary", "binary"): (2, 3, 1), ("categorical", "binary"): (2, 3, 3), ("gaussian", "binary"): (3, 2, 1),
    ("gaussian", "gaussian"): (1, 2, 1), ("binary", "gaussian"): (2, 3, 1), ("categorical", "gaussian"): (2, 2, 3),
}  # fmt: skip
GRID = np.linspace(-9, 9, 121)
EACH = pytest.mark.parametrize("kinds", KINDS, ids="-".join)


def problem(kinds, missing="summed"):
    """A machine with parameters, four rows, and which entries were observed."""
    (hidden, size, categories), rng = KINDS[kinds], np.random.default_rng(5)
    unit = (size, categories) if categories > 1 else (size,)
    small = 0.4 if kinds == ("gaussian", "gaussian") else 0.8
    params = {"weight": small * rng.normal(size=(hidden, *unit)), "visible_bias": rng.normal(size=unit),
              "hidden_bias": 0.7 * rng.normal(size=hidden)}  # fmt: skip
    if kinds == ("gaussian", "gaussian"):
        params["weight"] *= 0.5 / np.linalg.norm(params["weight"], 2)
    x = rng.normal(size=(4, size)) if kinds[0] == "gaussian" else rng.integers(0, max(2, categories), (4, size)) * 1.0
    settings = {"visible": kinds[0], "hidden": kinds[1], "num_categories": categories, "missing": missing}
    mask = np.array([[True] * size, [False] + [True] * (size - 1), [True] * (size - 1) + [False], [False] * size])
    return RBM(num_hidden=hidden, num_features=size, **settings), params, x, mask


def layer(kind, size, categories):
    """Every value of a layer, or a grid of them, with the logarithm of what it is weighted by."""
    if kind == "gaussian":
        values = np.array(list(itertools.product(GRID, repeat=size)))
        return values, norm.logpdf(values).sum(1) + size * np.log(GRID[1] - GRID[0])
    values = np.array(list(itertools.product(range(max(2, categories)), repeat=size))) * 1.0
    return values, np.zeros(len(values))


def minus_energy(params, x, hidden, there):
    """b't + c'h + h'W t of the units that are there (27.98, 27.105; 27.108 without its squares): (X, H)."""
    weight, bias = params["weight"], params["visible_bias"]
    if weight.ndim == 3:
        chosen = np.eye(weight.shape[2])[x[:, there].astype(int)]
        linear, pair = (chosen * bias[there]).sum((1, 2)), np.einsum("xdc,kdc->xk", chosen, weight[:, there])
    else:
        linear, pair = x[:, there] @ bias[there], x[:, there] @ weight[:, there].T
    return linear[:, None] + hidden @ params["hidden_bias"] + pair @ hidden.T


def tables(model, params, x, seen):
    """log p(x observed, h) of a row and every h, and these h: the unobserved entries summed over, or not there."""
    size, absent = model.num_features, model.missing == "absent"
    hidden, own = layer(model.hidden, model.num_hidden, 1)
    units = seen if absent else np.ones(size, dtype=bool)
    values, base = layer(model.visible, int(units.sum()), model.num_categories)
    every = np.zeros((len(values), size))
    every[:, units] = values
    log_z = logsumexp(minus_energy(params, every, hidden, units) + base[:, None] + own)
    held, of_held = layer(model.visible, 0 if absent else int((~seen).sum()), model.num_categories)
    rows = np.repeat(np.where(seen, x, 0.0)[None], len(held), 0)
    if not absent:
        rows[:, ~seen] = held
    observed = norm.logpdf(x[seen]).sum() if model.visible == "gaussian" else 0.0
    table = logsumexp(minus_energy(params, rows, hidden, units) + of_held[:, None], axis=0) + own + observed - log_z
    return table, hidden


@EACH
@pytest.mark.parametrize("missing", ["summed", "absent"])
def test_evidence_and_posterior_are_sums_over_both_layers(kinds, missing):
    model, params, x, mask = problem(kinds, missing)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    odd = kinds[1] == "gaussian" and kinds[0] != "gaussian"  # mixtures over what is missing are refused
    for observed in (np.ones_like(mask), mask):
        if odd and not observed.all():
            continue
        data = model.prepare(x, mask=observed, dtype=torch.float64)
        found = solve_local(model, tensors, data, bound="exact")
        for n, seen in enumerate(observed):
            table, hidden = tables(model, params, x[n], seen)
            assert np.isclose(float(found.bound[n]), logsumexp(table), atol=1e-6), n
            share = np.exp(table - logsumexp(table))
            assert np.allclose(found.posterior.mean[n], share @ hidden, atol=1e-6), n
            if model.hidden == "gaussian":
                centred = hidden - share @ hidden
                spread = (share[:, None] * centred).T @ centred
                assert np.allclose(found.posterior.covariance[n], spread, atol=1e-6), n


@EACH
def test_the_program_is_the_same_joint(kinds):
    """log p(h) + log p(x | h) of the program, at a few h, against the table."""
    model, params, x, mask = problem(kinds)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    data = model.prepare(x, mask=mask, dtype=torch.float64)
    rng = np.random.default_rng(1)
    hidden = rng.integers(0, 2, (4, model.num_hidden)) * 1.0 if model.hidden == "binary" else rng.choice(
        GRID[40:80], (4, model.num_hidden))  # fmt: skip
    from custom_inference.core.posterior_bounds import row_log_joint

    found = row_log_joint(model, tensors, data, torch.as_tensor(hidden))
    for n in range(4):
        table, every = tables(model, params, x[n], mask[n])
        place = np.abs(every - hidden[n]).sum(1).argmin()
        cell = model.num_hidden * np.log(GRID[1] - GRID[0]) if model.hidden == "gaussian" else 0.0
        assert np.isclose(float(found[n]), table[place] - cell, atol=1e-6)


@EACH
def test_draws_of_both_layers_have_the_models_moments(kinds):
    model, params, _, _ = problem(kinds)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    energy = model.energy(tensors)
    hidden, own = layer(model.hidden, model.num_hidden, 1)
    values, base = layer(model.visible, model.num_features, model.num_categories)
    table = minus_energy(params, values, hidden, np.ones(model.num_features, dtype=bool)) + base[:, None] + own
    share = np.exp(table - logsumexp(table))
    drawn = energy.sampled_hidden(20000, generator=torch.Generator().manual_seed(0))
    error = 5 / np.sqrt(20000)
    assert np.abs(drawn.mean(0).numpy() - share.sum(0) @ hidden).max() < error * (drawn.std(0).max() + 0.1)
    statistic = energy.gibbs(energy.draw_visible(drawn, torch.Generator().manual_seed(1)), 3,
                             torch.Generator().manual_seed(2))  # fmt: skip
    expected = share.sum(1) @ energy.statistic(torch.as_tensor(values)).numpy()
    assert np.abs(statistic.mean(0).numpy() - expected).max() < error * (statistic.std(0).max() + 0.1)


@EACH
def test_the_default_fit_is_a_maximum(kinds):
    """No slope is left, by central differences of the log-likelihood plus log prior."""
    model, params, _, _ = problem(kinds)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    energy = model.energy(tensors)
    generator = torch.Generator().manual_seed(3)
    statistic = energy.draw_visible(energy.sampled_hidden(60, generator=generator), generator)
    if kinds[0] == "categorical":
        statistic = statistic.view(60, -1, model.num_categories).argmax(-1).double()
    fit = ci.fit(model, statistic, method="em", progress=False)

    def objective(site, change):
        at = {**fit.globals, site: fit.globals[site] + change}
        return float(log_likelihood(fit.model, at, fit.data).sum() + fit.model.log_prior(at))  # in units of the data

    for site, value in fit.globals.items():
        for index in itertools.islice(np.ndindex(*value.shape), 4):
            step = torch.zeros_like(value)
            step[index] = 1e-4
            slope = (objective(site, step) - objective(site, -step)) / 2e-4
            assert abs(slope) < 0.02, (site, index)


def test_undirected_pca_is_directed_pca():
    """Two gaussian layers (Marks & Movellan 2001): precision I - W'W, mean (I - W'W)^-1 (b + W'c)."""
    model, params, x, _ = problem(("gaussian", "gaussian"))
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    weight = params["weight"]
    covariance = np.linalg.inv(np.eye(2) - weight.T @ weight)
    mean = covariance @ (params["visible_bias"] + weight.T @ params["hidden_bias"])
    from scipy.stats import multivariate_normal

    expected = multivariate_normal(mean, covariance).logpdf(x)
    assert np.allclose(log_likelihood(model, tensors, model.prepare(x, dtype=torch.float64)), expected, atol=1e-10)
    tensors["weight"] = 3 * tensors["weight"]
    with pytest.raises(ModelError, match="no joint density"):
        model.energy(tensors).sampled_hidden(3)


def test_lengths_of_documents_share_one_sum():
    rng = np.random.default_rng(2)
    params = {"weight": rng.normal(size=(2, 3)), "visible_bias": rng.normal(size=3), "hidden_bias": rng.normal(size=2)}
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    model = ReplicatedSoftmax(num_hidden=2, num_features=3)
    lengths = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)
    found = model.energy_of_rows(tensors, lengths).log_partition()
    expected = [documents.log_partition_token_by_token(params, int(length)) for length in lengths]
    assert np.allclose(found, expected, atol=1e-10)
    assert np.allclose(expected, [documents.log_partition(params, int(length)) for length in lengths], atol=1e-10)
    x = np.array([[0, 2, 1], [3, 0, 0], [0, 0, 0.0]])
    local = solve_local(model, tensors, model.prepare(x, dtype=torch.float64), bound="exact")
    assert np.allclose(local.bound, documents.log_evidence(params, x), atol=1e-10)
    assert np.allclose(local.posterior.mean, documents.posterior_mean(params, x), atol=1e-10)


def test_bad_input_says_what_is_wrong():
    model = RBM(num_hidden=2, num_features=2, visible="categorical", num_categories=3)
    with pytest.raises(DataError, match="none of the 3 categories"):
        model.prepare([[0.0, 3.0]])
    one_hot = np.eye(3)[[[0, 1], [2, 2]]]
    assert torch.equal(model.prepare(one_hot).x, torch.tensor([[0.0, 1.0], [2.0, 2.0]]).to(torch.get_default_dtype()))
    one_hot[1, 0] = [0, 1, 1]
    with pytest.raises(DataError, match="do not add up to one 1 .the first: row 1, column 0"):
        model.prepare(one_hot)
    one_hot[1, 0] = np.nan
    assert model.prepare(one_hot).mask[1].tolist() == [False, True]
    with pytest.raises(DataError, match="neither 0 nor 1"):
        RBM(num_hidden=2, num_features=2).prepare([[0.0, 0.5]])
    for settings, what in (({"visible": "real"}, "visible"), ({"visible": "categorical"}, "num_categories"),
                           ({"missing": "no"}, "missing")):  # fmt: skip
        with pytest.raises(ModelError, match=what):
            RBM(num_hidden=2, num_features=2, **settings)
    mixture = RBM(num_hidden=2, num_features=25, hidden="gaussian")
    with pytest.raises(CapacityError, match=r"2\^25 states of the visible layer need about .* GiB"):
        ci.EM().fit(mixture, (torch.arange(4)[:, None] + torch.arange(25)) % 2.0, progress=False)
