"""Models of the same data side by side: what is known to be true is found, and what does not apply is said."""

import math
from typing import Any, cast

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

import custom_inference as ci
from custom_inference import compare_models
from custom_inference.checks.evidence import chib, labelings
from custom_inference.checks.model_choice.held import make_folds, ratio_error, score_held_out
from custom_inference.checks.model_choice.result import ModelComparison
from ppl_models import (
    LDA,
    PMF,
    SBM,
    DataError,
    GaussianPCA,
    MethodError,
    MixtureOfBernoullis,
    MixtureOfMultinomials,
    MixtureOfPoissons,
    graph,
)

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning", "ignore:.*Pareto:UserWarning")


def poissons(classes: int) -> MixtureOfPoissons:
    return MixtureOfPoissons(num_components=classes, num_features=3, priors={"rate": dist.Gamma(1.0, 0.5)})


def counts(rows: int) -> np.ndarray:
    """Counts of two classes."""
    rng = np.random.default_rng(0)
    return rng.poisson(np.array([[1.0, 4, 8], [6, 2, 1]])[rng.integers(0, 2, rows)]).astype(float)


def run(models, x, **settings) -> ModelComparison:
    return compare_models(models, x, **{"progress": False, "folds": 3, "seconds": 30.0, **settings})


@pytest.fixture(scope="module")
def rows() -> ModelComparison:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(chib, "_MOST", 100)
        return run([poissons(k) for k in (1, 2)], counts(30), criteria=("heldout", "loo", "evidence", "bic"))


def test_two_classes_are_found_by_every_criterion(rows):
    assert list(rows.table.columns) == [
        "heldout", "heldout_error", "loo", "loo_error", "evidence", "evidence_error", "bic"
    ]  # fmt: skip
    assert rows.best == {name: ["MixtureOfPoissons(2)"] for name in rows.criteria}
    assert bool(rows.table.notna().all(axis=None))
    assert rows.unit == "row"


def test_numbers_are_those_of_their_sources(rows):
    name = "MixtureOfPoissons(2)"
    line = rows.table.loc[name]
    assert line["bic"] == pytest.approx(rows.fits[name].bic())
    assert line["loo"] == rows.loo[name].elpd and line["loo_error"] == rows.loo[name].se
    assert line["evidence"] == rows.evidence[name].log_evidence
    gain, error = rows.difference("evidence", name, "MixtureOfPoissons(1)")
    assert (gain, error) == rows.evidence[name].log_bayes_factor(rows.evidence["MixtureOfPoissons(1)"])


def test_differences_are_paired(rows):
    one, other = (rows.heldout[name].value for name in rows.table.index)
    gain, error = rows.difference("heldout", *rows.table.index)
    assert gain == pytest.approx((one - other).mean())
    assert error == pytest.approx(stats.sem(one - other))
    each = rows.loo["MixtureOfPoissons(1)"].pointwise - rows.loo["MixtureOfPoissons(2)"].pointwise
    assert rows.difference("loo", *rows.table.index)[1] == pytest.approx(stats.sem(each) * len(each))


def test_table_and_figure(rows):
    assert "best by evidence: MixtureOfPoissons(2)" in repr(rows)
    assert "MixtureOfPoissons(2)" in rows._repr_html_()
    panels = rows.plot().axes
    assert [one.get_title() for one in panels] == ["heldout", "loo", "evidence", "bic"]
    assert panels[0].get_xlabel() == "components"


def test_held_out_rows_against_the_mathematics():
    """One class: the rates are the training means, as the prior is flat in their logarithms."""
    x, model = counts(12), MixtureOfPoissons(num_components=1, num_features=3, priors={"rate": dist.Gamma(1.0, 1e-9)})
    data = model.prepare(x, dtype=torch.float64)
    folds = make_folds(model, data, 3, 5)
    found = score_held_out(model, data, folds, seed=0, progress=False)
    expected = []
    for fold in range(3):
        rate = x[folds.part != fold].mean(0)
        expected.append(stats.poisson.logpmf(x[folds.part == fold], rate).sum(1))
    np.testing.assert_allclose(found.value, np.concatenate(expected), rtol=1e-6)
    assert found.mean == pytest.approx(np.concatenate(expected).mean(), rel=1e-6)


def test_error_of_a_ratio_against_the_bootstrap():
    rng = np.random.default_rng(0)
    weight = rng.poisson(20, 200) + 1.0
    value = weight * rng.normal(-2, 0.5, 200)
    index = rng.integers(0, 200, (4000, 200))
    copies = value[index].sum(1) / weight[index].sum(1)
    assert ratio_error(value, weight.astype(np.float64)) == pytest.approx(copies.std(), rel=0.05)


def test_documents_of_two_classes():
    rng = np.random.default_rng(1)
    topic = np.array([[0.5, 0.3, 0.1, 0.05, 0.05], [0.05, 0.05, 0.1, 0.3, 0.5]])
    x = np.stack([rng.multinomial(30, topic[k]) for k in rng.integers(0, 2, 30)]).astype(float)
    models = {f"mixture of {k}": MixtureOfMultinomials(num_topics=k, vocabulary_size=5) for k in (1, 2)}
    found = run({**models, "LDA": LDA(num_topics=2, vocabulary_size=5)}, x, criteria=("heldout", "bic"))
    assert found.unit == "token"
    assert found.best["heldout"][0] != "mixture of 1" and "mixture of 1" not in found.best["heldout"]
    assert found.best["bic"][0] == "mixture of 2"
    assert bool((found.table["heldout"] < 0).all())


def test_graph_of_two_blocks(monkeypatch):
    rng, size = np.random.default_rng(2), 24
    block = np.arange(size) % 2
    chance = np.where(block[:, None] == block, 0.8, 0.1)
    x = np.triu(rng.random((size, size)) < chance, 1).astype(float)
    models = [SBM(num_blocks=k, num_nodes=size, directed=False) for k in (1, 2)]
    monkeypatch.setattr(labelings, "MOST", 40)
    found = run(models, graph(x + x.T, directed=False), criteria=("heldout", "evidence", "bic"))
    assert found.unit == "pair of nodes"
    assert found.best["heldout"] == ["SBM(2)"] and found.best["bic"] == ["SBM(2)"]
    total = size * (size - 1) / 2
    assert 0.85 * total < found.heldout["SBM(2)"].weight.sum() <= 0.91 * total
    assert found.best["evidence"] == ["SBM(2)"]


def test_ratings():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20, 2)) @ rng.normal(size=(2, 10)) + rng.normal(size=(20, 10)) * 0.1
    models = [PMF(num_components=k, num_users=20, num_items=10) for k in (1, 2)]
    found = run(models, x, criteria=("heldout",), folds=3)
    assert found.best["heldout"] == ["PMF(2)"] and found.unit == "rating"
    assert found.heldout["PMF(2)"].weight.sum() == 200


# ----- what cannot be compared ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "settings", "match"),
    [
        ([], {}, "no models"),
        ([poissons(2), poissons(2)], {}, "two models are called"),
        ([poissons(2), MixtureOfMultinomials(num_topics=2, vocabulary_size=3)], {}, "different kinds of data"),
        ([poissons(2), GaussianPCA(num_components=1, num_features=3)], {}, "different kinds of data"),
        ([poissons(2)], {"criteria": ("guess",)}, "criterion"),
        ([poissons(2)], {"criteria": ()}, "no criteria"),
        ([poissons(2)], {"folds": 1}, "folds"),
        ([poissons(2)], {"folds": 99}, "folds"),
        ("mixture", {}, "expected a list of models"),
    ],
)
def test_unsuitable_input(models, settings, match):
    with pytest.raises(MethodError, match=match):
        run(models, counts(10), **settings)


def test_errors_name_the_model():
    models = {"few": MixtureOfBernoullis(num_components=1, num_features=3)}
    with pytest.raises(DataError, match="^few: site 'x', axis 'feature'"):
        run(models, np.zeros((5, 4)))


def test_criteria_that_do_not_apply_are_nan_with_a_reason():
    x = (np.random.default_rng(0).random((10, 3)) < 0.5).astype(float)
    model = MixtureOfBernoullis(num_components=1, num_features=3)
    pca = GaussianPCA(num_components=1, num_features=3)
    found = run({"pca": pca}, x + 0.1 * np.random.default_rng(1).normal(size=(10, 3)), criteria=("evidence",))
    assert "prior of 'weight' of GaussianPCA is flat" in found.reasons["pca", "evidence"]
    assert found.best == {}
    with pytest.raises(MethodError, match="nothing to draw"):
        found.plot()
    with pytest.raises(MethodError, match="model"):
        run({"one": model}, x, criteria=("bic",)).difference("bic", "one", "other")


def test_interrupts_return_what_is_done(monkeypatch):
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    from custom_inference.checks.model_choice import run as module

    monkeypatch.setattr(module, "marginal_likelihood", stop)
    found = run([poissons(1)], counts(10), criteria=("bic", "evidence"))
    assert found.interrupted and "interrupted" in repr(found)
    line = found.table.to_dict("records")[0]
    assert math.isfinite(line["bic"]) and math.isnan(line["evidence"])


def test_public_names():
    assert ci.compare_models is compare_models and ci.ModelComparison is ModelComparison
    assert cast(Any, ci).marginal_likelihood.__doc__
