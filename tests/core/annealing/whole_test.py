"""Annealed estimates of programs whose rows depend on each other, through the density of the whole program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, logsumexp, xlogy
from torch import Tensor
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.annealing.estimate import Budget, estimate_log_evidence
from custom_inference.core.annealing.local import anneal_locals, chains_of
from custom_inference.core.annealing.program import WholeChains
from custom_inference.core.programs.whole import WholeDensity
from ppl_models import IRM, RTM, CapacityError, MethodError
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.distributions import Labelling
from tests.support.graphs import small_problem

SMALL = Budget(error=0.05, seconds=6.0, chains=32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ring(RowModel):
    """Positions on a ring, each in one of K states that neighbours like to share; what is seen there is normal."""

    num_places: int
    num_components: int = 2
    attraction: float = 0.8

    axes: ClassVar[Mapping[str, str]] = {"place": "num_places", "component": "num_components"}
    sites: ClassVar[Mapping[str, Site]] = {
        "level": Site("global", ("component",), support=constraints.real),
        "state": Site("latent", (), ("place",), choice="component"),
        "x": Site("observed", (), ("place",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"level": dist.Normal(0.0, 3.0)}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None,
        num_rows: int | None = None,
    ) -> Tensor:  # fmt: skip
        level = self.sample("level")
        size = self.num_places if x is None else len(x)
        state = pyro.sample("state", Labelling(torch.full((size, self.num_components), 1 / self.num_components)))
        alike = (state == state.roll(1, -1)).to(level).sum(-1)
        pyro.factor("attraction", self.attraction * alike)
        with self.rows(x, mask, batch_size, size) as rows:
            here = level[state.squeeze(-2) if state.ndim > 1 else state]
            return rows.observe("x", dist.Normal(here, 1.0))

    def local_value(self, local: Tensor) -> Tensor:
        return local.argmax(-1)


@pytest.fixture(scope="module")
def ring():
    rng = np.random.default_rng(2)
    model, level = Ring(num_places=9), np.array([-0.7, 0.8])
    x = level[[0, 0, 0, 1, 1, 1, 1, 0, 0]] + rng.standard_normal(9)
    return model, {"level": torch.as_tensor(level)}, model.prepare(x, dtype=torch.float64)


def sum_over_states(level: np.ndarray, x: np.ndarray, attraction: float) -> tuple[float, np.ndarray]:
    """log p(x) and P(state) of a ring by the sum over all 2^N states."""
    every = np.array(list(itertools.product(range(2), repeat=len(x))))
    table = attraction * (every == np.roll(every, 1, 1)).sum(1) - len(x) * np.log(2)
    table = table - 0.5 * ((x - level[every]) ** 2 + np.log(2 * np.pi)).sum(1)
    share = np.exp(table - logsumexp(table))
    return float(logsumexp(table)), np.stack([(share[:, None] * (every == k)).sum(0) for k in range(2)], 1)


def test_a_program_of_ones_own_agrees_with_the_sum_over_its_states(ring):
    model, params, data = ring
    evidence, mean = sum_over_states(params["level"].numpy(), data.x.numpy(), model.attraction)
    exact = ci.Exact().local_posterior(model, params, data)
    assert float(exact.bound) == pytest.approx(evidence, abs=1e-9)
    found = anneal_locals(model, params, data, SMALL)
    assert abs(float(found.log_evidence) - evidence) < 4 * float(found.standard_error) < 0.5
    assert bool(((found.mean - torch.as_tensor(mean)).abs() < 4 * found.mean_error + 0.01).all())
    local = ci.AIS(seconds=2.0).local_posterior(model, params, data)
    assert local.posterior.mean.shape == exact.posterior.mean.shape and local.posterior.lists_labels


def test_comparisons_take_it_in_the_place_of_the_sum(ring):
    model, params, data = ring
    table = [
        ci.compare(["ais"], model, data.x, at=params, progress=False, seconds=3.0, reference=one).table
        for one in ("exact", "ais")
    ]
    for one in table:
        assert abs(one["gap_per_row"].item()) < 5 * one["gap_error"].item()
    assert table[1]["evidence"].item() == pytest.approx(table[0]["evidence"].item(), abs=0.3)


@pytest.fixture(scope="module")
def four_nodes():
    """Model, globals and data of a graph with memberships."""
    example = small_problem("mmsb", directed=False, hidden=0.15, num_nodes=4, seed=1)
    model = example.model
    data = model.as_read(model.prepare(example.data, dtype=torch.float64))
    params = {site: example.truth[site].double() for site in model.global_sites}
    return model, params, data


def test_memberships_agree_with_the_sum_over_their_moments(four_nodes):
    """Along the slopes of the program's density, without the chains that the family has."""
    model, params, data = four_nodes
    with torch.no_grad():
        chains = WholeChains(WholeDensity.of(model, params, data))
        found = estimate_log_evidence(chains, replace(SMALL, error=0.1, seconds=60.0))  # which no clock cuts short
    exact = ci.Exact().local_posterior(model, params, data)
    assert abs(float(found.log_evidence - exact.bound)) < 4 * float(found.standard_error) < 0.6
    assert float((found.mean.reshape(4, 2) - exact.posterior.mean).abs().max()) < 0.25  # of few independent draws


def test_the_base_of_hasty_runs_is_about_a_mode_of_the_whole(four_nodes):
    """The gradient of the density in the real numbers, by finite differences, is 0 where the normal is centred."""
    model, params, data = four_nodes
    with torch.no_grad():
        density = WholeDensity.of(model, params, data)
        base = WholeChains(density).guess_base()
        assert base is not None and base.centre.shape == (1, 4)
        code = density.layout.configurations(density.like)
        step = 1e-4 * torch.cat([torch.eye(4, dtype=torch.float64), -torch.eye(4, dtype=torch.float64)])
        value = density.real(code.expand(8, 1, -1), base.centre + step.unsqueeze(1))
    assert float((value[:4] - value[4:]).abs().max()) / 2e-4 < 1e-2


@pytest.mark.parametrize("link", ["sigmoid", "exponential"])
def test_linked_documents_agree_with_a_double_integral(link):
    """Two documents, links by their proportions: log p(words, link) by Gauss-Legendre in both proportions."""
    model = RTM(num_topics=2, vocabulary_size=3, link=link, link_on="proportions").with_priors(
        topic_proportion=dist.Dirichlet(torch.tensor([1.5, 1.0]))
    )
    topic = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    weight, bias, words = np.array([2.0, 3.0]), -2.0, np.array([[3.0, 1, 0], [1, 2, 2]])
    params = {"topic": topic, "link_weight": weight, "link_bias": np.array(bias)}
    params = {site: torch.as_tensor(value) for site, value in params.items()}
    data = model.prepare(words, links=np.array([[0.0, 1], [1, 0]]), dtype=torch.float64)
    node, mass = np.polynomial.legendre.leggauss(200)
    share = np.stack([(node + 1) / 2, (1 - node) / 2], 1)  # (200, 2)
    prior = 0.5 * np.log(share[:, 0]) + gammaln(2.5) - gammaln(1.5) - gammaln(1.0)
    each = xlogy(words[:, None], (share @ topic)[None]).sum(-1) + prior + np.log(mass / 2)  # (2, 200)
    score = (share * weight) @ share.T + bias
    linked = -np.logaddexp(0, -score) if link == "sigmoid" else score - np.exp(score)
    expected = logsumexp(each[0][:, None] + each[1] + linked)
    found = anneal_locals(model, params, model.as_read(data), replace(SMALL, seconds=8.0))
    assert found.log_evidence.shape == (1,) and found.mean.shape == (2, 2)
    assert abs(float(found.log_evidence) - expected) < 4 * float(found.standard_error) < 0.5


def test_what_has_no_moves_is_said():
    example = IRM.example()
    params = {site: example.truth[site] for site in example.model.global_sites}
    with pytest.raises(MethodError, match="no moves for the latent 'cluster_person' of IRM"):
        chains_of(example.model, params, example.data)
    example = RTM.example()
    params = {site: example.truth[site] for site in example.model.global_sites}
    with pytest.raises(MethodError, match="no moves for the latents .*'topic_share' of RTM"):
        chains_of(example.model, params, example.data)


def test_what_is_too_slow_for_its_seconds_is_refused_at_once(ring, monkeypatch):
    model, params, data = ring
    chains = chains_of(model, params, data)
    monkeypatch.setattr(WholeChains, "predict_seconds", lambda *_: 3.0)
    with torch.no_grad(), pytest.raises(CapacityError, match="an estimate at least .* s, of 6 that are given"):
        estimate_log_evidence(chains, SMALL)
