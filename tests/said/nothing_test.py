"""Nothing was observed is not "never": what the data say nothing of has its prior's mean, in every model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

from custom_inference import fit, methods_for
from ppl_models import MODELS, NMF, NOCA, ComponentModel, MethodError, MixtureOfBernoullis, MixtureOfPoissons, Site
from tests.support.cases import GRAPHS, problem_of

QUIET = {"progress": False}
#: Fits that only approach the prior's mean, from where they start.
ITERATED = ("rbm", "helmholtz_machine")
#: Of draws of labels that nobody saw the likelihood says that they did not occur, as the model states it.
DRAWS_OF_LABELS = "discriminative_categorical_pca"
NAMES = [
    name
    for name, kind in MODELS.items()
    if name not in (*GRAPHS, DRAWS_OF_LABELS)
    and kind.example().model.data_kind in ("binary", "categories", "real", "counts")
]


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_column_that_only_rows_of_weight_0_have_is_as_its_prior(name):
    example = problem_of(name)
    data = example.model.prepare(example.data, dtype=torch.float64).dense()
    mask = torch.ones_like(data.x, dtype=torch.bool) if data.mask is None else data.mask.clone()
    weights = torch.ones(len(data), dtype=torch.float64)
    mask[:, 1] = False
    mask[-5:, 1], weights[-5:] = True, 0.0
    try:
        found = fit(example.model, replace(data, mask=mask), weights=weights, **QUIET)
    except MethodError as refused:  # no weights; or maximum likelihood of what has none
        assert "weigh" in str(refused) or ("proper priors" in str(refused) and name == "cvq")
        return
    mean = found.reconstruct(how="mean")[:, 1]
    kind, near = example.model.data_kind, 0.05 if name in ITERATED else 2e-3
    if name == "noca":  # a leak and loadings of one half
        assert torch.allclose(found.params["leak"][1], torch.tensor(0.5).double(), atol=1e-6)
        assert torch.allclose(found.params["loading"][:, 1], torch.tensor(0.5).double(), atol=1e-6)
    elif kind == "categories":
        size = getattr(found.model, "num_categories", 2)
        size = size[1] if isinstance(size, tuple) else size
        assert torch.allclose(mean, torch.full_like(mean, (size - 1) / 2), atol=near)
    elif kind == "counts":
        assert float(mean.mean()) > 0.1
    else:
        assert torch.allclose(mean, torch.full_like(mean, 0.5 if kind == "binary" else 0.0), atol=near)


def nobody_answered(x: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Answers of which nobody of class 1 has given the last."""
    x = x.astype(float)
    x[classes == 1, -1] = np.nan
    return x


def two_classes(high: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    classes = np.arange(80) % 2
    chance = np.where(classes[:, None] == 0, [high] * 8 + [0.4], [1 - high] * 8 + [0.4])
    return (rng.random(chance.shape) < chance), classes


@pytest.mark.parametrize("method", ["default", "em", "vb"])
def test_an_item_that_nobody_of_a_class_answered_has_the_mean_of_its_prior_there(method):
    x, classes = two_classes()
    model = MixtureOfBernoullis(num_components=2, num_features=9)
    found = fit(model, nobody_answered(x, classes), method=method, **QUIET)
    chance = found.params["probability"]
    silent = int(chance[:, 0].argmin())
    assert float(chance[silent, 8]) == pytest.approx(0.5, abs=0.01)
    assert float(chance[1 - silent, 8]) == pytest.approx(0.4, abs=0.2)
    seen = np.append(chance[silent, :8].numpy().round(), 1.0)[None]
    unseen = np.where(np.arange(9) == 8, np.nan, seen)
    cost = float(found.log_likelihood(unseen) - found.log_likelihood(seen))
    assert cost == pytest.approx(np.log(2), abs=0.02)


@dataclass(frozen=True, kw_only=True, eq=False)
class Classes(ComponentModel):
    """Classes of 0/1 rows, as one writes them."""

    sites: ClassVar = {
        "weight": Site("global", ("component",), support=constraints.simplex),
        "p": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "z": Site("latent", (), plates=("row",), choice="component"),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.boolean),
    }

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, p = self.sample("weight"), self.sample("p")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            return rows.observe("x", dist.Bernoulli(p[z]))


def test_programs_of_ones_own_likewise():
    x, classes = two_classes()
    found = fit(Classes(num_components=2, num_features=9), nobody_answered(x, classes), **QUIET)
    chance = found.params["p"]
    assert float(chance[int(chance[:, 0].argmin()), 8]) == pytest.approx(0.5, abs=1e-3)


def test_rates_that_nothing_was_counted_of_are_those_of_the_column():
    x, classes = two_classes()
    counts = nobody_answered(np.random.default_rng(1).poisson(np.where(x, 6.0, 0.5)), classes)
    model = MixtureOfPoissons(num_components=2, num_features=9)
    found = fit(model.with_priors(rate=dist.Gamma(1.0, 0.25)), counts, method="em", **QUIET)
    rate = found.params["rate"]
    assert float(rate[int(rate[:, 0].argmin()), 8]) == pytest.approx(4.0, rel=1e-3)


def test_noisy_ors_of_a_column_without_answers_say_one_half():
    rng = np.random.default_rng(2)
    x = (rng.random((60, 6)) < 0.4).astype(float)
    weights = np.where(np.arange(60) < 55, 1.0, 0.0)
    x[:55, 3] = np.nan
    found = fit(NOCA(num_components=2, num_features=6), x, weights=weights, **QUIET)
    assert float(found.params["leak"][3]) == pytest.approx(0.5)


def test_an_improper_prior_of_what_is_integrated_out_is_refused():
    """The bound of NMF's activations under flat priors rises without end as loadings shrink."""
    assert not {"em", "gamma", "exact"} & set(methods_for(NMF(num_components=2, num_features=6)))
    with pytest.raises(MethodError, match="'activation' is improper"):
        fit(NMF(num_components=2, num_features=6), np.ones((8, 6)) + np.eye(8, 6), method="gamma", **QUIET)
