"""LDA's documents under Dirichlet posteriors at given topics: the sweeps, their kernel, and what is built on them."""

from itertools import pairwise

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from custom_inference import VariationalEM
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.registry import engine_for
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows import documents as _documents
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics import kernels
from custom_inference.families.topics.dirichlet import (
    LdaDirichlet,
    Settled,
    TopicScores,
    relative_share,
    settle_blocks,
    sweep_documents,
)
from custom_inference.families.topics.propose import merge_topics, propose_topics
from ppl_models import LDA, PLSA, Data, MethodError, MultinomialPCA
from ppl_models.data import sparse as _sparse
from tests.references import _collapsed, _topics, lda

pytestmark = pytest.mark.quick


def corpus(seed=0, num_documents=8, vocabulary_size=9, num_topics=3, length=12, concentration=0.5):
    """(topics (K, V), counts (N, V)): the first document is empty, the last word never occurs."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, concentration), num_topics) + 1e-3
    topic /= topic.sum(1, keepdims=True)
    words = rng.dirichlet(np.full(num_topics, 0.5), num_documents) @ topic
    x = np.array([rng.multinomial(rng.integers(1, length + 1), p) for p in words], dtype=float)
    x[0], x[:, -1] = 0, 0
    return topic, x


def solved(model, topic, x, **settings):
    """(params, rows, E step) far into convergence."""
    steps = LdaDirichlet(threshold=1e-13, cold_sweeps=5000, **settings)
    rows, params = steps.rows(model, Data(x=torch.tensor(x))), {"topic": torch.tensor(topic)}
    return steps, params, rows, steps.e_step(model, params, rows)


def lda_of(topic, **concentrations):
    model = LDA(num_topics=len(topic), vocabulary_size=topic.shape[1])
    return model.with_concentration(**concentrations) if concentrations else model


@pytest.mark.parametrize("value", [5e-3, 0.05, 0.1, 0.7, 1.0, 3.3, 40.0, 1e3, 1e6, 1e12])
def test_kernel_digamma(value):
    """The first term left out of its series is below 0.084 / 9.5^14 = 2e-15; the rest is rounding."""
    assert kernels._psi(value) == pytest.approx(scipy.special.psi(value), rel=4e-15, abs=4e-15)


@pytest.mark.parametrize(("sweeps", "weighted"), [(1, False), (7, False), (1, True), (7, True)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kernel_and_batched_products_are_one_sweep(sweeps, weighted, dtype):
    """Weights of the topics in the documents too, some of them 0."""
    topic, x = corpus(3, num_documents=60, vocabulary_size=40, num_topics=5, length=50)
    rows = DocumentRows.of(Data(x=torch.tensor(x, dtype=dtype)))
    weight = torch.tensor([[0.0, 1.0, 0.5], [2.0, 0.0, 1.0]], dtype=dtype)[:, [0, 1, 2, 2, 0]].repeat(30, 1)
    rows = rows.with_weights(weight) if weighted else rows
    scores, alpha = TopicScores.of(torch.tensor(topic, dtype=dtype).log()), torch.linspace(0.1, 2.0, 5).to(dtype)
    start = alpha + torch.rand(60, 5, dtype=dtype)
    settings = {"sweeps": sweeps, "threshold": 0.0}
    first, second = start.clone(), start.clone()
    one = Settled(*kernels.settle_documents(rows, scores.word, alpha, first, **settings))
    two = settle_blocks(rows, scores.word, alpha, second, **settings)
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-4}
    assert torch.allclose(first, second, **close)
    assert torch.allclose(one.bound, two.bound, **close)
    shares = (each.share * weight if weighted else each.share for each in (one, two))
    gathered = [rows.sum_by_word(each.ratio, share) for each, share in zip((one, two), shares, strict=True)]
    # The scale of a document's shares is that of all topics, or of those that it has: the ratios have its inverse.
    assert torch.allclose(*gathered, **close)
    assert one.sweeps.tolist() == [sweeps] * 60


def test_documents_stop_on_their_own_and_in_chunks(monkeypatch):
    """What a document arrives at depends neither on the others nor on how the work is cut."""
    topic, x = corpus(4, num_documents=30, length=40)
    rows, alpha = DocumentRows.of(Data(x=torch.tensor(x))), torch.full((3,), 0.3)
    scores, settings = TopicScores.of(torch.tensor(topic).log()), {"sweeps": 200, "threshold": 1e-4}
    whole = sweep_documents(rows, scores, alpha, None, **settings)
    alone = sweep_documents(rows.select(torch.tensor([7, 3])), scores, alpha, None, **settings)
    close = {"rtol": 1e-4, "atol": 1e-4}  # rounding may settle a document a sweep earlier or later
    assert torch.allclose(whole.concentration[[7, 3]], alone.concentration, **close)
    monkeypatch.setattr(kernels, "_CHUNK_CELLS", 20)
    assert len(kernels.cut_documents(rows.counts.crow_indices().numpy())) > 4
    cut = sweep_documents(rows, scores, alpha, None, **settings)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    threads = sweep_documents(rows, scores, alpha, None, **settings)
    for other in (cut, threads):
        assert torch.allclose(whole.concentration, other.concentration, **close)
        assert torch.allclose(whole.counts, other.counts, **close)


def test_restless_documents_are_tried_afresh_and_keep_the_better():
    """From a poor local optimum: the bound of every document is the larger of the two that its starts reach."""
    topic, x = corpus(4, num_documents=60, num_topics=5, length=40)
    rows, alpha = DocumentRows.of(Data(x=torch.tensor(x))), torch.full((5,), 0.1)
    scores = TopicScores.of(torch.tensor(topic).log())
    lured = 0.1 + 40 * torch.eye(5)[torch.arange(60) % 5]
    cold = sweep_documents(rows, scores, alpha, None, sweeps=500, threshold=1e-4)
    warm = sweep_documents(rows, scores, alpha, lured, sweeps=6, threshold=1e-4)
    both = sweep_documents(rows, scores, alpha, lured, sweeps=6, threshold=1e-4, afresh=500)
    settled = Settled(*kernels.settle_documents(rows, scores.word, alpha, lured.clone(), sweeps=6, threshold=1e-4))
    restless = settled.sweeps >= 4
    assert 5 < int(restless.sum()) < 60
    expected = torch.where(restless, torch.maximum(cold.bound, warm.bound), warm.bound)
    close = {"rtol": 1e-4, "atol": 1e-3}  # sums in another order round otherwise
    assert torch.allclose(both.bound, expected, **close)
    assert bool((both.bound > warm.bound + 1e-2).any())
    gain = torch.where(restless, cold.bound - warm.bound, -torch.ones(60))
    clear = gain.abs() > 1e-2
    chosen = torch.where((gain > 0).unsqueeze(-1), cold.concentration, warm.concentration)
    assert torch.allclose(both.concentration[clear], chosen[clear], **close)
    again = sweep_documents(rows, scores, alpha, both.concentration, sweeps=0, threshold=0.0)
    assert torch.allclose(both.counts, again.counts)


def test_transposed_product_without_a_processor_is_the_same():
    """The path of other devices, by its parts: the stored cells in the order of words."""
    _, x = corpus(6, num_documents=20)
    rows = DocumentRows.of(Data(x=torch.tensor(x)))
    cell, local = torch.rand(rows.counts.values().shape), torch.rand(20, 4)
    order, first, document = rows._by_word
    expected = torch.stack(
        [cell[order[a:b]] @ local[document[a:b]] for a, b in zip(first[:-1].tolist(), first[1:].tolist(), strict=True)]
    )
    assert torch.allclose(rows.sum_by_word(cell, local), expected)


@pytest.mark.parametrize("num_documents", [1, 2, 300])
def test_blocks_hold_every_document_once_within_their_size(num_documents, monkeypatch):
    monkeypatch.setattr(_documents, "_BLOCK_PLACES", 64)
    _, x = corpus(2, num_documents=num_documents, vocabulary_size=90, length=120)
    rows = DocumentRows.of(Data(x=torch.tensor(x)))
    blocks = rows.blocks
    assert sorted(torch.cat([block.documents for block in blocks]).tolist()) == list(range(num_documents))
    assert all(block.word.numel() <= 64 or len(block.documents) == 1 for block in blocks)
    for block, following in pairwise(blocks):
        longest = int((rows.counts.crow_indices().diff())[following.documents[0]])
        assert (len(block.documents) + 1) * longest > 64  # no further document fitted
    dense = torch.zeros(num_documents, 90)
    for block in blocks:
        dense.index_put_((block.documents.unsqueeze(1), block.word), block.count, accumulate=True)
    assert torch.equal(dense, torch.tensor(x))


@given(seed=st.integers(0, 10**6), num_topics=st.integers(1, 4), alpha=st.sampled_from([0.01, 0.3, 1.0, 4.0]))
@settings(max_examples=12, deadline=None)
def test_count_version_is_the_token_version_and_below_the_evidence(seed, num_topics, alpha):
    topic, x = corpus(seed, num_documents=4, num_topics=num_topics, length=6)
    _, _, _, step = solved(lda_of(topic, alpha=alpha), topic, x)
    concentration = torch.full((num_topics,), alpha).numpy()
    evidence = _topics.log_evidence(topic, x, concentration)
    assert bool((step.bound.numpy() <= evidence + 1e-9).all())
    for i, words in enumerate(_topics.tokens_of(x)):
        pi, q = lda.token_mean_field(topic, words, concentration, sweeps=3000)
        assert step.locals["concentration"][i].numpy() == pytest.approx(pi, abs=1e-6)
        assert float(step.bound[i]) == pytest.approx(lda.token_bound(topic, words, pi, q, concentration), abs=1e-8)
    assert num_topics > 1 or np.allclose(step.bound.numpy(), evidence)


def test_bound_with_the_coefficient_is_that_of_the_counts():
    """MultinomialPCA: the bound of the source's count version, the counts' values summed one by one."""
    topic, x = corpus(8, num_documents=5, length=7)
    model = MultinomialPCA(num_topics=3, vocabulary_size=9).with_concentration(alpha=0.4)
    _, _, _, step = solved(model, topic, x)
    weight, c = lda.count_mean_field(np.log(topic), x, 0.4, sweeps=3000)
    assert step.bound.numpy() == pytest.approx(lda.count_bound(np.log(topic), x, weight, c, 0.4), abs=1e-8)


def test_statistics_and_responsibilities_are_the_expected_topics_of_the_cells():
    topic, x = corpus(9)
    model = lda_of(topic, alpha=0.4)
    steps, params, rows, step = solved(model, topic, x)
    each = steps.responsibilities(model, params, rows, step.locals)
    row, column, count = _sparse.triplets(rows.counts)
    reference = lda.count_update(np.log(topic), step.locals["concentration"].numpy())
    assert each.numpy() == pytest.approx(reference[row.numpy(), column.numpy()], abs=1e-10)
    counted = torch.zeros(9, 3).index_add(0, column, each * count.unsqueeze(-1)).T
    assert torch.allclose(step.statistics["topic"], counted)


def test_the_bound_is_stationary_and_rises_with_every_sweep():
    topic, x = corpus(10)
    model = lda_of(topic, alpha=0.4)
    _, params, rows, step = solved(model, topic, x)
    one = LdaDirichlet(sweeps=1, cold_sweeps=1, threshold=0.0)
    before, locals_ = one.e_step(model, params, rows).bound, one.e_step(model, params, rows).locals
    for _ in range(30):
        following = one.e_step(model, params, rows, locals_)
        assert bool((following.bound >= before - 1e-10).all())
        before, locals_ = following.bound, following.locals
    pi = step.locals["concentration"].requires_grad_()
    share, alpha = Dirichlet(pi).expected(), torch.full((3,), 0.4)
    mixture = (share[:, None].exp() * torch.tensor(topic).T).sum(-1)
    bound = torch.xlogy(torch.tensor(x), mixture).sum() - Dirichlet(pi).kl(alpha).sum()
    assert torch.allclose(bound, step.bound.sum())
    assert float(torch.autograd.grad(bound, pi)[0].abs().max()) < 1e-8


def test_em_climbs_and_warm_starts_go_on():
    example = LDA.example()
    for model in (example.model, PLSA(num_topics=3, vocabulary_size=9)):
        fit = VariationalEM(guide="dirichlet", search=None, accelerate=None, max_iterations=60).fit(
            model, example.data, progress=False
        )
        assert bool((fit.elbo.diff() >= -1e-7 * fit.elbo.abs().max()).all())
    steps = LdaDirichlet()
    rows, params = steps.rows(example.model, example.data), {"topic": example.truth["topic"]}
    first = steps.e_step(example.model, params, rows)
    again = steps.e_step(example.model, params, rows, first.locals)
    assert bool((again.bound >= first.bound - 1e-12).all())


def test_extremes_stay_finite():
    """Words that no topic can write, documents of 1e6 tokens, concentrations near 0, none but empty documents."""
    topic = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]])
    model = LDA(num_topics=2, vocabulary_size=4).with_concentration(alpha=1e-3)
    steps, _, _, step = solved(model, topic, np.array([[2.0, 0, 0, 1], [1e6, 2, 0, 0], [0, 0, 0, 0], [1, 0, 3, 0]]))
    assert step.bound[0] == -torch.inf
    assert bool(torch.isfinite(step.bound[1:]).all())
    assert float(step.bound[2]) == pytest.approx(0.0, abs=1e-12)
    assert bool(torch.isfinite(step.locals["concentration"]).all())
    assert float(step.statistics["topic"][0, 2]) == float(step.statistics["topic"][1, 0]) == 0.0
    empty = steps.e_step(model, {"topic": torch.tensor(topic)}, steps.rows(model, Data(x=torch.zeros(2, 4))))
    assert torch.allclose(empty.bound, torch.zeros(2))
    single = DocumentRows.of(Data(x=torch.tensor([[3.0, 1, 0, 0]], dtype=torch.float32)))
    step = steps.e_step(model, {"topic": torch.tensor(topic, dtype=torch.float32)}, single)
    assert step.bound.dtype == torch.float32
    assert bool(torch.isfinite(step.bound).all())


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_prior_other_than_dirichlet_is_refused():
    model = LDA(num_topics=3, vocabulary_size=9)
    logistic = dist.TransformedDistribution(
        dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1), [dist.transforms.StickBreakingTransform()]
    )
    with pytest.raises(MethodError, match="topic_proportion"):
        VariationalEM(guide="dirichlet").fit(
            model.with_priors(topic_proportion=logistic), corpus(11)[1], progress=False
        )


def test_new_documents_by_the_table_of_bounds():
    """``LocalSolver`` brings any documents to the fixed point at given topics."""
    topic, x = corpus(11)
    model = lda_of(topic, alpha=0.4)
    params = {"topic": torch.tensor(topic)}
    local = LocalSolver(engine=engine_for(model, "dirichlet")).solve(model, params, Data(x=torch.tensor(x)))
    assert isinstance(local.posterior, DirichletPosterior)
    best = solved(model, topic, x)[3]
    assert torch.allclose(local.bound, best.bound, atol=1e-6)
    assert torch.allclose(local.posterior.concentration, best.locals["concentration"], atol=1e-2)


def test_merging_takes_the_pair_that_the_collapsed_likelihood_prefers():
    """Whole tokens: the gain of every merge is that of log p(y, q), and the best one is made."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 5, 6) for _ in range(4)]
    q = [rng.integers(0, 4, 6) for _ in range(4)]
    usage, counts = _collapsed.tables(documents, _collapsed.one_hot(q, 4), 5)
    alpha, gamma = 0.3, 0.2
    scores = {}
    for a in range(4):
        for b in range(a + 1, 4):
            merged = [np.where(one == b, a, one) for one in q]
            scores[a, b] = _collapsed.log_joint(documents, merged, 4, 5, alpha, gamma)
    a, b = max(scores, key=scores.__getitem__)
    expected = np.delete(np.vstack([counts[k] + counts[b] * (k == a) for k in range(4)]), b, axis=0)
    found = merge_topics(torch.tensor(counts), torch.tensor(usage), torch.tensor(alpha), torch.tensor(gamma), wanted=3)
    assert found.numpy() == pytest.approx(expected)


def test_proposals_find_planted_topics_and_follow_the_order_of_alpha():
    rng = np.random.default_rng(3)
    topic = np.kron(np.eye(4), np.ones(10)) / 10
    share = rng.dirichlet([0.5, 0.35, 0.2, 0.1], 300)
    x = np.array([rng.multinomial(40, p) for p in share @ topic], dtype=float)
    rows, alpha = DocumentRows.of(Data(x=torch.tensor(x))), torch.tensor([0.1, 0.5, 0.2, 0.35])
    counts = propose_topics(rows, alpha, torch.tensor(0.05), torch.Generator().manual_seed(0))
    assert counts.shape == (4, 40)
    assert float(counts.sum()) == pytest.approx(x.sum(), rel=1e-6)
    assert (counts.unflatten(-1, (4, 10)).sum(-1).argmax(-1)).tolist() == [3, 0, 2, 1]
    assert float((counts.unflatten(-1, (4, 10)).sum(-1).amax(-1) / counts.sum(-1)).min()) > 0.95
    one = propose_topics(rows, alpha[:1], torch.tensor(0.05), torch.Generator().manual_seed(0))
    assert torch.allclose(one[0], torch.tensor(x.sum(0)))


def test_responsibilities_sum_to_one_in_single_precision():
    topic, x = corpus(12)
    rows = DocumentRows.of(Data(x=torch.tensor(x, dtype=torch.float32)))
    scores = TopicScores.of(torch.tensor(topic, dtype=torch.float32).log())
    each = rows.responsibilities(relative_share(torch.rand(8, 3).float()), scores.word)
    assert torch.allclose(each.sum(-1), torch.ones(len(each), dtype=torch.float32))
