"""What is refused of people's own programs before they are fitted: data, statements and declarations, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.programs.checked import check_program
from ppl_models import LDA, DataError, MixtureOfPoissons, ModelError
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.core.supports import lies_within
from ppl_models.distributions import Flat

quiet: dict[str, Any] = {"progress": False}
X = (torch.rand(12, 3, generator=torch.Generator().manual_seed(0)) < 0.5).double()


def hold(x: Any, row: int, column: int, value: float) -> torch.Tensor:
    x = torch.as_tensor(x).clone()
    x[row, column] = value
    return x


@dataclass(frozen=True, kw_only=True, eq=False)
class Bits(RowModel):
    """x_nj ~ Bernoulli(sigmoid(z_n - level_j)), with z_n normal."""

    num_items: int = 3

    axes: ClassVar[Any] = {"item": "num_items"}
    sites: ClassVar[Any] = {
        "level": Site("global", ("item",), support=constraints.real),
        "z": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("item",), ("row",), constraints.boolean),
    }

    def default_priors(self):
        return {"level": dist.Normal(0.0, 2.0)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        level = self.sample("level")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            return rows.observe("x", self.law(level, self.draw()))

    def draw(self):
        return pyro.sample("z", dist.Normal(0.0, 1.0))

    def law(self, level, z):
        return dist.Bernoulli(logits=z.unsqueeze(-1) - level)


def declare(program: type, **sites: Any) -> type:
    named = {**program.sites, **sites}
    found = {name: site for name, site in named.items() if site is not None}
    return dataclass(frozen=True, kw_only=True, eq=False)(type(program.__name__, (program,), {"sites": found}))


class Categories(declare(Bits, x=Site("observed", ("item",), ("row",), constraints.nonnegative_integer))):
    def law(self, level, z):
        return dist.Categorical(logits=torch.stack([level + z.unsqueeze(-1), -level + 0 * z.unsqueeze(-1)], -1))


class Unmasked(Bits):
    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        level = self.sample("level")
        with self.rows(x, mask, batch_size, num_rows):
            return pyro.sample("x", self.law(level, self.draw()).to_event(1), obs=x)


class Chosen:
    def draw(self):
        return pyro.sample("z", dist.Bernoulli(0.5))


def test_entries_outside_the_support_of_x_are_refused():
    with pytest.raises(DataError, match=r"'x': 1 of 36 entries are not 0 or 1 \(the first: 2 in row 4, column 1\)"):
        Bits().prepare(hold(X, 4, 1, 2.0))
    found = Bits().prepare(hold(X, 4, 1, torch.nan))
    assert found.mask is not None and not found.mask[4, 1]
    for support, wrong, right in (
        (constraints.positive, (0.0, -1.0, torch.inf), 0.5),
        (constraints.nonnegative_integer, (0.5, -1.0), 7.0),
        (constraints.unit_interval, (1.5,), 0.5),
        (constraints.interval(2, 4), (1.0,), 3.0),
        (constraints.real, (torch.inf,), -2.0),
        (None, (torch.inf,), -2.0),
    ):
        model = declare(Bits, x=Site("observed", ("item",), ("row",), support))()
        for value in wrong:
            with pytest.raises(DataError, match=r"site 'x': 1 of 36 entries .* in row 3, column 2"):
                model.prepare(hold(torch.full_like(X, right), 3, 2, value))
        assert model.prepare(hold(torch.full_like(X, right), 3, 2, torch.nan)).mask is not None
    simplex = declare(Bits, x=Site("observed", ("item",), ("row",), constraints.simplex))()
    with pytest.raises(DataError, match=r"3 of 36 entries .* in row 4"):
        simplex.prepare(hold(torch.full_like(X, 1 / 3), 4, 0, 0.9))


def test_entries_that_the_distribution_gives_no_probability_are_refused():
    with pytest.raises(DataError, match=r"1 of 36 entries are not whole numbers from 0 to 1 \(the first: 7 in row 2"):
        ci.SVI(guide="delta", steps=2).fit(Categories(), hold(X, 2, 0, 7.0), **quiet)
    check_program(Categories(), Categories().prepare(hold(X, 2, 0, torch.nan)))


def test_missing_entries_stand_within_the_support_where_the_program_looks_them_up():
    class Positive(declare(Bits, x=Site("observed", ("item",), ("row",), constraints.positive))):
        def law(self, level, z):
            return dist.LogNormal(z.unsqueeze(-1) - level, 1.0)

    x = hold(X + 0.5, 2, 0, torch.nan)
    found = ci.SVI(guide="delta", optimizer="lbfgs", restarts=1).fit(Positive(), x, **quiet)
    assert torch.isfinite(found.params["level"]).all()


def test_a_statement_of_x_that_is_not_the_plates_is_refused_where_that_matters():
    method = ci.SVI(guide="mean_field", steps=2)
    assert method.fit(Unmasked(), X, **quiet).params["level"].shape == (3,)
    with pytest.raises(ModelError, match=r"states 'x' with the 1 missing entries .* write rows.observe\('x', ...\)"):
        method.fit(Unmasked(), hold(X, 1, 1, torch.nan), **quiet)
    chosen = {"z": Site("latent", (), ("row",), constraints.boolean)}
    few = ci.SVI(guide="delta", steps=2, batch_size=5)

    class Whole(Chosen, declare(Unmasked, **chosen)):
        pass

    with pytest.raises(ModelError, match=r"the x of 12 rows in a minibatch of 5; write rows.observe"):
        few.fit(Whole(), X, **quiet)

    class Part(Chosen, declare(Bits, **chosen)):
        pass

    assert few.fit(Part(), hold(X, 1, 1, torch.nan), **quiet).params["level"].shape == (3,)


def test_latents_that_leave_their_support_are_refused():
    positive = declare(Bits, z=Site("latent", (), ("row",), constraints.positive))
    with pytest.raises(
        ModelError, match=r"'z' of Bits has the support finite numbers above 0, .* from Normal, on Real"
    ):
        ci.fit(positive(), X, **quiet)
    assert lies_within(constraints.nonnegative, constraints.positive)
    assert lies_within(constraints.simplex, constraints.unit_interval)
    assert not lies_within(constraints.real, constraints.simplex)
    assert not lies_within(constraints.interval(0, 2), constraints.unit_interval)


def test_declarations_that_cannot_be_meant_are_refused():
    with pytest.raises(ModelError, match="unknown role of a site 'globl' .*valid: given, global, latent, observed"):
        Site("globl", ("item",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModelError, match="Bits declares no latent site"):
        declare(Bits, z=None)()
    with pytest.raises(
        ModelError, match="'level' of Bits has the axis 'g', whose size `axes` does not give; known: item"
    ):
        declare(Bits, level=Site("global", ("g",), support=constraints.real))()
    with pytest.raises(ModelError, match=r"latent 'z' of Bits is declared in the plates \('rows',\), and 'x' in"):
        declare(Bits, z=Site("latent", (), ("rows",), constraints.real))()


def test_programs_that_cannot_be_run_say_what_they_stated():
    class Learned(Bits):
        def draw(self):
            return super().draw() * pyro.param("w", torch.tensor(1.0))

    with pytest.raises(ModelError, match="states the parameter 'w' by pyro.param"):
        ci.fit(Learned(), X, **quiet)

    class Crossed(Bits):
        def law(self, level, z):
            return dist.Bernoulli(logits=z - level)

    with pytest.raises(ModelError, match=r"failed after stating 'level' \(3,\), 'z' \(12,\): The size .* unsqueeze"):
        ci.fit(Crossed(), X, **quiet)


#: What a program of classes does wrong -> what is said of it.
WRONG = {
    "if": r"failed after stating 'p' .*: Boolean value .*; expected a course that is the same in all rows: torch",
    "item": r"cannot be converted to Scalar; expected a course that is the same in all rows",
    "turned": r"states 'x' by Bernoulli of shape \(12, 2\), but its values have the shape \(12, 3\)",
    "mask": r"masks 'x' by a tensor of shape \(3,\), which its batch of shape \(12,\) does not fit",
    "random": r"depend on each other: .* no random numbers",
    "range": r"Expected parameter scale .* GreaterThan.*; expected parameters within their range",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_statements_that_are_wrong_are_told_by_name(wrong):
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Classes(RowModel):
        """Two classes of bits."""

        num_items: int = 3
        num_classes: int = 2

        axes: ClassVar[Any] = {"item": "num_items", "class": "num_classes"}
        sites: ClassVar[Any] = {
            "p": Site("global", ("class", "item"), support=constraints.unit_interval),
            "z": Site("latent", (), ("row",), choice="class"),
            "x": Site("observed", ("item",), ("row",), constraints.real if wrong == "range" else constraints.boolean),
        }

        def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
            p = self.sample("p")
            with self.rows(x, mask, batch_size, num_rows) as rows:
                z = pyro.sample("z", dist.Categorical(torch.ones(2)))
                if wrong == "mask":
                    with pyro.poutine.mask(mask=torch.tensor([True, False, True])):
                        return rows.observe("x", dist.Bernoulli(p[z]))
                if wrong == "range":
                    return rows.observe("x", dist.Normal(p[z], 0.1 - p[z]))
                chance = {
                    "if": lambda: p[0] if z == 1 else p[1],
                    "item": lambda: p[z.item()],
                    "turned": lambda: p.T[z],
                    "random": lambda: p[z] * torch.rand(1),
                }[wrong]()
                return rows.observe("x", dist.Bernoulli(chance))

    with pytest.raises(ModelError, match=WRONG[wrong]):
        ci.fit(Classes(), X, **quiet)


def test_the_site_called_x_is_the_data_wherever_it_stands():
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Both(RowModel):
        """A bit, and three numbers beside it."""

        num_items: int = 3

        axes: ClassVar[Any] = {"item": "num_items"}
        sites: ClassVar[Any] = {
            "first": Site("observed", (), ("row",), constraints.boolean),
            "p": Site("global", ("item",), support=constraints.unit_interval),
            "z": Site("latent", (), ("row",), constraints.boolean),
            "x": Site("observed", ("item",), ("row",), constraints.boolean),
        }

        def __call__(self, x=None, *, first=None, mask=None, batch_size=None, num_rows=1):
            p = self.sample("p")
            with self.rows(x, mask, batch_size, num_rows) as rows:
                z = pyro.sample("z", dist.Bernoulli(0.5))
                pyro.sample("first", dist.Bernoulli(0.2 + 0.6 * z), obs=None if first is None else rows.of(first))
                return rows.observe("x", dist.Bernoulli(0.1 + 0.8 * (p * z.unsqueeze(-1))))

    first = (X[:, 0] + X[:, 1] > 0).double()
    fit = ci.fit(Both(), X, first=first, **quiet)
    p = fit.globals["p"].numpy()
    joint = []
    for z, chance in ((0, 0.2), (1, 0.8)):
        on = 0.1 + 0.8 * p * z
        own = np.where(X == 1, np.log(on), np.log1p(-on)).sum(1)
        joint.append(own + np.where(first == 1, np.log(chance), np.log1p(-chance)) + np.log(0.5))
    assert np.allclose(fit.log_likelihood(), np.logaddexp(*joint), rtol=0, atol=1e-9)


def test_priors_that_leave_their_support_name_their_site():
    model = MixtureOfPoissons(num_components=2, num_features=3)
    with pytest.raises(ModelError, match="'rate' has .* the prior Poisson is discrete"):
        model.with_priors(rate=dist.Poisson(3.0))
    with pytest.raises(ModelError, match="prior of 'rate' is a str, expected a Pyro distribution"):
        model.with_priors(rate="high")
    hyper = model.with_priors(a=dist.Normal(0.0, 1.0), rate=lambda a: dist.Gamma(a, 1.0))
    with pytest.raises(ModelError, match="the prior of 'rate' is no distribution at a = 0"):
        ci.fit(hyper, np.ones((5, 3)) + np.eye(5, 3), **quiet)


def test_priors_that_cannot_be_drawn_from_are_refused_and_flat_ones_with_a_proposal_fit():
    model = MixtureOfPoissons(num_components=2, num_features=3)
    improper = dist.ImproperUniform(constraints.positive, (), ())
    of_function = {"level": dist.Normal(0.0, 1.0), "rate": lambda level: improper}
    for prior in (improper, improper.expand([3]).to_event(1), Flat(improper)):
        with pytest.raises(
            ModelError, match=r"'rate' is ImproperUniform, .*; expected ppl_models\.distributions\.Flat"
        ):
            model.with_priors(rate=prior)
    with pytest.raises(ModelError, match="'rate' is ImproperUniform"):
        model.with_priors(**of_function)
    flat = model.with_priors(rate=Flat(dist.Gamma(1.0, 1.0)))
    assert torch.isfinite(ci.fit(flat, np.ones((5, 3)) + np.eye(5, 3), **quiet).elbo).all()


class OwnLDA(LDA):
    """A model of documents by people, which changes nothing."""


def test_a_program_is_tried_on_some_rows_and_all_entries_are_looked_at():
    """Rows with missing entries are among those that it is tried on; sparse counts stay sparse."""
    number = 200_000
    x = scipy.sparse.csr_matrix((np.ones(4), ([0, 7, 9, number - 1], [1, 3, 5, number - 1])), (number, number))
    documents = OwnLDA(num_topics=2, vocabulary_size=number)
    check_program(documents, documents.prepare(x))  # 320 GB as a dense matrix
    rows = X.repeat(20_000, 1)
    check_program(Bits(), Bits().prepare(hold(rows, -1, 0, np.nan)))
    with pytest.raises(ModelError, match="the 1 missing entries as if they were observed"):
        check_program(Unmasked(), Unmasked().prepare(hold(rows, -1, 0, np.nan)))
    with pytest.raises(DataError, match=f"in row {len(rows) - 1}, column 0"):
        check_program(Categories(), Categories().prepare(hold(rows, -1, 0, 7.0)))
