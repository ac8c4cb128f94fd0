"""The rooms of the two packages: no import cycle, nothing of inference in the models, a short list at the top, and
families' rooms loaded by the registry but for the modules that are about one family.

Imports inside functions and under ``TYPE_CHECKING`` count; that a package's ``__init__`` re-exports its own modules
does not. ``python tests/core/architecture_test.py`` lists what it finds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

from custom_inference.families import ROOMS

FAMILIES = "custom_inference.families."
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ppl_models", "custom_inference")
#: Names at the top of ``custom_inference``: what a newcomer chooses from, and ``extend`` for authors.
MOST = 14
#: Modules outside of ``families`` that ask for formulas of a family that no other has, and import its room by name:
#: exact posteriors of LDA's tokens, covariances of CTM's topics, machines as scikit-learn has them, edges and numbers
#: of blocks, evidence in closed form and sums over labelings, clusters of relations; starts of programs of graphs,
#: sweeps over rows of words.
_GRAPHS = "engine exact moves propensities rows starts views"
OF_ONE_FAMILY = {
    *((f"custom_inference.compiled.graphs.{name}", "blocks") for name in _GRAPHS.split()),
    ("custom_inference.checks.compare_integrated", "topics"),
    ("custom_inference.checks.evidence.chib", "mixtures"),
    ("custom_inference.checks.evidence.exact", "blocks"),
    ("custom_inference.checks.evidence.exact", "mixtures"),
    ("custom_inference.checks.evidence.exact", "topics"),
    ("custom_inference.checks.evidence.labelings", "blocks"),
    ("custom_inference.compiled.admixture.cvb0", "topics"),
    ("custom_inference.compiled.admixture.engine", "gamma_poisson"),
    ("custom_inference.compiled.admixture.engine", "topics"),
    ("custom_inference.compiled.admixture.starts", "topics"),
    ("custom_inference.documents.correlations", "correlated"),
    ("custom_inference.documents.samplers", "topics"),
    ("custom_inference.documents.scores", "topics"),
    ("custom_inference.faces.command_line.report.relations", "relations"),
    ("custom_inference.faces.sklearn.machines", "boltzmann"),
    ("custom_inference.graphs.blocks", "blocks"),
    ("custom_inference.graphs.choice", "blocks"),
}


def modules() -> dict[str, Path]:
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return a statement and those inside it, without its expressions, which hold no imports and take most time."""
    yield node
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        inside = getattr(node, part, ())
        for one in inside if isinstance(inside, list) else ():
            yield from statements(one)


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Each module of the packages that this one imports, and the names on the way that are private."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        found: list[tuple[str, str]] = []
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import in line {node.lineno}"
            found = [(node.module or "", alias.name) for alias in node.names]
        for base, attribute in found:
            target = f"{base}.{attribute}" if f"{base}.{attribute}" in known else base
            if target in known and target != name:
                yield target, [part for part in (*base.split("."), attribute) if part.startswith("_")]


def problems() -> list[str]:
    known, graph, found, by_name = modules(), nx.DiGraph(), [], set()
    for name, path in known.items():
        for target, private in imported(name, path, known):
            if not (path.name == "__init__.py" and target.startswith(f"{name}.")):
                graph.add_edge(name, target)
            here, there = name.split(".")[0], target.split(".")[0]
            if (here, there) == PACKAGES:
                found.append(f"{name} imports {target}: models know nothing of inference")
            if here != there and private:
                found.append(f"{name} imports {', '.join(private)} of {target}, private to the other package")
            room = target.removeprefix(FAMILIES).split(".")[0] if target.startswith(FAMILIES) else None
            if room in ROOMS.values() and not name.startswith(FAMILIES):
                by_name.add((name, room))
    for name, room in sorted(by_name ^ OF_ONE_FAMILY):
        found.append(f"{name} and the room {room}: rooms are loaded by the registry, or listed in OF_ONE_FAMILY")
    for members in nx.strongly_connected_components(graph):
        if len(members) > 1:
            cycle = [one for one, _ in nx.find_cycle(graph.subgraph(members))]
            found.append(f"import cycle among {len(members)} modules: {' -> '.join([*cycle, cycle[0]])}")
    top = {name.split(".")[1] for name in known if name.startswith(f"{PACKAGES[1]}.")}
    if len(top) > MOST:
        found.append(f"{len(top)} names at the top of {PACKAGES[1]}, at most {MOST}: {', '.join(sorted(top))}")
    return found


def test_the_rooms_hold():
    found = problems()
    assert not found, "\n".join(["", *found])


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) or "the rooms hold")
    raise SystemExit(bool(found))
