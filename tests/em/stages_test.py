"""What ran before the method that a fit names, how it ended, and how straight the line from ``fit`` to an M step is."""

import pickle
import sys

import pyro.distributions as dist
import pytest

from custom_inference import EM, Fit, VariationalEM, fit
from custom_inference.core.ended import Ended
from custom_inference.em.any_prior import AnyPriorEngine
from custom_inference.families.topics.cvb0 import LdaCvb0
from ppl_models import LDA, NOCA


@pytest.fixture(scope="module")
def found():
    example = LDA.example()
    return fit(example.model, example.data, method="vb", progress=False)


def test_stages_are_named_in_their_order(found):
    first, climb, random, last = found.stages
    assert "CVB0" in first.name and climb.name == "EM of the best start" and "random start" in random.name
    assert last.name == found.method_name == "VariationalEM(vb)"
    assert last.objective == pytest.approx(float(found.elbo[-1]) / len(found.data))
    assert sum(stage.seconds for stage in found.stages) == pytest.approx(found.details["seconds"], abs=1e-2)
    assert repr(found.stages).startswith("1. ") and repr(found.stages).count("\n") == 3


def test_without_a_search_the_method_is_the_only_stage():
    example = LDA.example()
    alone = VariationalEM(guide="vb", search=None, max_iterations=2).fit(example.model, example.data, progress=False)
    assert [stage.name for stage in alone.stages] == ["VariationalEM(vb)"] and alone.ended is Ended.LIMIT


def test_files_hold_the_method_and_the_stages(found, tmp_path):
    loaded = Fit.load(found.save(tmp_path / "fit"))
    assert loaded.method == found.method == VariationalEM(guide="vb") and loaded.stages == found.stages
    assert found.ended is loaded.ended is Ended.CONVERGED and found.ended == "converged"


def test_engines_under_any_prior_hold_the_engine():
    example = NOCA.example()
    model = example.model.with_priors(leak=dist.Uniform(0.01, 0.5))
    fitted = EM(search=None, max_iterations=3).fit(model, example.data, progress=False)
    engine = pickle.loads(pickle.dumps(fitted)).solver.engine
    assert type(engine) is AnyPriorEngine and type(engine.plain) is type(EM().engine(example.model))
    assert engine.may_lower and not engine.plain.may_lower and engine.name == engine.plain.name


def test_from_fit_to_the_m_step_it_is_a_straight_line(monkeypatch):
    depths, original, example = [], LdaCvb0.m_step, LDA.example()

    def counted(*arguments):
        frame, depth = sys._getframe(1), 0
        while frame is not None:
            depth += frame.f_globals.get("__name__", "").startswith("custom_inference")
            frame = frame.f_back
        depths.append(depth)
        return original(*arguments)

    monkeypatch.setattr(LdaCvb0, "m_step", counted)
    fit(example.model, example.data, progress=False)
    assert depths[-1] <= 7 and max(depths) <= 9, depths
    depths.clear()
    fit(example.model, example.data, progress=False, search=None)
    assert max(depths) <= 6, depths
