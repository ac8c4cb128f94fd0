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
from ppl_models import Example, ModelError, RowModel
from ppl_models.core.sites import Site

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
