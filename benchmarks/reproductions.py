"""Every figure and table of the five sources that is about a model: its claim, what is found here, whether it holds.

    python -m benchmarks.reproductions

Writes ``benchmarks/results/reproductions.{md,json}``. Every number comes from the other reports; whether a claim holds
is computed by the rules that stand beside it. What no report measures says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks._report import RESULTS, Table, write_report
from benchmarks._reproductions import Item, Numbers, filled
from benchmarks._reproductions_book import BOOK
from benchmarks._reproductions_papers import PAPERS

VERDICTS = ("yes", "in part", "no", "to look at", "not measured")


@dataclass(frozen=True)
class Line:
    """What the page says of an item; its verdict is one of ``VERDICTS``."""

    item: Item
    ours: str
    verdict: str
    rules: str
    run: str

    @property
    def cells(self) -> list[str]:
        """In the order of ``COLUMNS``."""
        return [self.item.what, self.item.claim, self.ours, self.verdict, self.rules, self.run]


def line(item: Item, folder: Path = RESULTS) -> Line:
    """The item with its numbers. Raises LookupError where its report has a table, but not the entry that it names."""
    if not item.report:
        return Line(item, item.ours, "to look at" if item.run else "not measured", "", item.run)
    run, asked = f"`python -m {module(item.report)}`", "; ".join(text for text, _ in item.rules)
    path = folder / f"{item.report}.json"
    if not path.is_file():
        return Line(item, "", "not measured", asked, run)
    report = json.loads(path.read_text("utf-8"))
    try:
        text, held = filled(item.ours, report), [rule(Numbers(report)) for _, rule in item.rules]
    except LookupError as error:
        if not str(error).startswith("no table"):
            raise LookupError(f"{item.what}: {error}") from error
        return Line(item, "", "not measured", asked, run)
    links = [f"[report]({item.report}.md)", *(f"[figure]({one})" for one in item.figures)]
    verdict = "to look at" if not held else "yes" if all(held) else "in part" if any(held) else "no"
    rules = "; ".join(f"{rule}: {'yes' if yes else 'no'}" for (rule, _), yes in zip(item.rules, held, strict=True))
    return Line(item, f"{text} ({', '.join(links)})".strip(), verdict, rules, run)


def module(report: str) -> str:
    """The program that writes a report."""
    folders = (Path(__file__).parent / kind for kind in ("quality", "speed"))
    found = [folder.name for folder in folders if (folder / f"{report}.py").is_file()]
    if not found:
        raise LookupError(f"no program benchmarks/quality/{report}.py or benchmarks/speed/{report}.py")
    return f"benchmarks.{found[0]}.{report}"


COLUMNS = ("figure or table", "what it claims", "here", "holds", "by which rule", "how to run it")


def tables(folder: Path = RESULTS) -> list[Table]:
    """How many claims hold, and a table for each source."""
    made, counts = [], []
    for title, items in {**PAPERS, **BOOK}.items():
        lines = [line(item, folder) for item in items]
        made.append(Table(title, COLUMNS, [one.cells for one in lines]))
        counts.append([title, *(sum(one.verdict == verdict for one in lines) for verdict in VERDICTS)])
    return [Table("How many hold", ("source", *VERDICTS), counts), *made]


def main(folder: Path = RESULTS) -> None:
    intro = (
        "Every figure and table of the five sources that is about a model. A claim holds where all rules beside it "
        "do, in "
        'part where some do; "to look at" is a picture, a list of words or a drawing, which no number decides. Where '
        "the "
        "source's data are not at hand, its claim is tried on other data of the kind, which the report names; "
        "programs that read "
        "real data take `--data DIR`. What a report measured in parts is in it with the date of each."
    )
    write_report("reproductions", "Reproductions of the sources", tables(folder), intro=intro, folder=folder)


if __name__ == "__main__":
    main()
