"""Gibbs sampling of compiled programs: draws of the globals against the posterior by weighted draws of the prior."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.compiled.labels import find_places, reorder
from custom_inference.core.diagnostics import effective_size
from custom_inference.gibbs.programs import CompiledSampler
from ppl_models import NOCA, ComponentModel, MethodError, PriorError, Site
from tests.compiled._problems import KINDS, problem, state_of
from tests.programs._own import own_program

SAMPLER = CompiledSampler()
QUICK = [*((name, "conjugate") for name in KINDS), *((name, "other") for name in ("scales", "poisson"))]
EVERY = [(name, priors) for name in KINDS for priors in ("conjugate", "other")]
NUM_ROWS, DRAWS = 6, 3000


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def summarise(model, params, evidence):
    """Numbers that do not depend on which class is which: of every site the mean of its entries and of their squares,
    and log p(x | globals)."""
    found = []
    for site in model.unknown_sites:
        value = params[site].double()
        value = value if bool((value < 0).any()) else torch.log(value.clamp(min=1e-300))
        found += [float(value.mean()), float(value.square().mean())]
    return [*found, evidence]


def weigh_prior_draws(model, rows):
    """Posterior means of the numbers, and their standard errors, by draws of the prior."""
    torch.manual_seed(1)
    drawn = {site: model.prior(site).expand(shape_of(model, site)).sample((DRAWS,)) for site in model.unknown_sites}
    numbers, evidence = [], []
    for s in range(DRAWS):
        params = {**model.known, **{site: value[s].double() for site, value in drawn.items()}}
        evidence.append(float(rows.log_evidence(rows.structure.entries.flatten(params)).sum()))
        numbers.append(summarise(model, params, evidence[-1]))
    weight = np.exp(np.array(evidence) - max(evidence))
    weight, numbers = weight / weight.sum(), np.array(numbers)
    mean = weight @ numbers
    return mean, np.sqrt(weight**2 @ (numbers - mean) ** 2)


def shape_of(model, site):
    prior = model.prior(site)
    return tuple(model.shapes[site])[: len(model.shapes[site]) - len(prior.event_shape)]


def check_draws(name, priors, sweeps):
    one = problem(name, priors)
    data, model = one.data.rows(torch.arange(NUM_ROWS)), one.model
    chain = SAMPLER.chain(model, data, 3, state_of(model, 1))
    expected, error = weigh_prior_draws(model, chain.rows)
    numbers = []
    for number in range(sweeps + 50):
        chain.sweep()
        if number >= 50:
            numbers.append(summarise(model, chain.draw(), chain.log_joint() - float(model.log_prior(chain.values))))
    numbers = np.array(numbers)
    own = numbers.std(0) / np.sqrt(effective_size(numbers[None]))
    apart = np.abs(numbers.mean(0) - expected) / np.hypot(own, error)
    # Of short chains the errors are not well known themselves.
    assert (apart < (3.5 if sweeps > 1000 else 4.5)).all(), apart


@pytest.mark.parametrize("name, priors", QUICK)
def test_draws_are_those_of_the_posterior(name, priors):
    check_draws(name, priors, 400)


@pytest.mark.slow
@pytest.mark.parametrize("name, priors", EVERY)
def test_many_draws_are_those_of_the_posterior(name, priors):
    check_draws(name, priors, 4000)


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts(ComponentModel):
    """Classes of rows of counts."""

    sites: ClassVar[Any] = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "z": Site("latent", (), plates=("row",), choice="component"),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.nonnegative_integer),
    }

    def default_priors(self):
        return {**super().default_priors(), "rate": dist.Gamma(1.0, 0.1)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, rate = self.sample("weight"), self.sample("rate")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            return rows.observe("x", dist.Poisson(rate[z]))


def test_a_fit_has_chains_in_one_labelling():
    rng, model = np.random.default_rng(0), Counts(num_components=3, num_features=3)
    rate = np.array([[1.0, 9.0, 20.0], [12.0, 3.0, 1.0], [30.0, 30.0, 10.0]])
    z = rng.integers(0, 3, 120)
    x = rng.poisson(rate[z]).astype(float)
    fit = ci.fit(model, x, method="gibbs", progress=False)
    assert "gibbs" in ci.methods_for(model)
    assert fit.details["agreeing"] == 4 and fit.draws["rate"].shape[:2] == (4, 50)
    order = fit.params["rate"][:, 0].argsort()
    expected = np.stack([x[z == k].mean(0) for k in range(3)])  # of rows that are told apart
    assert np.allclose(fit.params["rate"][order], expected, rtol=0.1)
    assert (fit.draws["rate"].std((0, 1)) < 0.2 * fit.params["rate"] + 0.3).all()
    assert fit.details["lp_r_hat"] < 1.1
    assert np.allclose(np.asarray(fit.transform(x)).sum(1), 1)


def bits(logits):
    """Two classes of rows of counts, told by a bit, with a chance or its logit."""
    sites = {
        "share": Site("global", (), support=constraints.real if logits else constraints.unit_interval),
        "rate": Site("global", ("class", "column"), support=constraints.positive),
        "z": Site("latent", (), ("row",), constraints.boolean),
        "x": Site("observed", ("column",), ("row",), constraints.nonnegative_integer),
    }

    def rows(plate, share, rate):
        z = pyro.sample("z", dist.Bernoulli(logits=share) if logits else dist.Bernoulli(share))
        return plate.observe("x", dist.Poisson(rate[z.long()]))

    share = dist.Normal(0.0, 2.0) if logits else dist.Beta(1.5, 1.5)
    return own_program(sites, rows, {"share": share, "rate": dist.Gamma(1.0, 0.1)}, 3, 2)


@pytest.mark.parametrize("logits", [False, True])
def test_chains_that_differ_by_what_a_bit_calls_its_values_are_one(logits):
    rng, model = np.random.default_rng(0), bits(logits)
    rate, z = np.array([[1.0, 9.0, 20.0], [12.0, 3.0, 1.0]]), rng.random(80) < 0.7
    x = rng.poisson(rate[z.astype(int)]).astype(float)
    fit = ci.CollapsedGibbs(num_samples=15, warmup=15, chains=4, search=False).fit(model, x, progress=False)
    assert fit.details["agreeing"] == 4
    (places,) = find_places(model)
    assert places.turned == {"share": 0.0 if logits else 1.0}
    turned = places.permute(fit.params, torch.tensor([1, 0]))
    rows = CompiledSampler()._read(model, fit.data)
    one, other = (rows.log_evidence(rows.structure.entries.flatten(v)) for v in (fit.params, turned))
    assert torch.allclose(one, other)
    values = {**turned, "z": torch.as_tensor(z).double()}
    again = reorder(model, values, fit.params)
    assert torch.equal(again["z"], 1 - values["z"])
    assert all(torch.allclose(again[site], fit.params[site]) for site in fit.params)


def test_a_bit_whose_prior_tells_its_values_apart_stays():
    model = bits(False).with_priors(share=dist.Beta(1.0, 9.0))
    x = np.random.default_rng(0).poisson([[1.0, 9.0, 20.0]] * 20 + [[12.0, 3.0, 1.0]] * 10).astype(float)
    ci.CollapsedGibbs(num_samples=5, warmup=5, chains=1).fit(model, x, progress=False)
    assert find_places(model) == []


def test_the_same_seed_gives_the_same_draws():
    one = problem("noisy_or", "conjugate")
    method = ci.CollapsedGibbs(num_samples=5, warmup=5, chains=2)
    first, second = (method.fit(one.model, one.data, seed=4, progress=False) for _ in range(2))
    assert all(torch.equal(value, second.draws[site]) for site, value in first.draws.items())


def test_improper_priors_and_other_models_are_refused():
    flat = problem("poisson", "flat")
    with pytest.raises(PriorError, match="'rate' is improper"):
        ci.fit(flat.model, flat.data, method="gibbs", progress=False)
    with pytest.raises(MethodError, match="no collapsed Gibbs sampler"):
        ci.CollapsedGibbs().fit(NOCA(num_components=2, num_features=3), np.eye(3), progress=False)
