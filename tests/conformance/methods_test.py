"""The methods beyond the promises of the protocols: do they find, agree with, and report the right thing?"""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from pyro.optim import Adam

import custom_inference as ci
from custom_inference.families.noca.exact import NocaExact
from custom_inference.families.noca.factorized import NocaFactorized
from ppl_models import NOCA, CapacityError, DataError, DataWarning, FileFormatError, MethodError, ModelError, datasets
from tests.references import noca as reference


@pytest.fixture(scope="module")
def images():
    return datasets.image_patterns(1000, seed=0)


@pytest.mark.parametrize("seed", range(4))
def test_default_fit_finds_every_pattern(images, seed):
    model = NOCA(num_components=8, num_features=64)
    fit = ci.fit(model, images.x, seed=seed, progress=False)
    assert ci.recovered(fit.params["loading"], images.truth["loading"]) == 8
    steps = NocaExact()
    truth = steps.log_evidence(model, {s: images.truth[s] for s in fit.params}, steps.rows(model, images.data))
    assert fit.evidence.mean() >= truth.mean() and "found these components" in fit.status


@pytest.mark.parametrize("name", ["IMG", "UNIF", "CON8"])
def test_default_fit_on_the_published_benchmark(real_data, name):
    """First 2000 rows, K = 8: all eight sources, and at least the likelihood of the true parameters."""
    path = real_data / "noisyor_bench" / f"{name}.npz"
    with np.load(path) as archive:
        truth = {
            "source_prior": torch.tensor(archive["prior"], dtype=torch.float64),
            "loading": torch.tensor(1 - archive["failure"], dtype=torch.float64),
            "leak": torch.tensor(1 - archive["leak_failure"], dtype=torch.float64),
        }
    data = datasets.read_matrix(path).rows(slice(0, 2000))
    steps, model = NocaExact(), NOCA(num_components=8, num_features=64)
    at_truth = float(steps.log_evidence(model, truth, steps.rows(model, data)).mean())
    for seed in range(2):
        with pytest.warns(DataWarning) if bool((data.x.sum(0) == 0).any()) else _nothing():
            fit = ci.fit(model, data, seed=seed, progress=False)
        assert ci.recovered(fit.params["loading"], truth["loading"]) == 8
        assert float(fit.evidence.mean()) >= at_truth


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_surplus_sources_are_shut_off(images):
    fit = ci.fit(NOCA(num_components=16, num_features=64), images.x, seed=0, progress=False)
    report = fit.report()
    assert ci.recovered(fit.params["loading"], images.truth["loading"]) == 8
    assert report["shut off"].sum() == 8 and fit.params["loading"].shape == (16, 64)
    assert not report.sort_values("prior", ascending=False)["shut off"].iloc[:8].any()


def test_default_fit_learns_from_incomplete_data(images):
    x = images.x.clone()
    x[torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.2] = float("nan")
    fit = ci.fit(NOCA(num_components=8, num_features=64), x, seed=0, progress=False)
    assert ci.recovered(fit.params["loading"], images.truth["loading"]) == 8
    hidden = torch.isnan(x)
    error = (fit.reconstruct(how="mean")[hidden].round() != images.x[hidden]).double().mean()
    always_off = images.x[hidden].mean()
    assert error < 0.6 * always_off, "imputation must beat the better constant by far"


def test_many_sources_beyond_enumeration():
    data = datasets.overlapping_boxes(500, 1, num_sources=16, side=12, mean_active=2.0)
    fit = ci.fit(NOCA(num_components=16, num_features=144), data.x, seed=0, progress=False)
    assert ci.recovered(fit.params["loading"], data.truth["loading"]) >= 15
    assert fit.bound_name == "truncated"


def test_em_climbs_to_where_autodelta_climbs():
    """Maximum likelihood by closed-form EM and by AutoDelta with the codes summed out, from the same start."""
    example = NOCA.example()
    em = ci.EM(max_iterations=3000, tolerance=1e-9).fit(example.model, example.data, seed=0, progress=False)
    svi = ci.SVI(guide="delta", steps=150, learning_rate=0.02).fit(
        example.model, example.data, init=em, seed=0, progress=False
    )
    assert abs(float(svi.evidence.sum() - em.evidence.sum())) < 0.05


def test_stepwise_em_comes_close_to_em(images):
    model = NOCA(num_components=8, num_features=64)
    full = ci.EM().fit(model, images.x, seed=0, progress=False)
    steps = ci.EM(batch_size=100, max_iterations=6).fit(model, images.x, seed=0, progress=False)
    assert float(steps.evidence.mean()) > float(full.evidence.mean()) - 0.1
    with pytest.raises(MethodError, match="needs every row at once"):
        ci.VariationalEM(guide="factorized", batch_size=10).fit(model, images.x, progress=False)


def test_maximum_a_posteriori_moves_towards_the_prior():
    example = NOCA.example()
    strong = example.model.with_priors(leak=dist.Beta(200.0, 1800.0))
    fit = ci.EM().fit(strong, example.data, seed=0, progress=False)
    assert (fit.params["leak"] - 0.1).abs().max() < 0.02


def test_exact_treats_globals_as_asked():
    example = NOCA.example()
    mode = ci.Exact().fit(example.model, example.data, seed=0, progress=False)
    assert mode.method_name == "Exact(EM)" and mode.bound_name == "exact"
    with pytest.raises(MethodError, match="valid: map, normal, nuts"):
        ci.Exact(globals_="laplace")


@pytest.mark.parametrize("batch_size", [None, 16])
@pytest.mark.parametrize(
    "loss", [ci.FactorizedBound(), TraceEnum_ELBO(max_plate_nesting=1), TraceGraph_ELBO(), Trace_ELBO()]
)
def test_factorized_guide_is_a_plain_pyro_guide(loss, batch_size):
    example = NOCA.example()
    guide = ci.FactorizedNoisyOr().bind(example.model, example.data)
    guide.sum_codes = isinstance(loss, TraceEnum_ELBO)
    svi = SVI(example.model, guide, Adam({"lr": 0.02}), loss)
    before = guide(example.data.x)["loading"].detach().clone()
    values = [svi.step(example.data.x, batch_size=batch_size) for _ in range(20)]
    assert np.isfinite(values).all()
    assert not torch.equal(guide(example.data.x)["loading"], before) and guide.q.grad_fn is not None


@pytest.mark.parametrize("missing", [False, True])
def test_factorized_bound_is_equation_7(missing):
    """The Pyro loss equals -F of the reference at the guide's own q, with subsampling an unbiased estimate of it."""
    example = NOCA.example()
    mask = torch.rand(example.data.x.shape) > 0.2 if missing else None
    data = example.model.prepare(example.data.x, mask=mask)
    params = {s: example.truth[s].clamp(1e-6, 1 - 1e-6) for s in example.model.global_sites}
    guide = ci.FactorizedNoisyOr().bind(example.model, data, globals_=params)
    program = pyro.condition(example.model, data=params)
    loss = ci.FactorizedBound().loss(program, guide, data.x, mask=data.mask)
    numpy_params = {s: v.numpy() for s, v in params.items()}
    q = np.full((60, 6, 3), 1 / 3)
    observed = None if mask is None else mask.numpy()
    mean = reference.factorized_source_mean(numpy_params, data.x.numpy(), q, observed)
    expected = reference.factorized_bound(numpy_params, data.x.numpy(), mean, q, observed).sum()
    assert np.isclose(-loss, expected, rtol=1e-8)
    batches = []
    for _ in range(300):
        batches.append(-ci.FactorizedBound().loss(program, guide, data.x, mask=data.mask, batch_size=20))
    assert abs(np.mean(batches) - expected) < 4 * np.std(batches) / np.sqrt(300)


def test_factorized_svi_and_closed_form_updates_meet():
    """At fixed globals the q that SVI finds gives the bound that Fig. 2's updates give."""
    example = NOCA.example()
    params = {s: example.truth[s] for s in example.model.global_sites}
    closed = ci.VariationalEM(guide="factorized").local_posterior(example.model, params, example.data)
    learned = ci.SVI(guide="factorized", steps=800).local_posterior(example.model, params, example.data)
    steps = NocaFactorized()
    rows = steps.rows(example.model, example.data)
    start = steps.e_step(example.model, params, rows).bound.sum()
    assert (closed.posterior.mean - learned.posterior.mean).abs().max() < 0.05
    assert closed.bound.sum() >= start
    with pytest.raises(MethodError, match="a guide for NOCA"):
        ci.FactorizedNoisyOr().bind(object(), example.data)


class _Interrupting(NocaExact):
    """Engine that are interrupted at a chosen E step."""

    calls = 0

    def e_step(self, *arguments, **keywords):
        type(self).calls += 1
        if type(self).calls == self.at:
            raise KeyboardInterrupt
        return super().e_step(*arguments, **keywords)


@pytest.mark.parametrize("at", [1, 2, 5, 17, 30])
def test_an_interrupted_fit_returns_the_best_state(at, monkeypatch):
    example = NOCA.example()
    steps = type("Engine", (_Interrupting,), {"at": at, "calls": 0})()
    monkeypatch.setattr(ci.AllCodes, "engine", lambda self, model: steps)
    fit = ci.EM().fit(example.model, example.data, seed=0, progress=False)
    assert "interrupted" in fit.status or steps.calls < at
    assert torch.isfinite(fit.elbo[-1]) and fit.transform().shape == (60, 3)


def test_interrupted_svi_returns_its_state(monkeypatch):
    example = NOCA.example()
    original, count = SVI.step, [0]

    def step(self, *arguments, **keywords):
        count[0] += 1
        if count[0] == 10:
            raise KeyboardInterrupt
        return original(self, *arguments, **keywords)

    monkeypatch.setattr("custom_inference.svi.objective.PyroSVI.step", step)
    fit = ci.SVI(steps=50).fit(example.model, example.data, progress=False)
    assert "interrupted after 9 steps" in fit.status and len(fit.elbo) == 9


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: NOCA(num_components=9, num_features=3), ModelError, "exceeds num_features = 3"),
        (lambda: NOCA(num_components=0, num_features=3), ModelError, "expected a whole number of at least 1"),
        (lambda: NOCA(num_components=1, num_features=3).with_priors(leak=dist.Normal(0.0, 1.0)), ModelError, "within"),
        (lambda: ci.fit(NOCA(num_components=1, num_features=3), [[0, 1, 2]]), DataError, "neither 0 nor 1"),
        (lambda: ci.fit(NOCA(num_components=1, num_features=3), [[0, 1]]), DataError, "2 columns where the model has"),
        (lambda: ci.fit(NOCA(num_components=1, num_features=2), [[0, 1]], method="magic"), MethodError, "valid: amort"),
        (lambda: ci.fit(NOCA(num_components=1, num_features=2), [[0, 1]], heat=3), MethodError, "unknown setting"),
        (lambda: ci.VariationalEM(guide="magic").engine(NOCA.example().model), MethodError, "valid: "),
        (lambda: ci.SVI(guide="magic").fit(NOCA.example().model, [[0, 1]]), MethodError, "magic.*valid: "),
        (lambda: ci.VariationalEM(tolerance=0.0), MethodError, "tolerance = 0.0, expected a positive"),
        (lambda: ci.Search(temperature=8.0), MethodError, r"number in \(0, 1\]"),
        (lambda: ci.Fit.load("nowhere.safetensors"), FileFormatError, "no such file"),
        (lambda: ci.fit(NOCA, [[0, 1]]), ModelError, "the class NOCA is not a model"),
        (lambda: ci.fit("noca", [[0, 1]]), ModelError, "'noca' is not a model"),
        (lambda: ci.EM().fit(NOCA, [[0, 1]]), ModelError, "is not a model"),
        (lambda: ci.SVI().fit("noca", [[0, 1]]), ModelError, "is not a model"),
        (lambda: ci.NUTS().fit("noca", [[0, 1]]), ModelError, "is not a model"),
        (lambda: ci.CollapsedGibbs().fit("noca", [[0, 1]]), ModelError, "is not a model"),
        (lambda: ci.TemperedEM().fit("noca", [[0, 1]]), ModelError, "is not a model"),
        (lambda: ci.compare([ci.EM()], NOCA, [[0, 1]]), ModelError, "is not a model"),
        (lambda: ci.compare([], NOCA(num_components=1, num_features=2), [[0, 1]]), MethodError, "no methods"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_priors_that_closed_form_steps_cannot_take():
    example = NOCA.example()
    with pytest.raises(MethodError, match="below 1"):
        ci.EM().fit(example.model.with_priors(leak=dist.Beta(0.5, 1.0)), example.data, progress=False)
    half = example.model.with_priors(leak=dist.Uniform(0.0, 0.5))
    assert (ci.SVI(guide="delta", steps=50).fit(half, example.data, progress=False).params["leak"] <= 0.5).all()


def test_exact_em_with_too_many_sources_is_refused_before_any_work():
    x = torch.bernoulli(torch.full((20, 40), 0.8))
    with pytest.raises(CapacityError, match="enumerating the 2\\^35 codes"):
        ci.EM().fit(NOCA(num_components=35, num_features=40), x, progress=False)


def test_damaged_files_are_refused(tmp_path):
    example = NOCA.example()
    path = ci.fit(example.model, example.data, progress=False).save(tmp_path / "fit")
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"\x80\x04pickle" + content):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="not readable|not a saved fit"):
            ci.Fit.load(path)


def test_float32_stays_float32():
    example = NOCA.example()
    truncated, factorized = ci.VariationalEM(guide="truncated"), ci.SVI(guide="factorized", steps=30)
    for method in (ci.EM(), truncated, ci.SVI(steps=30), factorized):
        fit = method.fit(example.model, example.data, dtype=torch.float32, progress=False)
        assert all(v.dtype == torch.float32 for v in fit.params.values()) and torch.isfinite(fit.evidence).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_everything_moves_to_the_device():
    example = NOCA.example()
    for method in (ci.EM(), ci.VariationalEM(guide="truncated"), ci.VariationalEM(), ci.SVI(steps=30)):
        fit = method.fit(example.model, example.data, device="cuda", progress=False)
        assert all(v.is_cuda for v in fit.params.values()) and fit.transform().is_cuda


def test_alignment_undoes_a_permutation():
    example = NOCA.example()
    order = [2, 0, 1]
    moved = ci.Alignment(order=order, similarity=torch.ones(3)).apply(example.truth, example.model.dims)
    alignment = ci.align(moved, to=example.truth)
    back = alignment.apply(moved, example.model.dims)
    assert alignment.similarity.min() > 1 - 1e-12
    for site, value in example.truth.items():
        assert torch.equal(back[site], value), site
    few = ci.match_components(example.truth["loading"], example.truth["loading"][:2])
    assert few.similarity[2] == 0 and len(few.order) == 2


def test_looking_at_a_fit_leaves_the_random_state_alone():
    example = NOCA.example()
    fit = ci.fit(example.model, example.data, progress=False)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for look in (fit.reconstruct, lambda: fit.reconstruct(how="mean"), fit.predictive, fit.sample, fit.transform):
        look()
    assert torch.equal(torch.rand(3), expected)


def test_bic_is_twice_the_papers():
    example = NOCA.example()
    fit = ci.fit(example.model, example.data, progress=False)
    expected = reference.bic(float(fit.evidence.sum()), 3, 6, 60)
    assert np.isclose(fit.bic(), 2 * expected) and np.isclose(fit.bic("exact"), 2 * expected)
    assert np.isclose(fit.aic(), 2 * (27 - float(fit.evidence.sum())))
    assert fit.bic("mean_field") > fit.bic(), "a lower bound in place of the likelihood"
    with pytest.raises(MethodError, match="nonsense"):
        fit.bic("nonsense")
