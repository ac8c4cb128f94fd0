"""Methods that learn priors learn those that were not stated, and say so; ``known_sites_test`` has all samplers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from custom_inference import CollapsedGibbs, fit
from custom_inference.families.responses.constrained import PredictionConstrained
from ppl_models import LDA, LabeledLDA, MethodError, PartiallyLabeledLDA, SupervisedLDA
from tests.said.known_sites_test import assert_same_priors, numbers_of

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
X = np.array([[4.0, 2, 0, 0], [3, 3, 0, 0], [0, 0, 2, 4], [0, 1, 3, 2]])
LABELS = np.array([[1, 0], [1, 0], [0, 1], [1, 1]])


@pytest.mark.parametrize(("kind", "topics"), [(LabeledLDA, 2), (PartiallyLabeledLDA, 5)])
def test_labels_learn_by_default_what_was_not_stated_and_say_so(kind, topics):
    plain = kind(num_topics=topics, vocabulary_size=4, num_labels=2)
    for stated in ({}, {"gamma": 0.05}, {"alpha": 0.1}, {"alpha": 0.1, "gamma": 0.05}):
        model = plain.with_concentration(**stated)
        found = fit(model, X, labels=LABELS, method="gibbs", progress=False)
        free = [s for s, name in (("topic_proportion", "alpha"), ("topic", "gamma")) if name not in stated]
        before, after = numbers_of(model), numbers_of(found.model)
        for site in ("topic_proportion", "topic"):
            name = f"{site}.concentration"
            same = before[name].shape == after[name].shape and torch.equal(before[name], after[name])
            assert same == (site not in free), (stated, site)
            assert (f"'{site}'" in found.status) == (site in free), found.status


def test_topics_of_one_label_a_document_are_those_of_the_stated_prior():
    model = LabeledLDA(num_topics=2, vocabulary_size=4, num_labels=2).with_concentration(gamma=0.05)
    found = fit(model, X, labels=np.array([[1, 0], [1, 0], [0, 1], [0, 1]]), method="gibbs", progress=False)
    closed = np.array([X[:2].sum(0), X[2:].sum(0)]) + 0.05  # the topic of every token is known
    np.testing.assert_allclose(found.params["topic"].numpy(), closed / closed.sum(1, keepdims=True), rtol=1e-5)


def test_who_asks_for_all_gets_all_learned():
    model = LDA(num_topics=2, vocabulary_size=4).with_concentration(alpha=0.1, gamma=0.05)
    for method in (CollapsedGibbs(learn=True, chains=1), "learned"):
        found = fit(model, X, method=method, progress=False)
        assert "the prior of 'topic_proportion' and of 'topic' was learned" in found.status
        assert not torch.allclose(numbers_of(found.model)["topic_proportion.concentration"], torch.tensor(0.1))
    held = CollapsedGibbs(learn="defaults", chains=1).fit(model, X, progress=False)
    assert_same_priors(model, held.model)
    no_steps = CollapsedGibbs(learn=True, chains=1, warmup=3).fit(model, X, progress=False)
    assert_same_priors(model, no_steps.model)
    assert "learned" not in no_steps.status
    with pytest.raises(MethodError, match="learn = 'alpha', expected False, True or 'defaults'"):
        CollapsedGibbs(learn="alpha")  # pyright: ignore[reportArgumentType]
    explicit = model.with_priors(topic=dist.LogisticNormal(torch.zeros(3), torch.ones(3)))
    found = fit(explicit, X, method=CollapsedGibbs(learn=True, chains=1), progress=False)
    assert found.model.priors["topic"] is explicit.priors["topic"]
    assert "of 'topic' was" not in found.status


def test_training_to_predict_learns_a_prior_of_proportions_that_was_not_stated():
    plain = SupervisedLDA(num_topics=2, vocabulary_size=4)
    method: Any = PredictionConstrained(weight=1.0, sweeps=16, begin=4, average=4, chains=1)
    for model, learned in ((plain, True), (plain.with_concentration(alpha=0.1), False)):
        found = method.fit(model, X, response=np.array([0.0, 1.0, 1.0, 0.0]), progress=False)
        assert ("the prior of 'topic_proportion' was learned" in found.status) == learned
        if not learned:
            assert found.model.priors["topic_proportion"] is model.priors["topic_proportion"]
