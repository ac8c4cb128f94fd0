"""Whether the wheel works where people install it: quick tests and the README's commands in fresh environments.

    python -m benchmarks.quality.installs [--only 3.12,lowest] [--folder FOLDER]

The newest releases of everything, without constraints, on every interpreter from 3.12 on that is found; the lowest
that are allowed (constraints-lowest.txt) on 3.11. What is tested is the wheel: the tests lie in a folder without the
packages.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from benchmarks._report import Table, read_tables, write_report

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = (3, 11), (3, 12)
#: What the tests read beside the packages.
BESIDE = ("tests", "benchmarks", "docs", "notebooks", *(path.name for path in ROOT.iterdir() if path.is_file()))
SHOWN = ("torch", "pyro-ppl", "numpy", "scipy", "pandas", "scikit-learn", "arviz", "xarray", "typer")
#: Of old releases among each other deprecations are no news.
OLD = ("-W", "ignore::DeprecationWarning")
EXPECTED = {
    "ppl demo": {"comparison.png", "fit.safetensors", "learned_components.png", "objective.png",
                 "sources_of_images.png", "true_patterns.png"},
    "ppl fit": {"components.csv", "components.png", "elbo.png", "fit.safetensors", "loading.csv", "loading.png",
                "membership.csv", "posterior.nc", "report.html", "source.png", "summary.csv"},
}  # fmt: skip


@dataclass
class Install:
    """An environment, and what was found there."""

    name: str
    python: Path
    constraint: Path | None = None
    python_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    tests: str = ""
    failures: list[str] = field(default_factory=list)

    def row(self) -> list[str]:
        releases = "newest" if self.constraint is None else "lowest"
        versions = [self.versions.get(name, "") for name in SHOWN]
        return [self.python_version, releases, *versions, *(self.commands.get(c, "") for c in EXPECTED), self.tests]


def find_interpreters() -> dict[tuple[int, int], Path]:
    """Find Python 3.11 and later, by version: on the path, and among those that pyenv installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found: dict[tuple[int, int], Path] = {}
    for minor in range(OLDEST[1], 30):
        name = f"python3.{minor}"
        on_path = [Path(path) for path in [shutil.which(name)] if path]
        for python in [*sorted(pyenv.glob(f"3.{minor}.*/bin/{name}"), reverse=True), *on_path]:
            works = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, check=False)
            if works.returncode == 0:
                found[(3, minor)] = python
                break
    return found


def installs(interpreters: dict[tuple[int, int], Path]) -> list[Install]:
    """The environments to make."""
    newest = [Install(f"3.{v[1]}", path) for v, path in interpreters.items() if v >= NEWEST]
    if OLDEST not in interpreters:
        return newest
    return [*newest, Install("lowest", interpreters[OLDEST], ROOT / "constraints-lowest.txt")]


def run(command: Sequence[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    settings = {**kept, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", **environment}
    return subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)


def require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        sys.exit(f"{' '.join(map(str, done.args))}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def build_wheel(folder: Path) -> Path:
    source = folder / "source"  # where no earlier build has left anything
    copy(("ppl_models", "custom_inference", "pyproject.toml", "README.md", "LICENSE"), source)
    require(run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source], folder))
    return next(folder.glob("ppl_models-*.whl"))


def copy(names: Sequence[str], target: Path) -> None:
    """Copy files and folders of the project, without what is made of them."""
    target.mkdir(parents=True)
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "cache")
    for name in names:
        source = ROOT / name
        shutil.copytree(source, target / name, ignore=skipped) if source.is_dir() else shutil.copy(source, target)


def try_install(one: Install, wheel: Path, folder: Path) -> None:
    """Make the environment, and run the commands and the tests there."""
    require(run([one.python, "-m", "venv", folder / "venv"], folder))
    programs, work = folder / "venv" / "bin", folder / "work"
    pinned = [] if one.constraint is None else ["--constraint", one.constraint]
    require(run([programs / "pip", "install", "--quiet", *pinned, f"{wheel}[test]"], folder))
    listed = json.loads(run([programs / "pip", "list", "--format", "json"], folder).stdout)
    one.versions = {entry["name"].lower(): entry["version"] for entry in listed}
    one.python_version = run([programs / "python", "--version"], folder).stdout.split()[-1]
    copy(BESIDE, work)
    write_papers(folder / "papers.csv")
    fit = ["ppl", "fit", "noca", "papers.csv", "-k", "5", "--out", "papers_fit"]  # as the README has it
    for command, out in ((["ppl", "demo"], "noca_demo"), (fit, "papers_fit")):
        name = " ".join(command[:2])
        one.commands[name] = outcome([programs / command[0], *command[1:]], folder, out, EXPECTED[name])
    test(one, programs, work)


def outcome(command: Sequence[str | Path], folder: Path, out: str, expected: set[str]) -> str:
    """Run a command of the README; how it ended, and what it left unwritten."""
    started = time.perf_counter()
    done = run(command, folder)
    missing = sorted(expected - {path.name for path in (folder / out).glob("*")})
    if done.returncode or missing or done.stderr.count("Traceback"):
        print(done.stdout[-1000:], done.stderr[-3000:], sep="\n")
        return f"exit code {done.returncode}, without {', '.join(missing) or 'nothing'}"
    return f"all {len(expected)} files, {time.perf_counter() - started:.0f} s"


def test(one: Install, programs: Path, work: Path) -> None:
    """Run the quick tests, one process."""
    ignored = () if one.constraint is None else OLD
    report = work / "tests.xml"
    command = [programs / "python", "-m", "pytest", "-m", "quick", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = run([*command, *ignored], work)
    if not report.is_file():
        one.tests = f"did not run: {(done.stdout + done.stderr).strip().splitlines()[-1]}"
        return
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failed, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "skipped"))
    failed += int(suite.get("errors", 0))
    seconds = float(suite.get("time", 0))
    one.tests = f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped, {seconds:.0f} s"
    for case in suite.iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            name = f"{case.get('classname')}.{case.get('name')}"
            one.failures.append(f"{name}: {(problem.get('message') or '').splitlines()[0][:160]}")


def write_papers(path: Path) -> None:
    """Rows of 0/1 with names of rows and columns, and an entry missing."""
    random = np.random.default_rng(0)
    on = 0.05 + 0.85 * (random.random((200, 5)) < 0.3) @ np.eye(5).repeat(3, axis=1)
    x = (random.random(on.shape) < np.minimum(on, 0.95)).astype(int).astype(str)
    x[3, 5] = ""
    lines = ["paper," + ",".join(f"author{j}" for j in range(x.shape[1]))]
    lines += [",".join([f"paper{n}", *row]) for n, row in enumerate(x)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="environments by name, such as 3.12,lowest; lines of the others are kept")
    parser.add_argument("--folder", type=Path, help="where environments are made, and stay; by default a temporary one")
    arguments = parser.parse_args()
    chosen = installs(find_interpreters())
    names = arguments.only.split(",") if arguments.only else [one.name for one in chosen]
    chosen = [one for one in chosen if one.name in names]
    columns = ["Python", "releases", *SHOWN, *(f"`{command}`" for command in EXPECTED), "quick tests"]
    earlier = read_tables("installs").get("Environments", Table("")).rows if arguments.only else []
    lines = {(str(row[0]).rpartition(".")[0], row[1]): row for row in earlier}
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        base = arguments.folder or Path(temporary)
        (base / "wheel").mkdir(parents=True, exist_ok=True)
        wheel = build_wheel(base / "wheel")
        for one in chosen:
            folder = base / one.name
            folder.mkdir()
            try_install(one, wheel, folder)
            row = one.row()
            print(" | ".join(row), *one.failures, sep="\n", flush=True)
            lines[(one.python_version.rpartition(".")[0], row[1])] = row
            failures += [f"- {one.python_version}, {row[1]}: `{failure}`" for failure in one.failures]
            shutil.rmtree(folder / "venv") if arguments.folder is None else None
    told = "\n".join(failures) or "No test failed."
    tables = [Table("Environments", columns, [lines[key] for key in sorted(lines)]), Table("Failures", note=told)]
    intro = (
        "A fresh environment each, the wheel installed by pip. *newest*: no constraints; *lowest*: "
        "`constraints-lowest.txt`, where deprecations among old releases are not taken for errors. The commands are "
        "those of the README; *files* are those that they should write."
    )
    write_report("installs", "Installs", tables, intro=intro)
    sys.exit(bool(failures) or any("exit code" in cell for row in lines.values() for cell in row))


if __name__ == "__main__":
    main()
