"""Engines as people register them, without proposals, right and wrong: what their fits say."""

import pytest

from custom_inference import EM, Search
from custom_inference.core.ended import Ended
from custom_inference.core.engine import ExactEngine
from custom_inference.core.registry import _REGISTERED, Family
from custom_inference.families.mixtures.engines import MixtureExact
from ppl_models import MethodError, MixtureOfPoissons

STEPS = MixtureExact()
EXAMPLE = MixtureOfPoissons.example()


class Counts(MixtureOfPoissons):
    """A model of one's own."""


class Right(ExactEngine):
    """The steps of the mixtures, in an engine of the five methods alone."""

    def rows(self, model, data):
        return STEPS.rows(model, data)

    def initial(self, model, rows, generator):
        return STEPS.initial(model, rows, generator)

    def e_step(self, model, state, rows, warm=None, **settings):
        return STEPS.e_step(model, state, rows, warm, **settings)

    def m_step(self, model, state, step, rows):
        return STEPS.m_step(model, state, step, rows)

    def posterior(self, model, state, rows, step):
        return STEPS.posterior(model, state, rows, step)

    def prior_term(self, model, state):
        return STEPS.prior_term(model, state)


def fit_by(engine, monkeypatch, *, seed=0, **settings):
    monkeypatch.setitem(_REGISTERED, Counts, Family(model=Counts, engines={"exact": engine}, default="exact"))
    model = Counts(num_components=2, num_features=EXAMPLE.model.num_features)
    return EM(**settings).fit(model, EXAMPLE.data, seed=seed, progress=False)


@pytest.mark.parametrize("restarts", [None, 8])
def test_starts_that_reach_one_optimum_are_counted_by_their_objectives(monkeypatch, restarts):
    ends = [float(fit_by(Right, monkeypatch, seed=seed, search=None).elbo[-1]) for seed in range(5)]
    assert max(ends) - min(ends) < 1e-3 * len(EXAMPLE.data)
    status = fit_by(Right, monkeypatch, search=Search(restarts=restarts)).status
    number = restarts or 5
    assert f"{number} of {number} starts came within 0.001 a row of the best" in status
    assert "components" not in status


class Overshooting(Right):
    """Its M step goes too far; it starts where the right ones end."""

    def initial(self, model, rows, generator):
        state = super().initial(model, rows, generator)
        for _ in range(20):
            state = STEPS.m_step(model, state, STEPS.e_step(model, state, rows), rows)
        return state

    def m_step(self, model, state, step, rows):
        found = super().m_step(model, state, step, rows)
        return {**found, "rate": 1.2 * found["rate"]}


class Summed(Right):
    """Its bound is one number."""

    def e_step(self, model, state, rows, warm=None, **settings):
        found = super().e_step(model, state, rows, warm, **settings)
        return found._replace(bound=found.bound.sum())


class Forgetful(Right):
    """Its M step forgets a site."""

    def m_step(self, model, state, step, rows):
        return {"rate": super().m_step(model, state, step, rows)["rate"]}


class Unstarted(Right):
    """Its first state lacks a site."""

    def initial(self, model, rows, generator):
        return {"rate": super().initial(model, rows, generator)["rate"]}


class Silent(Right):
    """Its posterior is none."""

    def posterior(self, model, state, rows, step):
        return None


@pytest.mark.parametrize("search", [None, Search()])
def test_an_engine_that_lowers_its_objective_is_named(monkeypatch, search):
    with pytest.warns(UserWarning, match=r"Overshooting lowered the objective by [\d.]+"):
        fit = fit_by(Overshooting, monkeypatch, search=search)
    assert fit.ended is Ended.FAILED
    assert not fit.status.startswith("converged")
    assert "Overshooting" in fit.status
    assert fit_by(Right, monkeypatch, search=search).ended is Ended.CONVERGED


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (Summed, r"Summed.e_step: a bound of shape \(\); expected \(N,\)"),
        (Forgetful, "Forgetful.m_step: the 'mixing_proportion' of Counts is not in what m_step returned"),
        (Unstarted, "Unstarted.initial: the 'mixing_proportion' of Counts"),
        (Silent, "Silent.posterior returned None; expected a LocalPosterior"),
    ],
)
@pytest.mark.parametrize("search", [None, Search(restarts=1)])
def test_what_an_engine_gets_wrong_is_named(monkeypatch, engine, said, search):
    with pytest.raises(MethodError, match=said):
        fit_by(engine, monkeypatch, search=search)
