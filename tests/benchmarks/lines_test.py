"""What tables show beside their figures gives them: three rows are pasted, at random; what is a default, and what is
older than a change."""

import json
import random

import numpy as np
import pytest
import torch

import custom_inference
import ppl_models
from benchmarks import _freshness, stale
from benchmarks._lines import Lines
from benchmarks._report import Table, write_report
from benchmarks.quality._peer_rows import ROWS

#: A pasted line knows these names beside the data.
NAMES = {"fit": custom_inference.fit, **{name: getattr(ppl_models, name) for name in ppl_models.__all__}}


def small_data(kind):
    """Data by the names that lines give them: the model's example, or others where that is too small."""
    example = kind.example()
    rng = np.random.default_rng(0)
    if kind.__name__ in ("GaussianPCA", "PoissonPCA"):
        return {"x": rng.poisson(2.0, (30, 12)).astype(float)}
    if kind.__name__ == "NOCA":
        return {"x": (rng.random((40, 12)) < 0.3).astype(float)}
    if kind.__name__ in ("LabeledLDA", "PartiallyLabeledLDA"):
        return {"x": example.data.x, "y": np.arange(len(example.data)) % 4}
    others = example.data.others
    response = others.get("response", others.get("labels"))
    beside = {"ratings": example.data, "y": response, "groups": others.get("covariates"), **others}
    return {"x": example.data.x if kind.__name__ == "RTM" else example.data, **beside}


def test_three_rows_are_what_their_lines_give():
    """The benchmark's run of a row's lines, and the lines pasted, on small data; none are small for 28 communities."""
    for row in random.SystemRandom().sample([row for row in ROWS if row.lines.kind is not ppl_models.MMSB], 3):
        given = small_data(row.lines.kind)
        pasted = eval(row.lines.text, NAMES, {**given})
        measured = row.lines.fit(seed=0, **given)
        assert pasted.method == measured.method, row.lines.text
        for site, value in measured.params.items():
            torch.testing.assert_close(pasted.params[site], value, msg=f"{row.lines.text}: {site}")


@pytest.mark.parametrize(
    ("text", "default"),
    [
        ("fit(LDA(num_topics=20), x)", True),
        ("fit(DTM(num_topics=5), x, time=time)", True),
        ("fit(HelmholtzMachine(layers=(4, 9)), x)", True),
        ("fit(LDA(num_topics=20), x, method='gibbs')", False),
        ("fit(LDA(num_topics=20), x, tolerance=0.1)", False),
        ("fit(LDA(num_topics=20).with_concentration(alpha=0.1), x)", False),
        ("fit(PMF(num_components=10, varying_noise=20.0), x)", False),
        ("CollapsedGibbs().fit(LDA(num_topics=20), x)", False),
    ],
)
def test_lines_are_the_default_where_only_sizes_and_data_are_passed(text, default):
    assert Lines(text).is_default is default


def test_rows_of_the_readme_have_programs_of_the_suite():
    for row in ROWS:
        assert row.lines.kind in (*ppl_models.MODELS.values(), ppl_models.IRM)
        assert row.better in ("less", "more") and row.needs


_ROOM = """
from custom_inference.families.topics.vb import LdaVB
from custom_inference.families.topics.profile import Profile
FAMILIES = (Family(model=LDA, engines={"vb": LdaVB}), Family(model=UserRatingProfile, engines={"vb": Profile}))
"""
_ENGINE = """
_TOLERANCE = 1e-5
_OTHER = 2

class LdaVB:
    def step(self):
        if self.value < _TOLERANCE:
            return self.value
        raise MethodError("too small")
"""


def test_digests_go_by_the_code_that_a_record_reaches_and_not_by_words(tmp_path):
    room = tmp_path / "custom_inference" / "families" / "topics"
    (tmp_path / "ppl_models").mkdir()
    room.mkdir(parents=True)
    (room / "__init__.py").write_text(_ROOM)
    (room / "profile.py").write_text("class Profile:\n    pass\n")
    (tmp_path / "ppl_models" / "lda.py").write_text('\nclass LDA(Model):\n    """Some words."""\n    x = 1\n')
    cached = [one for one in vars(_freshness).values() if hasattr(one, "cache_clear")]

    def found(engine: str) -> str:
        (room / "vb.py").write_text(engine)
        for one in cached:
            one.cache_clear()
        return _freshness.digest("LDA", tmp_path)

    first = found(_ENGINE)
    words = _ENGINE.replace("too small", "value is too small").replace("= 1e-5", "= 1e-5  # why")
    assert found('"""What it does."""\n' + words) == first
    assert found(_ENGINE.replace("_OTHER = 2", "_OTHER = 3")) == first  # of other models
    (room / "profile.py").write_text("class Profile:\n    x = 1\n")
    assert found(_ENGINE) == first
    for changed in (_ENGINE.replace("1e-5", "1e-2"), _ENGINE.replace("<", "<=")):
        assert found(changed) != first


def test_the_models_that_a_report_measures_are_those_its_code_reaches():
    assert _freshness.models_of("benchmarks.quality.cvq_bars") == ["CVQ"]
    assert _freshness.models_of("benchmarks.quality.noca_recovery") == ["NOCA"]
    assert {"LDA", "MMSB", "NOCA"} < set(_freshness.models_of("benchmarks.quality.peers"))
    assert set(_freshness.models_of("benchmarks.quality.truth")) == set(_freshness.ROOMS)


def test_tables_older_than_a_change_are_listed(tmp_path):
    now = _freshness.digest("LDA")
    tables = [
        Table("Fresh", ("a",), [[1]], engines={"LDA": now}),
        Table("Old", ("a",), [[1]], engines={"LDA": now, "NOCA": "before"}),
        Table("By rows", ("lines", stale.ENGINES), [["one", f"LDA {now}"], ["two", "LDA before"]]),
    ]
    write_report("some", "Some", tables, folder=tmp_path)
    assert [(one.table, one.changed) for one in stale.stale(tmp_path)] == [
        ("Old", ("NOCA",)),
        ("By rows, two", ("LDA",)),
    ]
    known = json.loads((tmp_path / "some.json").read_text())
    assert known["commit"] and all(table["commit"] for table in known["tables"])


def test_every_report_says_what_it_measured():
    assert [str(one) for one in stale.stale() if not one.changed] == []
