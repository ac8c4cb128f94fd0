"""The first line of a table: a header where something tells it from the others, and no edge or rating is lost."""

import gzip

import networkx as nx
import numpy as np
import pytest

from ppl_models import DataError, DataWarning, documents, graph, ratings, relations, row_blocks
from ppl_models.data.files.headers import find_header, separator
from ppl_models.datasets import read_matrix

KARATE = sorted(nx.karate_club_graph().edges())


@pytest.mark.parametrize(
    ("lines", "settings", "header", "sure"),
    [
        (["a,b", "b,c", "c,d"], {"lists": (2, 3)}, False, True),  # b is a node of another edge
        (["source,target", "b,c", "c,d"], {"lists": (2, 3)}, True, True),
        (["From,To", "b,c", "c,d"], {"lists": (2, 3), "custom": False}, True, True),
        (["who,whom", "1,2", "2,3"], {"lists": (2, 3)}, True, True),  # text above numbers
        (["0,1", "0,2", "1,2"], {"lists": (2, 3)}, False, True),
        (["u,v", "a,b", "c,d"], {"lists": (2, 3)}, True, False),  # nothing tells them apart
        (["u,v", "a,b", "c,d"], {"lists": (2, 3), "custom": False}, False, False),
        (["u,v", *["a,b", "b,c", "c,a", "b,a"] * 3], {"lists": (2, 3), "custom": False}, True, True),
        (["ann,Heat,5", "bob,Up,3"], {"lists": (3, 4)}, False, True),
        (["1,50,5,881250949", "1,172,5,881250950"], {"lists": (3, 4)}, False, True),
        (["user_id,movieId,stars", "ann,Heat,5"], {"lists": (3, 4)}, True, True),
        (["0,3,1", "1,0,0", "2,2,5"], {}, False, True),
        (["5.1,3.5,1.4", "4.9,3.0,1.4"], {}, False, True),
        (["0,1,2,3", "0,1,1,0", "1,0,0,1"], {}, True, True),  # as pandas writes columns without names
        ([",0,1", "ann,4,2", "bob,1,0"], {}, True, True),
        (["1990,1995,2000", "3,4,5", "2,6,1"], {}, True, True),
        (["1,2,3", "3,2,1", "1,1,3", "2,3,2"], {}, True, False),  # a number of each column, or three answers
        (["a,a,b", "x,y,z"], {}, False, True),
        (["name,x", "ann,1", "bob,"], {}, True, True),
        (["a,b"], {}, True, True),
        (["3,4"], {}, False, True),
    ],
)
def test_what_a_first_line_is(lines, settings, header, sure):
    found = find_header([line.split(",") for line in lines], **settings)
    assert (found.header, found.sure) == (header, sure), found.why


def test_what_is_between_fields():
    assert separator("1::50::5\n2::3::4\n", ".dat") == "::"
    assert separator("1\t50\t5\n2\t3\t4\n", ".data") == "\t"
    assert separator("a;b\n1,5;2\n", ".csv") == ";" and separator("a\n1\n", ".csv") == ","
    assert separator("a b\nc d\n", ".txt") == r"\s+"


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize(("name", "between"), [("k.csv", ","), ("k.tsv", "\t"), ("k.txt", " "), ("k.txt.gz", ",")])
def test_the_karate_club_has_78_edges_however_it_is_written(tmp_path, name, between, header):
    lines = [f"source{between}target"] * header + [f"{a}{between}{b}" for a, b in KARATE]
    text = "\n".join(lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    usual = name.endswith(".csv") == header  # else it is said what was decided
    if usual:
        data = graph(tmp_path / name, directed=False)
    else:
        with pytest.warns(DataWarning, match="the first line is taken for") as said:
            data = graph(tmp_path / name, directed=False)
        assert len(said) == 1 and "--header" in str(said[0].message)
    assert len(data) == 34 and data.edges().T.tolist() == list(map(list, KARATE))
    assert data.num_edges == graph(tmp_path / name, directed=False, header=header).num_edges


def test_a_graph_of_three_edges_keeps_the_first(tmp_path):
    (tmp_path / "e.csv").write_text("a,b\nb,c\nc,d\n")
    with pytest.warns(DataWarning, match="taken for data: 'b' stands below it too"):
        data = graph(tmp_path / "e.csv", directed=False)
    assert data.nodes == list("abcd") and data.num_edges == 3
    assert graph(tmp_path / "e.csv", header=True).nodes == list("bcd")
    with pytest.raises(DataError, match="header = 'maybe'; expected True, False or 'auto'"):
        graph(tmp_path / "e.csv", header="maybe")
    with pytest.raises(DataError, match="no file"):
        graph([("a", "b")], header=True)


def test_ratings_of_movielens_and_without_a_header(tmp_path):
    rows = [(1, 50, 5, 881250949), (1, 172, 4, 881250950), (2, 50, 1, 881250951)]
    for name, between in (("u.data", "\t"), ("ratings.dat", "::"), ("r.txt", " ")):
        (tmp_path / name).write_text("".join(between.join(map(str, row)) + "\n" for row in rows))
        data = ratings(tmp_path / name)
        assert data.value.tolist() == [5, 4, 1] and data.users == [1, 2] and data.items == [50, 172]
        assert data.time is not None and len(data.time) == 3
    (tmp_path / "r.csv").write_text("ann,Heat,5\nbob,Heat,3\nann,Up,4\n")
    with pytest.warns(DataWarning, match="taken for data"):
        assert ratings(tmp_path / "r.csv").num_ratings == 3
    (tmp_path / "n.csv").write_text("who,what,liked,note\nann,Heat,5,a\nbob,Up,3,b\n")
    named = ratings(tmp_path / "n.csv", columns=("who", "what", "liked"))
    assert named.users == ["ann", "bob"] and named.value.tolist() == [5, 3]
    (tmp_path / "r.xyz").write_text("1 2 3")
    with pytest.raises(DataError.__base__, match="unknown ending '.xyz'; readable as tables"):
        ratings(tmp_path / "r.xyz")


def test_counts_cells_and_blocks_without_a_header(tmp_path):
    counts = np.array([[0, 3, 1], [1, 0, 0], [2, 2, 5]])
    np.savetxt(tmp_path / "c.csv", counts, "%d", delimiter=",")
    np.savetxt(tmp_path / "c.txt", counts, "%d")
    for read in (read_matrix, documents):
        with pytest.warns(DataWarning, match="taken for data: it has numbers where the others have them"):
            data = read(tmp_path / "c.csv")
        assert np.array_equal(data.dense().x.numpy(), counts) and "feature" not in data.coords
    assert np.array_equal(read_matrix(tmp_path / "c.txt").x.numpy(), counts)
    with pytest.warns(DataWarning, match="taken for data"):
        blocks = row_blocks(tmp_path / "c.csv", block_rows=2)
    assert len(blocks) == 3 and np.array_equal(np.concatenate([np.asarray(one) for one in blocks]), counts)
    assert len(row_blocks(tmp_path / "c.csv", block_rows=2, header=True)) == 2
    (tmp_path / "r.csv").write_text("ann,bob\nbob,cid\n")
    with pytest.warns(DataWarning, match="taken for data"):
        assert relations(tmp_path / "r.csv").types == {"entity": 3}
