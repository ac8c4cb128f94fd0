"""Documents of one token each, which say nothing of which words go together, are fitted by every model of documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import custom_inference as ci
from custom_inference.core.registry import family_of
from ppl_models import MODELS
from ppl_models.core.document_model import WordCounts

N = 24
DOCUMENTS = {name: kind for name, kind in MODELS.items() if issubclass(kind, WordCounts)}
#: The labels of these call for a number of topics; links for a graph.
APART = {"labeled_lda", "partially_labeled_lda", "rtm"}
CASES = [(name, None) for name in DOCUMENTS if name not in APART] + [
    (name, method)
    for name in ("ctm", "random_effects_lda")
    for method in (*family_of(MODELS[name].example().model).engines, "gibbs")
]

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def beside(kind: Any) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    values = {
        "covariates": rng.normal(size=(N, 2)),
        "labels": np.array(["a", "b"])[np.arange(N) % 2],
        "time": np.arange(N) // 10,
        "response": np.arange(N) % 2,
    }
    return {site: value for site, value in values.items() if site in kind.example().model.other_sites}


@pytest.mark.parametrize(("name", "method"), CASES)
def test_documents_of_one_token_are_fitted(name, method):
    kind: Any = DOCUMENTS[name]
    x = np.eye(12, dtype=int)[np.random.default_rng(0).integers(0, 12, N)]
    model = kind(**{kind.axes["component"]: 3})
    fit = ci.fit(model, x, method=method, progress=False, **beside(kind))
    assert all(bool(value.isfinite().all()) for value in fit.params.values())
    assert bool(fit.transform().isfinite().all())
