"""Tables as programs write them: with pandas' index, blanks after commas, comments above, decimal commas, ids with
leading zeros, and in other encodings. Each is read as the plain table is, or refused by name."""

import numpy as np
import pandas as pd
import pytest

from ppl_models import DataError, DataWarning, FileFormatError, ratings, relations, row_blocks
from ppl_models.data.files.fields import comment_lines, without_index
from ppl_models.datasets import read_matrix

RNG = np.random.default_rng(0)
COUNTS = pd.DataFrame(RNG.poisson(3.0, (12, 3)), columns=["bread", "milk", "tea"])
RATED = pd.DataFrame({"user": list("aabbc"), "item": list("xyxyx"), "rating": [1, 2, 3, 4, 5]})


def values(path, **settings):
    return read_matrix(path, **settings).x.numpy()


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.parquet"])
def test_an_index_is_left_out_and_said_so(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        COUNTS.reset_index().to_parquet(path)
    else:
        COUNTS.to_csv(path, sep="\t" if "tsv" in name else ",")
    called = "'index'" if name.endswith("parquet") else "unnamed"
    with pytest.warns(DataWarning, match=rf"first column \({called}\) numbers the rows from 0 to 11.*left out"):
        assert np.array_equal(values(path), COUNTS)
    asked = "index" if name.endswith("parquet") else "Unnamed: 0"
    assert read_matrix(path, id=asked).coords["feature"] == read_matrix(path, drop=asked).feature_names  # nothing said
    if name != "t.parquet" and "gz" not in name:
        with pytest.warns(DataWarning, match="numbers the rows"):
            blocks = row_blocks(path, block_rows=5)
        assert np.array_equal(np.concatenate([np.asarray(one) for one in blocks]), COUNTS)


def test_an_index_beside_ratings_and_relations(tmp_path):
    path = tmp_path / "r.csv"
    odd = RATED.rename(columns={"user": "who", "item": "what", "rating": "liked"})
    for table in (RATED, odd):
        table.to_csv(path)
        for source in (path, pd.read_csv(path)):
            with pytest.warns(DataWarning, match="numbers the rows"):
                assert ratings(source).users == ["a", "b", "c"]
    RATED[["user", "item"]].to_csv(path)
    for source in (path, pd.read_csv(path)):
        with pytest.warns(DataWarning, match="numbers the rows"):
            assert relations(source).types == {"user": 3, "item": 2}


def test_what_does_not_number_the_rows_is_no_index():
    for column in ([1, 2, 3], [0, 2, 1], [0.0, 1.0, 2.0], list("abc")):
        frame = pd.DataFrame({"Unnamed: 0": column, "x": [1, 2, 3]})
        assert without_index(frame) is frame
    assert list(without_index(named := pd.DataFrame({"n": [0, 1], "x": [1, 2]}))) == list(named)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_blanks_around_fields_are_none_of_theirs_unless_quoted(tmp_path, name):
    between, path = "\t" if "tsv" in name else ",", tmp_path / name
    lines = [' user , "the item" , rating ', 'ann , "x: y" , 3', "bob, z , 4 ", " ann, z, 5"]
    path.write_text("\n".join(lines).replace(",", between).replace(":", between))
    data = ratings(path, columns=("user", "the item", "rating"))
    assert data.users == ["ann", "bob"] and data.items == [f"x{between} y", "z"] and data.value.tolist() == [3, 5, 4]
    path.write_text(f'user{between}item{between}rating\n"ann "{between}z{between}3\nann{between}z{between}4\n')
    assert ratings(path).users == ["ann ", "ann"]


@pytest.mark.parametrize("above", ["# exported 2020\n", "# exported, by us\n\n% of 2020, all, of it, \n"])
def test_comments_above_a_header(tmp_path, above):
    path = tmp_path / "t.csv"
    path.write_text(above + COUNTS.to_csv(index=False))
    assert np.array_equal(values(path), COUNTS) and read_matrix(path).feature_names == list(COUNTS)
    blocks = row_blocks(path, block_rows=5)
    assert np.array_equal(np.concatenate([np.asarray(one) for one in blocks]), COUNTS)
    path.write_text(above + RATED.to_csv(index=False))
    assert ratings(path).num_ratings == 5


def test_a_header_may_begin_with_the_sign_of_comments():
    assert comment_lines(["# FromNodeId,ToNodeId", "0,1", "1,2"], ",") == 0
    assert comment_lines(["# a list, of edges", "source,target", "1,2"], ",") == 1
    assert comment_lines(["# all", "# FromNodeId,ToNodeId", "0,1", "1,2"], ",") == 1
    assert comment_lines(["source,target", "# no"], ",") == 0


@pytest.mark.parametrize("between", [";", "\t"])
def test_decimal_commas(tmp_path, between):
    path, real = tmp_path / ("t.tsv" if between == "\t" else "t.csv"), COUNTS.assign(milk=COUNTS["milk"] + 0.25)
    real.iloc[3, 2] = -1250  # a whole number among them
    real.to_csv(path, sep=between, decimal=",", index=False)
    assert np.array_equal(values(path), real)
    path.write_text(f"a{between}b\n1.024,5{between}2\n-3,25{between}2\n")
    assert values(path).tolist() == [[1024.5, 2], [-3.25, 2]]


@pytest.mark.parametrize("between", [",", ";"])
def test_commas_between_thousands_are_named(tmp_path, between):
    path = tmp_path / "t.csv"
    for text, where in (
        ('5{0}"1,024"\n6{0}7\n', "'b' holds"),
        ('"1,024"{0}5\n6{0}7\n8{0}9\n', "'a' holds numbers, but"),
    ):
        path.write_text(f"a{between}b\n" + text.format(between))
        with pytest.raises(DataError, match=f"column {where}.*'1,024' in row 0"):
            read_matrix(path)
    path.write_text(f'user{between}item{between}rating\na{between}x{between}3\na{between}y{between}"1,024"\n')
    with pytest.raises(DataError, match="ratings that are texts.*'1,024' in row 1"):
        ratings(path)


def test_ids_with_leading_zeros_are_texts(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\n007,x,03\n7,x,4\n010,y,2\n")
    data = ratings(path)
    assert data.users == ["007", "7", "010"] and data.value.tolist() == [3, 4, 2]
    path.write_text("doc,a,b\n007,1,2\n010,0,3\n")
    assert read_matrix(path).coords["row"] == ["007", "010"]
    path.write_text("a,b\n00,01\n02,03\n")  # numbers of two digits each
    assert values(path).tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_that_a_mark_tells(tmp_path, encoding):
    path = tmp_path / "r.csv"
    RATED.assign(user=["Zoë", "Zoë", "b", "b", "c"]).to_csv(path, index=False, encoding=encoding)
    assert ratings(path).users == ["Zoë", "b", "c"]
    if encoding in ("utf-16", "utf-32"):
        with pytest.raises(FileFormatError, match=f"{encoding.upper()}; expected UTF-8"):
            row_blocks(path, block_rows=2)


def test_other_encodings_are_refused_with_a_way_out(tmp_path):
    path = tmp_path / "r.csv"
    RATED.assign(user=["Zoë", "Zoë", "b", "b", "c"]).to_csv(path, index=False, encoding="latin-1")
    for read in (ratings, read_matrix):
        with pytest.raises(FileFormatError, match="no text in UTF-8 .*Zoë.*expected UTF-8, as 'iconv -f CP1252"):
            read(path)
