"""What every program gets: refusals by name, quadrature in hard cases, importance sampling, posteriors of all kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.integrate
import torch
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.posteriors import MixedPosterior
from custom_inference.core.posteriors.mixed import ABOVE, FINITE, REAL
from custom_inference.core.programs.importance import pareto_k
from custom_inference.faces.arviz_library import arviz
from ppl_models import MethodError, ModelError
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site

quiet: dict[str, Any] = {"progress": False}
STANDARD = dist.Normal(0.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Shifted(RowModel):
    """x_nj ~ StudentT(3, centre_j + z_n, 1), with z_n from the distribution ``law``."""

    num_columns: int = 3
    law: Any = STANDARD

    axes: ClassVar[Any] = {"column": "num_columns"}
    sites: ClassVar[Any] = {
        "centre": Site("global", ("column",), support=constraints.real),
        "z": Site("latent", (), ("row",), constraints.real),
        "x": Site("observed", ("column",), ("row",), constraints.real),
    }

    def default_priors(self):
        return {"centre": dist.Normal(0.0, 2.0)}

    def draw_locals(self, site):
        return pyro.sample("z", self.law)

    def entries(self, site, local):
        return dist.StudentT(3.0, site["centre"] + local.unsqueeze(-1), 1.0)


LAWS = {
    "normal": dist.Normal(0.0, 1.0),
    "heavy": dist.StudentT(2.0, 0.0, 1.0),
    "cauchy": dist.Cauchy(0.0, 1.0),
    "narrow": dist.Normal(1.0, 1e-3),
    "wide": dist.Normal(0.0, 50.0),
    "two modes": dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.5, 0.5])), dist.Normal(torch.tensor([-2.5, 2.5]), torch.tensor([0.4, 0.4]))
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_quadrature_reaches_into_tails_and_between_modes(name):
    """Against adaptive quadrature by SciPy, row by row; rows far out, and with an entry that pulls the other way."""
    model = Shifted(law=LAWS[name])
    x = torch.tensor([[0.1, 0.2, -0.4], [4.0, 5.0, 6.0], [-9.0, 8.0, 0.0], [0.0, 0.0, 0.0]])
    centre = torch.tensor([0.0, 0.5, -0.5])
    local = ci.Exact().local_posterior(model, {"centre": centre}, model.prepare(x))

    def joint(z, row):
        terms = dist.StudentT(3.0, centre + z, 1.0).log_prob(x[row]).sum() + model.law.log_prob(torch.as_tensor(z))
        return float(terms.exp())

    for row in range(len(x)):
        edges = [-60.0, -10, -4, -2, 0, 0.99, 1.01, 2, 4, 10, 60]
        parts = zip([-np.inf, *edges], [*edges, np.inf], strict=True)
        total = sum(scipy.integrate.quad(joint, low, high, args=(row,), limit=200)[0] for low, high in parts)
        assert abs(float(local.bound[row]) - np.log(total)) < 1e-4


def test_importance_sampling_agrees_with_quadrature_and_names_its_error():
    model = Shifted(law=LAWS["normal"])
    data = model.prepare(2 * torch.randn(30, 3, generator=torch.Generator().manual_seed(0)))
    params = {"centre": torch.zeros(3)}
    exact = ci.Exact().local_posterior(model, params, data)
    found = solve_local(model, params, data, bound="importance")
    assert exact.what == "quadrature" and found.what == "quadrature", "what is exact is not estimated"
    from custom_inference.core.programs.density import RowDensity
    from custom_inference.core.programs.importance import sample_by_importance

    weighted = sample_by_importance(RowDensity.of(model, params, data))
    off = (weighted.log_evidence - exact.bound) / weighted.standard_error
    assert float(off.abs().max()) < 4.5 and float(weighted.standard_error.max()) < 0.05
    assert float(weighted.pareto_k.max()) < 0.7


def test_pareto_k_is_that_of_arviz():
    generator = torch.Generator().manual_seed(0)
    for power in (0.3, 0.8, 1.5):
        weight = -power * torch.log(torch.rand(6, 4000, generator=generator))
        _, expected = arviz().smooth(weight.numpy())
        assert np.allclose(pareto_k(weight).numpy(), np.asarray(expected), atol=0.05)


def test_mixed_posteriors_have_the_density_and_moments_of_what_they_draw():
    codes = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    maps = torch.tensor([[FINITE, 1, 1, 0, 0], [REAL, 1, 1, 0, 0], [ABOVE, 1, 1, 0, 0]])
    weight = torch.tensor([[0.3, 0.7]]).log()
    location = torch.tensor([[[0.0, 0.5], [1.0, -0.5]]])
    root = torch.tensor([[[[1.0, 0.0], [0.3, 0.5]], [[0.4, 0.0], [0.0, 0.6]]]])
    q = MixedPosterior(codes, weight, location, root, maps)
    draws = q.sample(20_000, seed=0)
    assert torch.allclose(draws.mean(0), q.mean, atol=0.03) and torch.allclose(draws.var(0), q.variance, rtol=0.1)
    at = torch.tensor([[1.0, 0.7, 1.3]])
    first = dist.Normal(1.0, 0.4).log_prob(at[0, 1])
    second = dist.LogNormal(-0.5, 0.6).log_prob(at[0, 2])
    assert torch.allclose(q.log_prob(at)[0], np.log(0.7) + first + second)
    with pytest.raises(MethodError, match="real numbers"):
        replace(q, maps=maps[:2])


def with_sites(program: type, **changed: Any) -> type:
    sites = {**program.sites, **{name: site for name, site in changed.items() if site is not None}}
    sites = {name: site for name, site in sites.items() if changed.get(name, site) is not None}
    return dataclass(frozen=True, kw_only=True, eq=False)(type(program.__name__, (program,), {"sites": sites}))


def test_sites_that_are_not_stated_or_not_declared_are_refused_by_name():
    x = torch.randn(10, 3)
    extra = with_sites(Shifted, w=Site("latent", (), ("row",), constraints.real))
    with pytest.raises(ModelError, match=r"declares 'w' in `sites`, which the program does not state"):
        ci.fit(extra(), x, **quiet)

    class Unsaid(Shifted):
        def draw_locals(self, site):
            return super().draw_locals(site) + pyro.sample("u", dist.Normal(0.0, 1.0))

    with pytest.raises(ModelError, match=r"states 'u', which `sites` does not declare"):
        ci.fit(Unsaid(), x, **quiet)

    class Silent(Shifted):
        def sample_globals(self, *, like=None):
            return {"centre": pyro.sample("centre", dist.Normal(0.0, 5.0).expand([3]).to_event(1))}

    with pytest.raises(ModelError, match="draws 'centre' from Normal, which is not its prior"):
        ci.fit(Silent(), x, **quiet)
    without = with_sites(Shifted, z=Site("latent", (), ("row",)))
    with pytest.raises(ModelError, match="'z' of Shifted has no support; declare it"):
        ci.Exact().local_posterior(without(), {"centre": torch.zeros(3)}, Shifted().prepare(x))


def test_a_guide_of_ones_own_is_compared_at_given_globals_and_as_it_was_fitted():
    """A guide of the exact form, a normal for every row under a normal likelihood, ends at the exact posterior."""

    class Plain(Shifted):
        def entries(self, site, local):
            return dist.Normal(site["centre"] + local.unsqueeze(-1), 1.0)

    model = Plain()
    x = torch.randn(25, 3, generator=torch.Generator().manual_seed(1))

    def guide(x):
        centre = pyro.param("c", torch.zeros(3))
        pyro.sample("centre", dist.Delta(centre, event_dim=1))
        location, scale = (
            pyro.param("a", torch.zeros(25)),
            pyro.param("b", torch.ones(25), constraint=constraints.positive),
        )
        with pyro.plate("data", len(x), dim=-1):
            pyro.sample("z", dist.Normal(location, scale))

    params = {"centre": torch.tensor([0.1, -0.2, 0.3])}
    method = ci.SVI(guide=guide, steps=800, learning_rate=0.02)
    fitted = method.fit(model, x, **quiet)
    found = ci.compare([ci.Exact(), method, fitted], model, x, at=params, **quiet)
    line = found.table.loc["SVI(custom)"]
    assert line["what"] == "variational" and 0 <= line["gap_per_row"] < 0.01 and line["worst_marginal_error"] < 0.05
    assert abs(line["kl_per_row"] - line["gap_per_row"]) < 0.02
    exact = (x - params["centre"]).sum(1) / 4
    assert torch.allclose(found.locals["Exact"].posterior.mean[:, 0], exact, atol=1e-6)
    assert found.table.loc["fit by SVI(custom)", "gap_per_row"] > line["gap_per_row"], "it is of other globals"
    assert torch.allclose(fitted.transform()[:, 0], (x - fitted.params["centre"]).sum(1) / 4, atol=0.05)
