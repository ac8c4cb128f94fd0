"""Any prior of the globals in closed-form engines, known sites, hyper-parameters, against what they are defined by."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy.optimize import minimize
from torch.distributions import biject_to, constraints
from torch.distributions.transforms import SigmoidTransform, StickBreakingTransform

import custom_inference as ci
from custom_inference import EM, Search, VariationalEM
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.em.surrogate_priors import MATCHED, certain
from ppl_models import CVQ, LDA, MODELS, NOCA, SBM, Example, MethodError, ModelError
from ppl_models.core.priors import value_if_known

HALVES = dist.Categorical(torch.tensor([0.5, 0.5]))


def logit_normal():
    return dist.TransformedDistribution(dist.Normal(-1.0, 1.0), [SigmoidTransform()])


def betas():
    return dist.MixtureSameFamily(HALVES, dist.Beta(torch.tensor([2.0, 8.0]), torch.tensor([8.0, 2.0])))


def logistic_normal(size):
    scale = torch.linalg.cholesky(torch.eye(size - 1) + 0.3)
    sticks = dist.MultivariateNormal(torch.zeros(size - 1), scale_tril=scale)
    return dist.TransformedDistribution(sticks, [StickBreakingTransform()])


def dirichlets(size):
    return dist.MixtureSameFamily(
        HALVES, dist.Dirichlet(torch.stack([torch.full((size,), 2.0), torch.arange(size) + 1.0]))
    )


#: Name of a model, site, and what its prior becomes.
CASES = {
    "noca loading, logit-normal": ("noca", "loading", logit_normal),
    "noca leak, Kumaraswamy": ("noca", "leak", lambda: dist.Kumaraswamy(2.0, 8.0)),
    "noca source_prior, uniform": ("noca", "source_prior", lambda: dist.Uniform(0.2, 0.4)),
    "aspects, mixture of Betas": ("aspect_bernoulli", "aspect_probability", betas),
    "cvq weight, Student t": ("cvq", "weight", lambda: dist.StudentT(3.0, 0.0, 0.5)),
    "cvq weight, Laplace": ("cvq", "weight", lambda: dist.Laplace(0.2, 0.5)),
    "cvq scale, half-Cauchy": ("cvq", "scale", lambda: dist.HalfCauchy(0.1)),
    "poissons rate, log-normal": ("mixture_of_poissons", "rate", lambda: dist.LogNormal(0.0, 0.5)),
    "poissons proportion, logistic normal": ("mixture_of_poissons", "mixing_proportion", lambda: logistic_normal(3)),
    "categoricals response, mixture of Dirichlets": ("mixture_of_categoricals", "response", lambda: dirichlets(4)),
    "sbm edges, logit-normal": ("sbm", "edge_probability", logit_normal),
    "rbm weight, Laplace": ("rbm", "weight", lambda: dist.Laplace(0.1, 0.5)),
    "logistic pca bias, Student t": ("logistic_pca", "bias", lambda: dist.StudentT(4.0, 0.0, 0.5)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fits_climb_to_a_maximum_of_the_programs_own_log_joint(case):
    """From where EM ends, another optimiser of evidence plus log prior finds nothing better nearby."""
    name, site, prior = case
    example = _small_graph() if name == "sbm" else MODELS[name].example()
    model = example.model.with_priors(**{site: prior()})
    if "rate" in model.shapes and site != "rate":
        model = model.with_priors(rate=dist.Gamma(2.0, 1.0))  # shapes below 1 have their maximum in another basis
    method = VariationalEM(guide="exact", tolerance=1e-6, max_iterations=400, search=None)
    fit = method.fit(model, example.data, init=_start(model, example.truth), progress=False)
    assert f"numerical M steps of {site}" in fit.status
    assert bool((fit.elbo.diff() >= -1e-9 * fit.elbo[1:].abs()).all())
    engine = engine_for(model, "exact")
    rows = engine.rows(model, example.data)
    value, better = _climbed(
        model, lambda at: engine.log_evidence(model, at, rows).sum() + model.log_prior(at), fit.params
    )
    assert value == pytest.approx(float(fit.elbo[-1]), abs=1e-6)
    assert better < value + 2e-2


def _small_graph():
    """Eight nodes of two blocks, few enough to sum over all labelings; undirected."""
    x = torch.zeros(8, 8)
    x[[0, 0, 0, 1, 1, 4, 4, 5, 6, 2], [1, 2, 3, 2, 3, 5, 6, 7, 7, 5]] = 1
    model = SBM(num_blocks=2, num_nodes=8, directed=False)
    truth = {"block_proportion": torch.tensor([0.6, 0.4]), "edge_probability": torch.tensor([[0.7, 0.1], [0.1, 0.6]])}
    return Example(model=model, data=model.prepare(x + x.T, dtype=torch.float64), truth=truth)


def _start(model, truth):
    inside = {site: truth[site] for site in model.shapes}
    for site, value in inside.items():
        support = model.sites[site].support
        if support is constraints.unit_interval:
            inside[site] = value.clamp(0.05, 0.95)
        elif support is constraints.simplex:
            inside[site] = (value + 0.05) / (value + 0.05).sum(-1, keepdim=True)
    return inside


def _climbed(model, objective, params):
    """The objective at the parameters, and where L-BFGS gets from there in 60 iterations."""
    maps = {site: biject_to(model.prior(site).support) for site in model.shapes}
    free = {site: maps[site].inv(params[site].clone()) for site in maps}
    sizes = [value.numel() for value in free.values()]

    def negative(flat):
        leaf = torch.tensor(flat, requires_grad=True)
        parts = zip(free.items(), leaf.split(sizes), strict=True)
        total = -objective({site: maps[site](part.view_as(value)) for (site, value), part in parts})
        return float(total.detach()), torch.autograd.grad(total, leaf)[0].numpy()

    first = torch.cat([value.flatten() for value in free.values()]).numpy()
    found = minimize(negative, first, jac=True, method="L-BFGS-B", options={"maxiter": 60})
    return float(objective(params)), -float(found.fun)


@pytest.mark.parametrize("tightness", [0.0, 7.0])
def test_matched_priors_have_the_slope_of_what_they_stand_for(tightness):
    """And bend as it does where they can; a member of the family itself is matched by itself."""
    generator = torch.Generator().manual_seed(0)
    share = torch.distributions.Dirichlet(torch.ones(4)).sample((5,))
    value = torch.rand(9, generator=generator)
    cases = [
        (dist.Beta, dist.Kumaraswamy(2.0, 5.0), value), (dist.Beta, dist.Beta(3.0, 2.0), value),
        (dist.Gamma, dist.LogNormal(0.0, 1.0), 3 * value), (dist.Gamma, dist.Gamma(3.0, 2.0), 3 * value),
        (dist.Normal, dist.StudentT(3.0, 0.5, 1.0), 4 * value - 2), (dist.Normal, dist.Normal(0.5, 2.0), 4 * value - 2),
        (dist.LogNormal, dist.HalfCauchy(1.0), 3 * value), (dist.Dirichlet, dirichlets(4), share),
    ]  # fmt: skip
    for family, prior, at in cases:
        gradient, bend = _slope(prior, at)
        found = MATCHED[next(kind for kind in MATCHED if issubclass(family, kind))](
            at, gradient, bend, tightness, torch.full_like(at, 0.5)
        )
        difference = _slope(found, at)[0] - gradient
        if family is dist.Dirichlet:
            difference = difference - difference.mean(-1, keepdim=True)  # along the simplex
        torch.testing.assert_close(difference, torch.zeros_like(at), atol=1e-7, rtol=0)
        if type(prior) is family and not tightness:
            torch.testing.assert_close(
                found.log_prob(at) - found.log_prob(at[:1]), prior.log_prob(at) - prior.log_prob(at[:1])
            )


def _slope(prior, at):
    leaf = at.clone().requires_grad_()
    first = torch.autograd.grad(prior.log_prob(leaf).sum(), leaf, create_graph=True)[0]
    return first.detach(), -torch.autograd.grad(first.sum(), leaf)[0]


def test_certain_priors_hold_a_value():
    for family, value in ((dist.Beta, 0.3), (dist.Gamma, 2.0), (dist.Normal, -1.0), (dist.LogNormal, 0.4)):
        kind = next(one for one in MATCHED if issubclass(family, one))
        draws = certain(kind, torch.tensor([value])).sample((50,))
        torch.testing.assert_close(draws, torch.full_like(draws, value), atol=1e-3, rtol=0)


# ----- known values, hyper-parameters, the program ----------------------------------------------------------


@pytest.fixture
def hierarchical():
    return NOCA.example().model.with_priors(
        concentration=dist.Gamma(3.0, 2.0),
        source_prior=lambda concentration: dist.Beta(1 + concentration, 2.0),
        leak=0.01,
    )


def test_the_log_prior_is_that_of_the_program(hierarchical):
    trace = poutine.trace(hierarchical).get_trace(NOCA.example().data.x)
    trace.compute_log_prob()
    values = {site: trace.nodes[site]["value"] for site in hierarchical.global_sites}
    by_program = sum(trace.nodes[site]["log_prob_sum"] for site in hierarchical.global_sites)
    torch.testing.assert_close(hierarchical.log_prior(values), by_program)
    assert list(values) == ["concentration", "source_prior", "loading", "leak"]
    assert bool((values["leak"] == 0.01).all()) and trace.nodes["leak"]["is_observed"]
    by_hand = dist.Gamma(3.0, 2.0).log_prob(values["concentration"])
    by_hand = by_hand + dist.Beta(1 + values["concentration"], 2.0).log_prob(values["source_prior"]).sum()
    torch.testing.assert_close(hierarchical.log_prior(values), by_hand)


@pytest.mark.parametrize("guide", ["exact", "factorized", "mean_field"])
def test_closed_form_engines_move_hyper_parameters_and_hold_what_is_known(hierarchical, guide):
    method = VariationalEM(guide=guide, tolerance=1e-6, search=Search(restarts=1))
    fit = method.fit(hierarchical, NOCA.example().data, progress=False)
    assert bool((fit.params["leak"] == 0.01).all())
    assert bool((fit.elbo.diff() >= -1e-9 * fit.elbo[1:].abs()).all())
    leaf = fit.params["concentration"].clone().requires_grad_()
    slope = torch.autograd.grad(hierarchical.log_prior({**fit.params, "concentration": leaf}), leaf)[0]
    assert abs(float(slope)) < 1e-2
    assert "known: leak" in fit.status and "numerical M steps of source_prior" in fit.status


def test_a_prior_may_depend_on_another_site_of_the_model():
    example = NOCA.example()
    model = example.model.with_priors(loading=lambda source_prior: dist.Beta(1 + 5 * source_prior[:, None], 2.0))
    method = EM(tolerance=1e-8, max_iterations=400, search=None)
    fit = method.fit(model, example.data, init=_start(model, example.truth), progress=False)
    engine = engine_for(model, "exact")
    rows = engine.rows(model, example.data)
    maps = {site: biject_to(constraints.unit_interval) for site in model.shapes}

    def objective(at):
        return float(engine.log_evidence(model, at, rows).sum() + model.log_prior(at))

    best = objective(fit.params)
    for site in model.shapes:
        free = maps[site].inv(fit.params[site])
        for step in (0.05, -0.05):
            assert objective({**fit.params, site: maps[site](free + step)}) < best + 1e-3


def test_engines_that_integrate_give_way_to_point_estimates():
    example = MODELS["sbm"].example()
    brief = {"search": None, "max_iterations": 3}
    fit = VariationalEM(guide="vb", **brief).fit(
        example.model.with_priors(edge_probability=logit_normal()), example.data, progress=False
    )
    assert "since 'vb' integrates the globals" in fit.status and not fit.global_posterior
    topics = LDA.example()
    size = topics.model.shapes["topic"][-1]
    fit = VariationalEM(guide="cvb0", **brief).fit(
        topics.model.with_priors(topic=logistic_normal(size)), topics.data, progress=False
    )
    assert "since 'cvb0' integrates the globals" in fit.status


def test_conditioned_programs_are_models_with_known_sites():
    example = NOCA.example()
    conditioned = poutine.condition(example.model, data={"leak": torch.full((6,), 0.02)})
    fit = ci.fit(conditioned, example.data, progress=False)
    assert bool((fit.params["leak"] == 0.02).all()) and value_if_known(fit.model.priors["leak"]) is not None
    with pytest.raises(ModelError, match="'source'"):
        ci.fit(poutine.condition(example.model, data={"source": torch.zeros(60, 3)}), example.data, progress=False)


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ({"strength": dist.Gamma(1.0, 1.0)}, "unknown site of NOCA 'strength'"),
        ({"leak": 2.0}, "known value of 'leak' is not within its support"),
        ({"source_prior": lambda strength: dist.Beta(strength, 1.0)}, "'strength', which is no site"),
        ({"source_prior": lambda leak: dist.Beta(leak, 1.0)}, "'leak', which is drawn later"),
        ({"loading": lambda source_prior: dist.Beta(source_prior, 1.0)}, r"batch shape \(3,\)"),
        ({"leak": lambda source_prior: dist.Normal(source_prior.sum(), 1.0)}, "'leak' is a probability"),
        ({"a": lambda b: dist.Gamma(b, 1.0), "b": lambda a: dist.Gamma(a, 1.0)}, "must come before it"),
        ({"leak": lambda source_prior: 1 / 0}, "a function of source_prior"),
        ({"leak": "high"}, "is a str"),
    ],
)
def test_priors_that_make_no_sense_are_refused(priors, message):
    with pytest.raises(ModelError, match=message):
        NOCA.example().model.with_priors(**priors)


def test_hyper_parameters_go_with_the_priors_that_depend_on_them(hierarchical):
    assert hierarchical.with_priors(source_prior=dist.Beta(1.0, 2.0)).global_sites == (
        "source_prior",
        "loading",
        "leak",
    )
    vector = CVQ.example().model.with_priors(
        spread=dist.HalfNormal(1.0).expand([6]).to_event(1), weight=lambda spread: dist.Normal(0.0, spread)
    ) if CVQ.example().model.num_features == 6 else None  # fmt: skip
    if vector is not None:
        assert vector.shapes["spread"] == (6,)
    plain = hierarchical.at({"concentration": torch.tensor(2.0)})
    assert (
        plain.global_sites == ("source_prior", "loading", "leak") and plain.priors["source_prior"].concentration1 == 3
    )


def test_latents_whose_prior_is_a_function_are_left_to_generic_methods():
    model = LDA.example().model.with_priors(
        alpha=dist.Gamma(2.0, 1.0), topic_proportion=lambda alpha: dist.Dirichlet(alpha * torch.ones(3))
    )
    assert not engines_of(model) and "nuts" in ci.methods_for(model) and "vb" not in ci.methods_for(model)
    with pytest.raises(MethodError, match="no closed-form engine"):
        VariationalEM(guide="dirichlet").fit(model, LDA.example().data, progress=False)
    assert pyro.poutine.trace(model).get_trace(num_rows=2) is not None
    assert np.isfinite(float(model.log_prior({"alpha": torch.tensor(1.0), "topic": LDA.example().truth["topic"]})))
