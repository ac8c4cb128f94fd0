"""Lists of edges whose fields are apart by blanks, tabs and commas at once: read right, or refused by name."""

import numpy as np
import pandas as pd
import pytest

from ppl_models import DataWarning, FileFormatError, graph

pytestmark = pytest.mark.quick
PAIRS = [(1, 2), (2, 3), (3, 1), (1, 3)]
LATE = 1_082_008_561


@pytest.mark.parametrize("name", ["e.txt", "out.toy", "e.edges", "e.tsv"])
@pytest.mark.parametrize(
    "layout",
    ["{} {}\t1 {}", "{}\t{} 1\t{}", "{}, {} 1,{}", "  {}  {}\t 1   {}  ", "{} {}\t1\t{}\t", "{},{} 1 {}", "{};{} 1 {}"],
)
def test_ends_weights_and_times_in_a_mixture(tmp_path, name, layout):
    text = "% asym positive\n% 4 3 3\n" + "".join(layout.format(*p, LATE + n) + "\n" for n, p in enumerate(PAIRS))
    (tmp_path / name).write_text(text)
    with pytest.warns(DataWarning, match="column '3' looks like times"):
        data = graph(tmp_path / name)
    assert data.nodes == [1, 2, 3] and data.num_edges == 4 and data.directed
    assert bool((data.edge_values() == 1).all())


def test_some_lines_have_tabs_and_others_blanks(tmp_path):
    path = tmp_path / "e.txt"
    for pairs in (PAIRS, [("ann", "bob"), ("bob", "cleo"), ("cleo", "ann"), ("ann", "cleo")]):
        for order in ("\t  ,", " \t, ", ", \t "):
            path.write_text("".join(f"{a}{sign}{b}\n" for (a, b), sign in zip(pairs, order, strict=True)))
            assert graph(path).nodes == sorted(set(sum(pairs, ()))) and graph(path).num_edges == 4


def test_names_with_blanks_and_commas_stay(tmp_path):
    path = tmp_path / "e.txt"
    kept = {
        "ann smith\tbob jones\nbob jones\tcleo\n": {"ann smith", "bob jones", "cleo"},
        "New York\tBoston\t3\nBoston\tLos Angeles\t2\n": {"New York", "Boston", "Los Angeles"},
        "node 1,node 2\nnode 2,node 3\n": {"node 1", "node 2", "node 3"},
        "Smith,J Doe,A\nDoe,A Roe,B\n": {"Smith,J", "Doe,A", "Roe,B"},
        "p1, p2\np2, p3\n": {"p1", "p2", "p3"},
    }
    for text, names in kept.items():
        path.write_text(text)
        assert set(graph(path).nodes) == names


def test_what_may_be_either_is_refused(tmp_path):
    path = tmp_path / "e.txt"
    path.write_text("ann bob\t3\nbob cleo\t2\n")
    with pytest.raises(FileFormatError, match="a mixture of tabs and blanks in 'bob cleo.t2'.*expected one of them"):
        graph(path)


def test_the_direction_that_a_file_says(tmp_path):
    for kind, directed in (("sym", False), ("asym", True)):
        (tmp_path / "out.toy").write_text(f"% {kind} unweighted\n" + "".join(f"{i} {i + 1}\n" for i in range(30)))
        assert graph(tmp_path / "out.toy").directed == directed
        assert graph(tmp_path / "out.toy", directed=True).directed


def test_ids_keep_their_kind(tmp_path):
    for name, between in (("e.csv", ","), ("e.txt", " "), ("e.tsv", "\t")):
        path, head = tmp_path / name, "source,target\n" if name == "e.csv" else ""
        path.write_text(head + "".join(f"{a}{between}{b}\n" for a, b in [("01", "2"), ("2", "10"), ("10", "01")]))
        assert graph(path, directed=True).nodes == ["01", "2", "10"]
        big = [2**63 + 5, 2**63 + 7, 12, 2**64 + 1]
        path.write_text(head + "".join(f"{a}{between}{b}\n" for a, b in zip(big, big[1:] + big[:1], strict=True)))
        assert sorted(map(str, graph(path, directed=True).nodes)) == sorted(map(str, big))
    ends = np.array([[2**63 + 5, 12], [12, 2**63 + 7], [2**63 + 7, 2**63 + 5]], np.uint64)
    mixed = pd.DataFrame({"source": ends[:, 0], "target": ends[:, 1].astype(object)})
    small = pd.DataFrame({"source": ends[:, 0], "target": np.array([1, 2, 3], np.int64)})
    assert sorted(graph(ends).nodes) == sorted(graph(mixed).nodes) == [12, 2**63 + 5, 2**63 + 7]
    assert sorted(graph(small).nodes) == [1, 2, 3, 12, 2**63 + 5, 2**63 + 7]
    assert graph([(2**63 + 5, 2**53 + 1), (2**53 + 1, 2**53)], directed=True).num_edges == 2
