"""Errors of the suite keep their kind and what they carry, also where Pyro makes new ones of them."""

from __future__ import annotations

import pickle
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceEnum_ELBO, config_enumerate
from pyro.optim import Adam

from custom_inference import Exact
from ppl_models import RBM, SBM, CapacityError, DataError
from ppl_models.core.errors import PPLError, own_errors


def every_kind(kind: type[PPLError] = PPLError) -> list[type[PPLError]]:
    return [kind, *(one for below in kind.__subclasses__() for one in every_kind(below))]


def raised(kind: type[PPLError]) -> PPLError:
    """An error of a kind, with all that it can carry."""
    carried: dict[Any, dict[str, Any]] = {
        DataError: {"site": "rating", "axis": "row", "expected": "numbers"},
        CapacityError: {"needed_bytes": 5.0, "allowed_bytes": 2.0},
    }
    return kind("something is wrong", **carried.get(kind, {}))


class Failing(dist.Bernoulli):
    """Fails when its density is asked for, or its values."""

    error: PPLError

    def log_prob(self, value: Any) -> Any:
        raise self.error

    def enumerate_support(self, expand: bool = True) -> Any:
        raise self.error


def program(error: PPLError, where: str) -> Any:
    """A program that fails in its own lines, in a list of values, or in a density."""

    def model(x: torch.Tensor) -> None:
        with pyro.plate("data", len(x)):
            if where == "program":
                raise error
            kind: Any = type("FailingSo", (Failing,), {"error": error})  # of the class: Pyro copies what it is given
            chosen = kind(0.5 * torch.ones(len(x)), validate_args=False)
            pyro.sample("z", chosen, infer={"enumerate": "parallel"} if where == "values" else {})

    return model


@pytest.mark.parametrize("where", ["program", "values"])
@pytest.mark.parametrize("kind", every_kind())
def test_every_error_survives_the_trace_that_it_is_raised_in(kind, where):
    """Traces within traces: each adds the shapes of its sites by making the error anew."""
    error, x = raised(kind), torch.zeros(3)
    failing = config_enumerate(program(error, where))
    runs = [
        lambda: poutine.trace(poutine.enum(poutine.trace(failing), first_available_dim=-2)).get_trace(x),
        lambda: SVI(failing, lambda x: None, Adam({}), TraceEnum_ELBO(max_plate_nesting=1)).step(x),
    ]
    for run in runs:
        with pytest.raises(kind) as caught:
            run()
        assert type(caught.value) is kind and vars(caught.value) == vars(error)
        assert str(caught.value).startswith(str(error)) and str(caught.value).count("something is wrong") == 1
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("kind", every_kind())
def test_errors_of_densities_leave_as_they_were_raised(kind):
    """Pyro raises a plain ValueError for them."""
    error = raised(kind)
    trace = poutine.trace(program(error, "density")).get_trace(torch.zeros(3))
    with pytest.raises(kind) as caught, own_errors():
        trace.compute_log_prob()
    assert caught.value is error


def test_errors_of_others_leave_as_they_are():
    other = ValueError("of somebody else")
    with pytest.raises(ValueError, match="somebody else") as caught, own_errors():
        raise other
    assert caught.value is other


def test_an_error_of_a_message_alone_knows_nothing_else():
    error = CapacityError("too large")
    assert error.needed_bytes != error.needed_bytes
    try:
        raise DataError("empty", site="links", axis="node")
    except DataError:
        other = DataError("three rows")  # of another problem
    assert (other.site, other.axis) == ("x", None) and str(other) == "site 'x': three rows"


def test_labelings_that_pyro_cannot_list_are_refused_by_their_number():
    model = SBM(num_blocks=2, num_nodes=24, directed=False)
    data = model.prepare(torch.ones(24, 24).triu(1) + torch.ones(24, 24).tril(-1))
    params = {"block_proportion": torch.full((2,), 0.5), "edge_probability": torch.full((2, 2), 0.5)}
    guide, elbo = lambda *_, **__: None, TraceEnum_ELBO(max_plate_nesting=1)
    with pytest.raises(CapacityError, match=r"2\^24 labelings") as caught:
        elbo.loss(config_enumerate(pyro.condition(model, data=params)), guide, data.x)
    assert caught.value.needed_bytes > caught.value.allowed_bytes


def test_methods_raise_what_went_wrong_in_a_program():
    """log Z of two layers of 30 units, of which a program has need only in the density of the hidden ones."""
    model = RBM(num_hidden=30, num_features=30)
    x = torch.zeros(3, 30)
    params = {site: torch.zeros(shape) for site, shape in model.shapes.items()}
    with pytest.raises(CapacityError, match=r"2\^30 binary codes"):
        Exact(generic=True).local_posterior(model, params, model.prepare(x))
