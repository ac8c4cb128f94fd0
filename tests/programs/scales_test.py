"""Statements that are scaled (poutine.scale), and factors: what Pyro means by them, and what the suite says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from scipy import stats
from torch.distributions import constraints

import custom_inference as ci
from ppl_models import MethodError, ModelError, RowModel
from ppl_models.core.sites import Site

X = np.array([[0.3, -0.2], [1.4, 0.8], [2.1, -0.5]])
WEIGHTS = torch.tensor([1.0, 3.0, 2.0])
SCALES = {
    "observed": 0.5,  # the scale of x alone
    "row": 2.0,  # of all that is stated of a row
    "each": WEIGHTS,  # of a row, one for each
    "all": 1 / 3,  # of the globals too, as those do who want a loss a row
    "none": 1.0,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaled(RowModel):
    """z_n ~ Bernoulli(.3), x_nj ~ Normal(z_n + shift, 1), with a scale on some of the statements."""

    scaled: str

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features"}
    num_features: int = 2
    sites: ClassVar[Mapping[str, Site]] = {
        "shift": Site("global", (), support=constraints.real),
        "z": Site("latent", (), plates=("row",), support=constraints.boolean),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.real),
    }

    def default_priors(self):
        return {"shift": dist.Normal(0.0, 1.0)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        scale = SCALES[self.scaled]
        scale = scale[: num_rows if x is None else len(x)] if isinstance(scale, torch.Tensor) else scale
        whole, row, entry = (scale if self.scaled in of else 1.0 for of in (["all"], ["row", "each"], ["observed"]))
        with poutine.scale(scale=whole):
            shift = self.sample("shift")
            with self.rows(x, mask, batch_size, num_rows) as rows, poutine.scale(scale=row):
                z = pyro.sample("z", dist.Bernoulli(0.3))
                with poutine.scale(scale=entry):
                    law = dist.Normal((z + shift).unsqueeze(-1) + torch.zeros(self.num_features), 1.0)
                    return rows.observe("x", law)


def evidence():
    """log p(x_n) where nothing is scaled, and shift is 0."""
    return np.log(sum(p * stats.norm.pdf(X, z).prod(1) for z, p in ((0, 0.7), (1, 0.3))))


def loss_of_pyro(scaled):
    """Minus Pyro's objective with z summed out and shift known."""
    program = config_enumerate(pyro.condition(Scaled(scaled=scaled), data={"shift": torch.tensor(0.0)}))
    loss = TraceEnum_ELBO(max_plate_nesting=1).loss(program, lambda x: None, torch.tensor(X))
    return loss + (stats.norm.logpdf(0.0) * (SCALES["all"] if scaled == "all" else 1.0))


def test_what_pyro_means_by_a_scale():
    """A common number on all statements of a row stands outside of the logarithm of the sum over z: how often rows
    count, which leaves the posterior of z as it is. Anything else Pyro refuses where it sums z out."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert np.isclose(loss_of_pyro("none"), -evidence().sum(), rtol=1e-6)
        assert np.isclose(loss_of_pyro("row"), -2 * evidence().sum(), rtol=1e-6)
        assert np.isclose(loss_of_pyro("all"), -evidence().sum() / 3, rtol=1e-6)
        with pytest.raises(ValueError, match="share a common poutine.scale"):
            loss_of_pyro("observed")
        with pytest.raises(ValueError, match="only supports scalar poutine.scale"):
            loss_of_pyro("each")
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("scaled", [name for name in SCALES if name != "none"])
def test_a_scaled_statement_is_refused_by_name(scaled):
    """Neither is the density tempered, nor the scale ignored: by no method, and at given globals."""
    site = {"observed": "x", "all": "shift"}.get(scaled, "z")
    message = rf"Scaled scales its statement of '{site}' .*leave the scale out.*weights="
    model = Scaled(scaled=scaled)
    for method in (ci.Exact(), ci.SVI(guide="mean_field", steps=2), ci.NUTS(num_samples=2, warmup=2)):
        with pytest.raises(ModelError, match=message):
            method.fit(model, X, progress=False)
    known = model.with_priors(shift=0.0)
    if scaled != "all":
        with pytest.raises(ModelError, match=message):
            ci.compare(["exact"], known, X, at={"shift": torch.tensor(0.0)}, progress=False)


def test_a_scale_of_1_is_none():
    fit = ci.Exact().fit(Scaled(scaled="none").with_priors(shift=0.0), X, progress=False)
    assert np.allclose(fit.log_likelihood().numpy(), evidence())


def test_a_plate_that_sees_a_part_of_the_columns_is_refused():
    class Part(Scaled):
        """One of two entries a row counts twice."""

        def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
            shift = self.sample("shift")
            with pyro.plate("rows", num_rows if x is None else len(x), dim=-2):
                z = pyro.sample("z", dist.Bernoulli(0.3))
                with pyro.plate("columns", 2, subsample_size=1, dim=-1) as few:
                    law = dist.Normal(z + shift, 1.0).expand(z.shape)
                    return pyro.sample("x", law, obs=None if x is None else x[:, few])

    with pytest.raises(ModelError, match="Part scales its statement of 'x' .*a plate that sees a part"):
        ci.Exact().fit(Part(scaled="none"), X, progress=False)


def test_a_guide_that_scales_is_refused():
    def guide(x):
        with pyro.plate("data", len(x)), poutine.scale(scale=0.1):
            pyro.sample("z", dist.Bernoulli(pyro.param("q", lambda: torch.full((len(x),), 0.5))))

    model = Scaled(scaled="none").with_priors(shift=0.0)
    with pytest.raises(MethodError, match="site 'z': the guide scales its statement"):
        ci.SVI(guide=guide, steps=2).fit(model, X, progress=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Tilted(RowModel):
    """z_n ~ Bernoulli(.3), x_nj ~ Normal(z_n, 1), and a factor exp(z_n), of "z", or exp(x_n1 z_n), of "x"."""

    tilts: str = "z"
    num_features: int = 2

    axes: ClassVar[Mapping[str, str]] = {"feature": "num_features"}
    sites: ClassVar[Mapping[str, Site]] = {
        "shift": Site("global", (), support=constraints.real),
        "z": Site("latent", (), plates=("row",), support=constraints.boolean),
        "x": Site("observed", ("feature",), plates=("row",), support=constraints.real),
    }

    def default_priors(self):
        return {"shift": dist.Normal(0.0, 1.0)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        shift = self.sample("shift")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Bernoulli(0.3))
            law = dist.Normal((z + shift).unsqueeze(-1) + torch.zeros(self.num_features), 1.0)
            x = rows.observe("x", law)
            pyro.factor("tilt", z if self.tilts == "z" else x[:, 0] * z)
            return x


@pytest.mark.parametrize("tilts", ["z", "x"])
def test_factors_count_in_fits_and_nothing_is_drawn_without_them(tilts):
    """The evidence and the posterior are those by hand; what draws from the program says why it does not."""
    model = Tilted(tilts=tilts).with_priors(shift=0.0)
    fit = ci.Exact().fit(model, X, progress=False)
    tilt = np.exp(X[:, 0] if tilts == "x" else 1.0)
    weight = 0.3 * stats.norm.pdf(X, 1).prod(1) * tilt
    total = weight + 0.7 * stats.norm.pdf(X, 0).prod(1)
    assert np.allclose(fit.log_likelihood().numpy(), np.log(total), atol=1e-6)
    assert np.allclose(fit.posteriors["z"].mean[:, 0].numpy(), weight / total, atol=1e-6)
    refused = pytest.raises(
        (ModelError, MethodError), match=r"Tilted has factors of latents and data \('tilt'\), which draws"
    )
    with refused:
        fit.sample(3)
    with refused:
        ci.simulation_based_calibration(model, ci.Exact(), of="locals", at=fit, num_simulations=2, progress=False)
    with refused:
        ci.bootstrap(fit, how="parametric", draws=2, method=ci.SVI(guide="delta", steps=2), progress=False)


def test_copies_of_the_data_are_those_of_the_statement_where_factors_are_of_latents_alone():
    """p(x | z) is as stated where the factor is of z, and is not where it is of x."""
    fits = {t: ci.Exact().fit(Tilted(tilts=t).with_priors(shift=0.0), X, progress=False) for t in ("z", "x")}
    assert fits["z"].predictive(5).shape == (5, 3, 2) and torch.isfinite(fits["z"].reconstruct()).all()
    assert len(ci.posterior_predictive_check(fits["z"], num_samples=5, progress=False).table)
    found = fits["z"].to_arviz(num_draws=2, num_copies=4)
    assert hasattr(found, "posterior_predictive") and "tilt" in found.posterior.attrs["prior_predictive"]
    refused = pytest.raises(ModelError, match="factors of what is observed .*'tilt'")
    for ask in (
        lambda: fits["x"].predictive(5),
        lambda: fits["x"].reconstruct(),
        lambda: ci.posterior_predictive_check(fits["x"], num_samples=5, progress=False),
    ):
        with refused:
            ask()
    assert "tilt" in fits["x"].to_arviz(num_draws=2, num_copies=4).posterior.attrs["posterior_predictive"]
