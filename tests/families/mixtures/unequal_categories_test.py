"""Responses with different numbers of categories: tables padded to the largest give what tables without padding do."""

from __future__ import annotations

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, logsumexp

from custom_inference import NUTS, SVI, CollapsedGibbs, Exact, Fit, VariationalEM, compare, fit
from custom_inference.core.registry import engine_for
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.gibbs import MixtureSampler
from ppl_models import MixtureOfCategoricals, ModelError, UserRatingProfile

SIZES = (2, 4, 3)
MODELS = [MixtureOfCategoricals, UserRatingProfile]
QUIET = {"progress": False}


def responses(rows=40, seed=0, missing=True):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, rows)
    tables = [rng.dirichlet(np.full(size, 0.5), 2) for size in SIZES]
    x = np.array([[rng.choice(len(t[k]), p=t[k]) for t in tables] for k in label], dtype=float)
    x[0] = [1, 3, 2]
    if missing:
        x[rng.random(x.shape) < 0.1] = np.nan
    return x


def model_of(kind, **settings):
    return kind(num_components=2, num_features=3, num_categories=list(SIZES), **settings)


def rows_given_class(response, x):
    """log p(row | class), (N, K), from tables of each response's own categories."""
    tables = [response[:, r, :size] for r, size in enumerate(SIZES)]
    found = np.zeros((len(x), len(response)))
    for n, row in enumerate(x):
        for r, value in enumerate(row):
            if not np.isnan(value):
                found[n] += np.log(tables[r][:, int(value)])
    return found


def log_moment(counts, concentration):
    total = gammaln(concentration.sum()) - gammaln(concentration.sum() + counts.sum())
    return total + (gammaln(concentration + counts) - gammaln(concentration)).sum()


def joint_of_labels(x, labels, concentration):
    """log p(x, labels) with proportions and tables integrated out, by Dirichlets of each response's own categories."""
    found = log_moment(np.bincount(labels, minlength=2).astype(float), np.ones(2))
    for k, (r, size) in itertools.product(range(2), enumerate(SIZES)):
        seen = x[labels == k, r]
        counts = np.bincount(seen[~np.isnan(seen)].astype(int), minlength=size).astype(float)
        found += log_moment(counts, concentration[:size])
    return found


@pytest.mark.parametrize("kind", MODELS)
def test_what_a_response_does_not_have_is_zero_and_no_parameter(kind):
    x, model = responses(), model_of(kind)
    assert model.num_parameters(0) == (1 if kind is MixtureOfCategoricals else 0) + 2 * (1 + 3 + 2)
    found = fit(model, x, **QUIET)
    table = found.params["response"]
    assert table.shape == (2, 3, 4)
    assert bool((table[:, 0, 2:] == 0).all()) and bool((table[:, 2, 3:] == 0).all())
    assert torch.allclose(table.sum(-1), torch.ones(2, 3))
    drawn = found.sample(200)["x"]
    assert bool((drawn <= torch.tensor(SIZES) - 1).all()) and float(drawn[:, 1].max()) == 3
    assert bool((found.predictive(num_samples=5) <= torch.tensor(SIZES) - 1).all())


def test_the_evidence_is_that_without_padding():
    x, model = responses(), model_of(MixtureOfCategoricals)
    found = fit(model, x, **QUIET)
    response, proportion = (found.params[site].numpy() for site in ("response", "mixing_proportion"))
    expected = logsumexp(np.log(proportion) + rows_given_class(response, x), axis=1)
    assert np.allclose(found.log_likelihood().numpy(), expected, atol=1e-9)
    table = compare([Exact(generic=True)], model, model.prepare(x), at=found, **QUIET).table
    assert float(table["evidence"].iloc[0]) == pytest.approx(expected.sum(), abs=1e-6)
    penalty = 0.5 * np.log(len(x)) * model.num_parameters(0)
    assert float(found.bic()) == pytest.approx(-2 * expected.sum() + 2 * penalty, rel=1e-9)


def test_the_density_of_the_program_is_that_without_padding():
    """Under another prior, of which every response has the concentrations of its categories."""
    concentration = np.array([2.0, 0.5, 3.0, 1.5])
    model = model_of(MixtureOfCategoricals).with_priors(response=dist.Dirichlet(torch.tensor(concentration)))
    x = responses(missing=False)
    value = model.prior("response").sample()
    assert bool((value[:, 0, 2:] == 0).all())
    proportion = torch.tensor([0.3, 0.7])
    conditioned = pyro.condition(model, data={"response": value, "mixing_proportion": proportion})
    assignment = torch.eye(2)[torch.arange(len(x)) % 2]
    trace = pyro.poutine.trace(pyro.condition(conditioned, data={"assignment": assignment})).get_trace(torch.tensor(x))
    own = [
        gammaln(c.sum()) - gammaln(c).sum() + ((c - 1) * np.log(value[k, r, :size].numpy())).sum()
        for k, (r, size) in itertools.product(range(2), enumerate(SIZES))
        for c in [concentration[:size]]
    ]
    table = rows_given_class(value.numpy(), x)[np.arange(len(x)), np.arange(len(x)) % 2]
    shares = np.log(proportion.numpy())[np.arange(len(x)) % 2]
    assert float(trace.log_prob_sum()) == pytest.approx(sum(own) + table.sum() + shares.sum(), rel=1e-9)


@pytest.mark.filterwarnings("ignore:site")
def test_chains_have_the_joint_density_without_padding_and_variational_bayes_is_below_the_evidence():
    concentration = np.array([2.0, 0.5, 3.0, 1.5])
    x = responses(rows=8, seed=2)
    model = model_of(MixtureOfCategoricals).with_priors(response=dist.Dirichlet(torch.tensor(concentration)))
    data = model.prepare(x)
    chain = MixtureSampler().chain(model, data, 3, None)
    for _ in range(3):
        chain.sweep()
        assert chain.log_joint() == pytest.approx(joint_of_labels(x, chain.assignment, concentration), rel=1e-9)
    drawn = chain.draw()["response"]
    assert bool((drawn[:, 0, 2:] == 0).all()) and torch.allclose(drawn.sum(-1), torch.ones(2, 3))
    labels = [np.array(one) for one in itertools.product(range(2), repeat=len(x))]
    evidence = logsumexp([joint_of_labels(x, one, concentration) for one in labels])
    bayes = VariationalEM(guide="vb").fit(model, x, **QUIET)
    assert evidence - 5 < float(bayes.elbo[-1]) < evidence


def test_the_density_of_classes_integrates_tables_without_padding():
    x, concentration = responses(rows=20, seed=4), np.ones(4)
    model = model_of(MixtureOfCategoricals)
    rows, density = engine_for(model, "exact").rows(model, model.prepare(x)), density_of(model)
    counts, prior = rows.collect(torch.ones(20, 1)), density.prior(model, rows.like)
    found = density.log_marginal(prior.map(lambda part: part[:1]), counts, torch.full((1, 1), 20.0))
    labels = np.zeros(20, dtype=int)
    share = log_moment(np.array([20.0, 0.0]), np.ones(2))
    assert float(found.sum()) == pytest.approx(joint_of_labels(x, labels, concentration) - share, rel=1e-9)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", [
    SVI(guide="delta", steps=30), SVI(guide="delta", globals_="normal", steps=20),
    SVI(guide="delta", globals_="dirichlet", steps=20), VariationalEM(guide="vb", max_iterations=20),
    NUTS(num_samples=3, warmup=3, chains=1), CollapsedGibbs(num_samples=4, warmup=4, chains=1),
], ids=["delta", "normal", "dirichlet", "vb", "nuts", "gibbs"])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_every_method_keeps_the_padding_at_zero(kind, method):
    if kind is UserRatingProfile and isinstance(method, NUTS | CollapsedGibbs):
        pytest.skip("no such method of this model")
    if kind is UserRatingProfile and isinstance(method, SVI):
        method = SVI(guide="mean_field", globals_=method.globals_, steps=method.steps)
    found = method.fit(model_of(kind), responses(), **QUIET)
    for table in (found.params["response"], *([found.draws["response"]] if found.draws else [])):
        assert bool((table[..., 0, 2:] == 0).all()) and bool((table[..., 2, 3:] == 0).all())
        assert torch.allclose(table.sum(-1), torch.ones_like(table[..., 0]))


@pytest.mark.parametrize("kind", MODELS)
def test_fits_are_saved_and_have_their_draws_in_arviz(kind, tmp_path):
    found = VariationalEM(guide="vb").fit(model_of(kind), responses(), **QUIET)
    again = Fit.load(found.save(tmp_path / "fit"))
    assert again.model.num_categories == SIZES
    assert torch.equal(again.params["response"], found.params["response"])
    own = found.global_posterior["response"].concentration
    assert torch.equal(again.global_posterior["response"].concentration, own) and bool((own[:, 0, 2:] == 0).all())
    table = again.to_arviz().posterior["response"]
    assert table.sizes["category"] == 4 and float(abs(table.isel(feature=0, category=[2, 3])).max()) == 0
    assert again.transform(responses(rows=5)).shape == (5, 2)


def test_priors_that_are_no_dirichlets_are_refused():
    logistic = dist.LogisticNormal(torch.zeros(3), torch.ones(3))
    with pytest.raises(ModelError, match="different numbers of categories; expected a Dirichlet"):
        model_of(MixtureOfCategoricals, priors={"response": logistic})
    with pytest.raises(ModelError, match="categories that a feature has not"):
        model_of(MixtureOfCategoricals, priors={"response": torch.full((2, 3, 4), 0.25)})


def test_equal_numbers_one_by_one_are_one_number():
    x = np.random.default_rng(0).integers(0, 3, (30, 4))
    one, each = (
        fit(MixtureOfCategoricals(num_components=2, num_features=4, num_categories=number), x, **QUIET)
        for number in (3, [3] * 4)
    )
    assert torch.equal(one.params["response"], each.params["response"])
    assert float(one.bic()) == float(each.bic())
