"""scikit-learn's own tests of LatentDirichletAllocation that LDAEstimator passes, and the report of all of them."""

import json
import re
import types

import pytest

from benchmarks._report import RESULTS
from benchmarks.quality.scikit_learn_tests import SUBJECTS, adapted

pytestmark = [
    pytest.mark.filterwarnings("ignore::ppl_models.DataWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

#: Those that are passed with all of their parameters.
PASSED = (
    "test_lda_fit_batch",
    "test_lda_fit_online",
    "test_lda_partial_fit",
    "test_lda_dense_input",
    "test_lda_transform",
    "test_lda_fit_transform",
    "test_lda_negative_input",
    "test_lda_no_component_error",
    "test_lda_multi_jobs",
    "test_lda_partial_fit_multi_jobs",
    "test_perplexity_input_format",
    "test_lda_fit_perplexity",
    "test_dirichlet_expectation",
    "test_lda_feature_names_out",
)

_module = types.ModuleType("latent_dirichlet_allocation_tests")
# A mark that only scikit-learn's own configuration knows.
exec(re.sub(r"@pytest\.mark\.thread_unsafe.*", "", adapted(SUBJECTS[0])), vars(_module))
globals().update({name: getattr(_module, name) for name in PASSED})


def test_the_report_says_what_is_passed_and_why_the_others_are_not():
    report = json.loads((RESULTS / "scikit_learn_tests.json").read_text("utf-8"))
    for subject, table in zip(SUBJECTS, report["tables"], strict=True):
        assert {row["test"]: row["why not"] for row in table["rows"] if row["why not"]} == subject.why
    assert tuple(row["test"] for row in report["tables"][0]["rows"] if not row["why not"]) == PASSED
