"""Fits of programs of graphs: as far as those of listed block models, and what is asked of them."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.distributions.constraints import unit_interval

import custom_inference as ci
from ppl_models import SBM, DegreeCorrectedSBM, MethodError, PoissonSBM, Site
from tests.programs.graphs import (
    NODES,
    Affine,
    Blocks,
    Degrees,
    Foes,
    Ordered,
    Rates,
    Signed,
    TwoPart,
    Weighted,
    planted,
)

QUIET: Any = {"progress": False, "seed": 0}


@pytest.mark.parametrize(
    ("kind", "listed", "site", "directed"),
    [
        (Blocks, SBM, "p", True), (Rates, PoissonSBM, "rate", False),
        (Degrees, DegreeCorrectedSBM, "rate", False),
    ],
)  # fmt: skip
def test_fits_come_as_far_as_those_of_the_listed_model(kind, listed, site, directed):
    x = planted(kind, 45, 3, 1, directed=directed)
    sizes = {"num_blocks": 3, "num_nodes": 45, "directed": directed}
    own = ci.fit(kind(**sizes), x, progress=False)
    other = ci.fit(listed(**sizes), x, progress=False, method="mean_field")
    assert own.bound_name == "mean_field" and own.objective == "bound"
    assert float(own.elbo[-1]) > float(other.elbo[-1]) - 0.05
    assert own.transform().shape == (45, 3) and own.params[site].shape == (3, 3)


@pytest.mark.parametrize("kind", [Signed, Foes, Weighted, TwoPart, Affine, Ordered])
def test_blocks_are_found_whatever_an_edge_is(kind):
    model = kind(num_blocks=3, num_nodes=54, directed=False)
    found = ci.fit(model, planted(kind, 54, 3, 0, directed=False), progress=False)
    label = found.transform().argmax(1).numpy().reshape(-1, 3)
    usual = np.array([np.bincount(one, minlength=3).argmax() for one in label.T])
    assert len(set(usual)) == 3 and (label == usual).mean() > 0.9


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_weights_may_have_any_unit(unit):
    """The same labels, and the bound but for the unit of as many densities as there are: dyads, means, the spread."""
    x, sizes = planted(Weighted, 30, 2, 0, directed=False), {"num_blocks": 2, "num_nodes": 30, "directed": False}
    priors = {"mean": dist.Normal(0.0, 5.0 * unit), "spread": dist.LogNormal(math.log(unit), 1.0)}
    found, expected = ci.fit(Weighted(**sizes, priors=priors), unit * x, **QUIET), ci.fit(Weighted(**sizes), x, **QUIET)
    densities = 30 * 29 / 2 + 3 + 1
    assert float(found.elbo[-1]) + densities * math.log(unit) == pytest.approx(float(expected.elbo[-1]), abs=0.01)
    assert float(found.params["spread"]) / unit == pytest.approx(float(expected.params["spread"]), rel=1e-2)


@pytest.mark.filterwarnings("ignore:.*have no edge")
@pytest.mark.parametrize(("kind", "listed"), [(Blocks, SBM)])
def test_exact_em_is_that_of_the_listed_model(kind, listed):
    x, sizes = planted(kind, 8, 2, 0, directed=False), {"num_blocks": 2, "num_nodes": 8, "directed": False}
    own, other = (ci.fit(one(**sizes), x, method="em", progress=False) for one in (kind, listed))
    assert own.bound_name == "exact"
    assert float(own.elbo[-1]) > float(other.elbo[-1]) - 0.02


def test_what_a_fit_is_asked():
    model, x = Blocks(num_blocks=2, num_nodes=20), planted(Blocks, 20, 2, 0, directed=True)
    found = ci.fit(model, x, progress=False)
    assert ci.methods_for(model)[:4] == ["default", "exact", "em", "mean_field"]
    assert "bound, mean_field" in str(found)
    assert found.local is not None
    assert torch.equal(found.log_likelihood(bound="mean_field"), found.local.bound)
    again = ci.fit(model, x, init=found, progress=False)
    assert float(again.elbo[-1]) == pytest.approx(float(found.elbo[-1]), abs=1e-3)
    by_svi = ci.SVI(guide="mean_field", steps=30).fit(
        model, x, progress=False
    )  # which looks blocks up as it is written
    assert by_svi.local is not None
    assert float(by_svi.local.bound) < float(found.local.bound) + 1e-3


class Twice(Blocks):
    """An axis that stands twice."""

    sites: ClassVar[Mapping[str, Site]] = {**NODES, "p": Site("global", ("component",) * 2, support=unit_interval)}


def test_an_axis_may_stand_twice():
    model = Twice(num_blocks=2, num_nodes=6)
    assert model.shapes["p"] == (2, 2) and model.dims["p"] == ("component", "to_component")
    found = ci.fit(
        model,
        planted(Blocks, 6, 2, 1, directed=True),
        progress=False,
        method="gibbs",
        warmup=5,
        num_samples=5,
        chains=1,
    )
    assert found.to_arviz().posterior["p"].dims == ("chain", "draw", "component", "to_component")


@pytest.mark.slow
def test_an_axis_that_stands_twice_is_calibrated():
    model = Twice(num_blocks=2, num_nodes=4)
    found = ci.simulation_based_calibration(
        model, ci.CollapsedGibbs(num_samples=19, warmup=5, chains=1), num_simulations=20, num_draws=19, progress=False
    )
    assert found.ranks["p"].dims == ("simulation", "component", "to_component")


def test_what_needs_all_labellings_is_listed_where_there_are_few():
    assert {"exact", "em", "svi_normal", "nuts"} <= {*ci.methods_for(Blocks(num_blocks=3, num_nodes=13))}
    assert ci.methods_for(Blocks(num_blocks=3, num_nodes=14)) == ["default", "mean_field", "svi", "gibbs"]


def test_a_graph_that_is_drawn_has_two_nodes_at_least():
    found = ci.fit(Blocks(num_blocks=2, num_nodes=8), planted(Blocks, 8, 2, 0, directed=True), progress=False)
    with pytest.raises(
        MethodError, match="num_rows = 1, expected at least 2 nodes: sample\\(\\) draws a graph of as many"
    ):
        found.sample(1)
    assert found.sample(3)["x"].shape == (3, 3)
