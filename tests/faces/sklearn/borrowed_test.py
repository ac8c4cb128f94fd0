"""scikit-learn's own tests of LatentDirichletAllocation and BernoulliRBM that are passed, and the report of all."""

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
#: The same of BernoulliRBM.
PASSED_BY_MACHINES = (
    "test_fit",
    "test_partial_fit",
    "test_transform",
    "test_small_sparse",
    "test_small_sparse_partial_fit",
    "test_sample_hiddens",
    "test_gibbs_smoke",
    "test_rbm_verbose",
    "test_sparse_and_verbose",
    "test_transformer_dtypes_casting",
    "test_convergence_dtype_consistency",
    "test_feature_names_out",
)

for _number, _passed in enumerate((PASSED, PASSED_BY_MACHINES)):
    _module = types.ModuleType(f"borrowed_tests_{_number}")
    # A mark that only scikit-learn's own configuration knows.
    exec(re.sub(r"@pytest\.mark\.thread_unsafe.*", "", adapted(SUBJECTS[_number])), vars(_module))
    globals().update({name: getattr(_module, name) for name in _passed})


def test_the_report_says_what_is_passed_and_why_the_others_are_not():
    report = json.loads((RESULTS / "scikit_learn_tests.json").read_text("utf-8"))
    for subject, table in zip(SUBJECTS, report["tables"], strict=True):
        assert {row["test"]: row["why not"] for row in table["rows"] if row["why not"]} == subject.why
    for table, passed in zip(report["tables"], (PASSED, PASSED_BY_MACHINES), strict=True):
        assert tuple(row["test"] for row in table["rows"] if not row["why not"]) == passed
