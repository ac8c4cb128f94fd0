"""Features of nodes, users and items in any units, from any origin: fits are those of any other units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pytest
import torch

import custom_inference as ci
from ppl_models import BilinearPMF, ChoicePMF, CovariateSBM, ModelError

#: a, b of what is read as a x + b.
SCALES = [(0.01, 2000.0), (1e4, -3.0), (20.0, 0.0)]
COMBINATIONS = ["product", "difference", "concatenate"]


def network(combine: str, size: int = 12):
    """A graph (N, N) of two blocks, more ties between like nodes, and the features (N, 2), the second of two values."""
    rng = np.random.default_rng(3)
    feature = np.column_stack([rng.standard_normal(size), rng.random(size) < 0.5])
    block = np.arange(size) % 2
    logit = np.where(block[:, None] == block, 1.0, -1.5) + feature[:, :1] * feature[:, 0]
    x = (rng.random((size, size)) < 1 / (1 + np.exp(-logit))).astype(float)
    np.fill_diagonal(x, 0)
    return x if combine == "concatenate" else np.triu(x) + np.triu(x).T, feature


def of_network(combine: str, **settings: Any) -> Any:
    return CovariateSBM(num_blocks=2, combine=combine, directed=combine == "concatenate", **settings)


def tied(fit: Any) -> torch.Tensor:
    """P(edge) of every dyad at the likeliest blocks."""
    model = fit.model
    first, second = model.dyads(torch.arange(model.num_dyads()))
    return model.edge_distribution(fit.params, fit.posterior.mean.argmax(-1), first, second).mean


@pytest.mark.parametrize("method", [None, "svi"])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_features_of_nodes_in_any_units_from_any_origin(combine, method):
    x, feature = network(combine)
    brief: Any = {"steps": 8} if method else {"search": ci.Search(restarts=1)}

    def fitted(a: float, b: float) -> Any:
        return ci.fit(of_network(combine, covariates=a * feature + b), x, method=method, progress=False, **brief)

    first = fitted(1.0, 0.0)
    expected = tied(first)
    for a, b in SCALES:
        fit = fitted(a, b)
        assert torch.allclose(tied(fit), expected, atol=1e-6), (a, b)
        slope = a ** (2 if combine == "product" else 1) * fit.params["weight"][..., 1:]  # in the units of the features
        assert torch.allclose(slope, first.params["weight"][..., 1:], atol=1e-5), (a, b)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_the_program_of_features_of_nodes_is_the_same_law_in_other_units(combine):
    x, feature = network(combine)

    def log_joint(a: float, b: float) -> float:
        centre = 0.0 if combine == "difference" else a * 0.3 + b
        model = of_network(combine, covariates=a * feature + b, centre=centre, unit=2 * a)
        data = model.as_read(model.prepare(x, dtype=torch.float64))
        slope = torch.linspace(-1, 1, model.num_weights - 1) / a ** (2 if combine == "product" else 1)
        weight = torch.cat([torch.ones(1), slope]).expand(2, 2, -1)
        values = {"block_proportion": torch.tensor([0.4, 0.6]), "weight": weight, "block": torch.arange(len(x)) % 2}
        trace = pyro.poutine.trace(pyro.condition(model, values)).get_trace(data.x, mask=data.mask)
        number = (3 if combine != "concatenate" else 4) * len(slope)  # whose density is of the units
        return float(trace.log_prob_sum()) - number * (2 if combine == "product" else 1) * np.log(a)

    expected = log_joint(1.0, 0.0)
    assert np.allclose([log_joint(a, b) for a, b in SCALES], expected, atol=1e-5)


def test_scales_of_features_are_stated_and_kept(tmp_path):
    x, feature = network("product")
    model = of_network("product", covariates=20 * feature + 5)
    fit: Any = ci.fit(model, x, progress=False)
    assert model.centre is None and fit.model.centre == pytest.approx((20 * feature + 5).mean(0))
    assert fit.model.unit == pytest.approx((20 * feature[:, 0].std(), 20))
    again: Any = ci.Fit.load(fit.save(tmp_path / "fit"))
    assert again.model.centre == fit.model.centre and torch.equal(tied(again), tied(fit))
    plain: Any = ci.fit(of_network("product", covariates=feature, centre=0.0, unit=1.0), x, progress=False)
    assert float(plain.model.priors["weight"].scale.max()) == 2.5  # x_i x_j as it is


def test_features_of_days_keep_their_digits():
    model = CovariateSBM(num_blocks=2, covariates=np.array([[738000.25], [738001.5]]), centre=738000.0)
    torch.set_default_dtype(torch.float32)
    try:
        kept = CovariateSBM(num_blocks=2, covariates=np.array([[738000.25], [738001.5]]), centre=738000.0)
        one, two = torch.tensor([0]), torch.tensor([1])
        assert kept.dyad_features(one, two, like=torch.ones(())).tolist() == [[1.0, 0.375]]
    finally:
        torch.set_default_dtype(torch.float64)
    assert torch.equal(model.covariates, kept.covariates)


def clicked(size: int = 24, items: int = 9):
    """Clicks (U, I), choices (U, 4) of items, and features (U, 2) and (I, 2) that they go by, a constant first."""
    rng = np.random.default_rng(7)
    user, item = (np.column_stack([np.ones(n), rng.standard_normal(n)]) for n in (size, items))
    logit = 1.5 * np.outer(user[:, 1], item[:, 1]) + 0.5 * rng.standard_normal((size, items))
    clicks = (rng.random(logit.shape) < 1 / (1 + np.exp(-logit))).astype(float)
    return clicks, np.argsort(-logit - rng.gumbel(size=logit.shape), 1)[:, :4].astype(float), user, item


def of_clicks(kind: Any, **settings: Any) -> Any:
    more = {"num_choices": 4} if kind is ChoicePMF else {}
    sizes = {"num_users": 24, "num_items": 9, "num_user_covariates": 2, "num_item_covariates": 2, **more}
    return kind(num_components=2, **sizes, **settings)


def logits(fit: Any, user: Any, item: Any) -> torch.Tensor:
    about = {side: torch.as_tensor(given - fit.model.centre[side]) for side, given in (("user", user), ("item", item))}
    own = {"user": fit.posterior.mean, "item": fit.params["item"]}
    a, b = (own[side] + about[side] @ fit.params[f"{side}_weight"] for side in ("user", "item"))
    return a @ b.mT


def moved(feature: Any, a: float, b: float) -> Any:
    """a x + b in place of x beside the constant."""
    return feature * [1.0, a] + [0.0, b]


@pytest.mark.parametrize(
    ("kind", "method"),
    [(BilinearPMF, None), (BilinearPMF, "svi"), (BilinearPMF, "gaussian"), (ChoicePMF, "gaussian"), (ChoicePMF, "svi")],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_features_of_users_and_items_in_any_units_from_any_origin(kind, method):
    clicks, picks, user, item = clicked()
    brief: Any = {"svi": {"steps": 8}, "gaussian": {"max_iterations": 10}, None: {"passes": 3}}[method]

    def fitted(a: float, b: float) -> Any:
        given = {"user_covariates": moved(user, a, b), "item_covariates": moved(item, 1 / a, -b)}
        x = picks if kind is ChoicePMF else clicks
        return ci.fit(of_clicks(kind), x, method=method, progress=False, **given, **brief)

    first = fitted(1.0, 0.0)
    expected = logits(first, user, item)
    for a, b in SCALES[:2]:
        fit = fitted(a, b)
        found = logits(fit, moved(user, a, b), moved(item, 1 / a, -b))
        assert torch.allclose(found, expected, atol=1e-5), (a, b)
        slopes = a * fit.params["user_weight"][1], fit.params["item_weight"][1] / a  # in the units of the features
        for slope, side in zip(slopes, ("user", "item"), strict=True):
            assert torch.allclose(slope, first.params[f"{side}_weight"][1], atol=1e-5), (a, b)


def test_features_without_a_constant_keep_their_origin(tmp_path):
    clicks, _, user, item = clicked()
    given = {"user_covariates": user + [1.0, 0.0] * user[:, 1:], "item_covariates": moved(item, 20.0, 5.0)}
    fit: Any = ci.fit(of_clicks(BilinearPMF), clicks, method="gaussian", progress=False, max_iterations=5, **given)
    assert fit.model.centre["user"] == (0.0, 0.0)
    assert fit.model.unit["user"] == pytest.approx(np.sqrt((given["user_covariates"] ** 2).mean(0)))
    assert fit.model.centre["item"] == pytest.approx((0.0, (20 * item[:, 1] + 5).mean()))
    assert fit.model.unit["item"] == pytest.approx((1.0, 20 * item[:, 1].std()))
    assert fit.model.priors["item_weight"].scale.flatten().tolist() == pytest.approx(
        1 / np.array(fit.model.unit["item"])
    )
    again: Any = ci.Fit.load(fit.save(tmp_path / "fit"))
    assert again.model.unit == fit.model.unit
    few = again.transform(clicks[:4], user_covariates=given["user_covariates"][:4])
    assert torch.allclose(few, fit.posterior.mean[:4], atol=1e-2)
    with pytest.raises(ModelError, match=r"unit of 'user' of shape \(3,\), expected num_user_covariates = 2 numbers"):
        of_clicks(BilinearPMF, unit={"user": [1.0, 1.0, 1.0]})
    with pytest.raises(ModelError, match="centre of 'rating', expected those of 'user' or 'item'"):
        of_clicks(BilinearPMF, centre={"rating": 0.0})
