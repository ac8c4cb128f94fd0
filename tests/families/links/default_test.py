"""The default relational topic model: its settings, its number of topics, predictions averaged over chains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import custom_inference as ci
from ppl_models import MODELS, RTM, ModelError
from ppl_models.core.unsized import UnsizedModel

QUICK = {"chains": 3, "warmup": 30, "num_samples": 4}
#: Classes that are given fewer sizes than type checkers ask for.
OPEN: Any = MODELS


@pytest.fixture(scope="module")
def linked():
    """Sixty documents of three topics, linked within these."""
    rng = np.random.default_rng(0)
    own = np.repeat([0, 1, 2], 20)
    words = np.stack([rng.multinomial(15, np.where(np.arange(12) // 4 == k, 0.2, 0.025)) for k in own]).astype(float)
    upper = np.triu(rng.random((60, 60)) < np.where(own[:, None] == own, 0.25, 0.01), 1)
    links = scipy.sparse.csr_matrix((upper | upper.T).astype(float))
    return own, words, links, ci.fit(RTM(num_topics=3, vocabulary_size=12), words, links=links, progress=False, **QUICK)


def test_settings_that_are_not_given_follow_from_the_link():
    model: Any = RTM(num_topics=100, vocabulary_size=5)
    assert (model.link_on, model.link_copies, model.negatives) == ("proportions", 4, 0)
    assert float(model.priors["topic_proportion"].concentration.sum()) == pytest.approx(7.5)
    for settings in ({"link": "sigmoid"}, {"link": "exponential"}, {"link_on": "tokens"}):
        other: Any = OPEN["rtm"](num_topics=3, vocabulary_size=5, **settings)
        assert (other.link_on, other.link_copies, other.negatives) == ("tokens", 1, 10)
        assert float(other.priors["topic_proportion"].concentration[0]) == pytest.approx(0.1)


def test_the_number_of_topics_follows_from_the_documents(linked):
    _, words, links, _ = linked
    open_ = OPEN["rtm"](vocabulary_size=12)
    assert type(open_) is UnsizedModel and open_.for_data(words, links=links).num_topics == 6
    assert OPEN["rtm"].for_data(words).num_topics == 6
    sizes = [
        RTM.number_for(OPEN["rtm"].for_data(np.ones((number, 2))).prepare(np.ones((number, 2))), {})
        for number in (9, 3000)
    ]
    assert sizes == [2, 273]
    with pytest.raises(ModelError, match="num_topics"):
        OPEN["lda"](vocabulary_size=12)
    labels = np.arange(60) % 2
    assert OPEN["labeled_lda"](vocabulary_size=12).for_data(words, labels=labels).num_topics == 2


def test_predictions_are_the_mean_of_what_each_draw_expects(linked):
    own, words, _, fit = linked
    each = {name: fit.sample_stats[f"each_{name}"].double() for name in ("topic", "link_weight", "link_bias", "share")}
    assert each["share"].shape == (3, 4, 60, 3) and "the mean over all 3 chains" in fit.status
    assert torch.allclose(each["share"].sum(-1), torch.ones(3, 4, 60).double(), atol=1e-5)
    expected = np.zeros((60, 60))
    draws = (each[n].flatten(0, 1).numpy() for n in ("share", "link_weight"))
    for share, weight in zip(*draws, strict=True):
        for k in range(3):
            expected += weight[k] * np.outer(share[:, k], share[:, k]) / 12
    expected += float(each["link_bias"].mean())
    found = fit.predict(None)
    assert np.allclose(found.numpy(), expected, rtol=1e-5)
    assert torch.allclose(fit.predict((np.array([3, 0]), np.array([7, 30]))), found[[3, 0], [7, 30]])
    same = own[:, None] == own
    assert float(found[same].mean()) > 4 * float(found[~same].mean())
    new = fit.predict(words[[1, 58]]).numpy()
    assert new.shape == (2, 60) and new[0, :20].mean() > 3 * new[0, 40:].mean()
    chance = fit.predict(None, links=np.eye(60)[:2])
    assert chance.shape == (2, 12) and torch.allclose(chance.sum(1), torch.ones(2).to(chance), atol=1e-5)


def test_what_predictions_average_over_is_saved_and_no_draw(linked, tmp_path):
    fit = linked[3]
    again = ci.Fit.load(fit.save(tmp_path / "fit"))
    assert torch.equal(again.predict(None), fit.predict(None))
    stats = fit.to_arviz(num_draws=4, num_copies=0).sample_stats
    assert not [name for name in stats.data_vars if str(name).startswith("each_")] and "lp" in stats.data_vars


def test_chains_do_not_depend_on_the_number_of_threads(linked):
    _, words, links, fit = linked
    for threads in (1, 3):
        other = ci.fit(fit.model, words, links=links, progress=False, threads=threads, **QUICK)
        assert torch.equal(other.predict(None), fit.predict(None))
