"""What is read off programs: scopes and sources of known ones; what deceives is compiled and right, or refused."""

import gc
import itertools
import re
import warnings
import weakref

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import log_softmax, logsumexp
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.compiled.derive import structure_of
from custom_inference.compiled.linear import LinearSource
from custom_inference.compiled.proof import bind as bind_rows
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.sources import EntrySource
from custom_inference.compiled.steps import Steps
from custom_inference.compiled.structure import flatten
from ppl_models import Data, Site
from tests.programs._own import ROW, observed, own_program

UNIT, REAL, POSITIVE = constraints.unit_interval, constraints.real, constraints.positive
BOOLEAN, COUNT = constraints.boolean, constraints.nonnegative_integer


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def site(support=REAL, *dims):
    return Site("global", dims, support=support)


#: Priors of one element of globals of a support.
PRIORS = {UNIT: dist.Beta(2.0, 2.0), REAL: dist.Normal(0.0, 2.0), POSITIVE: dist.Gamma(2.0, 1.0)}


def made(own, rows, columns):
    """A program of sites, with priors by their supports; ``columns`` is the size of all axes."""
    return own_program(own, rows, {n: PRIORS[one.support] for n, one in own.items() if one.role == "global"}, columns)


def bits(number, chance=0.4):
    return torch.stack([pyro.sample(f"s{k}", dist.Bernoulli(chance)) for k in range(number)], -1)


def bit_sites(number):
    return {f"s{k}": Site("latent", (), ROW, BOOLEAN) for k in range(number)}


def values_of(model, seed=0):
    """Globals that differ in every entry."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in model.shapes.items():
        drawn = torch.as_tensor(rng.normal(size=tuple(shape)))
        support = model.sites[name].support
        found[name] = torch.sigmoid(drawn) if support is UNIT else drawn.exp() if support is POSITIVE else drawn
        found[name] = torch.softmax(drawn, -1) if support is constraints.simplex else found[name]
    return found


def bound_of(model, x, **given):
    return bind(model, Data(x=torch.as_tensor(x), others={k: torch.as_tensor(v) for k, v in given.items()}))


def bind(model, data):
    return bind_rows(structure_of(model, data), data)


def evidence(model, x, params, **given):
    bound = bound_of(model, x, **given)
    return bound.log_evidence(flatten(bound, params)).numpy()


def blocks_of(model, x, statement="x", **given):
    bound = bound_of(model, x, **given)
    return bound, [block for block in bound.blocks if block.elements and block.elements[0][0] == statement]


def scopes_of(bound):
    """Statement -> the names of the latents that its elements depend on."""
    names, found = bound.structure.variables.names, {}
    for group in bound.structure.groups:
        for element in group.elements.tolist():
            found.setdefault(group.statement, {})[element] = {names[v] for v in group.parents}
    return found


def draws(seed, *shape, high=2):
    return np.random.default_rng(seed).integers(0, high, shape).astype(float)


# ----- known programs -------------------------------------------------------------------------------------------------


def complements():
    def rows(plate, guess, slip):
        s = bits(1)
        return plate.observe("x", dist.Bernoulli(torch.where(s == 1, 1 - slip, guess)))

    own = {"guess": site(UNIT, "column"), "slip": site(UNIT, "column"), **bit_sites(1)}
    return made({**own, "x": observed(BOOLEAN, 3)}, rows, 3)


def test_complements_are_entries_turned_round():
    model, x = complements(), draws(0, 30, 3)
    bound, (block,) = blocks_of(model, x)
    (source,) = block.sources
    assert isinstance(source, EntrySource) and not source.plain and source.sites == {"guess", "slip"}
    entries = bound.structure.entries.slices
    by_value = {0: ("guess", 0.0, 1.0), 1: ("slip", 1.0, -1.0)}
    for value, (name, shift, slope) in by_value.items():
        assert source.index[0, value, :, 0].tolist() == list(range(entries[name].start, entries[name].stop))
        assert bool((source.shift[0, value] == shift).all()) and bool((source.slope[0, value] == slope).all())
    assert Steps.of(model, bound.structure.entries, bound.blocks).roles == {"guess": "chance", "slip": "chance"}
    params = values_of(model)
    on = np.stack([params["guess"].numpy(), 1 - params["slip"].numpy()])
    each = np.where(x[None] == 1, np.log(on)[:, None], np.log1p(-on)[:, None]).sum(-1)
    assert np.allclose(evidence(model, x, params), logsumexp(each + np.log([[0.6], [0.4]]), axis=0), atol=1e-10)


def test_entries_may_be_scaled():
    exposure = torch.tensor([1.0, 2.0, 3.5])

    def rows(plate, rate):
        (s,) = bits(1).unbind(-1)
        return plate.observe("x", dist.Poisson(rate[s.long()].unsqueeze(-1) * exposure))

    own = {"rate": site(POSITIVE, "column"), **bit_sites(1), "x": observed(COUNT, 3)}
    model = made(own, rows, 3)
    x = draws(1, 30, 3, high=6)
    bound, (block,) = blocks_of(model, x)
    (source,) = block.sources
    assert isinstance(source, EntrySource) and bool((source.shift == 0).all())
    assert torch.allclose(source.slope[0, :, :, 0], exposure.expand(2, 3), rtol=1e-9, atol=0)
    assert source.index[0, :, :, 0].tolist() == [[0] * 3, [1] * 3]
    assert Steps.of(model, bound.structure.entries, bound.blocks).roles == {"rate": "rate"}
    rate = values_of(model)["rate"].numpy()[:2, None, None] * exposure.numpy()
    each = stats.poisson.logpmf(x, rate).sum(-1) + np.log([[0.6], [0.4]])
    assert np.allclose(evidence(model, x, values_of(model)), logsumexp(each, axis=0), atol=1e-10)


def noisy_or():
    def rows(plate, leak, cause):
        s = bits(2)
        off = (1 - leak) * (1 - s.unsqueeze(-1) * cause.unsqueeze(-2)).prod(-2)
        return plate.observe("x", dist.Bernoulli(1 - off))

    own = {"leak": site(UNIT, "column"), "cause": site(UNIT, "column"), **bit_sites(2)}
    return made({**own, "x": observed(BOOLEAN, 3)}, rows, 3)


def test_failures_of_causes_are_linear_in_logarithms():
    model, x = noisy_or(), draws(2, 40, 3)
    bound, (block,) = blocks_of(model, x)
    (source,) = block.sources
    assert isinstance(source, LinearSource) and source.link == "log1m" and set(source.scales) == {"log1m"}
    assert source.sites == {"leak", "cause"} and bool((source.shift == 0).all())
    slopes = {}  # of the first column's parameter at every value of both bits
    entries = bound.structure.entries.slices
    for place, entry, slope in zip(source.place.tolist(), source.entry.tolist(), source.slope.tolist(), strict=True):
        slopes[place, entry] = slope
    for value, (one, other) in enumerate(itertools.product((0, 1), repeat=2)):
        for j in range(3):
            place = 3 * value + j
            assert slopes[place, entries["leak"].start + j] == 1
            assert slopes.get((place, entries["cause"].start + j), 0) == one + other
    params = values_of(model)
    leak, cause = params["leak"].numpy(), params["cause"].numpy()
    total = []
    for one, other in itertools.product((0, 1), repeat=2):
        on = 1 - (1 - leak) * (1 - cause) ** (one + other)
        prior = np.log(0.4) * (one + other) + np.log(0.6) * (2 - one - other)
        total.append(prior + np.where(x == 1, np.log(on), np.log1p(-on)).sum(-1))
    assert np.allclose(evidence(model, x, params), logsumexp(total, axis=0), atol=1e-10)


def regression(law):
    def rows(plate, weight, u=None):
        (s,) = bits(1).unbind(-1)
        u = plate.of(u)
        return plate.observe("x", law((u * weight).sum(-1) + s))

    own = {"weight": site(REAL, "column"), **bit_sites(1), "u": Site("given", ("column",), ROW, REAL)}
    return made({**own, "x": observed(REAL)}, rows, 3)


def test_linear_predictors_of_covariates():
    model = regression(lambda mean: dist.Normal(mean, 1.5))
    rng = np.random.default_rng(3)
    u, x = rng.normal(size=(50, 3)), rng.normal(size=50)
    found = bound_of(model, x, u=u)
    (block,) = [block for block in found.blocks if block.own is None]
    source = block.sources[0]
    assert isinstance(source, LinearSource) and source.link == "identity" and source.sites == {"weight"}
    assert Steps.of(model, found.structure.entries, found.blocks).roles == {"weight": "linear"}
    params = values_of(model)
    mean = u @ params["weight"].numpy() + np.arange(2)[:, None]
    each = stats.norm.logpdf(x, mean, 1.5) + np.log([[0.6], [0.4]])
    flat = found.structure.entries.flatten(params)
    assert np.allclose(found.log_evidence(flat), logsumexp(each, axis=0), atol=1e-9)


def test_softmax_of_covariates():
    def rows(plate, gate, p, u=None):
        z = pyro.sample("z", dist.Categorical(logits=plate.of(u) @ gate))
        return plate.observe("x", dist.Bernoulli(p[z]))

    own = {
        "gate": site(REAL, "column", "column"), "p": site(UNIT, "column"),
        "z": Site("latent", (), ROW, choice="column"), "u": Site("given", ("column",), ROW, REAL),
        "x": observed(BOOLEAN),
    }  # fmt: skip
    model, rng = made(own, rows, 3), np.random.default_rng(4)
    u, x = rng.normal(size=(40, 3)), draws(5, 40)
    bound = bound_of(model, x, u=u)
    (block,) = [block for block in bound.blocks if block.own is not None]
    source = block.sources[0]
    assert isinstance(source, LinearSource) and source.link == "difference" and source.sites == {"gate"}
    params = values_of(model)
    share, p = log_softmax(u @ params["gate"].numpy(), -1), params["p"].numpy()
    expected = logsumexp(share + np.where(x[:, None] == 1, np.log(p), np.log1p(-p)), axis=1)
    assert np.allclose(evidence(model, x, params, u=u), expected, atol=1e-9)


def test_scopes_are_the_latents_that_laws_depend_on():
    """A chain whose columns are each about a state, one about two, and one about none."""

    def rows(plate, p):
        s0 = pyro.sample("s0", dist.Bernoulli(0.5))
        s1 = pyro.sample("s1", dist.Bernoulli(0.2 + 0.5 * s0))
        s2 = pyro.sample("s2", dist.Bernoulli(0.3 + 0.4 * s1))
        parts = [p[0] * s0, p[1] * s1, p[2] * s1 * s2, p[3] * torch.ones_like(s0)]
        return plate.observe("x", dist.Poisson(torch.stack(torch.broadcast_tensors(*parts), -1) + 0.1))

    own = {"p": site(POSITIVE, "column"), **bit_sites(3), "x": observed(COUNT, 4)}
    bound = bound_of(made(own, rows, 4), draws(6, 30, 4, high=3))
    assert scopes_of(bound) == {
        "s0": {0: set()}, "s1": {0: {"s0"}}, "s2": {0: {"s1"}},
        "x": {0: {"s0"}, 1: {"s1"}, 2: {"s1", "s2"}, 3: set()},
    }  # fmt: skip


# ----- what deceives --------------------------------------------------------------------------------------------------


def right_or_refused(model, x, expected, **given):
    """Compiled and equal to the evidence ``expected(params)``, or NotCompiled; returns which."""
    params = values_of(model)
    try:
        found = evidence(model, x, params, **given)
    except NotCompiled as refused:
        assert len(str(refused)) > 20
        return "refused"
    assert np.allclose(found, expected({name: value.numpy() for name, value in params.items()}), atol=1e-8)
    return "compiled"


@pytest.mark.parametrize("rare", [1, 400, 777])
@pytest.mark.parametrize("kind", ["latent", "entry", "law"])
@pytest.mark.parametrize("given", ["number", "flag"])
def test_what_depends_on_a_rare_given_value(rare, kind, given):
    """In one row of a thousand alone the law depends on the latent, on another entry, or has another number."""

    def rows(plate, p, u=None):
        s = bits(1)[..., 0]
        special = plate.of(u) > 5.0
        usual = p[0] * torch.ones_like(s)
        other = {"latent": torch.where(s == 1, p[1], p[0]), "entry": p[1].expand_as(s), "law": 0.5 * usual}[kind]
        return plate.observe("x", dist.Bernoulli(torch.where(special, other, usual)))

    own = {"p": site(UNIT, "column"), **bit_sites(1), "u": Site("given", (), ROW, REAL), "x": observed(BOOLEAN)}
    model = made(own, rows, 2)
    x = draws(7, 1000)
    u = np.random.default_rng(8).normal(size=1000).clip(-3, 3) if given == "number" else np.zeros(1000)
    u[rare] = 6.0

    def expected(params):
        one, two = params["p"]
        usual = np.where(x == 1, np.log(one), np.log1p(-one))
        on = {"latent": 0.6 * one + 0.4 * two, "entry": two, "law": 0.5 * one}[kind]
        return np.where(u > 5, np.where(x == 1, np.log(on), np.log1p(-on)), usual)

    right_or_refused(model, x, expected, u=u)


@pytest.mark.parametrize("rare", [False, True], ids=["often", "rarely"])
def test_laws_that_depend_on_the_own_x_of_a_row(rare):
    """The second column's law is looked up by the first: in half of the rows, or in one of them."""

    def rows(plate, p):
        s = bits(1)
        own = torch.zeros(plate.number, 2) if plate.x is None else plate.of(plate.x)
        after = torch.where(own[:, 0] > 4, p[1], p[0])
        chance = torch.stack(torch.broadcast_tensors(p[0] + (p[1] - p[0]) * s[..., 0], after), -1)
        return plate.observe("x", dist.Poisson(chance))

    model = made({"p": site(POSITIVE, "column"), **bit_sites(1), "x": observed(COUNT, 2)}, rows, 2)
    x = draws(9, 500, 2, high=4 if rare else 9)
    if rare:
        x[333, 0] = 7.0

    def expected(params):
        one, two = params["p"]
        first = logsumexp(
            [np.log(0.6) + stats.poisson.logpmf(x[:, 0], one), np.log(0.4) + stats.poisson.logpmf(x[:, 0], two)], axis=0
        )
        return first + stats.poisson.logpmf(x[:, 1], np.where(x[:, 0] > 4, two, one))

    found = right_or_refused(model, x, expected)
    assert rare or found == "compiled"


class Lifted(dist.Bernoulli):
    """Another law than its class's: 1 three times as likely."""

    def log_prob(self, value):
        odds = 3 * self.probs / (1 - self.probs)
        return torch.where(value == 1, odds.log(), torch.zeros_like(odds)) - torch.log1p(odds)


class Halved(dist.Bernoulli):
    """The class's law, made by twice its chance."""

    def __init__(self, probs, **settings):
        super().__init__(probs=probs / 2, **settings)

    def expand(self, batch_shape, _instance=None):
        return type(self)((2 * self.probs).expand(batch_shape))


class Uneven(dist.Poisson):
    """Another law than its class's, of parameters that it does not declare."""

    def __init__(self, rate, lift, **settings):
        self.lift = lift
        super().__init__(rate, **settings)

    def log_prob(self, value):
        return dist.Poisson(self.rate * self.lift).log_prob(value)

    def expand(self, batch_shape, _instance=None):
        return type(self)(self.rate.expand(batch_shape), self.lift)


@pytest.mark.parametrize("kind", ["Lifted", "Halved", "Uneven"])
def test_subclasses_of_distributions_have_their_own_law(kind):
    law = {"Lifted": Lifted, "Halved": Halved, "Uneven": lambda p: Uneven(p, 1.7)}[kind]

    def rows(plate, p):
        return plate.observe("x", law(p[bits(1)[..., 0].long()].unsqueeze(-1).expand(-1, 2)))

    own = {"p": site(UNIT, "column"), **bit_sites(1), "x": observed(COUNT if kind == "Uneven" else BOOLEAN, 2)}
    x = draws(10, 60, 2)

    def expected(params):
        p = params["p"][:, None, None]
        if kind == "Uneven":
            each = stats.poisson.logpmf(x, 1.7 * p)
        else:
            on = p / 2 if kind == "Halved" else 3 * p / (1 - p + 3 * p)
            each = np.where(x == 1, np.log(on), np.log1p(-on))
        return logsumexp(each.sum(-1) + np.log([[0.6], [0.4]]), axis=0)

    right_or_refused(made(own, rows, 2), x, expected)


def test_a_latent_that_counts_at_one_value_of_many_others():
    """The law depends on s0 only where the three other bits are 1."""

    def rows(plate, p):
        s = bits(4)
        return plate.observe("x", dist.Bernoulli(torch.where(s[..., 1:].prod(-1) * s[..., 0] == 1, p[1], p[0])))

    model = made({"p": site(UNIT, "column"), **bit_sites(4), "x": observed(BOOLEAN)}, rows, 2)
    x = draws(11, 40)

    def expected(params):
        on = params["p"][0] + 0.4**4 * (params["p"][1] - params["p"][0])
        return np.where(x == 1, np.log(on), np.log1p(-on))

    right_or_refused(model, x, expected)


def test_laws_of_few_values_are_those_of_all_rows():
    """A count that one row of many has alone is a value like any other."""

    def rows(plate, p):
        return plate.observe("x", dist.NegativeBinomial(3.0, p[bits(1)[..., 0].long()]))

    model = made({"p": site(UNIT, "column"), **bit_sites(1), "x": observed(COUNT)}, rows, 2)
    x = draws(12, 500, high=4)
    x[123] = 9.0

    def expected(params):
        each = stats.nbinom.logpmf(x, 3, 1 - params["p"][:, None]) + np.log([[0.6], [0.4]])
        return logsumexp(each, axis=0)

    assert right_or_refused(model, x, expected) == "compiled"


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (lambda p: dist.Bernoulli(1.5 * p), r"the probs of 'x' in Own may be 1\.\d+ .* Bernoulli allows"),
        (lambda p: dist.Poisson(p - 0.5), r"the rate of 'x' in Own may be -0\.\d+ .* Poisson allows"),
        (lambda p: dist.Normal(p, 0.6 - p), r"the scale of 'x' in Own may be -0\.\d+ .* Normal allows"),
        (lambda p: dist.Bernoulli(logits=5 * p), ""),
        (lambda p: dist.Categorical(torch.stack([p, 2 * p], -1)), ""),
    ],
)
def test_parameters_that_leave_their_range_are_told(law, said):
    def rows(plate, p):
        return plate.observe("x", law(p[bits(1)[..., 0].long()]))

    support = constraints.real if "scale" in said else COUNT if "rate" in said else BOOLEAN
    model = made({"p": site(UNIT, "column"), **bit_sites(1), "x": observed(support)}, rows, 2)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        structure_of(model, model.prepare(draws(12, 30)))
    told = [str(one.message) for one in found]
    assert re.search(said, told[0]) if said else not told


def test_what_was_compiled_goes_with_its_model():
    def rows(plate, p):
        return plate.observe("x", dist.Bernoulli(p[bits(1)[..., 0].long()].unsqueeze(-1).expand(-1, 2)))

    model = made({"p": site(UNIT, "column"), **bit_sites(1), "x": observed(BOOLEAN, 2)}, rows, 2)
    fit = ci.fit(model, draws(14, 40, 2), progress=False)
    gone = weakref.ref(model)
    assert fit.method_name == "EM"
    del model, fit
    gc.collect()
    assert gone() is None
