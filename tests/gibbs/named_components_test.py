"""Components that priors or known values tell apart keep their names in draws; others are aligned as ever."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference import CollapsedGibbs
from custom_inference.core.align import align_draws
from custom_inference.core.diagnostics import effective_size
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.registry import family_of
from custom_inference.gibbs.chains import Record, Settings
from custom_inference.gibbs.protocol import sampler_of
from ppl_models import MODELS, SBM, MixtureOfPoissons
from tests.support.named_components import CASES, Case

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
#: Standard errors; there are some hundred numbers.
SIGMA = 4.5
LONG: dict[str, Any] = {"num_samples": 300, "warmup": 30, "thin": 1, "chains": 2, "search": False}
SAMPLED = [name for name in MODELS if family_of(MODELS[name].example().model).sampler is not None]


@cache
def case_of(name: str) -> Case:
    return CASES[name]()


def drawn_locals(fit: Any, case: Case) -> np.ndarray:
    """(chain, draw, N, K)."""
    draws = fit.draws[case.model.local_site] if case.model.local_site in fit.draws else fit.draws["indicator"]
    draws = draws if draws.is_floating_point() else torch.nn.functional.one_hot(draws, case.local.shape[1])
    return draws.double().numpy()


def errors(draws: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Of each number, how far the mean of its draws is from the exact one, and a standard error of it."""
    flat = draws.reshape(*draws.shape[:2], -1)
    size = np.array([effective_size(flat[..., j]) for j in range(flat.shape[-1])])
    spread = flat.std((0, 1)) / np.sqrt(np.where(np.isfinite(size), size, flat[..., 0].size))
    return np.stack([np.abs(flat.mean((0, 1)) - exact.ravel()), spread])


def test_every_sampler_has_a_case():
    assert {name.split(",")[0] for name in CASES} == {*SAMPLED} - {"pmf"}  # its sampler takes no such priors: below


@pytest.mark.parametrize("name", CASES)
def test_samplers_have_the_exact_posterior_of_named_components(name):
    case = case_of(name)
    slow: dict[str, Any] = (
        {"num_samples": 80} if name == "lda, gamma" else {}
    )  # topics are values, each moved by slice steps
    fit: Any = CollapsedGibbs(**LONG | slow, indicators=name.startswith("mixture")).fit(
        case.model, case.data, seed=1, progress=False
    )
    assert "left out" not in fit.status, fit.status
    away, spread = errors(drawn_locals(fit, case), case.local)
    assert spread.max() < 0.1 and (away < SIGMA * spread + 1e-9).all(), (away, spread)
    # What ``transform`` gives is an average of conditional means, which varies less.
    assert (np.abs(fit.transform().numpy() - case.local).ravel() < SIGMA * spread + 1e-9).all()
    for site, exact in case.globals_.items():
        away, spread = errors(fit.draws[site].double().numpy(), exact)
        assert (away < SIGMA * spread + 1e-9).all(), (site, away, spread)


@pytest.mark.parametrize("name", CASES)
def test_known_values_come_out_as_they_are_and_alignment_changes_nothing(name):
    case = case_of(name)
    fits: list[Any] = [
        CollapsedGibbs(num_samples=12, warmup=4, chains=2, search=False, align=align).fit(
            case.model, case.data, seed=2, progress=False
        )
        for align in (True, False)
    ]
    for site, value in case.model.known.items():
        for fit in fits:
            assert torch.equal(fit.params[site], value.to(fit.params[site])), site
            assert (fit.draws[site] == value.to(fit.draws[site])).all(), site
    # Whole chains: of those that few draws take for other modes the draws may be left out, but none is changed.
    aligned, plain = (fit.draws for fit in fits)
    for site in plain:
        kept = [any(torch.equal(one, other) for other in plain[site]) for one in aligned[site]]
        assert all(kept), site
    if len(aligned[site]) == len(plain[site]):
        assert torch.equal(fits[0].transform(), fits[1].transform())


@pytest.mark.parametrize("name", SAMPLED)
def test_equal_priors_leave_all_components_exchangeable(name):
    model = MODELS[name].example().model
    sampler = sampler_of(model)
    labels = {"labeled_lda": [], "partially_labeled_lda": [[0, 1]]}
    assert sampler.exchangeable(model) == labels.get(name, [[*range(model.sizes["component"])]])


def test_a_chain_that_switches_labels_is_aligned_only_where_nothing_tells_its_components_apart():
    """One state whose classes change their numbers from draw to draw."""
    case, plain = case_of("mixture_of_poissons, alpha"), MixtureOfPoissons(num_components=2, num_features=2)
    spread = {}
    for name, model in {"equal": plain, "unequal": case.model}.items():
        chain: Any = sampler_of(model).chain(model, case.data, 0, None)
        chain.sweep()
        chain.assignment[:] = [0, 0, 1, 0, 1]
        record = Record(chain, Settings(), model, sampler_of(model), ("rate",), 1)
        sizes = []
        for _ in range(6):
            record.collect()
            sizes.append(chain.means()["rate"])
            chain.assignment[:] = 1 - chain.assignment
        aligned = bool((record.mean["rate"] - sizes[0]).abs().max() < 1e-12)
        mixed = bool((record.mean["rate"] - torch.stack(sizes).mean(0)).abs().max() < 1e-12)
        spread[name] = aligned, mixed
    assert spread == {"equal": (True, False), "unequal": (False, True)}


def test_nuts_and_svi_align_draws_of_components_that_have_no_names_alone():
    """Draws of two classes, exchanged in every second one."""
    rate = torch.tensor([[5.0, 1.0], [1.0, 4.0]])
    draws = {"rate": torch.stack([rate, rate.flip(0)] * 3)[None], "mixing_proportion": torch.tensor([[[0.7, 0.3]] * 6])}
    model = MixtureOfPoissons(num_components=2, num_features=2)
    named = model.with_priors(mixing_proportion=dist.Dirichlet(torch.tensor([1.0, 2.0])))
    for one, same in ((model, True), (named, False)):
        found = align_draws(draws, one.dims, site="rate", within=exchangeable(one))
        assert bool((found["rate"] == found["rate"][:, -1:]).all()) == same
        assert torch.equal(found["rate"], draws["rate"]) != same


@pytest.mark.parametrize("size", [4, 9])
def test_matching_within_sets_leaves_all_others_where_they_are(size):
    """Blocks by rows and columns at once, by all orders and by searches; rows alone."""
    generator = np.random.default_rng(0)
    table, sets = generator.random((size, size)), [[0, 2, 3], [*range(4, size)][:3]]
    for one in (each for each in sets if len(each) > 1):
        order = np.arange(size)
        order[one] = np.roll(one, 1)
        moved = table[np.ix_(order, order)]
        assert ci.match_blocks(table, moved, within=sets).order == np.argsort(order).tolist()
        assert ci.match_components(table, table[order], within=sets).order == np.argsort(order).tolist()
    swapped = [1, 0, *range(2, size)]
    assert ci.match_blocks(table, table[np.ix_(swapped, swapped)], within=sets).order[1] == 1
    assert ci.match_components(table, table[swapped], within=sets).order[1] == 1


def test_hyper_parameters_tell_components_apart_only_where_they_have_something_of_their_own():
    model = MixtureOfPoissons(num_components=3, num_features=2)
    common = model.with_priors(level=dist.Gamma(2.0, 1.0), rate=lambda level: dist.Gamma(level, 1.0))
    own = model.with_priors(
        level=dist.Gamma(torch.ones(3), 1.0).to_event(1), rate=lambda level: dist.Gamma(level[..., None], 1.0)
    )
    first = model.with_priors(
        level=dist.Gamma(2.0, 1.0), rate=lambda level: dist.Gamma(torch.stack([level, level, 2 * level])[:, None], 1.0)
    )
    assert exchangeable(common) == [[0, 1, 2]] and exchangeable(own) == [] and exchangeable(first) == [[0, 1]]


def test_known_tables_tell_blocks_apart_by_rows_and_columns_at_once():
    model = SBM(num_blocks=3, num_nodes=5)
    table = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.5]])
    assert exchangeable(model.with_priors(edge_probability=table)) == [[0, 1]]
    assert exchangeable(model.with_priors(edge_probability=table.flip(1))) == []
    cycle = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7]])  # no exchange of two leaves it
    assert exchangeable(model.with_priors(edge_probability=cycle)) == []
