"""scikit-learn's own tests of LatentDirichletAllocation and BernoulliRBM, run on the estimators here.

    python -m benchmarks.quality.scikit_learn_tests [--subjects LDAEstimator RBMEstimator]

Writes ``benchmarks/results/scikit_learn_tests.{md,json}``. The test modules are those of the installed scikit-learn; in
their text the name of the class is exchanged, its lower-case form, which begins the names of output columns, and
private methods for public ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks._report import RESULTS, Table, read_tables, write_report

_FRACTIONS = "by design: entries that are no whole numbers are refused, as no counts"


@dataclass(frozen=True)
class Subject:
    """A class of scikit-learn and its test module, the class in its place, and why tests of it fail."""

    theirs: str
    module: str
    ours: str
    prefix: str
    why: dict[str, str]
    names: dict[str, str] = field(default_factory=dict)


SUBJECTS = (
    Subject(
        "LatentDirichletAllocation",
        "sklearn.decomposition.tests.test_online_lda",
        "LDAEstimator",
        "lda",
        {
            "test_lda_default_prior_params": "another default: the priors are the model's, not 1 / n_components",
            "test_lda_preplexity_mismatch": "internals: calls _perplexity_precomp_distr",
            "test_lda_perplexity": "another definition: no divergence of the topics, which sub_sampling weighs",
            "test_lda_score": "another definition: at the topics' means; one iteration scores as ten, to 2e-9",
            "test_lda_score_perplexity": "another definition: the score is the mean over the rows, not the sum",
            "test_lda_empty_docs": "by design: documents without a single token among them are refused",
            "test_verbosity": "by design: fits end where they have converged, here after two iterations of three",
            "test_lda_dtype_match": _FRACTIONS,
            "test_lda_numerical_consistency": _FRACTIONS,
        },
    ),
    Subject(
        "BernoulliRBM",
        "sklearn.neural_network.tests.test_rbm",
        "RBMEstimator",
        "rbm",
        {
            "test_fit_gibbs": "another stream of random numbers: compares with weights of one seed",
            "test_score_samples": "by design: entries above 1 are refused",
        },
        names={
            "._mean_hiddens": ".transform",
            "._sample_hiddens": ".sample_hidden",
            "X[0]": "X[:1]",
            "    assert_allclose(rbm_64.h_samples_, rbm_32.h_samples_)\n": "",
        },
    ),
)


class Outcome(NamedTuple):
    """Of one test with one set of parameters. problem: the first line of what went wrong."""

    test: str
    passed: bool
    problem: str


def adapted(subject: Subject) -> str:
    """The text of the test module with another class in it."""
    found = importlib.util.find_spec(subject.module)
    if found is None or found.origin is None:
        raise SystemExit(f"the installed scikit-learn comes without {subject.module}")
    text = Path(found.origin).read_text("utf-8")
    text = re.sub(rf"^from sklearn\.\w+ import {subject.theirs}$", _IMPORT.format(subject.ours), text, flags=re.M)
    text = text.replace(subject.theirs, subject.ours).replace(subject.theirs.lower(), subject.prefix)
    for theirs, ours in subject.names.items():
        text = text.replace(theirs, ours)
    return text


_INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()
_IMPORT = "from custom_inference.sklearn import {}"


def outcomes(subject: Subject, *chosen: str) -> list[Outcome]:
    """Of all tests that are not skipped, by pytest in a process of its own, with the fixtures of scikit-learn.

    chosen: further options of pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder, f"test_{subject.prefix}.py"), Path(folder, "report.xml")
        path.write_text(adapted(subject), "utf-8")
        options = [
            "-q",
            "-p",
            "sklearn.conftest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            folder,
            "-c",
            "/dev/null",
            *chosen,
        ]
        command = [sys.executable, "-m", "pytest", str(path), *options, f"--junitxml={report}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        if not report.is_file():
            raise RuntimeError(f"no report of the tests: {(run.stdout + run.stderr)[-2000:]}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return [_outcome(case) for case in cases if case.find("skipped") is None]


def _outcome(case: ElementTree.Element) -> Outcome:
    wrong = next((one for one in case if one.tag in ("failure", "error")), None)
    lines = [] if wrong is None else (wrong.get("message") or wrong.tag).strip().splitlines()
    return Outcome(case.get("name", ""), wrong is None, next(iter(lines), ""))


def table(subject: Subject, found: Sequence[Outcome]) -> Table:
    passed = sum(one.passed for one in found)
    made = Table(
        f"{subject.ours} in the tests of {subject.theirs}: {passed} of {len(found)} pass",
        ["test", "passed", "why not"],
        note="One line a test; passed: of how many sets of its parameters.",
    )
    for name in dict.fromkeys(one.test.partition("[")[0] for one in found):
        cases = [one for one in found if one.test.partition("[")[0] == name]
        wrong = [one.problem for one in cases if not one.passed]
        why = subject.why.get(name, wrong[0]) if wrong else ""
        made.rows.append([name, f"{len(cases) - len(wrong)} of {len(cases)}", why])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--subjects", nargs="+", choices=[one.ours for one in SUBJECTS])
    arguments = parser.parse_args()
    tables = []
    for subject in SUBJECTS:
        kept = [one for title, one in read_tables("scikit_learn_tests", folder=arguments.out).items()
                if title.startswith(subject.ours)]  # fmt: skip
        again = arguments.subjects is None or subject.ours in arguments.subjects or not kept
        tables.append(table(subject, outcomes(subject)) if again else kept[0])
    write_report("scikit_learn_tests", "scikit-learn's own tests", tables, intro=_INTRO, folder=arguments.out)


if __name__ == "__main__":
    main()
