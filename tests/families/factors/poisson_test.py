"""Poisson PCA's own engines: bounds, Newton's steps, turns, uncertain weights, learned scales, offsets, blocks."""

from __future__ import annotations

import math

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from custom_inference import VariationalEM
from custom_inference import fit as fit_default
from custom_inference.em.search import Search
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors import poisson_rows
from custom_inference.families.factors.newton import FactorVariational
from custom_inference.families.factors.packing import halve_products, pack_symmetric, products, unpack_symmetric
from custom_inference.families.factors.poisson import PoissonBayesian, PoissonVariational
from custom_inference.families.factors.poisson_rows import PoissonState, leading_axes
from custom_inference.families.factors.poisson_updates import (
    Columns,
    Globals,
    PoissonCounts,
    PoissonScores,
    RowBlock,
    Turn,
    find_turn,
    rates,
    step_columns,
)
from ppl_models import MethodError, ModelError, PoissonPCA, PriorError
from ppl_models.distributions import Flat
from tests.references import poisson_pca as reference

SIZE, COLUMNS, ROWS = 2, 5, 30


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spread_of(count: int, size: int, scale: float, seed: int) -> torch.Tensor:
    root = draw(count, size, size, seed=seed, scale=scale)
    return root @ root.mT + 1e-3 * torch.eye(size, dtype=torch.float64)


def problem(*, missing: bool = False, uncertain: float = 0.0) -> tuple[PoissonCounts, Globals, Normal, PoissonScores]:
    """Counts drawn from the model, its globals, and some q."""
    at = Globals(draw(SIZE, COLUMNS, scale=0.6), draw(COLUMNS, seed=1, scale=0.5))
    score, offset = draw(ROWS, SIZE, seed=2), draw(ROWS, seed=3, scale=0.3)
    x = torch.poisson(torch.exp(offset[:, None] + at.bias + score @ at.weight), torch.Generator().manual_seed(4))
    observed = (draw(ROWS, COLUMNS, seed=5) > -0.5).to(x) if missing else None
    x = x if observed is None else x * observed
    if uncertain:
        at = at._replace(spread=spread_of(COLUMNS, SIZE + 1, uncertain, 6))
    prior = Normal(torch.tensor([0.2, -0.1]).double(), torch.tensor([1.0, 2.0]).double())
    q = PoissonScores(draw(ROWS, SIZE, seed=7, scale=0.5), spread_of(ROWS, SIZE, 0.4, 8))
    return PoissonCounts(x, offset, observed), at, prior, q


def bounds(counts: PoissonCounts, at: Globals, prior: Normal, q: PoissonScores) -> torch.Tensor:
    """The bound of every row, by the distributions' own means."""
    eta = counts.offset[:, None] + at.bias + q.mean @ at.weight
    second = at.weight.T[:, :, None] * at.weight.T[:, None, :]
    wide = torch.einsum("jkl,nkl->nj", second if at.spread is None else second + at.spread[:, :-1, :-1], q.covariance)
    if at.spread is not None:
        one = torch.cat([q.mean, torch.ones(len(eta), 1).double()], 1)
        wide = wide + torch.einsum("nk,jkl,nl->nj", one, at.spread, one)
    seen = torch.ones_like(eta) if counts.observed is None else counts.observed
    own = MultivariateNormal(prior.mean, torch.diag(1 / prior.precision))
    divergence = kl_divergence(MultivariateNormal(q.mean, q.covariance), own)
    return (seen * (counts.x * eta - torch.lgamma(counts.x + 1) - torch.exp(eta + wide / 2))).sum(1) - divergence


def whole(block: RowBlock, q: PoissonScores) -> torch.Tensor:
    """The block's bound of every row, log x! included."""
    return block.row(q).bound + block.constant() - torch.lgamma(block.counts.x + 1).sum(1)


def test_packed_products_are_inner_products_of_symmetric_matrices():
    matrix, rows = spread_of(4, 3, 1.0, 0), draw(6, 3, seed=1)
    torch.testing.assert_close(unpack_symmetric(pack_symmetric(matrix), 3), matrix)
    torch.testing.assert_close(unpack_symmetric(products(rows), 3), rows[:, :, None] * rows[:, None, :])
    expected = torch.einsum("mk,nkl,ml->mn", rows, matrix, rows) / 2
    torch.testing.assert_close(products(rows) @ halve_products(pack_symmetric(matrix), 3).T, expected)


@pytest.mark.parametrize("missing", [False, True])
def test_the_bound_is_the_expected_log_joint_and_below_the_evidence(missing):
    counts, at, _, q = problem(missing=missing)
    standard = Normal(torch.zeros(SIZE).double(), torch.ones(SIZE).double())
    mask = None if counts.observed is None else counts.observed.bool().numpy()
    params, parts = {"weight": at.weight.numpy(), "bias": at.bias.numpy()}, (q.mean.numpy(), q.covariance.numpy())
    zero = PoissonCounts(counts.x, torch.zeros(ROWS).double(), counts.observed)
    found = whole(RowBlock(zero, at, standard), q)
    prior = MultivariateNormal(standard.mean, torch.eye(SIZE).double())
    fit = reference.expected_log_likelihood(params, counts.x.numpy(), *parts, mask)
    expected = torch.tensor(fit) - kl_divergence(MultivariateNormal(q.mean, q.covariance), prior)
    torch.testing.assert_close(found, expected)
    best = RowBlock(zero, at, standard)
    row = best.row(q)
    for _ in range(30):
        row = best.step(row)
    found = row.bound + best.constant() - torch.lgamma(counts.x + 1).sum(1)
    gap = torch.tensor(reference.log_evidence(params, counts.x.numpy(), mask)) - found
    assert float(gap.min()) > 0 and float(gap.max()) < 0.1


@pytest.mark.parametrize("uncertain", [0.0, 0.2])
def test_updated_scores_are_stationary(uncertain):
    counts, at, prior, q = problem(missing=True, uncertain=uncertain)
    block = RowBlock(counts, at, prior)
    row = block.row(q)
    for _ in range(60):
        row = block.step(row)
    q = PoissonScores(*(value.clone().requires_grad_() for value in row.q))
    slopes = torch.autograd.grad(bounds(counts, at, prior, q).sum(), q)
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-6


@pytest.mark.parametrize("far", [1.0, 3.0])
def test_no_row_loses_by_an_update_however_far_it_is(far):
    counts, at, prior, _ = problem()
    block = RowBlock(counts, at, prior)
    row = block.row(PoissonScores(draw(ROWS, SIZE, seed=9, scale=far), spread_of(ROWS, SIZE, far / 4, 10)))
    for _ in range(40):
        before, row = row, block.step(row)
        assert bool((row.bound >= before.bound).all())
        torch.testing.assert_close(block.row(row.q).bound, row.bound)
    best = block.row(PoissonScores.at(prior, ROWS))
    for _ in range(40):
        best = block.step(best)
    torch.testing.assert_close(row.bound, best.bound, atol=1e-6, rtol=1e-6)


def test_a_step_that_would_lose_is_halved_until_it_does_not():
    counts, at, prior, _ = problem()
    block, every = RowBlock(counts, at, prior), torch.arange(ROWS)
    row = block.row(PoissonScores.at(prior, ROWS))
    precision = unpack_symmetric(row.rate @ block.pairs, SIZE) + torch.diag(prior.precision)
    slope = block.along - row.rate @ at.weight.T - prior.precision * (row.q.mean - prior.mean)
    step = 12 * torch.linalg.solve(precision, slope[..., None])[..., 0]
    full = block._row_from_solution(row.q.mean + step, torch.linalg.cholesky(precision))
    assert bool((full.bound < row.bound).any())
    before = row.bound.clone()
    found = block._shorten_steps(every, row.select(every), precision, step)
    assert bool((found.bound >= before).all()) and float((found.bound > before).double().mean()) > 0.9
    uphill = block._shorten_steps(every, row.select(every), precision, -step)
    lost = (uphill.bound == before).nonzero().flatten()
    assert len(lost) and torch.equal(uphill.q.mean[lost], row.q.mean[lost])


@pytest.mark.parametrize("missing", [False, True])
def test_sums_are_the_gradient_of_the_bounds_and_add_up(missing):
    counts, at, prior, q = problem(missing=missing)
    found = RowBlock(counts, at, prior).sums(RowBlock(counts, at, prior).row(q))
    leaf = Globals(at.weight.clone().requires_grad_(), at.bias.clone().requires_grad_())
    weight, bias = torch.autograd.grad(bounds(counts, leaf, prior, q).sum(), leaf[:2])
    slope = found["target"] - (unpack_symmetric(found["pair"], SIZE + 1) @ at.columns[..., None])[..., 0]
    torch.testing.assert_close(slope, torch.cat([weight.T, bias[:, None]], 1))
    total: dict[str, torch.Tensor] = {}
    for part in (slice(0, 11), slice(11, ROWS)):
        some = PoissonCounts(
            counts.x[part], counts.offset[part], None if counts.observed is None else counts.observed[part]
        )
        block = RowBlock(some, at, prior)
        sums = block.sums(block.row(PoissonScores(q.mean[part], q.covariance[part])))
        total = {k: total[k] + v if k in total else v for k, v in sums.items()}
    for name, value in found.items():
        torch.testing.assert_close(total[name], value)


def test_repeated_steps_of_the_columns_end_where_the_objective_is_stationary():
    counts, at, prior, q = problem()
    columns = Columns(draw(COLUMNS, SIZE + 1, seed=11, scale=0.1), torch.full((COLUMNS, SIZE + 1), 0.7).double())
    for _ in range(40):
        block = RowBlock(counts, at, prior)
        at = step_columns(block.sums(block.row(q)), at, columns)
    leaf = at.columns.clone().requires_grad_()
    made = Globals(leaf[:, :-1].T, leaf[:, -1])
    log_prior = -0.5 * (columns.precision * (leaf - columns.mean).square()).sum()
    [slope] = torch.autograd.grad(bounds(counts, made, prior, q).sum() + log_prior, leaf)
    assert float(slope.abs().max()) < 1e-8


@pytest.mark.parametrize("uncertain", [0.0, 0.2])
def test_turns_change_no_rate_and_the_best_is_stationary(uncertain):
    counts, at, _, q = problem(uncertain=uncertain)
    prior, each = Normal(torch.zeros(SIZE).double(), torch.full((SIZE,), 1.5).double()), torch.tensor(0.8).double()
    mean, rest = draw(COLUMNS, seed=12), torch.linspace(0.1, 1.0, COLUMNS).double()
    sums = RowBlock(counts, at, prior).sums(RowBlock(counts, at, prior).row(q))
    turn = find_turn(sums, at, prior.precision[0], each, (mean, rest))
    torch.testing.assert_close(rates(counts, turn.globals(at), turn.scores(q)), rates(counts, at, q))

    def objective(matrix: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """What a turn changes: the divergence of q of scores, and the prior's share of the columns (with entropy)."""
        turn = Turn(matrix, shift)
        moved = turn.scores(q)
        own = MultivariateNormal(torch.zeros(SIZE).double(), torch.diag(1 / prior.precision))
        found = -kl_divergence(MultivariateNormal(*moved), own).sum()
        inverse = torch.linalg.inv(matrix).T
        onto = torch.cat(
            [torch.cat([inverse, torch.zeros(SIZE, 1).double()], 1), torch.cat([shift, shift.new_ones(1)])[None]]
        )
        column = at.columns @ onto.T
        precision = torch.cat([each.expand(COLUMNS, SIZE), rest[:, None]], 1)
        centre = torch.cat([torch.zeros(COLUMNS, SIZE).double(), mean[:, None]], 1)
        found = found - 0.5 * (precision * (column - centre).square()).sum()
        if at.spread is not None:
            spread = onto @ at.spread @ onto.T
            found = (
                found - 0.5 * (precision * spread.diagonal(dim1=-2, dim2=-1)).sum() + 0.5 * torch.logdet(spread).sum()
            )
        return found

    best = objective(turn.matrix, turn.shift)
    leaf = turn.matrix.clone().requires_grad_()
    assert float(torch.autograd.grad(objective(leaf, turn.shift), leaf)[0].abs().max()) < 1e-8
    leaf = turn.shift.clone().requires_grad_()  # which comes first
    assert float(torch.autograd.grad(objective(torch.eye(SIZE).double(), leaf), leaf)[0].abs().max()) < 1e-8
    assert best > objective(torch.eye(SIZE).double(), torch.zeros(SIZE).double())
    new = turn.globals(at)
    gram = new.weight @ new.weight.T + (0 if new.spread is None else new.spread[:, :-1, :-1].sum(0))
    assert abs(float(gram[0, 1])) < 1e-10 and gram[0, 0] > gram[1, 1]


def test_a_turn_of_some_components_leaves_the_others():
    found = Turn(torch.tensor([[2.0]]), torch.tensor([0.5])).within(torch.tensor([False, True]))
    assert torch.equal(found.matrix, torch.diag(torch.tensor([1.0, 2.0]))) and found.shift.tolist() == [0.0, 0.5]


def test_rates_of_uncertain_weights_are_right_to_the_first_orders():
    """log E exp(s'w + b) of two Gaussians, exactly, less what is taken for it, falls as the product of their widths."""
    gaps = []
    for width in (0.1, 0.05):
        counts, at, _, q = problem(uncertain=width)
        assert at.spread is not None
        q = PoissonScores(q.mean, spread_of(ROWS, SIZE, width, 13))
        exact = torch.empty(ROWS, COLUMNS).double()
        for n in range(ROWS):
            for j in range(COLUMNS):
                mean = torch.cat([q.mean[n], at.weight[:, j], at.bias[j : j + 1]])
                covariance = torch.block_diag(q.covariance[n], at.spread[j])
                # log rate = y'Q y / 2 + y_b for y = (s, w, b): a Gaussian integral.
                form = torch.zeros(2 * SIZE + 1, 2 * SIZE + 1).double()
                form[:SIZE, SIZE : 2 * SIZE] = form[SIZE : 2 * SIZE, :SIZE] = torch.eye(SIZE)
                line = torch.zeros(2 * SIZE + 1).double()
                line[-1] = 1.0
                inverse = torch.linalg.inv(covariance)
                right = inverse @ mean + line
                log_det = torch.logdet(inverse - form) + torch.logdet(covariance)
                exact[n, j] = 0.5 * (
                    right @ torch.linalg.solve(inverse - form, right) - mean @ inverse @ mean - log_det
                )
        gap = exact + counts.offset[:, None] - rates(counts, at, q).log()
        gaps.append(float(gap.abs().max()))
    assert gaps[0] < 0.02 and gaps[1] < gaps[0] / 8


# ----- engines ------------------------------------------------------------------------------------------------


def example(**settings) -> tuple[PoissonPCA, torch.Tensor]:
    made = PoissonPCA.example()
    return made.model, made.data.x.double()


def test_iterations_ascend_to_where_the_general_engine_ends():
    model, x = example()
    method = VariationalEM(guide="variational", search=Search(climb=0, settle=1), tolerance=1e-10, max_iterations=400)
    fit = method.fit(model, x, progress=False, dtype=torch.float64)
    assert len(fit.elbo) > 10 and bool((fit.elbo.diff() > -1e-9 * fit.elbo[-1].abs()).all())
    engine = FactorVariational(steps=200)
    rows = engine.rows(model, fit.data)
    general = engine.e_step(model, fit.params, rows)
    assert engine.objective_at(model, fit.params, general.bound) == pytest.approx(float(fit.elbo[-1]), abs=1e-6)
    torch.testing.assert_close(fit.local.posterior.mean, general.locals["score"], atol=1e-4, rtol=1e-4)
    leaves = {site: value.clone().requires_grad_() for site, value in fit.params.items()}
    counts, q = PoissonVariational().rows(model, fit.data).counts, fit.local.posterior
    prior = Normal(torch.zeros(2).double(), torch.ones(2).double())
    at = Globals(leaves["weight"], leaves["bias"])
    total = bounds(counts, at, prior, PoissonScores(q.mean, q.covariance)).sum() + model.log_prior(leaves)
    slopes = torch.autograd.grad(total, list(leaves.values()))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-3


def test_sparse_counts_blocks_and_new_rows_give_the_same(monkeypatch):
    model, x = example()
    offset = torch.linspace(-0.5, 0.5, len(x)).double()
    settings = {"progress": False, "dtype": torch.float64, "offset": offset}
    fit = VariationalEM(guide="variational").fit(model, x, **settings)
    monkeypatch.setattr(poisson_rows, "_BLOCK_ENTRIES", 1)
    monkeypatch.setattr(poisson_rows, "max", lambda *_: 7, raising=False)
    assert len(PoissonVariational().rows(model, fit.data).blocks()) == math.ceil(len(x) / 7)
    stored = VariationalEM(guide="variational").fit(model, scipy.sparse.csr_matrix(x.numpy()), **settings)
    assert stored.data.is_sparse
    assert float(stored.elbo[-1]) == pytest.approx(float(fit.elbo[-1]), abs=1e-6)
    new = fit.transform(x[3:9], offset=offset[3:9])
    torch.testing.assert_close(torch.as_tensor(new), fit.local.posterior.mean[3:9], atol=1e-4, rtol=1e-4)


def test_uncertain_weights_shut_off_what_is_superfluous_and_learn_the_scale():
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn((1, 12), generator=generator, dtype=torch.float64)
    score = torch.randn((300, 1), generator=generator, dtype=torch.float64)
    x = torch.poisson(torch.exp(1.0 + score @ weight), generator=generator)
    model = PoissonPCA(num_components=3, num_features=12)
    method = VariationalEM(guide="bayesian", max_iterations=300)
    fit = method.fit(model, x, progress=False, dtype=torch.float64)
    size = fit.params["weight"].norm(dim=1)
    assert size[0] == pytest.approx(float(weight.norm()), rel=0.1) and float(size[1:].max()) < 0.02 * float(size[0])
    learned = fit.model.priors["weight"].scale[:, 0]
    assert learned[0] == pytest.approx(float(size[0]) / math.sqrt(12), rel=0.02) and float(learned[1:].max()) < 0.05
    assert bool((fit.elbo.diff() > -1e-6 * fit.elbo[-1].abs()).all())


def test_the_prior_term_is_minus_the_divergence_of_the_columns():
    model, _ = example()
    engine, spread = PoissonBayesian(), spread_of(6, 3, 0.3, 1)
    sites = {"weight": draw(2, 6), "bias": draw(6, seed=1)}
    precision = torch.tensor([2.0, 0.5]).double()
    state = PoissonState(sites, {"spread": spread, "precision": precision})
    prior = MultivariateNormal(torch.zeros(3).double(), torch.diag(torch.tensor([0.5, 2.0, 25.0]).double()))
    expected = -kl_divergence(MultivariateNormal(state.at.columns, spread), prior).sum()
    torch.testing.assert_close(torch.as_tensor(engine.prior_term(model, state)), expected, rtol=1e-8, atol=1e-8)


def test_learned_offsets_of_rows_are_a_component_of_ones():
    generator = torch.Generator().manual_seed(5)
    own = torch.randn(200, generator=generator, dtype=torch.float64)
    weight, score = draw(1, 30, seed=6), draw(200, 1, seed=7)
    x = torch.poisson(torch.exp(1.0 + own[:, None] + score @ weight), generator=generator)
    model = PoissonPCA(num_components=1, num_features=30).with_row_offsets()
    assert model.num_components == 2
    for guide in ("variational", "bayesian"):
        fit = VariationalEM(guide=guide, search=None).fit(model, x, progress=False, dtype=torch.float64)
        torch.testing.assert_close(fit.params["weight"][1], torch.ones(30).double(), atol=1e-2, rtol=0)
        found = fit.local.posterior.mean
        assert np.corrcoef(found[:, 1].numpy(), own.numpy())[0, 1] > 0.97
        assert abs(np.corrcoef(found[:, 0].numpy(), score[:, 0].numpy())[0, 1]) > 0.97
        assert bool((fit.elbo.diff() > -1e-6 * fit.elbo[-1].abs()).all())
    with pytest.raises(ModelError, match="learned offsets need a Normal prior"):
        model.with_priors(score=dist.StudentT(3.0)).with_row_offsets()


def test_scores_are_turned_once_whatever_they_were_left_by():
    model, x = example()
    engine = PoissonVariational()
    rows, generator = engine.rows(model, model.prepare(x)), torch.Generator().manual_seed(0)
    state = engine.propose(model, rows, generator, 0)
    first = engine.e_step(model, state, rows)
    new = engine.m_step(model, state, first, rows)
    turn, warm = Turn(new.locals["matrix"], new.locals["shift"]), first.locals
    expected = turn.scores(PoissonScores(warm["score"], warm["covariance"]))
    found = poisson_rows.warm_scores(warm, slice(0, len(rows)), new)
    torch.testing.assert_close(found.mean, expected.mean)
    again = engine.e_step(model, new, rows, warm)
    kept = poisson_rows.warm_scores(again.locals, slice(0, len(rows)), new)
    torch.testing.assert_close(kept.mean, again.locals["score"])
    mixed = {**warm, "number": warm["number"] + (torch.arange(len(rows)) < 5)}
    found = poisson_rows.warm_scores(mixed, slice(0, len(rows)), new)
    torch.testing.assert_close(found.mean[:5], warm["score"][:5])
    torch.testing.assert_close(found.mean[5:], expected.mean[5:])


def test_leading_axes_are_the_principal_ones():
    matrix = draw(40, 6) * torch.tensor([5.0, 3.0, 2.0, 0.1, 0.1, 0.1])
    found = leading_axes(matrix, 3, torch.Generator().manual_seed(0))
    value, vector = torch.linalg.eigh(matrix.T @ matrix / 40)
    best = vector[:, -3:] @ torch.diag(value[-3:]) @ vector[:, -3:].T
    torch.testing.assert_close(found.T @ found, best, atol=1e-6, rtol=1e-6)
    assert leading_axes(draw(2, 6), 4, torch.Generator().manual_seed(0)).shape == (4, 6)


def test_flat_scores_are_refused():
    model, x = example()
    with pytest.raises(PriorError, match="cannot be integrated out"):
        VariationalEM(guide="bayesian").fit(model.with_priors(score=Flat(dist.Normal(0.0, 1.0))), x, progress=False)
    with pytest.raises(MethodError, match="climb = -1"):
        Search(climb=-1)


def test_other_priors_of_the_weights_are_taken():
    model, x = example()
    model = model.with_priors(weight=dist.Laplace(0.0, 0.3))
    fit = VariationalEM(guide="variational").fit(model, x, progress=False, dtype=torch.float64)
    assert bool((fit.elbo.diff() > -1e-9 * fit.elbo[-1].abs()).all()) and "numerical M steps of weight" in fit.status


@pytest.mark.parametrize("prior", [{"weight": dist.Laplace(0.0, 1.0)}, {"weight": 0.3}, {"bias": 0.3}])
def test_uncertain_weights_give_way_to_points_under_priors_that_are_not_normal(prior):
    example = PoissonPCA.example()
    method = VariationalEM(guide="bayesian", max_iterations=3, search=None)
    found = method.fit(example.model.with_priors(**prior), example.data, progress=False)
    assert "since 'bayesian' integrates the globals" in found.status and bool(torch.isfinite(found.elbo).all())
    for site, value in found.model.known.items():
        torch.testing.assert_close(found.params[site], value.to(found.params[site]).expand_as(found.params[site]))


def test_large_counts_are_fitted_from_one_start_until_an_entry_gains_little():
    x = np.random.default_rng(0).poisson(1.0, (600, 100))
    found = fit_default(PoissonPCA(num_components=2, num_features=100), x, progress=False)
    assert "gain below 0.001 a row" in found.status and "one start" in found.status
    assert found.method == VariationalEM(guide="bayesian")
    small = fit_default(PoissonPCA(num_components=2, num_features=6), x[:60, :6], progress=False)
    assert "gain below 1e-05 a row" in small.status and "starts" in small.status
