"""What bounds nothing says so, wherever it is shown: the Bethe log Z may lie above the evidence by nats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference import graphs
from custom_inference.core.local_inference import bounds_of, describe_stand_in, log_likelihood
from custom_inference.core.objectives import objective_line
from custom_inference.core.registry import engines_of
from custom_inference.faces.command_line.report.write import state_scores
from ppl_models import MODELS, CapacityError, DegreeCorrectedSBM, MethodError

ESTIMATES = [
    (name, engine) for name, kind in MODELS.items() for engine, make in engines_of(kind.example().model).items()
    if make().objective == "estimate"
]  # fmt: skip


def small_graph() -> tuple[DegreeCorrectedSBM, Any, dict[str, torch.Tensor]]:
    z = np.arange(12) % 2
    upper = np.triu(np.random.default_rng(0).poisson(np.where(z[:, None] == z, 2.0, 0.5)), 1)
    model = DegreeCorrectedSBM(num_blocks=2, num_nodes=12, directed=False)
    params = {"block_proportion": torch.full((2,), 0.5), "propensity": torch.ones(12)}
    params["edge_rate"] = torch.tensor([[1.2, 0.7], [0.7, 1.2]])
    return model, upper + upper.T, {site: value.double() for site, value in params.items()}


def test_the_bethe_value_of_a_degree_corrected_graph_may_be_above_the_evidence():
    model, x, params = small_graph()
    data, names = model.prepare(x, dtype=torch.float64), ("exact", "mean_field", "bethe")
    exact, below, bethe = (float(log_likelihood(model, params, data, bound=one)) for one in names)
    assert below <= exact < bethe - 1
    found = ci.compare(["bethe", "mean_field"], model, data, at=params)
    assert "estimates, no bounds, which may lie above the evidence: bethe" in repr(found)


def test_fits_and_choices_say_that_it_is_no_bound():
    model, x, _ = small_graph()
    fit = ci.fit(model, x, method="bethe", progress=False)
    assert "estimate of the log posterior, no bound, bethe" in objective_line(fit)[0]
    assert "no bound" in repr(fit) and "no bound" in fit._repr_html_()
    assert "no bound" in str(graphs.bethe_evidence.__doc__) and "no bound" in str(graphs.choose_num_blocks.__doc__)
    wide = MODELS["degree_corrected_sbm"].example()
    own = ci.fit(wide.model, wide.data, method="bethe", progress=False)
    with pytest.raises(CapacityError, match=r"Lower bounds available: bound='mean_field'; estimates, .* bound='bethe'"):
        own.log_likelihood()
    assert "(the estimate 'bethe', no bound: it may lie above)" in state_scores(own)["log-likelihood"]


@pytest.mark.parametrize(("name", "engine"), ESTIMATES)
def test_no_estimate_of_any_model_is_called_a_bound(name, engine):
    model = MODELS[name].example().model
    assert "no bound" in describe_stand_in(model, engine)
    for other in set(bounds_of(model)) - {"exact"}:
        assert ("lower bound" in describe_stand_in(model, other)) == (engines_of(model)[other]().objective == "bound")
    example = MODELS[name].example()
    fit = ci.VariationalEM(guide=engine, max_iterations=2).fit(model, example.data, progress=False)
    assert fit.objective == "estimate" and ", no bound" in objective_line(fit)[0]
    if engine in bounds_of(model) and "exact" not in engines_of(model):
        with pytest.raises(MethodError, match=f"estimates, which may lie above it: .*bound='{engine}'"):
            fit.log_likelihood(bound="exact")
