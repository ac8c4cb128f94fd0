"""PMF's program in all its settings, and the distributions that it is made of."""

import math
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy import stats
from scipy.integrate import quad

from ppl_models import PMF, DataError, DataWarning, ModelError, ratings
from ppl_models.distributions import InverseRootGamma, OrderedRating, SideBySide, VaryingRatings

SIZES = {"num_components": 2, "num_users": 8, "num_items": 5}
SETTINGS = {
    "plain": {"biases": False},
    "biases": {"adaptive": False},
    "ordinal": {"likelihood": "ordinal", "levels": (1, 5), "adaptive": False},
    "logistic": {"likelihood": "logistic", "adaptive": False},
    "adaptive": {"adaptive": True},
    "varying": {"adaptive": True, "varying_noise": 5.0},
    "covariates": {
        "varying_noise": math.inf,
        "num_user_covariates": 2,
        "num_item_covariates": 3,
        "time_edges": (0.3, 0.6),
        "user_time_edges": (0.5,),
    },
}


def drawn(settings):
    """A model, ratings that it generated, some of them left out, and the values of its sites."""
    pyro.set_rng_seed(3)
    model = PMF(**SIZES, **settings)
    nodes = poutine.trace(model).get_trace(num_rows=8).nodes
    values = {site: nodes[site]["value"] for site in (*model.global_sites, model.local_site)}
    x = nodes["x"]["value"].clone()
    x[torch.rand(x.shape) < 0.4] = torch.nan
    data, others = ratings(x), {}
    if settings.get("time_edges"):
        others = {"user_covariates": torch.randn(8, 2), "item_covariates": torch.randn(5, 3)}
        others["time"] = torch.rand(data.num_ratings)
    return model, model.prepare(data, **others), values


def log_prob(model, values, data):
    trace = poutine.trace(pyro.condition(model, data=values)).get_trace(data.x, mask=data.mask, **data.others)
    return float(trace.log_prob_sum())


@pytest.mark.parametrize("name", SETTINGS)
def test_sparse_ratings_are_those_of_a_matrix_with_a_mask(name):
    model, data, values = drawn(SETTINGS[name])
    dense = data.dense()
    assert np.isclose(log_prob(model, values, data), log_prob(model, values, dense), rtol=1e-12)
    index = torch.tensor([6, 1, 3])
    part = {**values, "user_profile": values["user_profile"][index]}
    rows = data.rows(index)
    both = [log_prob(model, part, one) for one in (rows, rows.dense())]
    assert np.isclose(*both, rtol=1e-12)


@pytest.mark.parametrize("name", ["biases", "covariates"])
def test_the_predictor_is_the_equation(name):
    model, data, values = drawn(SETTINGS[name])
    got = poutine.trace(pyro.condition(model, data=values)).get_trace(data.dense().x, **data.dense().others)
    v, total = {site: value.numpy() for site, value in values.items()}, 0.0
    for n, j, r, m in zip(data.user, data.item, data.value, range(data.num_ratings), strict=True):
        row, item, bias = v["user_profile"][n].copy(), v["item"][j].copy(), v["item_bias"][j]
        time = 0.0
        if name == "covariates":
            row += data.others["user_covariates"][n].numpy() @ v["user_weight"]
            moved = data.others["item_covariates"][j].numpy() @ v["item_weight"]
            item, bias = item + moved[1:], bias + moved[0]
            b = int(np.searchsorted(model.time_edges, float(data.time[m]), side="right"))
            own = int(float(data.time[m]) >= 0.5)
            time = v["bin_bias"][b] + v["item_bin_bias"][j, b] + v["user_bin_bias"][n, own]
        eta = v["mean"] + row[0] + bias + row[1:] @ item + time
        total += stats.norm.logpdf(float(r), eta, v["scale"])
    sparse = poutine.trace(pyro.condition(model, data=values)).get_trace(data.x, **data.others)
    assert np.isclose(float(sparse.nodes["x"]["fn"].log_prob(data.x).sum()), total, rtol=1e-12)
    assert got.nodes["user"]["value"].shape == (8, 2) and got.nodes["user_bias"]["value"].shape == (8,)


def test_learned_priors_are_one_normal_of_biases_and_factors():
    """The product of p(v_j) and p(g_j | v_j) of the program is the joint Normal."""
    model, _, values = drawn(SETTINGS["adaptive"])
    joint = torch.cat([values["item_bias"][:, None], values["item"]], 1)
    expected = dist.MultivariateNormal(values["item_mean"], values["item_covariance"]).log_prob(joint).sum()
    got = model.log_prior(values, ["item", "item_bias"])
    assert torch.isclose(got, expected, rtol=1e-10)


@pytest.mark.parametrize("missing", [False, True])
def test_varying_noise_is_the_integral_over_the_users_precision(missing):
    x, eta = np.array([1.0, -0.5, 2.0]), np.array([0.2, 0.1, 0.8])
    precision, size = np.array([1.0, 2.0, 0.5]), 3.0
    seen = np.array([True, not missing, True])

    def height(a: float) -> float:
        return stats.gamma.pdf(a, size, scale=1 / size) * stats.norm.pdf(x, eta, (a * precision) ** -0.5)[seen].prod()

    expected = np.log(quad(height, 0, 30, epsabs=1e-13)[0])
    given = [torch.tensor(one) for one in (eta[None], precision)]
    got = VaryingRatings(*given, size, torch.tensor(seen[None]) if missing else None).log_prob(torch.tensor(x[None]))
    assert np.isclose(float(got), expected, rtol=1e-9)


def test_noise_varies_by_default_where_priors_are_learned_of_gaussian_ratings():
    assert PMF(**SIZES).noise_shape == 20.0 and "item_precision" in PMF(**SIZES).sites
    alike = [{"varying_noise": math.inf}, {"adaptive": False}, {"biases": False}]
    alike += [{"likelihood": "logistic"}, {"likelihood": "ordinal", "levels": (1, 5)}]
    for settings in alike:
        model = PMF(**SIZES, **settings)
        assert model.noise_shape is None and "item_precision" not in model.sites
    # What one setting decides is decided again where it is exchanged.
    assert replace(PMF(**SIZES), adaptive=False, priors={}).noise_shape is None


def test_levels_of_a_scale_add_up_and_are_differences_of_sigmoids():
    location, scale = torch.tensor([-3.0, 0.4, 2.6, 9.0]), torch.tensor(0.7)
    law = OrderedRating(location, scale, 1, 5)
    assert torch.allclose(law.probs.sum(-1), torch.ones(4))
    below = torch.sigmoid((torch.arange(1, 5) + 0.5 - location[:, None]) / scale)
    direct = torch.diff(torch.nn.functional.pad(torch.nn.functional.pad(below, (1, 0)), (0, 1), value=1.0))
    assert torch.allclose(law.probs, direct, atol=1e-12)
    levels = torch.arange(1.0, 6.0)
    assert torch.allclose(law.mean, direct @ levels)
    assert torch.allclose(law.variance, direct @ levels.square() - (direct @ levels).square(), atol=1e-10)
    assert torch.isfinite(OrderedRating(torch.tensor(500.0), scale, 1, 5).log_prob(torch.tensor(1.0)))


def test_inverse_root_gamma_is_a_gamma_of_the_precision():
    law = InverseRootGamma(3.0, 2.0)
    density = lambda s: float(law.log_prob(torch.tensor(s)).exp())  # noqa: E731
    assert quad(density, 0, np.inf)[0] == pytest.approx(1.0)
    assert quad(lambda s: s * density(s), 0, np.inf)[0] == pytest.approx(float(law.mean))
    assert quad(density, 0, 0.8)[0] == pytest.approx(stats.gamma.sf(0.8**-2, 3.0, scale=0.5))


def test_priors_of_the_parts_of_a_profile_may_be_of_different_kinds():
    model = PMF(**SIZES, adaptive=False).with_priors(user_bias=dist.Laplace(0.0, 1.0), user=dist.StudentT(4.0))
    law = model.prior("user_profile")
    assert isinstance(law, SideBySide) and law.event_shape == (3,)
    value = torch.randn(4, 3)
    parts = dist.Laplace(0.0, 1.0).log_prob(value[:, 0]) + dist.StudentT(4.0).log_prob(value[:, 1:]).sum(-1)
    assert torch.allclose(law.log_prob(value), parts) and law.sample((7,)).shape == (7, 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: PMF(**{**SIZES, "num_components": 0}), ModelError, "num_components = 0"),
        (lambda: PMF(**{**SIZES, "num_users": 0}), ModelError, "num_users = 0"),
        (lambda: PMF(**SIZES, likelihood="poisson"), ModelError, "unknown likelihood 'poisson'"),
        (lambda: PMF(**SIZES, likelihood="ordinal"), ModelError, "levels = None"),
        (lambda: PMF(**SIZES, levels=(1, 5)), ModelError, "levels"),
        (lambda: PMF(**SIZES, time_edges=(2.0, 1.0)), ModelError, "increasing"),
        (lambda: PMF(**SIZES, varying_noise=-1.0), ModelError, "varying_noise"),
        (lambda: PMF(**SIZES, varying_noise=20.0, likelihood="logistic"), ModelError, "varying_noise"),
        (lambda: PMF(**SIZES).prepare(np.zeros((8, 4))), DataError, "4 columns"),
        (lambda: PMF(**SIZES).prepare(ratings([0], [7], [1.0])), DataError, "1 items where .* num_items = 5"),
        (lambda: PMF(**SIZES).prepare(([0, 9], [0, 1], [1.0, 2.0])), DataError, "axis 'user'.*first: 9"),
        (lambda: PMF(**SIZES, likelihood="logistic").prepare(np.full((8, 5), 3.0)), DataError, "neither 0 nor 1"),
        (lambda: PMF(**SIZES, **SETTINGS["ordinal"]).prepare(np.full((8, 5), 6.0)), DataError, "from 1 to 5"),
        (
            lambda: PMF(**SIZES, num_user_covariates=2).prepare(np.ones((8, 5)), user_covariates=np.ones((8, 3))),
            DataError,
            "user_covariates.*shape",
        ),
    ],
)
def test_bad_input_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_users_without_ratings_are_warned_of():
    model = PMF(num_components=1, num_users=3, num_items=2)
    data = model.prepare(([0, 0, 1], [0, 1, 0], [1.0, 2.0, 3.0]))
    with pytest.warns(DataWarning, match="1 of 3 users without ratings .*: 2"):
        model.check_for_fitting(data)
    with pytest.raises(DataError, match="2 users where the model has num_users = 3"):
        model.check_for_fitting(data.rows(slice(0, 2)))
