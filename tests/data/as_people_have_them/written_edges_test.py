"""Lists of edges as programs write them: each is the karate club with its 78 edges, and what is no weight is none."""

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from ppl_models import DataWarning, FileFormatError, graph

KARATE = nx.karate_club_graph()
EDGES = sorted(KARATE.edges())
WEIGHTS = {edge: KARATE.edges[edge]["weight"] for edge in EDGES}
FRAME = pd.DataFrame(EDGES, columns=["from", "to"])
LATE = 1_082_040_961


def read(path, **settings):
    data = graph(path, directed=False, **settings)
    assert len(data) == 34 and data.edges().T.tolist() == list(map(list, EDGES))
    return data.x.to_dense().numpy()


@pytest.mark.parametrize("names", [("from", "to"), ("src", "dst"), ("source", "target"), ("a", "b")])
def test_the_index_is_no_weight(tmp_path, names):
    FRAME.set_axis(names, axis=1).to_csv(tmp_path / "e.csv")
    with pytest.warns(DataWarning, match=r"first column \(unnamed\) numbers the rows from 0 to 77"):
        assert read(tmp_path / "e.csv").max() == 1


@pytest.mark.parametrize("delimiter", [" ", ",", "\t"])
def test_what_networkx_writes(tmp_path, delimiter):
    path = tmp_path / "e.txt"
    nx.write_edgelist(KARATE, path, delimiter=delimiter)
    x = read(path)
    assert all(x[i, j] == weight for (i, j), weight in WEIGHTS.items())
    assert read(path, weight=False).max() == 1
    nx.write_edgelist(nx.Graph(EDGES), path, delimiter=delimiter)  # lines 0 1 {}
    assert read(path).max() == 1
    with pytest.raises(FileFormatError, match="no edge has the attribute 'length'"):
        graph(path, weight="length")
    path.write_text("0 1 {'weight': 4}\n1 2\n")
    with pytest.raises(FileFormatError, match="'1 2' ends without attributes"):
        graph(path)
    path.write_text("0 1 {'weight': __import__('os')}\n")
    with pytest.raises(FileFormatError, match="not readable as txt"):
        graph(path)


@pytest.mark.parametrize("start", [LATE, 1000 * LATE])
@pytest.mark.parametrize("name", ["e.txt", "e.csv", "named.csv"])
def test_times_are_no_weights(tmp_path, name, start):
    path, between = tmp_path / name, " " if name == "e.txt" else ","
    head = "from,to,sent\n" if "named" in name else ""
    third = "sent" if "named" in name else "2"
    path.write_text(head + "".join(f"{a}{between}{b}{between}{start + n}\n" for n, (a, b) in enumerate(EDGES)))
    header = bool(head) if "csv" in name else "auto"
    with pytest.warns(DataWarning, match=f"column '{third}' looks like times .*{start}.*weight='{third}' takes it"):
        assert read(path, header=header).max() == 1
    assert read(path, header=header, weight=third).max() == start + 77


def test_columns_of_files_without_a_header(tmp_path):
    for name, between in (("e.txt", " "), ("e.csv", ",")):
        path = tmp_path / name
        lines = [between.join(map(str, (n, a, b, 2, LATE + n))) for n, (a, b) in enumerate(EDGES)]
        path.write_text("\n".join(lines))
        header = False if name == "e.csv" else "auto"
        assert read(path, columns=(1, 2), header=header).max() == 1
        assert read(path, columns=("1", "2"), weight="3", header=header).max() == 2
        with pytest.raises(FileFormatError, match=r"5 .*columns=\('0', '1'\) \(--columns 0,1\)"):
            graph(path, header=header)
        with pytest.raises(FileFormatError, match="no column 7 among"):
            graph(path, columns=(0, 7), header=header)


@pytest.mark.parametrize("start", [0, 1, 5])
def test_nodes_by_nodes_with_whole_numbers_as_names(tmp_path, start):
    for graph_, size in ((KARATE, 34), (nx.path_graph(3), 3)):
        nodes = range(start, start + size)
        frame = pd.DataFrame(nx.to_numpy_array(graph_, weight=None).astype(int), nodes, nodes)
        frame.to_csv(tmp_path / "a.csv")
        shuffled = frame[frame.columns[::-1]]
        shuffled.to_csv(tmp_path / "s.csv")
        for source in (tmp_path / "a.csv", tmp_path / "s.csv", frame, pd.read_csv(tmp_path / "a.csv")):
            data = graph(source)
            assert list(data.nodes) == list(nodes) and not data.directed
            assert np.array_equal(data.x.to_dense().numpy(), frame.to_numpy())


def test_labels_of_rows_and_columns_in_any_two_orders():
    rng = np.random.default_rng(0)
    x = (rng.random((6, 6)) < 0.4).astype(int)
    np.fill_diagonal(x, 0)
    for names in (list(range(6)), list("abcdef"), [10, 20, 30, 40, 50, 60], ["01", "1", "2", "3", "4", "5"]):
        frame = pd.DataFrame(x, names, names)
        for rows, columns in ((names, names[::-1]), (names[::-1], names), (names[::-1], names[2:] + names[:2])):
            data = graph(frame.loc[rows, columns], directed=True)
            place = [list(data.nodes).index(name) for name in names]
            assert np.array_equal(data.x.to_dense().numpy()[np.ix_(place, place)], x)


def test_comments_and_blanks(tmp_path):
    lines = [f"{a},{b}" for a, b in EDGES]
    (tmp_path / "c.csv").write_text("# karate club\n# 34, 78\nsource,target\n" + "\n".join(lines))
    assert read(tmp_path / "c.csv").max() == 1
    for behind in (" # friends", "\t# friends, from 1977", " #friends"):
        (tmp_path / "c.txt").write_text("\n".join(f"{a} {b} 2{behind}" for a, b in EDGES))
        assert read(tmp_path / "c.txt").max() == 2
        (tmp_path / "c.txt").write_text("\n".join(f"{a} {b}{behind if a else ''}" for a, b in EDGES))
        assert read(tmp_path / "c.txt").max() == 1
    (tmp_path / "h.txt").write_text("ann #ppl\nbob #ppl\n")  # names may begin with the sign
    assert graph(tmp_path / "h.txt").nodes == ["ann", "#ppl", "bob"]
    for name, head in (("b.csv", "source, target\n"), ("b.txt", "")):
        (tmp_path / name).write_text(head + "".join(f"p{a}, p{b}\n" for a, b in EDGES))
        assert len(graph(tmp_path / name, directed=False)) == 34


def test_names_of_one_kind(tmp_path):
    (tmp_path / "z.txt").write_text("007 7\n7 010\n")
    assert graph(tmp_path / "z.txt").nodes == ["007", "7", "010"]
    (tmp_path / "z.csv").write_text("source,target\n007,7\n7,10\n")
    assert graph(tmp_path / "z.csv").nodes == ["007", "7", "10"]
    (tmp_path / "m.csv").write_text("source,target\n1,a\n2,1\n")  # the column of numbers holds names too
    assert graph(tmp_path / "m.csv").nodes == ["1", "a", "2"]


def test_users_and_items_of_the_same_numbers_are_warned_of(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("user,item\n1,2\n2,3\n3,4\n")
    with pytest.warns(DataWarning, match="2 labels stand among both 'user' and 'item'"):
        graph(path)
    graph(path, columns=("user", "item"))  # says nothing
