"""Programs whose plates are called anything, have as many members as there are rows, or stand left of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.predictive import sample_rows
from custom_inference.core.programs.row_plates import row_plates_of
from ppl_models import Example, MethodError, ModelError, RowModel
from ppl_models.core.sites import Site
from tests.programs.zoo import case_of

#: Of bits of a row, of x given them, and the chance that an answer is right.
GLOBALS = {"mastery": torch.tensor([0.3, 0.6, 0.8]), "right": torch.tensor([0.9, 0.7, 0.6])}


@dataclass(frozen=True, kw_only=True, eq=False)
class Square(RowModel):
    """x_nj is z_nj with probability right_j, z_nj a bit: as many bits and entries a row as there may be rows.

    names: of the plates of rows, and of the columns. rows_dim: which axis is of the rows, in the program.
    """

    num_features: int = 3
    names: tuple[str, str] = ("people", "items")

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "mastery": Site("global", ("feature",), support=constraints.unit_interval),
        "right": Site("global", ("feature",), support=constraints.unit_interval),
        "z": Site("latent", ("feature",), ("row",), constraints.boolean),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        mastery, right = self.sample("mastery"), self.sample("right")
        rows, columns = self.names
        items = pyro.plate(columns, self.num_features, dim=-1)
        with pyro.plate(rows, num_rows if x is None else len(x), subsample_size=batch_size, dim=-2) as index, items:
            z = pyro.sample("z", dist.Bernoulli(mastery))
            law = dist.Bernoulli(z * right + (1 - z) * (1 - right))
            law = law if mask is None else law.mask(mask[index])
            return pyro.sample("x", law, obs=None if x is None else x[index])

    @classmethod
    def example(cls) -> Example:
        return Example.of(cls(), np.eye(3), GLOBALS)


class Inside(Square):
    """The same with the plate of the columns around that of the rows."""

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        mastery, right = self.sample("mastery"), self.sample("right")
        rows, columns = self.names
        items = pyro.plate(columns, self.num_features, dim=-1)
        with items, pyro.plate(rows, num_rows if x is None else len(x), subsample_size=batch_size, dim=-2) as index:
            z = pyro.sample("z", dist.Bernoulli(mastery))
            law = dist.Bernoulli(z * right + (1 - z) * (1 - right))
            law = law if mask is None else law.mask(mask[index])
            return pyro.sample("x", law, obs=None if x is None else x[index])


def exact_rows(x):
    """p(z_nj = 1 | x_nj), and log p(x_n)."""
    mastery, right = (GLOBALS[name].numpy() for name in ("mastery", "right"))
    known, guessed = (p * np.where(x == one, right, 1 - right) for p, one in ((mastery, 1), (1 - mastery, 0)))
    return known / (known + guessed), np.log(known + guessed).sum(1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("names", [("people", "items"), ("data", "items"), ("people", "data"), ("a", "b"), ("b", "a")])
@pytest.mark.parametrize("kind", [Square, Inside])
def test_the_plate_of_rows_is_found_whatever_it_is_called(kind, names, rows):
    """With as many rows as features and as bits too; no name decides."""
    x = (np.add.outer(np.arange(rows), np.arange(3)) % 2).astype(float)
    model = kind(names=names).with_priors(**GLOBALS)
    fit = ci.Exact().fit(model, x, progress=False)
    mean, evidence = exact_rows(x)
    assert np.allclose(fit.log_likelihood().numpy(), evidence, atol=1e-6)
    assert np.allclose(fit.transform().numpy(), mean, atol=1e-6)
    assert fit.sample(rows, seed=1)["z"].shape == fit.sample(rows)["x"].shape == (rows, 3)


def test_generated_latents_stand_with_rows_first_before_there_are_data():
    """Latents of three rows, of three bits: drawn with their rows first, where x says which is which."""
    model = Inside().with_priors(mastery=torch.tensor([0.0, 0.5, 1.0]), right=torch.ones(3) * 0.999999)
    drawn = sample_rows(model, model.known, 3, seed=0)
    assert torch.equal(drawn["z"][:, [0, 2]], torch.tensor([[0.0, 1.0]]).expand(3, 2))
    assert torch.equal(drawn["z"], drawn["x"])


def test_a_latent_in_an_inner_plate_alone_is_refused_however_many_members_it_has():
    class Outside(Square):
        """z is drawn once for all rows."""

        def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
            mastery, right = self.sample("mastery"), self.sample("right")
            with pyro.plate("items", self.num_features, dim=-1):
                z = pyro.sample("z", dist.Bernoulli(mastery))
                with pyro.plate("people", num_rows if x is None else len(x), dim=-2):
                    return pyro.sample("x", dist.Bernoulli(z * right + (1 - z) * (1 - right)), obs=x)

    with pytest.raises(ModelError, match=r"'z' of Outside is drawn outside the plate of rows.*do: 'people'"):
        ci.Exact().fit(Outside().with_priors(**GLOBALS), np.eye(3), progress=False)


def test_plates_are_found_by_two_runs():
    runs: list[int] = []

    def run_on(number):
        runs.append(number)
        with pyro.poutine.trace() as traced:
            Square()(num_rows=number)
        return traced.trace.nodes

    model = Square()
    assert row_plates_of(model, run_on) == row_plates_of(model, run_on) == {"people"} and runs == [2, 3]


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds(RowModel):
    """A class a row, and entries that are 1 with a probability of the class; plates of any names, on either side.

    wrong: what the program does of a minibatch: "" what it should, or states all rows, or does not weigh them.
    """

    num_classes: int = 2
    num_features: int = 3
    names: tuple[str, str] = ("people", "items")
    rows_dim: int = -2
    wrong: str = ""

    axes: ClassVar[Mapping[str, str]] = {"class": "num_classes", "feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("class",), support=constraints.simplex),
        "right": Site("global", ("class", "feature"), support=constraints.unit_interval),
        "kind": Site("latent", (), ("row",), choice="class"),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def as_data(self, value):
        return value if self.rows_dim == -2 else value.mT

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, right = self.sample("weight"), self.sample("right")
        rows, columns = self.names
        total, taken = num_rows if x is None else len(x), None if self.wrong == "all" else batch_size
        size = batch_size if self.wrong == "alone" and batch_size else total
        with pyro.plate(rows, size, subsample_size=min(taken or size, size), dim=self.rows_dim) as index:
            kind = pyro.sample("kind", dist.Categorical(weight))
            with pyro.plate(columns, self.num_features, dim=-3 - self.rows_dim):
                column = torch.arange(self.num_features)
                column = column if self.rows_dim == -2 else column[:, None]
                law = dist.Bernoulli(right[kind, column])
                law = law if mask is None else law.mask(self.as_data(mask[index]))
                return pyro.sample("x", law, obs=None if x is None else self.as_data(x[index]))


def kinds_objective(fit, x):
    """log p(x | globals) + log p(globals), of flat priors on all globals."""
    weight, right = fit.params["weight"].numpy(), fit.params["right"].numpy()
    joint = np.log(weight) + x @ np.log(right).T + (1 - x) @ np.log(1 - right).T
    return np.logaddexp.reduce(joint, 1).sum()


X = (np.random.default_rng(0).random((40, 3)) < [0.7, 0.4, 0.6]).astype(float)


@pytest.mark.parametrize("rows_dim", [-1, -2])
@pytest.mark.parametrize("names", [("people", "items"), ("data", "items"), ("people", "data")])
def test_minibatches_of_programs_whose_plates_stand_anywhere(names, rows_dim):
    """The last objective is on all rows, each once, whatever the plate of rows is called."""
    model = Kinds(names=names, rows_dim=rows_dim)
    fit = ci.SVI(guide="delta", batch_size=16, steps=20).fit(model, X, progress=False)
    assert "objective_standard_error" not in fit.details
    assert np.isclose(float(fit.elbo[-1]), kinds_objective(fit, X), rtol=1e-6)


@pytest.mark.parametrize(("wrong", "found"), [("all", "x of 40 rows"), ("alone", "x of 16 rows")])
@pytest.mark.parametrize("rows_dim", [-1, -2])
def test_minibatches_that_are_none_are_refused(wrong, found, rows_dim):
    """All rows in every step, or rows of a step that do not count for all."""
    model = Kinds(wrong=wrong, rows_dim=rows_dim)
    with pytest.raises(
        ModelError, match=rf"Kinds states 'x' with the {found} in a minibatch of 16, which count 1 and not 2\.5"
    ):
        ci.SVI(guide="delta", batch_size=16, steps=2).fit(model, X, progress=False)


def test_integrals_over_all_rows_say_why_there_are_no_minibatches():
    """Latents of an inner plate are summed out by the density, real ones by quadrature: no values are kept."""
    for model, x in ((Square(), X), (case_of("graded_response").model, case_of("graded_response").data)):
        with pytest.raises(MethodError, match=r"SVI\(delta\) integrates over all rows of"):
            ci.SVI(guide="delta", batch_size=16, steps=2).fit(model, x, progress=False)


def guide_of_kinds(name):
    """A guide of points, and of the classes of the rows of a minibatch."""

    def guide(x, mask=None, batch_size=None):
        points = {"weight": torch.tensor([0.6, 0.4]), "right": torch.tensor([[0.2, 0.3, 0.4], [0.8, 0.6, 0.7]])}
        for site, value in points.items():
            at = pyro.param(f"{site}_at", value.to(x), constraint=Kinds.sites[site].support)
            pyro.sample(site, dist.Delta(at, event_dim=at.ndim))
        logits = pyro.param("logits", torch.linspace(-1, 1, 2 * len(x), dtype=x.dtype).reshape(-1, 1, 2))
        with pyro.plate(name, len(x), subsample_size=batch_size, dim=-2) as index:
            pyro.sample("kind", dist.Categorical(logits=logits[index]), infer={"enumerate": "parallel"})

    return guide


def test_minibatches_of_guides_of_ones_own_see_the_rows_that_the_program_sees():
    """At a guide that hardly moves: its bound on all rows, by NumPy. A plate of another name would draw other rows."""
    method = ci.SVI(guide=guide_of_kinds("people"), batch_size=16, steps=2, learning_rate=1e-12)
    fit = method.fit(Kinds(), X, progress=False)
    q = np.exp(np.linspace(-1, 1, 80).reshape(40, 2))
    q /= q.sum(1, keepdims=True)
    weight, right = (fit.params[site].numpy() for site in ("weight", "right"))
    joint = np.log(weight) + X @ np.log(right).T + (1 - X) @ np.log(1 - right).T
    assert np.isclose(float(fit.elbo[-1]), (q * (joint - np.log(q))).sum(), rtol=1e-6)
    other = ci.SVI(guide=guide_of_kinds("rows"), batch_size=16, steps=2)
    with pytest.raises(MethodError, match="a plate of rows in the guide that is called people, as the model's"):
        other.fit(Kinds(), X, progress=False)
