"""The mixtures of counts and the user rating profile as models: what they take, refuse, and say of themselves."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from scipy import stats
from scipy.special import logsumexp

import custom_inference as ci
from custom_inference.core import registry
from custom_inference.core.registry import Family, engines_of
from custom_inference.families.mixtures.engines import MixtureExact, MixtureVB
from custom_inference.families.mixtures.gibbs import MixtureSampler
from ppl_models import (
    DataError,
    DataWarning,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
    ModelError,
    UserRatingProfile,
)
from ppl_models.likelihoods import Binomial

pytestmark = pytest.mark.quick

X = np.array([[2.0, 0, 1], [0, 3, 1], [1, 1, 0], [4, 0, 0]])


@pytest.mark.parametrize("kind", [MixtureOfMultinomials, MixtureOfPoissons])
@pytest.mark.parametrize("bad", [-1.0, 0.5, np.inf])
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_no_count_is_refused(kind, bad, sparse):
    x = X.copy()
    x[1, 2] = bad
    sizes = (
        {"num_topics": 2, "vocabulary_size": 3}
        if kind is MixtureOfMultinomials
        else {"num_components": 2, "num_features": 3}
    )
    with pytest.raises(DataError, match=r"1 of 12 entries are no counts \(the first: .* in row 1, column 2\)"):
        kind(**sizes).prepare(scipy.sparse.csr_matrix(x) if sparse else x)


@pytest.mark.parametrize("kind", [MixtureOfCategoricals, UserRatingProfile])
@pytest.mark.parametrize("bad", [-1.0, 1.5, 3.0])
def test_what_is_no_category_is_refused(kind, bad):
    model = kind(num_components=2, num_features=3, num_categories=3)
    x = np.array([[0.0, 1, 2], [2, bad, np.nan]])
    with pytest.raises(DataError, match=r"none of the 3 categories .*row 1, column 1.*expected whole numbers 0 to 2"):
        model.prepare(x)
    x[1, 1] = 0
    data = model.prepare(x)
    assert data.mask is not None and not data.mask[1, 2] and int(data.mask.sum()) == 5


def test_sizes_and_priors_are_checked():
    for kind, sizes in (
        (MixtureOfPoissons, {"num_components": 0, "num_features": 3}),
        (MixtureOfCategoricals, {"num_components": 2, "num_features": 3, "num_categories": 0}),
        (MixtureOfMultinomials, {"num_topics": 2, "vocabulary_size": 0}),
        (UserRatingProfile, {"num_components": 2, "num_features": 3, "num_categories": 1.5}),
    ):
        with pytest.raises(ModelError, match="expected a whole number of at least [12]"):
            kind(**sizes)
    poissons = MixtureOfPoissons(num_components=2, num_features=3)
    with pytest.raises(ModelError, match="'rate' is positive"):
        poissons.with_priors(rate=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="simplex"):
        poissons.with_priors(mixing_proportion=dist.Gamma(1.0, 1.0).expand([2]).to_event(1))
    documents = MixtureOfMultinomials(num_topics=2, vocabulary_size=3)
    with pytest.raises(ModelError, match="concentration of 'mixing_proportion' is -1"):
        documents.with_concentration(alpha=-1.0)
    with pytest.raises(ModelError, match="simplex"):
        documents.with_priors(topic=dist.Normal(torch.zeros(3), 1.0).to_event(1))
    changed = documents.with_concentration(alpha=[1.0, 2.0], gamma=0.5)
    assert changed.priors["mixing_proportion"].concentration.tolist() == [1, 2]
    assert changed.priors["topic"].concentration.tolist() == [0.5] * 3


def test_what_cannot_be_learned_from_is_said():
    poissons = MixtureOfPoissons(num_components=2, num_features=3)
    x = X.copy()
    x[:, 2] = np.nan
    with pytest.raises(DataError, match="without any observed entry .the first: 2"):
        ci.fit(poissons, x, progress=False)
    x[:, 2] = 0
    with pytest.warns(DataWarning, match="1 of 3 columns are always 0 .the first: 2"):
        ci.fit(poissons, scipy.sparse.csr_matrix(x), progress=False)
    answers = MixtureOfCategoricals(num_components=2, num_features=2, num_categories=3)
    with pytest.warns(DataWarning, match="1 of 2 columns are always 2"):
        ci.fit(answers, np.array([[2.0, 0], [2, 1], [2, 2], [2, 1]]), progress=False)
    with (
        pytest.warns(DataWarning, match="1 of 2 columns have one answer and blanks"),
        pytest.warns(DataWarning, match="1 of 2 columns are always 2"),
    ):
        ci.fit(answers, np.array([[2.0, 0], [2, 1], [2, 2], [np.nan, 1]]), progress=False)
    with pytest.raises(DataError, match="every document is empty"):
        ci.fit(MixtureOfMultinomials(num_topics=2, vocabulary_size=3), np.zeros((4, 3)), progress=False)


def test_free_parameters():
    assert MixtureOfMultinomials(num_topics=3, vocabulary_size=5).num_parameters(10**6) == 3 * 4 + 2
    assert MixtureOfMultinomialCounts(num_topics=3, vocabulary_size=5).num_parameters(7) == 3 * 4 + 2
    assert MixtureOfPoissons(num_components=3, num_features=5).num_parameters(7) == 3 * 5 + 2
    assert MixtureOfCategoricals(num_components=3, num_features=5, num_categories=4).num_parameters(7) == 45 + 2
    profile = UserRatingProfile(num_components=3, num_features=5, num_categories=4)
    assert profile.num_parameters(0) == 45 and profile.num_parameters(7) == 45 + 14


def test_components_that_are_tables_in_reports_figures_and_matching():
    example = MixtureOfCategoricals.example()
    fit = ci.fit(example.model, example.data, progress=False)
    report = fit.report(top=3)
    assert {"proportion", "strongest"} <= set(report.columns) and " = " in report["strongest"].iloc[0]
    assert fit.coords["category"] == [0, 1, 2, 3]
    matched = ci.align({"response": example.truth["response"]}, fit)
    assert sorted(matched.order) == [0, 1, 2] and float(matched.similarity.min()) > 0.65
    moved = matched.apply(example.truth, example.model.dims)
    assert torch.equal(moved["response"][0], example.truth["response"][matched.order[0]])
    for kind in ("components", "loading", "source"):
        assert fit.plot(kind).axes
    dims = fit.to_arviz(num_draws=3).posterior["response"].dims
    assert dims == ("chain", "draw", "component", "feature", "category")
    mean = fit.reconstruct(how="mean")
    assert bool(((mean >= 0) & (mean <= 3)).all()), "the expected number of the category"


class MixtureOfBinomials(MixtureOfBernoullis):
    """Numbers of successes of four draws: another likelihood, in the program and for the engine."""

    @property
    def likelihood(self):
        return Binomial(4)

    def __call__(self, x=None, **plate):
        proportion, probability = self.sample("mixing_proportion"), self.sample("probability")
        with self.rows(x, **plate) as rows:
            assignment = pyro.sample("assignment", dist.OneHotCategorical(proportion))
            return rows.observe("x", dist.Binomial(4, assignment @ probability))


def test_a_mixture_of_another_likelihood_needs_the_likelihood_and_a_record(monkeypatch):
    """Its program alone gives generic methods; with a record it has the engine and the sampler of all mixtures."""
    model = MixtureOfBinomials(num_components=2, num_features=6)
    assert model.data_kind == "counts" and not engines_of(model)
    with pytest.raises(DataError, match="whole numbers from 0 to 4"):
        model.prepare([[5.0] * 6])
    engines = {"exact": MixtureExact, "vb": MixtureVB}
    family = Family(model=MixtureOfBinomials, engines=engines, default="exact", sampler=MixtureSampler)
    monkeypatch.setitem(registry._REGISTERED, MixtureOfBinomials, family)
    rng = np.random.default_rng(0)
    probability, label = rng.choice([0.15, 0.8], (2, 6)), rng.integers(2, size=200)
    x = rng.binomial(4, probability[label]).astype(float)
    x[rng.random(x.shape) < 0.1] = np.nan
    fit = ci.fit(model, x, progress=False)
    each = stats.binom.logpmf(np.nan_to_num(x)[:, None], 4, fit.params["probability"].numpy())
    table = np.where(np.isnan(x)[:, None], 0.0, each).sum(-1) + np.log(fit.params["mixing_proportion"].numpy())
    assert np.allclose(fit.log_likelihood(x).numpy(), logsumexp(table, 1), atol=1e-5)
    generic = ci.Exact().fit(model, x, init=fit.params, progress=False)
    assert np.allclose(generic.log_likelihood(x).numpy().sum(), logsumexp(table, 1).sum(), rtol=1e-4)
    for other in (fit, ci.fit(model, x, method="vb", progress=False), ci.fit(model, x, method="gibbs", progress=False)):
        found = other.posterior.mean.argmax(-1).numpy()
        assert max((found == label).mean(), (found != label).mean()) > 0.95


def test_draws_of_poissons_have_the_totals_of_their_class():
    """L_n | class k ~ Poisson(sum_j rate_kj), below eq. 27.5."""
    example = MixtureOfPoissons.example()
    params = {site: example.truth[site] for site in example.model.global_sites}
    drawn = ci.fit(example.model, example.data, init=params, progress=False, max_iterations=1).sample(4000, seed=2)
    chosen = drawn["assignment"].argmax(-1)
    for k in range(3):
        totals = drawn["x"][chosen == k].sum(1)
        mean, size = float(params["rate"][k].sum()), len(totals)
        assert abs(float(totals.mean()) - mean) < 5 * np.sqrt(mean / size)
        assert abs(float(totals.var()) - mean) < 5 * mean * np.sqrt(3.0 / size)
