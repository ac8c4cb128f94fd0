"""The same graph, ratings and counts are the same data, and give the same fit, however people hold them; in another
order the same fit up to order."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

import custom_inference as ci
from ppl_models import LDA, PMF, SBM, DataWarning, MixtureOfPoissons, documents, graph, ratings
from ppl_models.data.several import same_data
from ppl_models.datasets import read_matrix

RNG = np.random.default_rng(3)
#: Two circles of five and an edge between them; whole numbers from 0, all nodes in the first edges' order.
EDGES = [(a, b) for low in (0, 5) for a in range(low, low + 5) for b in range(a + 1, low + 5)] + [(4, 5)]
RATED = [(u, i, float(1 + (u + i) % 2 * 3 + (u * i) % 2)) for u in range(8) for i in range(6) if (u * 5 + i) % 4]
COUNTS = RNG.poisson(np.where(np.arange(24)[:, None] % 2 == np.arange(6) % 2, 4.0, 0.7))
TEXTS = {".csv": ",", ".tsv": "\t", ".txt": " "}


def written(folder, frame, name, header=True):
    """A table in a file by its ending."""
    path = folder / name
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, header=header, sep=TEXTS[path.suffix])
    return path


def quietly(read, *arguments, **settings):
    """What was decided of headers is said; here what comes out is looked at."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*the first line is taken for", DataWarning)
        return read(*arguments, **settings)


@pytest.fixture
def graphs(tmp_path):
    frame = pd.DataFrame(EDGES, columns=["source", "target"])
    matrix = np.zeros((10, 10))
    matrix[tuple(np.array(EDGES).T)] = 1
    matrix = matrix + matrix.T
    np.savez(tmp_path / "edges.npz", edges=np.array(EDGES), directed=False)
    np.savez(tmp_path / "matrix.npz", X=matrix)
    files = [written(tmp_path, frame, f"{header}{end}", header) for end in TEXTS for header in (True, False)]
    files += [written(tmp_path, frame, "e.parquet"), tmp_path / "edges.npz", tmp_path / "matrix.npz"]
    held = [frame, frame.set_axis(["from", "to"], axis=1), EDGES, np.array(EDGES), matrix, torch.as_tensor(matrix)]
    return [*files, *held, scipy.sparse.csr_matrix(matrix), EDGES + [(b, a) for a, b in EDGES]]


def test_one_graph(graphs):
    read = [quietly(graph, one, directed=False) for one in graphs]
    assert all(same_data(read[0], one) and one.nodes == list(range(10)) for one in read)
    assert quietly(graph, graphs[0], directed=False).num_edges == len(EDGES)


def test_one_graph_gives_one_fit_whatever_the_order_of_its_nodes(graphs):
    fits = [ci.fit(SBM.for_data(data, 2), data, progress=False) for one in (graphs[1], graphs[-1])
            for data in [quietly(graph, one, directed=False)]]  # fmt: skip
    assert all(torch.equal(value, fits[1].params[site]) for site, value in fits[0].params.items())
    data = graph(EDGES, directed=False)
    order = RNG.permutation(10)
    moved = ci.fit(SBM.for_data(data, 2), data.permuted(order), progress=False)
    blocks, others = fits[0].transform().argmax(1), moved.transform().argmax(1)
    together = [np.equal.outer(np.asarray(one), np.asarray(one)) for one in (blocks, others)]
    assert np.array_equal(together[0][np.ix_(order, order)], together[1])


@pytest.fixture
def rated(tmp_path):
    frame = pd.DataFrame(RATED, columns=["user", "item", "rating"])
    dense = np.full((8, 6), np.nan)
    for u, i, value in RATED:
        dense[u, i] = value
    stored = scipy.sparse.coo_matrix((frame["rating"], (frame["user"], frame["item"])), shape=(8, 6))
    files = [written(tmp_path, frame, f"{header}{end}", header) for end in TEXTS for header in (True, False)]
    held = [frame, frame[["rating", "item", "user"]], frame.rename(columns={"user": "userId", "item": "movieId"})]
    return [*files, written(tmp_path, frame, "r.parquet"), *held, RATED, dense, stored.tocsr()]


def test_one_set_of_ratings(rated):
    read = [quietly(ratings, one, dtype=torch.float64) for one in rated]
    assert all(same_data(read[0], one) for one in read) and read[0].num_ratings == len(RATED)
    fits = [ci.fit(PMF.for_data(one, 1), one, progress=False) for one in (read[1], read[-1])]
    assert torch.equal(fits[0].predict(([0, 1], [0, 1])), fits[1].predict(([0, 1], [0, 1])))


def test_shuffled_ratings_are_predicted_alike():
    """The maximum is the same; how near to it two fits end, their tolerance says."""
    straight = ratings(RATED)
    shuffled = ratings([RATED[n] for n in RNG.permutation(len(RATED))])
    assert same_data(straight, shuffled)
    names = pd.DataFrame(RATED, columns=["user", "item", "rating"]).sample(frac=1, random_state=1)
    names["user"] = "u" + names["user"].astype(str)
    named = ratings(names)
    one, other = (ci.fit(PMF.for_data(data, 1), data, progress=False) for data in (straight, named))
    expected = np.asarray(one.predict(([0, 3, 5], [1, 2, 3])))
    found = np.asarray(other.predict((["u0", "u3", "u5"], [1, 2, 3])))
    np.testing.assert_allclose(found, expected, atol=0.1)


@pytest.fixture
def counted(tmp_path):
    frame = pd.DataFrame(COUNTS, columns=list("uvwxyz"))
    np.savez(tmp_path / "c.npz", X=COUNTS)
    files = [written(tmp_path, frame, f"{header}{end}", header) for end in TEXTS for header in (True, False)]
    return [*files, written(tmp_path, frame, "c.parquet"), tmp_path / "c.npz"], frame


def test_one_table_of_counts(counted):
    files, frame = counted
    read = [quietly(read_matrix, one, dtype=torch.float64) for one in files]
    assert all(np.array_equal(one.dense().x.numpy(), COUNTS) for one in read)
    for one in read:
        assert one.coords.get("feature", list("uvwxyz")) == list("uvwxyz")
    tables = [one for one in files if one.suffix != ".txt"]  # which documents take for texts
    for held in (*tables, frame, COUNTS, torch.as_tensor(COUNTS), scipy.sparse.csr_matrix(COUNTS)):
        assert np.array_equal(quietly(documents, held).dense().x.numpy(), COUNTS)


@pytest.mark.parametrize("kind", [MixtureOfPoissons, LDA])
def test_counts_in_another_order_have_the_same_globals_up_to_order(kind):
    """Of well parted rows every start ends at one maximum, from which on rows and columns only move."""
    frame = pd.DataFrame(COUNTS, columns=list("uvwxyz"))
    rows, columns = RNG.permutation(24), RNG.permutation(6)
    moved = frame.iloc[rows, columns]
    site = {MixtureOfPoissons: "rate", LDA: "topic"}[kind]
    fits = [ci.fit(kind.for_data(one, 2), one, seed=1, progress=False) for one in (frame, moved)]
    value, other = (np.asarray(fit.params[site]) for fit in fits)
    value, other = (one / one.sum(1, keepdims=True) for one in (value[:, columns], other))
    other = other[np.abs(value[:, None] - other).sum(-1).argmin(1)]
    np.testing.assert_allclose(other, value, atol=0.03)
