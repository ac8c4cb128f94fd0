"""Estimators of models that are not of the suite."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import custom_inference as ci
from custom_inference.faces.sklearn import (
    ESTIMATORS,
    DocumentEstimator,
    GraphEstimator,
    RowEstimator,
    TopicEstimator,
    estimator_of,
)
from ppl_models import LDA, MODELS, NOCA, SBM, ModelError
from tests.support.own_models import NoisyAnd

NoisyAndEstimator = estimator_of(NoisyAnd)
QUICK = {"method": ci.SVI(guide="delta", steps=40), "random_state": 0}


def rows():
    return NoisyAnd.example().data.x.numpy()


def test_an_estimator_of_any_model():
    x, example = rows(), NoisyAnd.example()
    estimator = NoisyAndEstimator(2, noise=0.1, **QUICK).fit(x)
    model = NoisyAnd(num_components=2, num_features=6, noise=0.1)
    fit = QUICK["method"].fit(model, example.data, seed=0, progress=False)
    assert torch.equal(estimator.fit_.params["veto"], fit.params["veto"]) and estimator.fit_.model.noise == 0.1
    assert np.array_equal(estimator.transform(x), fit.transform(x).numpy())
    assert np.array_equal(estimator.score_samples(x), fit.log_likelihood(x).numpy())
    assert estimator.components_.shape == (2, 6) and estimator.n_features_in_ == 6 and estimator.n_iter_ == 40
    assert estimator.get_feature_names_out().tolist() == ["noisyand0", "noisyand1"]
    assert np.isclose(estimator.bic(x), -2 * estimator.score_samples(x).sum() + (2 + 12) * np.log(60))
    assert {"noise", "sharpness", "binarize"} <= estimator.get_params().keys()
    assert not {"num_components", "num_features"} & estimator.get_params().keys()
    assert not hasattr(estimator, "partial_fit"), "no engine that takes minibatches"
    # Whatever the default is for such a model.
    shorter = NoisyAndEstimator(2, max_iter=9, random_state=0).fit(x)
    assert np.isfinite(shorter.score(x))


def test_it_is_cloned_pickled_searched_and_put_into_frames():
    x = rows()
    estimator = NoisyAndEstimator(2, **QUICK).fit(x)
    copied = pickle.loads(pickle.dumps(estimator))
    assert type(copied) is NoisyAndEstimator and np.array_equal(copied.transform(x), estimator.transform(x))
    unfitted = clone(estimator)
    assert type(unfitted) is NoisyAndEstimator and not hasattr(unfitted, "fit_")
    grid = GridSearchCV(NoisyAndEstimator(**QUICK), {"n_components": [1, 2]}, cv=2).fit(x)
    assert grid.best_estimator_.fit_.model.num_components == grid.best_params_["n_components"]
    frame = unfitted.set_output(transform="pandas").fit_transform(pd.DataFrame(x, columns=list("abcdef")))
    assert isinstance(frame, pd.DataFrame) and list(frame.columns) == ["noisyand0", "noisyand1"]


def test_subclasses_of_an_estimator_are_pickled_as_themselves():
    estimator = pickle.loads(pickle.dumps(Binarised(2, binarize=0.5)))
    assert type(estimator) is Binarised and estimator.binarize == 0.5


class Binarised(NoisyAndEstimator):
    """An estimator of a user's own."""


def test_the_same_class_for_the_same_model():
    assert estimator_of(NoisyAnd) is NoisyAndEstimator and NoisyAndEstimator.__name__ == "NoisyAndEstimator"
    assert all(estimator_of(kind) is ESTIMATORS[name] for name, kind in MODELS.items())
    bases = {LDA: TopicEstimator, MODELS["ctm"]: DocumentEstimator, SBM: GraphEstimator, NOCA: RowEstimator}
    assert all(estimator_of(kind).__bases__ == (base,) for kind, base in bases.items())


def test_what_has_no_estimator():
    class Axes(NoisyAnd):
        axes = {"feature": "num_features"}  # noqa: RUF012

    for given in (NoisyAnd(num_components=2, num_features=6), "NoisyAnd", int):
        with pytest.raises(ModelError, match="expected the class of a model"):
            estimator_of(given)
    with pytest.raises(ModelError, match="Axes has the axes feature; expected 'component'"):
        estimator_of(Axes)


#: Guides cannot weigh rows, and say so.
WEIGHED = {
    f"check_{name}": "SVI cannot weigh rows"
    for name in (
        "sample_weights_pandas_series", "sample_weights_not_an_array", "sample_weights_list", "sample_weights_shape",
        "all_zero_sample_weights_error", "sample_weights_not_overwritten",
        "sample_weight_equivalence_on_dense_data",
    )
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@parametrize_with_checks(
    [NoisyAndEstimator(2, binarize=0.0, method=ci.SVI(guide="delta", steps=2))],
    expected_failed_checks=lambda _: WEIGHED,
)
def test_it_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
