"""Numbers whose digits single precision has no room for are read in double precision, whatever torch's default is."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from ppl_models import LDA, DataError, MixtureOfBernoullis, MixtureOfPoissons, as_matrix, graph, ratings, relations
from ppl_models.data.containers import type_for

FAR = 1e7 + np.array([0.1, 0.3, 0.2, 0.1])


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (lambda v: ratings([0, 0, 1, 1], [0, 1, 0, 1], v), lambda d: d.value),
        (lambda v: ratings(v.reshape(2, 2)), lambda d: d.value),
        (lambda v: ratings(pd.DataFrame({"user": list("aabb"), "item": list("xyxy"), "rating": v})), lambda d: d.value),
        (lambda v: as_matrix(v.reshape(4, 1)), lambda d: d.x[:, 0]),
        (lambda v: as_matrix(pd.DataFrame({"a": v})), lambda d: d.x[:, 0]),
        (lambda v: as_matrix(scipy.sparse.csr_array(v.reshape(4, 1)), keep_sparse=True), lambda d: d.x.values()),
    ],
)
def test_ratings_and_rows_far_from_zero_stay_apart(read, values):
    found = read(FAR)
    assert values(found).dtype == torch.float64
    assert values(found).numpy() == pytest.approx(FAR, abs=1e-8)


def test_weights_of_edges_and_cells_too():
    frame = pd.DataFrame({"from": list("abc"), "to": list("bca"), "weight": FAR[:3]})
    assert graph(frame, weight=True).x.dtype == torch.float64
    cells = pd.DataFrame({"a": list("xyz"), "b": list("uvw"), "value": FAR[:3]})
    assert relations({"r": cells}).x.dtype == torch.float64


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.5, 4.0, 0.1],  # ratings
        [0.1, 0.1, 0.1],  # a constant, however it is rounded
        [2000.0, 2001.0, 2010.0],
        [2**24 - 1.0, 3.0],
        [1.5e9, 1.6e9, 1.7e9],  # seconds
        [np.nan, 0.3, 1.7],
    ],
)
def test_all_others_are_of_the_default_type(values):
    assert type_for(torch.tensor(values, dtype=torch.float64)) == torch.float32


@pytest.mark.parametrize(
    "values", [[2**24 + 1.0, 2**24], [1e300, 1.0], [2e6 + 0.01, 2e6 + 0.02], [np.inf, 1e9, 1e9 + 1]]
)
def test_what_would_be_rounded_or_infinite_is_not(values):
    assert type_for(torch.tensor(values, dtype=torch.float64)) == torch.float64


def test_whole_numbers_beyond_single_precision_are_read():
    assert ratings([0, 1], [0, 1], np.array([2**24 + 1, 3])).value.tolist() == [2**24 + 1, 3]


def test_columns_are_judged_by_their_own_spread():
    x = torch.tensor([[1e9, 1e7 + 0.1], [-1e9, 1e7 + 0.3]], dtype=torch.float64)
    assert type_for(x) == torch.float64 and type_for(x[:, :1]) == torch.float32


@pytest.mark.parametrize(
    "read", [np.asarray, pd.DataFrame, scipy.sparse.csr_array, torch.as_tensor], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("model", [MixtureOfPoissons, LDA])
def test_counts_but_for_rounding_are_counts(model, read):
    counts = np.random.default_rng(0).poisson(3, (40, 6)).astype(float)
    near = np.expm1(np.log1p(counts))
    near[0, 0], counts[0, 0] = -1e-12, 0.0
    assert (near != counts).sum() > 50
    given = read(near)
    found = model.for_data(given, 2).prepare(given, dtype=torch.float64).dense().x
    assert np.array_equal(found.numpy(), counts)


def test_others_are_named_with_all_their_digits():
    x = np.array([[1.0, 2.0], [3.0001, 0.0]])
    with pytest.raises(DataError, match=r"1 of 4 entries are no counts \(the first: 3.0001 in row 1, column 0\)"):
        MixtureOfPoissons(num_components=1, num_features=2).prepare(x, dtype=torch.float64)


@pytest.mark.parametrize("near", [1 - 1e-12, 1 + 2e-16, 1e-15])
def test_zeros_and_ones_too(near):
    x = np.array([[near, 0.0], [1.0, 0.0]])
    assert MixtureOfBernoullis(num_components=1, num_features=2).prepare(x, dtype=torch.float64).x[0, 0] == round(near)
