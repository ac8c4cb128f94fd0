"""Searches, chains and what fits say: planted clusters, exact posteriors of toys, files, figures, the command line."""

import json
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from ppl_models import IRM, DataError, DataWarning, MethodError, ModelError, PriorError, relations
from tests.families.relations.cases import problem
from tests.references import irm as reference


@pytest.fixture(scope="module")
def fitted():
    example = IRM.example()
    return ci.fit(example.model, example.data, seed=1, progress=False), example


def same(one, other) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


def test_the_default_finds_the_clusters_of_the_example(fitted):
    fit, example = fitted
    for t in example.model.types:
        assert same(fit.params[f"cluster_{t}"], example.truth[f"cluster_{t}"])
    assert fit.params["edge_probability_likes"].shape == (2, 3)
    error = fit.co_assignment("person").to_numpy() - np.equal.outer(*[example.truth["cluster_person"].numpy()] * 2)
    assert np.abs(error).max() < 0.5
    assert "IRM" in repr(fit) and len(fit.report()) == 5 and fit.num_clusters("film") == 3


@pytest.mark.parametrize("clusters", [None, {"a": 2, "b": 2}])
def test_chains_have_the_exact_posterior(clusters):
    """Of which half the draws come from split-merge moves and sweeps of their own; the error is that of the draws."""
    one = problem(("links", "grades"), clusters=clusters)
    every, share, _ = reference.posterior(one.relations, one.sizes, one.c, one.clusters)
    fit: Any = ci.fit(
        one.model,
        one.data,
        method="gibbs",
        chains=2,
        num_samples=700,
        moves=2,
        rounds=5,
        warmup=20,
        seed=2,
        progress=False,
    )
    for t in one.sizes:
        exact = reference.together(every, share, t)
        draws = fit.draws[f"cluster_{t}"].numpy()
        same_ = draws[..., :, None] == draws[..., None, :]
        size = ci_size(same_)
        error = np.abs(fit.co_assignment(t).to_numpy() - exact)
        assert (error <= 5 * np.sqrt(np.clip(exact * (1 - exact), 0, None) / size) + 2e-3).all()


def ci_size(values):
    """Effective numbers of draws of 0/1 values (chain, draw, ...), where they vary."""
    from custom_inference.core.diagnostics import effective_size

    found = effective_size(values.astype(float))
    return np.where(np.isfinite(found), found, values.shape[0] * values.shape[1])


def test_split_and_merge_alone_leave_the_posterior_as_it_is():
    """Nothing else moves: a wrong ratio would be seen."""
    from custom_inference.families.relations.problem import clusters_of

    one = problem(("flags", "grades"))
    every, share, _ = reference.posterior(one.relations, one.sizes, one.c)
    held = clusters_of(one.model, one.data, 4)
    held.take(np.zeros(9, dtype=np.int64))
    same = np.empty((1, 8_000, 5, 5))
    for draw in same[0]:
        held.split_or_merge()
        own = held.work.label[:5]
        draw[:] = own[:, None] == own
    exact = reference.together(every, share, "a")
    error = np.sqrt(np.clip(exact * (1 - exact), 0, None) / ci_size(same))
    assert error.max() < 0.03 and (np.abs(same.mean((0, 1)) - exact) <= 4.5 * error + 1e-12).all()


def test_no_single_move_improves_what_the_search_finds():
    """Nor what the default lists of a toy, which is at least as probable."""
    one = problem()
    listed: Any = ci.fit(one.model, one.data, progress=False)
    found: Any = ci.fit(one.model, one.data, method="search", progress=False)
    assert listed.method_name == "ExactPartitions" and listed.details["log_joint"] >= found.details["log_joint"] - 1e-9
    for fit in (listed, found):
        z = {t: fit.params[f"cluster_{t}"].numpy().copy() for t in one.sizes}
        level = reference.log_joint_integrated(one.relations, z, one.c)
        assert fit.details["log_joint"] == pytest.approx(level, rel=1e-10)
        for t, size in one.sizes.items():
            for i in range(size):
                for k in range(size):
                    moved = {kind: labels.copy() for kind, labels in z.items()}
                    moved[t][i] = k
                    assert reference.log_joint_integrated(one.relations, moved, one.c) <= level + 1e-9


@pytest.mark.parametrize(("arity", "kind"), [(1, "poisson"), (2, "bernoulli"), (3, "bernoulli"), (2, "gaussian")])
def test_planted_clusters_are_found(arity, kind):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        number = 15 if arity == 3 else 24
        z, size = rng.permutation(np.arange(number) % 3), (number,) * arity
        eta = {
            "bernoulli": np.where(sum(np.indices((3,) * arity)) % 3 == 0, 0.9, 0.1),
            "poisson": np.array([0.5, 12.0, 50.0]),
            "gaussian": rng.permutation(np.arange(9.0)).reshape(3, 3),
        }[kind]
        mean = eta[np.ix_(*[z] * arity)] if arity > 1 else eta[z]
        x = (
            (rng.random(size) < mean)
            if kind == "bernoulli"
            else {"poisson": rng.poisson, "gaussian": rng.normal}[kind](mean)
        )
        model = IRM(types={"a": number}, relations={"r": ("a",) * arity}, cells={"r": kind}, self_loops=arity == 2)
        fit: Any = ci.fit(model, {"r": x.astype(float)}, rounds=60, seed=seed, progress=False)
        assert same(fit.params["cluster_a"], z), (seed, fit.params["cluster_a"], z)


def test_predictions_of_missing_cells():
    one = problem(("links", "sizes"))
    exact: Any = ci.fit(one.model, one.data, method="exact", progress=False)
    every, share, _ = reference.posterior(one.relations, one.sizes, one.c)
    found, x = exact.predict("links"), one.relations["links"][2]
    hidden = np.argwhere(np.isnan(x))[:1]
    for i, j in hidden:
        filled = dict(one.relations)
        with_one = np.array(x)
        with_one[i, j] = 1.0
        filled["links"] = (*filled["links"][:2], with_one, filled["links"][3])
        ratio = sum(p * np.exp(reference.log_joint_integrated(filled, z, one.c)
                               - reference.log_joint_integrated(one.relations, z, one.c))
                    for p, z in zip(share, every, strict=True) if p > 1e-4)  # fmt: skip
        assert found[i, j] == pytest.approx(ratio, abs=2e-2)
        assert exact.predict(("links", [i], [j]))[0] == pytest.approx(found[i, j])
    with pytest.raises(DataError, match="unknown relation"):
        exact.predict(("likes", [0], [1]))
    with pytest.raises(DataError, match=r"axis 'a': 1 unknown .*77.*0 to"):
        exact.predict(("links", [0], [77]))


def test_fits_are_saved_and_drawn(fitted, tmp_path):
    fit, _ = fitted
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert repr(loaded) == repr(fit) and type(loaded) is type(fit)
    assert all(torch.equal(value, loaded.params[site]) for site, value in fit.params.items())
    tree = fit.to_arviz()
    assert tree.posterior["cluster_person"].dims == ("chain", "draw", "person")
    assert fit.sample(seed=1)["x"].shape == (16 * 10 + 16 * 15, 4)
    for kind in ("relations", "clusters", "co_assignment", "elbo"):
        assert fit.plot(kind)._repr_png_()  # a notebook shows it
    axes = plt.figure().subplots(1, 2)
    assert fit.plot("co_assignment", ax=axes[0]) is axes[0] and fit.plot("relations", axes=axes[1:]) is not None
    plt.close()
    assert "16 person in 2 clusters" in fit._repr_html_() and "likes (person, film)" in fit.data._repr_html_()
    with pytest.raises(MethodError, match="kind of plot"):
        fit.plot("pies")


def test_the_same_seed_gives_the_same_fit(fitted):
    fit, example = fitted
    again = ci.fit(example.model, example.data, seed=1, progress=False)
    assert all(torch.equal(value, again.params[site]) for site, value in fit.params.items())


def test_three_axes_are_drawn_and_the_command_line_reads_a_long_table(tmp_path):
    from typer.testing import CliRunner

    from custom_inference.faces.command_line.app import app

    rng = np.random.default_rng(0)
    group, rows = np.repeat([0, 1], 6), []
    for p in range(4):
        for i, j in np.argwhere(rng.random((12, 12)) < np.where(np.equal.outer(group, group) == (p < 2), 0.9, 0.05)):
            rows.append({"relation": "sends", "predicate": f"p{p}", "who_1": f"c{i}", "who_2": f"c{j}"})
    rows += [{"relation": "likes", "who_1": f"c{i}", "film": "Heat"} for i in range(12) if group[i]]
    pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
    out = tmp_path / "out"
    arguments = [
        "fit",
        "irm",
        str(tmp_path / "table.csv"),
        "--out",
        str(out),
        "--json",
        str(out / "s.json"),
        "--no-progress",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads((out / "s.json").read_text())["clusters"]["who"] == 2
    fit: Any = ci.Fit.load(out / "fit.safetensors")
    assert (out / "sends.png").stat().st_size > 0 and fit.plot("clusters", relation="sends") is not None
    assert np.isfinite(pd.read_csv(out / "co_assignment_who.csv", index_col=0).to_numpy()).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: IRM(types={"a": 3}, relations={"r": ("a", "b")}), ModelError, "unknown type 'b'"),
        (lambda: IRM(types={"a": 0}, relations={"r": ("a",)}), ModelError, "a = 0"),
        (
            lambda: IRM(types={"a": 3}, relations={"r": ("a",)}, cells={"r": "ordinal"}),
            ModelError,
            "'ordinal', expected",
        ),
        (
            lambda: IRM(types={"a": 3}, relations={"r": ("a",)}, cells={"r": "categorical"}),
            ModelError,
            "num_categories",
        ),
        (lambda: ci.fit(IRM(types={"a": 2}, relations={"r": ("a",)}), {"r": [0.0, 2.0]}), DataError, "neither 0 nor 1"),
        (lambda: ci.fit(IRM(types={"a": 2}, relations={"r": ("a",)}), {"r": [0.0, 1.0, 0.0]}), DataError, "3 entities"),
        (lambda: ci.fit(IRM(types={"a": 2}, relations={"r": ("a",)}), {"s": [0.0, 1.0]}), DataError, "not named"),
        (
            lambda: ci.fit(IRM(types={"a": 2}, relations={"r": ("a",)}), {"r": [np.nan, np.nan]}),
            DataError,
            "no observed",
        ),
        (lambda: relations({"r": [[0, 1]]}, {"r": ("a",)}), DataError, "2 axes; expected 1"),
        (lambda: relations({"r": np.zeros((2, 3))}, {"r": ("a", "a")}), DataError, "3 entities of type 'a'"),
        (lambda: relations(pd.DataFrame({"a": [0, 0], "value": [1, 0]}), {"r": ("a",)}), DataError, "listed twice"),
        (lambda: ci.fit(IRM.example().model, IRM.example().data, method="nuts"), MethodError, "valid: default, exact"),
        (
            lambda: ci.fit(
                IRM.example().model.with_priors(edge_probability_likes=dist.Uniform(0.0, 1.0)),
                IRM.example().data,
                progress=False,
            ),
            PriorError,
            "integrated out, which needs one Beta",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_entities_without_cells_are_warned_of():
    data = relations(pd.DataFrame({"a": [0, 1], "value": [1, 0]}), {"r": ("a",)}, types={"a": 4})
    with pytest.warns(DataWarning, match="2 of 4 entities of type 'a' without cells"):
        ci.fit(IRM(types={"a": 4}, relations={"r": ("a",)}), data, progress=False)
