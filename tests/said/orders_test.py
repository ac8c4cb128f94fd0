"""Components stand where priors, known values and labels have them, of every model and by every kind of method."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference import Fit, VariationalEM, fit
from custom_inference.core.align import exchange, match_blocks, match_components, rename_components
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.orders import find_order, places_of
from ppl_models import LDA, MODELS, NOCA, SBM, MixtureOfBernoullis, Model, row_blocks
from tests.programs.mixtures import StudentMixture

QUIET: Any = {"progress": False}
#: Their components are of different kinds, or not in a matrix that a prior of this test could name.
WITHOUT = {"hdp", "labeled_lda", "partially_labeled_lda", "helmholtz_machine", "covariate_sbm", "dtm"}
#: Two or more components that nothing tells apart.
ALIKE = [n for n, kind in MODELS.items() if n not in WITHOUT and kind.example().model.has_components]


def around(value: Tensor, support: Any) -> Any:
    """A prior, of a family with closed-form steps, that has most of its mass near a value."""
    value = value.double()
    if support is constraints.simplex:
        return dist.Dirichlet(30 * value + 0.3)
    if support is constraints.unit_interval:
        return dist.Beta(20 * value + 1, 20 * (1 - value) + 1)
    if support is constraints.positive:
        return dist.Gamma(20.0 * torch.ones_like(value), 20 / value.clamp(min=0.05))
    return dist.Normal(value, 0.3 * value.std())


def stands(model: Model, params: dict[str, Tensor], want: Tensor) -> bool:
    site = model.component_site
    if "to_component" in model.dims[site]:
        return match_blocks(want, params[site]).order == list(range(len(want)))
    axis = model.dims[site].index("component")
    return match_components(want.movedim(axis, 0), params[site].movedim(axis, 0)).order == list(range(want.shape[axis]))


@pytest.mark.parametrize("name", ALIKE)
def test_components_of_every_model_stand_where_their_priors_have_them(name):
    example = MODELS[name].example()
    model, site, data = example.model, example.model.component_site, example.data
    first = fit(model, data, max_iterations=20, **QUIET) if site not in example.truth else None
    truth = example.truth[site] if first is None else first.params[site]
    want = rename_components({site: truth.double()}, [*range(1, model.sizes["component"]), 0], model.dims)[site]
    told = model.with_priors(**{site: around(want, model.sites[site].support)})
    assert exchangeable(told) == []
    found = fit(told, data, seed=1, **QUIET)
    assert stands(told, found.globals, want)


BLOCKS = np.kron(np.eye(3), np.full(4, 0.25))
TRUTH = torch.as_tensor(np.array([2, 0, 1]))


def texts(seed: int = 10) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.multinomial(20, BLOCKS[n % 3]) for n in range(60)])


def seeded() -> Tensor:
    """Concentrations (K, V) with one word of each topic's own, in an order that is not that of the data."""
    prior = torch.full((3, 12), 0.05, dtype=torch.float64)
    prior[torch.arange(3), 4 * TRUTH] = 5.0
    return prior


@pytest.mark.parametrize(
    "method", ["vb", "map", "gibbs", "cvb0", pytest.param("svi", marks=pytest.mark.slow), "dirichlet"]
)
def test_topics_with_seed_words_land_on_these_by_every_method(method):
    model = LDA(num_topics=3, vocabulary_size=12).with_concentration(gamma=seeded())
    topic = fit(model, texts(), method=method, seed=1, **QUIET).params["topic"]
    assert torch.equal(topic.argmax(1) // 4, TRUTH)


def test_the_concentration_of_topics_has_a_row_for_each_or_one_for_all():
    model = LDA(num_topics=3, vocabulary_size=12)
    assert model.with_concentration(gamma=seeded()).priors["topic"].concentration.shape == (3, 12)
    assert model.with_concentration(gamma=np.ones(12)).priors["topic"].concentration.shape == (12,)
    with pytest.raises(
        ValueError, match=r"'topic' of shape \(12, 3\), expected one number or 12 of them, or \(3, 12\)"
    ):
        model.with_concentration(gamma=np.ones((12, 3)))


def test_known_values_and_the_prior_of_the_latents_tell_components_apart():
    """Rows alone tell which component is the rare one: its share, its proportion, its source are stated."""
    rng, share = np.random.default_rng(1), np.array([0.1, 0.3, 0.6])
    stated = torch.as_tensor(share)[TRUTH]
    on = 0.1 + 0.7 * (BLOCKS > 0)
    mixed = (rng.random((400, 12)) < on[rng.choice(3, 400, p=share)]).astype(float)
    sources = rng.random((400, 3)) < share
    joined = (rng.random((400, 12)) < 1 - np.prod(1 - sources[:, :, None] * 0.8 * (BLOCKS > 0), 1) * 0.97).astype(float)
    counts = np.stack([rng.multinomial(30, t @ BLOCKS) for t in rng.dirichlet([0.2, 0.6, 1.8], 200)])
    alpha = torch.tensor([0.2, 0.6, 1.8], dtype=torch.float64)[TRUTH]
    cases: list[tuple[Model, Any, str]] = [
        (MixtureOfBernoullis(num_components=3, num_features=12).with_priors(mixing_proportion=stated), mixed, ""),
        (NOCA(num_components=3, num_features=12).with_priors(source_prior=stated), joined, ""),
        (LDA(num_topics=3, vocabulary_size=12).with_concentration(alpha=alpha), counts, ""),
        (LDA(num_topics=3, vocabulary_size=12).with_concentration(alpha=alpha), counts, "map"),
    ]
    for model, x, method in cases:
        for seed in range(2):
            found: Fit = fit(model, x, seed=seed, **({"method": method} if method else {}), **QUIET)
            blocks = found.params[model.component_site].reshape(3, 3, 4).mean(-1).argmax(1)
            assert torch.equal(blocks, TRUTH), (type(model).__name__, method, seed)


@pytest.mark.parametrize("method", ["default", "vb", "gibbs"])
def test_blocks_of_a_graph_stand_where_the_priors_of_their_links_have_them(method):
    rng, label = np.random.default_rng(0), np.repeat([0, 1, 2], [10, 20, 30])
    chance = np.array([[0.7, 0.05, 0.05], [0.05, 0.4, 0.05], [0.05, 0.05, 0.25]])
    half = np.triu(rng.random((60, 60)) < chance[label][:, label], 1)
    within = torch.as_tensor(np.diag(chance).copy())[TRUTH]
    first = torch.ones(3, 3, dtype=torch.float64).fill_diagonal_(0) + torch.diag(20 * within)
    second = torch.ones(3, 3, dtype=torch.float64).fill_diagonal_(0) + torch.diag(20 * (1 - within))
    model = SBM(num_blocks=3, num_nodes=60, directed=False).with_priors(edge_probability=dist.Beta(first, second))
    own = fit(model, (half | half.T).astype(float), method=method, **QUIET).params["edge_probability"].diagonal()
    assert bool(((own - within).abs() < 0.12).all())


@pytest.mark.slow
def test_places_of_a_program_of_ones_own_stand_where_its_priors_have_them():
    example = StudentMixture.example()
    order = torch.tensor([1, 2, 0])
    place = example.truth["place"][order].double()
    model = example.model.with_priors(place=dist.Normal(place, 0.5))
    for seed in range(2):
        found = fit(model, example.data, seed=seed, **QUIET).params["place"]
        assert match_components(place, found).order == [0, 1, 2]


def test_the_order_found_is_the_best_of_all_orders():
    """Of priors that are sums over components, and of one over pairs of blocks, against all permutations."""
    generator = torch.Generator().manual_seed(3)
    for model in (
        LDA(num_topics=4, vocabulary_size=5).with_concentration(gamma=torch.rand(4, 5, generator=generator) * 6),
        SBM(num_blocks=4, num_nodes=9).with_priors(
            edge_probability=dist.Beta(1 + 9 * torch.rand(4, 4, generator=generator), torch.tensor(3.0))
        ),
    ):
        (places,), torch_state = places_of(model), torch.get_rng_state()
        torch.manual_seed(0)
        values = {s: model.prior(s, like=torch.zeros(1).double(), values={}).sample() for s in model.unknown_sites}
        torch.set_rng_state(torch_state)
        values = {site: value[torch.randperm(4, generator=generator)] for site, value in values.items()}
        every = itertools.permutations(range(4))
        highest = max(float(model.log_prior(places.permute(values, torch.tensor(order)))) for order in every)
        reached = model.log_prior(places.permute(values, torch.tensor(find_order(model, places, values))))
        assert float(reached) == pytest.approx(highest, abs=2e-3)


def test_exchanges_climb_to_where_none_helps():
    cost = np.random.default_rng(0).random((5, 5))
    order = exchange((0, 1, 2, 3, 4), lambda places: float(sum(cost[i, k] for i, k in enumerate(places))))
    value = sum(cost[i, k] for i, k in enumerate(order))
    for a, b in itertools.combinations(range(5), 2):
        swapped = list(order)
        swapped[a], swapped[b] = order[b], order[a]
        assert sum(cost[i, k] for i, k in enumerate(swapped)) <= value


def test_the_order_is_sought_of_blocks_of_a_file_and_beside_checkpoints(tmp_path):
    np.savetxt(tmp_path / "texts.csv", texts(), "%d", delimiter=",", header=",".join("abcdefghijkl"), comments="")
    model = LDA(num_topics=3, vocabulary_size=12).with_concentration(gamma=seeded())
    method = VariationalEM(guide="vb", checkpoint=tmp_path / "state")
    for data in (texts(), row_blocks(tmp_path / "texts.csv", block_rows=30)):
        for _ in range(2):
            found = method.fit(model, data, seed=2, **QUIET)
            assert torch.equal(found.params["topic"].argmax(1) // 4, TRUTH)
            assert found.method == method and "in the order that priors or known values have" in found.status
        (tmp_path / "state").unlink()


@pytest.mark.parametrize("seed", range(4))
def test_sources_end_where_the_priors_of_their_frequencies_have_them(seed):
    """Frequencies adapt to what stands in their place, and then tell nothing of where it should stand."""
    prior = dist.Beta(torch.tensor([20.0, 70.0]), torch.tensor([80.0, 30.0]))
    model, rng = NOCA(num_components=2, num_features=6).with_priors(source_prior=prior), np.random.default_rng(seed)
    link = np.array([[0.9] * 3 + [0.0] * 3, [0.0] * 3 + [0.9] * 3])
    source = rng.random((120, 2)) < [0.7, 0.2]  # the frequent one has the first three columns
    x = rng.random((120, 6)) < 1 - 0.97 * np.prod(1 - source[:, :, None] * link, 1)
    for number in range(3):
        loading = fit(model, x.astype(float), seed=number, **QUIET).params["loading"]
        assert float(loading[0, 3:].mean()) > 0.5 > float(loading[0, :3].mean())
