"""Lists what is older than a change of what it measured: tables of reports, and rows where these have digests.

    python -m benchmarks.stale            # a line each; exit code 1 where there are any
    python -m benchmarks.stale --rerun    # the commands that write their reports anew

A table is fresh while the code of the models that its command reaches is what it was (``_freshness``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._freshness import digest
from benchmarks._report import RESULTS

#: The column of tables whose rows are measured one by one: "MODEL digest".
ENGINES = "engines"


class Stale(NamedTuple):
    """A table of a report, the models that have changed since, when it was measured, and the report's command."""

    report: str
    table: str
    changed: tuple[str, ...]
    measured: str
    command: str

    def __str__(self) -> str:
        since = ", ".join(self.changed) or "what it measures is not known"
        return f"{self.report}: {self.table} ({self.measured or 'no date'}): {since}"


def stale(folder: Path = RESULTS) -> Iterator[Stale]:
    """Every table, and row, older than a change of what it measured; those that measure no model are never."""
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text("utf-8"))
        for table in report.get("tables", ()):
            for name, engines in _measured(table):
                changed = tuple(model for model, known in (engines or {}).items() if known != digest(model))
                if changed or engines is None:
                    yield Stale(path.stem, name, changed, table.get("measured", ""), report.get("command", ""))


def _measured(table: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str] | None]]:
    """A table's title, or those of its rows, and the digests; None where there are none on record."""
    if not any(ENGINES in row for row in table["rows"]):
        yield table["title"], table.get("engines")
    for row in table["rows"]:
        if ENGINES in row:
            yield f"{table['title']}, {next(iter(row.values()))}", dict([row[ENGINES].split()])


def is_fresh(row: Mapping[str, Any]) -> bool:
    """Whether a row with a digest was measured by the code that is there."""
    model, known = row[ENGINES].split()
    return digest(model) == known


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rerun", action="store_true", help="print the commands of the reports instead")
    given, found = parser.parse_args(), list(stale())
    for line in dict.fromkeys(one.command for one in found) if given.rerun else found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
