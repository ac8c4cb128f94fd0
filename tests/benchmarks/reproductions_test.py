"""The page of reproductions: every figure of the sources has a line, and what it says is in the reports."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pyro
import pytest
import torch
from pyro import poutine

from benchmarks import reproductions
from benchmarks._report import RESULTS
from benchmarks._reproductions import Item, Numbers, number
from ppl_models import NOCA

ITEMS = {title.split()[0]: items for title, items in {**reproductions.PAPERS, **reproductions.BOOK}.items()}


def _mentioned(source: str) -> set[str]:
    """Figures and tables of a source that have a line: "27.15-27.17" is three of them."""
    found = set()
    for item in ITEMS[source]:
        kind = "Table " if item.what.startswith("Table") else ""
        for chapter, first, last in re.findall(r"(27\.|\b)(\d+)[ab]?(?:-27\.(\d+))?", item.what):
            found |= {f"{kind}{chapter}{n}" for n in range(int(first), int(last or first) + 1)}
    return found


def test_nothing_of_the_sources_is_without_a_line():
    assert _mentioned("Singliar") >= {*map(str, range(4, 15)), "Table 1", "Table 2"}
    assert _mentioned("Bingham") >= {*map(str, range(3, 13)), *(f"Table {n}" for n in range(1, 5))}
    assert _mentioned("Murphy") >= {*(f"27.{n}" for n in range(1, 34)), "Table 27.1", "Table 27.2"}


@pytest.mark.parametrize("item", [item for items in ITEMS.values() for item in items], ids=lambda item: item.what)
def test_what_is_said_can_be_looked_up(item):
    line = reproductions.line(item)
    assert line.verdict in reproductions.VERDICTS and len(line.cells) == len(reproductions.COLUMNS)
    missing = [one for one in item.figures if not (RESULTS / one).is_file()]
    assert not missing or line.verdict == "not measured"
    if item.report and line.verdict == "not measured" and (RESULTS / f"{item.report}.json").is_file():
        program = Path(reproductions.__file__).parents[1] / f"{reproductions.module(item.report).replace('.', '/')}.py"
        named = re.findall(r"\{([^\[{}]+)\[", item.ours)
        assert named and all(title in program.read_text("utf-8") for title in named)  # it will be there


def test_the_page_is_up_to_date():
    stored = json.loads((RESULTS / "reproductions.json").read_text("utf-8"))["tables"]
    made = [table.as_json()["rows"] for table in reproductions.tables()]
    assert [table["rows"] for table in stored] == made, "run: python -m benchmarks.reproductions"


def test_rules_decide_and_what_is_not_measured_says_so(tmp_path):
    rows = [{"K": 1, "found": "3 of 4", "s": "1 / 2 / 9"}, {"K": 2, "found": "4 of 4", "s": "-1.5 ± 0.2"}]
    report = {"title": "T", "tables": [{"title": "Fits, all", "rows": rows, "note": "is 2.5 times"}]}
    (tmp_path / "cvq_bars.json").write_text(json.dumps(report))
    numbers = Numbers(report)
    assert numbers("Fits", "found", "1") == 0.75 and numbers.column("Fits", "s") == [2.0, -1.5]
    assert numbers.note("Fits", r"is ([\d.]+) times") == 2.5 and number("1,024 ± 3") == 1024
    rules = [("all at 2", lambda n: n("Fits", "found", "2") == 1), ("all at 1", lambda n: n("Fits", "found", "1") == 1)]

    def line(**settings):
        return reproductions.line(Item("Fig. 0", "claim", "cvq_bars", **settings), tmp_path)

    assert [line(rules=rules[:k]).verdict for k in (0, 1, 2)] == ["to look at", "yes", "in part"]
    assert line(rules=rules[1:]).verdict == "no" and "all at 2: yes; all at 1: no" in line(rules=rules).rules
    assert line(ours="{Fits[1][found]}").ours == "3 of 4 ([report](cvq_bars.md))"
    assert line(ours="{Other[1][found]}").verdict == "not measured"
    assert reproductions.line(Item("Fig. 0", "claim", "noca_real"), tmp_path).verdict == "not measured"
    with pytest.raises(LookupError, match=r"Fig\. 0: 0 rows"):
        line(ours="{Fits[7][found]}")
    with pytest.raises(LookupError, match="no row"):
        line(rules=[("lost", lambda n: n("Fits", "found", "7") > 0)])
    with pytest.raises(LookupError, match="no program"):
        reproductions.line(Item("Fig. 0", "claim", "lost"), tmp_path)


def test_fever():
    """The table of the slides: P(fever) = 1 - prod of .6, .2, .1 over the causes that are there."""
    model = NOCA(num_components=3, num_features=3)  # the same thrice: no more causes than features
    strength = torch.tensor([0.4, 0.8, 0.9])
    site = {"loading": strength[:, None].expand(3, 3), "leak": torch.zeros(3), "source_prior": torch.full((3,), 0.5)}
    causes = torch.tensor([*itertools.product([0.0, 1.0], repeat=3)])
    trace = poutine.trace(pyro.condition(model, {**site, "source": causes})).get_trace(num_rows=8)
    fever = trace.nodes["x"]["fn"].base_dist.log_prob(torch.ones(8, 3)).exp()
    expected = [0, 0.9, 0.8, 0.98, 0.4, 0.94, 0.88, 0.988]
    assert torch.allclose(fever.reshape(8, -1)[:, 0], torch.tensor(expected), atol=1e-6)
