"""Mixtures: steps against sums over classes, ascent, bounds, recovery."""

import importlib
from contextlib import nullcontext

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from scipy.special import gammaln, logsumexp

import custom_inference as ci
from custom_inference.core.registry import engine_for
from ppl_models import DataWarning, MixtureOfBernoullis, MixtureOfCategoricals, MixtureOfPoissons
from tests.support.mixtures import PROBLEMS, missing, multinomials, tensors

EVERY = pytest.mark.parametrize("name", PROBLEMS)
MISSING = pytest.mark.parametrize("share", [0.0, 0.3])


def reference(name):
    return importlib.import_module(f"tests.references.{name}")


def problem(name, seed=0, share=0.0, **settings):
    model, params, x = PROBLEMS[name](seed, **settings)
    mask = missing(x, seed, share) if share else None
    data = model.prepare(x, mask=mask, dtype=torch.float64)
    return model, params, x, mask, data


def with_priors(model, alpha, prior):
    """Informative priors of whatever the components are."""
    site = model.component_site
    if isinstance(model, MixtureOfPoissons):
        component = dist.Gamma(*prior)
    elif isinstance(model, MixtureOfBernoullis):
        component = dist.Beta(*prior)
    else:
        component = dist.Dirichlet(torch.full((model.shapes[site][-1],), prior))
    return model.with_priors(mixing_proportion=dist.Dirichlet(torch.tensor(alpha)), **{site: component})


def prior_of(name, strong=True):
    if name == "mixture_of_poissons":
        return (1.7, 0.6) if strong else (0.4, 0.6)
    if name == "mixture_of_bernoullis":  # with a mode
        return (1.8, 1.3) if strong else (1.1, 1.4)
    return 1.8 if strong else 0.3


@pytest.mark.quick
@EVERY
@MISSING
def test_evidence_and_posterior_are_sums_over_the_classes(name, share):
    model, params, x, mask, data = problem(name, share=share)
    steps = engine_for(model, "exact")
    rows = steps.rows(model, data)
    expected = reference(name).log_evidence(params, x, mask)
    assert np.allclose(steps.log_evidence(model, tensors(params), rows), expected, rtol=0, atol=1e-11)
    step = steps.e_step(model, tensors(params), rows)
    assert np.allclose(step.bound, expected, rtol=0, atol=1e-11)
    posterior = steps.posterior(model, tensors(params), rows, step).mean
    assert np.allclose(posterior, reference(name).posterior(params, x, mask), rtol=0, atol=1e-11)


@pytest.mark.quick
@EVERY
@MISSING
@pytest.mark.parametrize("strong", [True, False])
def test_m_step_is_the_references(name, share, strong):
    model, params, x, mask, data = problem(name, seed=1, share=share)
    alpha, prior = [2.0, 1.5, 1.0], prior_of(name, strong)
    model = with_priors(model, alpha, prior)
    steps = engine_for(model, "exact")
    rows = steps.rows(model, data)
    step = steps.e_step(model, tensors(params), rows)
    weights = reference(name).posterior(params, x, mask)
    shift = 1.0 if strong else 0.0
    settings = {"mask": mask, "concentration": alpha}
    if name == "mixture_of_poissons":
        settings["added"] = (prior[0] - shift, prior[1])
    elif name == "mixture_of_bernoullis":
        settings["beta"] = prior
    else:
        settings["added"] = prior - shift
    if name == "mixture_of_categoricals":
        settings["num_categories"] = 4
    expected = reference(name.replace("_counts", "s")).m_step(x, weights, **settings)
    found = steps.m_step(model, tensors(params), step, rows)
    for site, value in expected.items():
        assert np.allclose(found[site], value, rtol=0, atol=1e-10), site


@EVERY
@pytest.mark.parametrize("strong", [True, False])
def test_em_ends_where_its_objective_is_stationary(name, strong):
    """By finite differences of reference evidence plus log prior density, in the basis that the M step goes by."""
    model, params, x, _, data = problem(name, seed=2, num_rows=30)
    alpha, prior = np.array([2.0, 1.5, 1.2]), prior_of(name, strong)
    model = with_priors(model, alpha.tolist(), prior)
    steps = engine_for(model, "exact")
    rows, found, site = steps.rows(model, data), tensors(params), model.component_site
    trace = []
    for _ in range(3000):
        step = steps.e_step(model, found, rows)
        trace.append(steps.objective_at(model, found, step.bound))
        before, found = found, steps.m_step(model, found, step, rows)
        if all(float((found[part] - before[part]).abs().max()) < 1e-10 for part in found):
            break
    assert np.diff(trace).min() > -1e-8 and trace[-1] > trace[0] + 0.1
    shift = 1.0 if strong else 0.0

    def objective(logit, logs):
        """With the proportions a softmax, and the components exponentials: of rates, or normalised."""
        values = {"mixing_proportion": np.exp(logit - logsumexp(logit))}
        if name == "mixture_of_poissons":
            value = np.exp(logs)
            density = ((prior[0] - shift) * logs - prior[1] * value).sum()
        elif name == "mixture_of_bernoullis":
            value = np.exp(logs)
            density = ((prior[0] - 1) * logs + (prior[1] - 1) * np.log1p(-value)).sum()
        else:
            value = np.exp(logs - logsumexp(logs, axis=-1, keepdims=True))
            density = ((prior - shift) * np.log(value)).sum()
        density += ((alpha - 1) * np.log(values["mixing_proportion"])).sum()
        return reference(name).log_evidence({**values, site: value}, x).sum() + density

    point = [np.log(found[s].numpy()) for s in ("mixing_proportion", site)]
    for which in range(2):
        for index in list(np.ndindex(point[which].shape))[:10]:
            high, low = ([p.copy() for p in point] for _ in range(2))
            high[which][index] += 1e-5
            low[which][index] -= 1e-5
            assert abs(objective(*high) - objective(*low)) / 2e-5 < 2e-4, (which, index)


@pytest.mark.parametrize("name", ["mixture_of_multinomials", "mixture_of_multinomial_counts", "mixture_of_poissons"])
def test_sparse_counts_stay_sparse_and_give_the_same(name):
    model, params, x, _, data = problem(name, seed=5)
    sparse = model.prepare(scipy.sparse.csr_matrix(x), dtype=torch.float64)
    assert sparse.is_sparse
    steps = engine_for(model, "exact")
    first, second = (steps.e_step(model, tensors(params), steps.rows(model, d)) for d in (data, sparse))
    assert torch.allclose(first.bound, second.bound, atol=1e-12)
    assert torch.allclose(first.statistics["counts"], second.statistics["counts"], atol=1e-12)
    found = [
        steps.m_step(model, tensors(params), s, steps.rows(model, d)) for s, d in ((first, data), (second, sparse))
    ]
    for site, value in found[0].items():
        assert torch.allclose(value, found[1][site], rtol=1e-12, atol=1e-14), site
    # The fits sum in another order, and may stop at another iteration: they agree as far as their tolerance goes.
    with pytest.warns(DataWarning, match="empty") if "poisson" not in name else nullcontext():
        fits = [ci.EM(tolerance=1e-12).fit(model, d, seed=2, progress=False) for d in (data, sparse)]
    assert abs(float(fits[0].elbo[-1] - fits[1].elbo[-1])) < 1e-6 * abs(float(fits[0].elbo[-1]))


def test_counts_and_tokens_differ_by_the_multinomial_coefficient():
    model, params, x, _, data = problem("mixture_of_multinomials")
    counts, _, _ = multinomials(0, counts=True)
    engine = engine_for(model, "exact")
    values = [engine.log_evidence(m, tensors(params), engine.rows(m, data)).numpy() for m in (model, counts)]
    assert np.allclose(values[1] - values[0], gammaln(x.sum(1) + 1) - gammaln(x + 1).sum(1), rtol=0, atol=1e-11)


def test_poissons_given_their_totals_are_multinomials():
    """Eq. 27.5 is eq. 27.4 with b = rate / sum of rates, times the mixture of Poissons of the totals (below 27.5)."""
    model, params, x, _, data = problem("mixture_of_poissons", seed=6)
    steps = engine_for(model, "exact")
    joint = steps.log_joint(model, tensors(params), steps.rows(model, data)).numpy()
    of_total = {"mixing_proportion": params["mixing_proportion"], "rate": params["rate"].sum(1, keepdims=True)}
    total = reference("mixture_of_poissons").log_joint_table(of_total, x.sum(1, keepdims=True))
    given = logsumexp(joint, 1) - logsumexp(total, 1)
    topic = {"topic": params["rate"] / params["rate"].sum(1, keepdims=True)}
    for n, row in enumerate(x):
        proportions = np.exp(total[n] - logsumexp(total[n]))
        words = {"mixing_proportion": proportions, **topic}
        expected = reference("mixture_of_multinomial_counts").log_evidence(words, row[None])[0]
        assert np.isclose(given[n], expected, rtol=0, atol=1e-10)


def test_two_categories_are_a_mixture_of_bernoullis():
    rng = np.random.default_rng(0)
    x = (rng.random((60, 6)) < rng.uniform(0.1, 0.9, (3, 6))[rng.integers(3, size=60)]).astype(float)
    ones = rng.uniform(0.1, 0.9, (3, 6))
    share = torch.full((3,), 1 / 3)
    first = MixtureOfCategoricals(num_components=3, num_features=6, num_categories=2)
    second = MixtureOfBernoullis(num_components=3, num_features=6)
    start = {"mixing_proportion": share, "response": torch.tensor(np.stack([1 - ones, ones], -1))}
    other = {"mixing_proportion": share, "probability": torch.tensor(ones)}
    settings = {"max_iterations": 7, "accelerate": None}
    fits = [ci.EM(**settings).fit(m, x, init=i, progress=False) for m, i in ((first, start), (second, other))]
    assert torch.allclose(fits[0].elbo, fits[1].elbo, atol=1e-6)  # their floors off the edges differ
    assert torch.allclose(fits[0].params["response"][..., 1], fits[1].params["probability"], atol=1e-5)


@EVERY
def test_one_class_is_the_unigram_model(name):
    model, _, x, _, _ = problem(name, seed=7)
    one = type(model).for_data(model.prepare(x), 1)
    if name == "mixture_of_poissons":
        fit = ci.fit(one.with_priors(rate=dist.Gamma(1.0, 1e-12)), x, progress=False)
        expected = x.mean(0)
    elif name == "mixture_of_bernoullis":
        fit, expected = ci.fit(one, x, method="em", progress=False), x.mean(0)
    elif name == "mixture_of_categoricals":
        fit = ci.fit(one, x, method="em", progress=False)
        expected = np.stack([(x == c).mean(0) for c in range(4)], -1)
    else:
        with pytest.warns(DataWarning, match="empty"):
            fit = ci.fit(one.with_concentration(gamma=1.0), x, progress=False)
        expected = x.sum(0) / x.sum()
    assert np.allclose(fit.params[model.component_site][0], expected, atol=1e-9)
    assert float(fit.params["mixing_proportion"]) == 1.0


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_fewer_rows_than_classes():
    """An informed start has a centre in every class, for which there are too few rows."""
    x = np.array([[3.0, 0.0, 2.0, 1.0]])
    fit = ci.fit(MixtureOfPoissons(num_components=3, num_features=4), x, progress=False)
    share, rate = (fit.params[site].numpy() for site in ("mixing_proportion", "rate"))
    terms = np.log(share) + (x * np.log(rate) - rate - gammaln(x + 1)).sum(-1)
    assert np.allclose(fit.evidence.numpy(), logsumexp(terms)) and fit.transform().shape == (1, 3)


def planted(name, seed=0):
    rng = np.random.default_rng(seed)
    label = rng.integers(6, size=700)
    if name == "mixture_of_poissons":
        return (
            MixtureOfPoissons(num_components=6, num_features=12),
            rng.poisson(rng.gamma(1.0, 3.0, (6, 12))[label]).astype(float),
            label,
        )
    if name == "mixture_of_bernoullis":
        probability = rng.choice([0.1, 0.85], (6, 30))[label]
        x = (rng.random(probability.shape) < probability).astype(float)
        return MixtureOfBernoullis(num_components=6, num_features=30), x, label
    if name == "mixture_of_categoricals":
        table = rng.dirichlet(np.full(4, 0.6), (6, 15))[label].cumsum(-1)
        x = (rng.random((700, 15, 1)) > table).sum(-1).clip(0, 3).astype(float)
        return MixtureOfCategoricals(num_components=6, num_features=15, num_categories=4), x, label
    common, special = rng.dirichlet(np.full(400, 0.3)), rng.dirichlet(np.full(400, 0.05), 6)
    topic, length = 0.6 * common + 0.4 * special, rng.poisson(40, 700) + 1
    x = np.stack([rng.multinomial(n, topic[k]) for n, k in zip(length, label, strict=True)]).astype(float)
    x = x[:, x.sum(0) > 0]
    kind = type(PROBLEMS[name](0)[0])
    return kind(num_topics=6, vocabulary_size=x.shape[1]), x, label


@EVERY
@pytest.mark.parametrize("method", ["em", "vb"])
def test_planted_classes_are_found_from_every_seed(name, method):
    model, x, label = planted(name)
    objectives = []
    for seed in range(3):
        fit = ci.fit(model, x, method=method, seed=seed, progress=False)
        found = fit.posterior.mean.argmax(-1).numpy()
        table = np.zeros((6, 6))
        np.add.at(table, (label, found), 1)
        assert table.max(1).sum() > 0.95 * len(x) and len(set(table.argmax(1))) == 6, (seed, table)
        objectives.append(float(fit.elbo[-1]))
    assert np.ptp(objectives) < 0.002 * abs(objectives[0])
