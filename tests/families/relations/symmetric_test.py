"""Relations of a type with itself: one cell a pair where they are symmetric, and no diagonal unless it is said."""

import itertools
import warnings
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from scipy.special import betaln, gammaln, logsumexp

import custom_inference as ci
from ppl_models import IRM, Data, DataError, DataWarning, ModelError, relations

AXES = {"knows": ("person", "person")}
RNG = np.random.default_rng(3)
X = np.triu(RNG.random((6, 6)) < 0.5, 1).astype(float)
X = X + X.T
WAYS = (RNG.random((6, 6)) < 0.5).astype(float)
np.fill_diagonal(WAYS, 0)
NAMES = list("abcdef")


def evidence(x, symmetric, loops, c=1.0):
    """log p(x) by a sum over all partitions, each pair of people a cell by itself."""
    size, scores = len(x), []
    for z in itertools.product(range(size), repeat=size):
        if any(k > max(z[:i], default=-1) + 1 for i, k in enumerate(z)):
            continue
        counts: dict = {}
        for i, j in itertools.product(range(size), repeat=2):
            if (symmetric and i > j) or (i == j and not loops) or np.isnan(x[i, j]):
                continue
            block = tuple(sorted((z[i], z[j]))) if symmetric else (z[i], z[j])
            counts.setdefault(block, [0, 0])[int(x[i, j])] += 1
        sizes = np.bincount(z)
        prior = (sizes > 0).sum() * np.log(c) + gammaln(c) - gammaln(c + size) + gammaln(sizes[sizes > 0]).sum()
        scores.append(prior + sum(betaln(1 + one, 1 + zero) for zero, one in counts.values()))
    return logsumexp(scores)


@pytest.mark.filterwarnings("ignore:.*without cells")
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(("x", "symmetric"), [(X, True), (WAYS, False)])
@pytest.mark.parametrize("gaps", [0, 3, 12])
def test_the_evidence_is_that_of_pairs(x, symmetric, loops, gaps):
    x = x[:5, :5] + loops * np.diag([1, 0, 1, 0, 0.0])
    for i, j in itertools.islice(itertools.combinations(range(5), 2), gaps):  # most are missing in the end
        x[i, j] = x[j, i] = np.nan
    if gaps == 12:
        x[4, 3] = x[4, 2] = 1
        x[3, 4], x[2, 4] = (1, 1) if symmetric else (0, 0)
    data = relations({"knows": x}, AXES, self_loops=loops, symmetric=symmetric)
    model = IRM.for_data(data, priors={"concentration": torch.tensor(1.0)})
    assert model.symmetric == (("knows",) if symmetric else ()) and bool(model.self_loops) == loops
    fit: Any = ci.fit(model, data, method="exact", progress=False)
    assert fit.details["log_evidence"] == pytest.approx(evidence(x, symmetric, loops), rel=1e-10)
    bound: Any = ci.fit(model, data, method="vb", rounds=5, progress=False)
    assert float(bound.elbo[-1]) < fit.details["log_evidence"]
    where = [np.isnan(data.array("knows")), np.isnan(x) | (np.eye(5, dtype=bool) & (not loops))]
    assert np.array_equal(*where)


def test_the_mean_of_a_block_is_that_of_its_pairs():
    """Of one cluster (1 + ones) / (2 + pairs), whatever stands on the diagonal."""
    data = relations({"knows": X}, AXES)
    fit: Any = ci.fit(IRM.for_data(data, 1), data, progress=False)
    ones = np.triu(X, 1).sum()
    assert float(fit.table("knows")) == pytest.approx((1 + ones) / (2 + 15)) and fit.data.num_cells(0) == 15
    assert "symmetric" in repr(data) and "directed" in repr(relations({"knows": WAYS}, AXES))


def test_draws_of_the_program_are_symmetric_and_have_no_diagonal():
    for symmetric, loops in itertools.product([False, True], repeat=2):
        for cells in ("bernoulli", "categorical", "poisson", "gaussian"):
            model = IRM(
                types={"person": 5}, relations=AXES, cells={"knows": cells}, symmetric=symmetric, self_loops=loops,
                num_categories={"knows": 3} if cells == "categorical" else {},
            )  # fmt: skip
            x = model()
            number = (10 if symmetric else 20) + 5 * loops
            assert x.shape == (number, 4) and not (symmetric and bool((x[:, 1] > x[:, 2]).any()))
            data = model.prepare(Data(x=x), unlisted=torch.tensor([torch.nan]))
            table = data.array("knows")
            assert np.isnan(table.diagonal()).all() != loops
            assert not symmetric or np.array_equal(table, table.T, equal_nan=True)


def sources():
    frame = pd.DataFrame(X, index=NAMES, columns=NAMES)
    upper = np.where(np.triu(np.ones((6, 6))), X, np.nan)
    return [X, X.tolist(), torch.as_tensor(X), scipy.sparse.csr_array(X), upper, upper.T, frame,
            frame[NAMES[::-1]], X + np.diag([np.nan] * 6)]  # fmt: skip


def test_symmetric_matrices_are_recognised_as_those_of_graphs_are():
    for source in sources():
        data = relations({"knows": source}, AXES)
        assert data.symmetric == ("knows",) and bool((data.x[:, 1] < data.x[:, 2]).all())
        expected = X + np.diag([np.nan] * 6)
        assert np.array_equal(data.array("knows"), expected, equal_nan=True)
        assert relations({"knows": source}, AXES, symmetric=False).symmetric == ()
    assert relations({"knows": WAYS}, AXES).symmetric == ()
    weights = np.where(X > 0, 2.5, np.nan)
    weights[0, 1] = weights[1, 0] = -1.0
    assert relations({"knows": weights}, AXES).symmetric == ("knows",)
    correlations = np.corrcoef(RNG.normal(size=(6, 30))) - np.eye(6)  # symmetric but for roundings
    assert relations({"knows": correlations - np.diag(correlations.diagonal())}, AXES).symmetric == ("knows",)
    with pytest.warns(DataWarning, match="none of the .* on one side of its diagonal.*take x .* x.T"):
        assert relations({"knows": np.triu(X)}, AXES).symmetric == ()
    with pytest.raises(DataError, match="'knows': not symmetric: .* -> .* has 1, .* has 0"):
        relations({"knows": WAYS}, AXES, symmetric=True)
    with pytest.raises(
        DataError, match="symmetric of 'likes'; expected relations of a type with itself: there are none"
    ):
        relations({"likes": X}, {"likes": ("person", "film")}, symmetric="likes")
    with pytest.raises(ModelError, match="self_loops of 'likes'"):
        IRM(types={"a": 2, "b": 2}, relations={"likes": ("a", "b")}, self_loops=("likes",))


def test_the_diagonal_is_left_out_and_said():
    with pytest.warns(DataWarning, match="2 self loops of 'knows' were left out .*: at 1.; self_loops=True keeps them"):
        data = relations({"knows": X + np.diag([0, 1, 0, 1.0, 0, 0])}, AXES)
    assert np.isnan(data.array("knows").diagonal()).all() and data.symmetric == ("knows",)
    empty = relations({"knows": np.zeros((3, 3))}, AXES)
    assert empty.symmetric == ("knows",) and np.nansum(empty.array("knows")) == len(empty) == 0
    table = pd.DataFrame({"person_1": ["a", "a"], "person_2": ["a", "b"], "value": [3.0, 1.0]})
    with pytest.warns(DataWarning, match="1 self loops of 'related'"):
        assert len(relations(table)) == 1
    assert len(relations(table, self_loops=True)) == 2
    old = Data(x=torch.tensor([[0, 0, 0, 1.0], [0, 0, 1, 1.0], [0, 1, 1, torch.nan]]))  # as earlier versions saved them
    with pytest.warns(DataWarning, match="1 self loops of 'knows'"):
        assert len(IRM(types={"person": 2}, relations=AXES).prepare(old, unlisted=torch.zeros(1))) == 1


def test_models_and_data_that_differ_are_refused_or_warned_of():
    data, plain = relations({"knows": X}, AXES), IRM(types={"person": 6}, relations=AXES)
    with pytest.raises(DataError, match=r"symmetric of the data: \['knows'\], of the model: \[\].*for_data"):
        plain.prepare(data)
    with pytest.warns(DataWarning, match="'knows' is symmetric but read as directed.*symmetric="):
        assert plain.prepare({"knows": X}).symmetric == ()
    with warnings.catch_warnings(action="error"):
        assert IRM(types={"person": 6}, relations=AXES, symmetric=True).prepare({"knows": X}).symmetric == ("knows",)


def test_saved_fits_keep_what_they_were_fitted_to(tmp_path):
    data = relations({"knows": pd.DataFrame(X, index=NAMES, columns=NAMES)}, AXES)
    fit: Any = ci.fit(IRM.for_data(data), data, method="search", rounds=5, progress=False)
    fit.save(tmp_path / "f.safetensors")
    again: Any = ci.Fit.load(tmp_path / "f.safetensors")
    assert again.model.symmetric == ("knows",) and again.data.symmetric == ("knows",)
    assert np.array_equal(again.predict("knows"), fit.predict("knows"))
    table = fit.predict("knows")
    assert np.allclose(table, table.T) and fit.sample(seed=1)["x"].shape == (15, 4)
    assert fit.plot("relations") is not None


EDGES = [(i, j) for i in range(20) for j in range(i + 1, 20) if RNG.random() < 0.3]


def test_long_tables_are_directed_and_say_so_where_that_is_doubtful(tmp_path):
    named = [(f"p{i:02d}", f"p{j:02d}") for i, j in EDGES]
    frames = [pd.DataFrame(pairs, columns=["person_1", "person_2"]) for pairs in (EDGES, named)]
    frames.append(frames[1].assign(value=1.5 + np.arange(len(EDGES)) % 3))
    frames[0].to_csv(tmp_path / "e.csv", index=False)
    for source in [*frames, tmp_path / "e.csv"]:
        with pytest.warns(DataWarning, match="none of the .* has its reverse.*read as directed.*symmetric=True"):
            assert relations(source).symmetric == ()
        with warnings.catch_warnings(action="error"):
            assert len(relations(source, symmetric=True)) == len(EDGES) == len(relations(source, symmetric=False))
    both = pd.concat([frames[0], frames[0].set_axis(["person_2", "person_1"], axis=1)])
    with pytest.warns(DataWarning, match="listed in both directions.*each counts twice"):
        assert len(relations(both)) == 2 * len(EDGES)
    assert len(relations(both, symmetric=True)) == len(EDGES)
    frames[2].loc[0, ["person_1", "person_2"]] = frames[2].loc[1, ["person_2", "person_1"]].tolist()
    with pytest.raises(DataError, match="not symmetric"):
        relations(frames[2], symmetric=True)


@pytest.mark.parametrize("layout", ["{} {}\t1 {}", "{}\t{} 1\t{}", "{} {} 1 {}", "{}\t{}\t1\t{}"])
def test_files_of_edges_in_a_mixture_with_times(tmp_path, layout):
    lines = [layout.format(i, j, 1_082_008_561 + n) for n, (i, j) in enumerate(EDGES)]
    (tmp_path / "e.txt").write_text("\n".join(lines))
    with pytest.warns(DataWarning, match="column '3' looks like times"):
        data = relations(tmp_path / "e.txt", symmetric=True, unlisted="zero")
    assert data.relations == {"related": ("entity", "entity")} and len(data) == len(EDGES)
    assert bool((data.x[:, -1] == 1).all())


def test_the_shell_reads_edges_as_python_does(tmp_path):
    from typer.testing import CliRunner

    from custom_inference.faces.command_line.app import app

    path, out = tmp_path / "e.csv", tmp_path / "fit"
    path.write_text("a,b\n" + "".join(f"p{i:02d},p{j:02d}\n" for i, j in EDGES))
    words = ["fit", "irm", str(path), "--set", "rounds=2", "--no-progress", "--out"]
    said = CliRunner().invoke(app, [*words, str(out)])
    assert said.exit_code == 0 and "read as directed" in " ".join(said.output.split()) and "--undirected" in said.output
    for option, symmetric in (("--undirected", ("related",)), ("--directed", ())):
        found = CliRunner().invoke(app, [*words, str(out / option[2:]), option])
        assert found.exit_code == 0, found.output
        assert ci.Fit.load(out / option[2:] / "fit.safetensors").model.symmetric == symmetric  # pyright: ignore


def test_lists_of_pairs_and_graphs_of_networkx():
    named = [(f"p{i:02d}", f"p{j:02d}") for i, j in EDGES]
    axes = {"knows": ("person", "person")}
    with pytest.warns(DataWarning, match="has its reverse"):
        listed = relations({"knows": named}, axes)
    assert listed.types["person"] == len(set(sum(named, ()))) and len(listed) == len(EDGES)
    graph = nx.Graph(named)
    graph.add_node("alone")
    with warnings.catch_warnings(action="error"):
        data, ways = relations({"knows": graph}, axes), relations({"knows": nx.DiGraph(named)}, axes)
    assert data.symmetric == ("knows",) and ways.symmetric == () and data.names("person") == list(graph)
    assert len(data) == len(ways) == len(EDGES) and data.closed(0)
    weighted = nx.Graph()
    weighted.add_weighted_edges_from([("a", "b", 2.5), ("b", "c", -1.0)])
    assert np.nansum(relations({"knows": weighted}, axes).array("knows")) == 3.0


def test_edges_of_one_value_whose_rest_is_taken_for_missing_are_warned_of():
    ones = pd.DataFrame(EDGES, columns=["person_1", "person_2"]).assign(value=1)
    with pytest.warns(DataWarning, match="all .* listed cells of 'related' are 1.*unlisted='zero'"):
        relations(ones, symmetric=True)
    with warnings.catch_warnings(action="error"):
        assert relations(ones, symmetric=True, unlisted="zero").closed(0)
        relations(ones, symmetric=True, unlisted="missing")
    stored = scipy.sparse.csr_array((np.array([1.0, 0.0]), ([0, 1], [1, 0])), (3, 3))  # a zero is stored
    assert relations({"knows": stored}, AXES, symmetric=False).array("knows")[1, 0] == 0
