"""Settings and arguments of the wrong kind are refused by name, with what was found and expected."""

from __future__ import annotations

import math

import numpy as np
import pytest

import custom_inference as ci
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence, ParallelTempering
from custom_inference.families.helmholtz.learning import WakeSleep
from custom_inference.families.labels.experts import TwoStage
from custom_inference.families.memberships.stochastic import StochasticMMSB
from custom_inference.families.ratings.gradient import RatingsSGD
from custom_inference.families.ratings.matchbox import Matchbox
from custom_inference.families.ratings.vb import RatingsVB
from custom_inference.families.responses.constrained import PredictionConstrained
from custom_inference.families.topics.tempered import TemperedEM
from ppl_models import LDA, NOCA, PMF, DataError, MethodError, ModelError

#: A maker and names of its settings that are numbers.
NUMBERS = [
    (ci.EM, ("max_iterations", "tolerance", "batch_size", "delay", "forgetting")),
    (ci.VariationalEM, ("max_iterations", "tolerance")),
    (ci.SVI, ("learning_rate", "steps")),
    (ci.Search, ("temperature", "restarts")),
    (TemperedEM, ("held_out", "eta", "patience", "max_iterations", "tolerance")),
    (ContrastiveDivergence, ("batch_size", "learning_rate", "momentum", "weight_decay", "averaging", "validation")),
    (ParallelTempering, ("chains", "temperatures", "restarts")),
    (ci.NUTS, ("num_samples", "target_accept", "jitter")),
    (TwoStage, ("alpha", "max_iterations", "tolerance")),
    (WakeSleep, ("steps", "particles", "learning_rate")),
    (PredictionConstrained, ("sweeps", "weight")),
    (Matchbox, ("passes", "tolerance")),
    (RatingsSGD, ("passes", "learning_rate", "decay", "regularisation")),
    (RatingsVB, ("sweeps", "tolerance")),
    (StochasticMMSB, ("batch_size", "steps", "zeros", "delay")),
]


@pytest.mark.parametrize("wrong", ["3", "x", math.nan, [1], True], ids=str)
@pytest.mark.parametrize(("make", "names"), NUMBERS)
def test_settings_that_are_no_numbers_are_refused_by_name(make, names, wrong):
    for name in names:
        with pytest.raises(MethodError, match=f"^{name} = .*, expected a (whole|positive)? ?number") as said:
            make(**{name: wrong})
        assert repr(wrong) in str(said.value)


@pytest.mark.parametrize("wrong", ["yes", 3, True])
def test_searches_that_are_none_are_refused(wrong):
    with pytest.raises(MethodError, match=r"search = .*, expected Search\(\)"):
        ci.EM(search=wrong)


def test_globals_of_another_size_than_the_model_are_refused():
    x = (np.random.default_rng(0).random((20, 5)) < 0.4).astype(float)
    model, other = (NOCA(num_components=k, num_features=5) for k in (2, 3))
    fitted = ci.EM(max_iterations=2).fit(other, x, progress=False)
    for refused in (
        lambda: ci.compare(["exact"], model, x, at=fitted, progress=False),
        lambda: ci.bracket(model, fitted, x),
        lambda: ci.AIS().local_posterior(model, fitted, x),
    ):
        with pytest.raises(MethodError, match=r"fit in which 'source_prior' has shape \(3,\), expected \(2,\)"):
            refused()
    with pytest.raises(MethodError, match="at = an int, expected a fit, or a mapping"):
        ci.compare(["exact"], model, x, at=3)
    with pytest.raises(MethodError, match="num_components = 3, expected numbers to compare"):
        ci.choose(NOCA, x, 3)
    with pytest.raises(MethodError, match="unknown setting of the plot 'components' 'ax' .*valid: .*axes"):
        fitted.plot(ax=3)


@pytest.mark.parametrize("wrong", [-1, 0, 2.5, "3", True])
def test_sizes_are_refused_where_the_others_are_left_to_the_data(wrong):
    for make in (NOCA, PMF):
        with pytest.raises(ModelError, match=f"num_components = {wrong!r}, expected a whole number of at least 1"):
            make(num_components=wrong)
    with pytest.raises(ModelError, match="num_topics = .*, expected a whole number"):
        LDA(num_topics=wrong)


@pytest.mark.parametrize("wrong", ["a", [[1.0], "b"]])
def test_concentrations_that_are_no_numbers_are_refused(wrong):
    with pytest.raises(ModelError, match="concentration of 'topic_proportion' = .*, expected one number or 2 of them"):
        LDA(num_topics=2, vocabulary_size=3).with_concentration(alpha=wrong)


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70, 1.5, "1", True])
def test_seeds_that_no_generator_takes_are_refused(seed):
    x, model = np.eye(4), NOCA(num_components=1, num_features=4)
    said = r"seed = .*, expected a whole number from 0 to 2\^63 - 1"
    for call in (ci.fit, ci.EM(max_iterations=1).fit):
        with pytest.raises(MethodError, match=said):
            call(model, x, seed=seed)
    with pytest.raises(MethodError, match=said):
        ci.simulation_based_calibration(model, num_simulations=1, seed=seed)
    assert ci.fit(model, x, seed=2**63 - 1).seed == 2**63 - 1


def test_words_where_numbers_belong_are_refused_with_what_to_do():
    for x in (np.array([["yes", "no"]]), np.array([["yes", 1]], dtype=object)):
        with pytest.raises(DataError, match="of two words, such as 'yes' and another, x == 'yes'"):
            ci.fit(NOCA(num_components=1, num_features=2), x)
