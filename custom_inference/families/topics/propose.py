"""Starts for topic models and profiles of users: sampled with more topics than asked for, merged down.

A short run of collapsed Gibbs sampling with K topics typically ends with one topic that means two things and another
that means none; neither sampling on nor coordinate ascent leaves that soon. With some topics to spare every meaning
finds a topic of its own, some find two, and those can be told: merging them costs the collapsed likelihood of the
expected counts the least. With c_kv tokens of word v and n_ik of document i in topic k, merging topics k and l gains

    G(c_k + c_l, gamma) - G(c_k, gamma) - G(c_l, gamma)
    + sum_i [g(n_ik + n_il, alpha) - g(n_ik, alpha) - g(n_il, alpha)],
    G(c, gamma) = sum_v g(c_v, gamma_v) - g(sum_v c_v, sum_v gamma_v),    g(n, a) = log [Gamma(a + n) / Gamma(a)]

(the logarithm of p(w, q | alpha, gamma), Murphy 2012, eqs. 27.33 and 27.35, as far as it changes).

How many topics there should be this does not tell: topics q that are merged are less uncertain, and log p(w, q) rises
with that alone. The variational bound has their entropy beside it, of which merging loses

    sum_iv n_iv (c_ivk + c_ivl) h(c_ivk / (c_ivk + c_ivl)),    h(p) = -p log p - (1 - p) log(1 - p),

c_ivk the shares of the topics in cell (i, v). And where concentrations are a share of the whole (HDP, alpha_k = a
beta_k), those of merged topics add up: ``Cells``.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import State, values_of
from custom_inference.core.threads import count_shards
from custom_inference.families.conjugate.dirichlet import Dirichlet, log_rising
from custom_inference.families.mixtures.common import same_classes
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.cvb0 import LdaCvb0
from custom_inference.families.topics.dirichlet import TopicScores, sweep_documents
from ppl_models import CapacityError, Model

#: Documents that a start looks at: at least the first, and the second for every topic.
_SEARCH_ROWS, _SEARCH_ROWS_A_TOPIC = 5000, 200
#: Fewer documents than this have this many starts.
_FEW_DOCUMENTS, _STARTS_OF_FEW = 500, 12
#: Proportions of documents up to which random starts compete with sampled ones.
_FEW_PROPORTIONS = 2**18
#: Passes of CVB0 before variational Bayes.
_PASSES = 12
#: Topics to spare, as a share of those asked for; and at least this many.
_SPARE, _LEAST_SPARE = 0.3, 2
#: Pairs that are looked at closely, as a multiple of the number of topics: those most alike in words or documents.
_PAIRS = 6
#: Tokens of a shard of the sampler, at least.
_SHARD_TOKENS = 2**17
#: Numbers of an intermediate array, at most.
_ENTRIES = 2**21


class TopicProposals(Proposals):
    """Starts of the engines of LDA and PLSA."""

    #: The largest concentrations that starts are sampled under: under flat priors a sampler hardly tells topics apart.
    most_alpha, most_gamma = 0.1, 0.05
    #: The site that two starts are compared by, and the cosine of components that these have in common, at least.
    site, alike = "topic", 0.9

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        """Sample topics, more than asked for, and merge them. Every attempt draws its own."""
        del attempt
        return self.engine.from_counts(model, self.counts(model, rows, generator))

    def counts(self, model: Model, rows: DocumentRows, generator: torch.Generator, *, merged: bool = True) -> Tensor:
        """Return the proposed topics' expected tokens of every word, (K, V)."""
        like = rows.like.values()
        gamma = self.engine.words_prior(model, like)
        gamma = (gamma if gamma.ndim == 1 else gamma.mean(0)).clamp(max=self.most_gamma)
        alpha = self.engine.alpha(model, like).clamp(max=self.most_alpha)
        return propose_topics(rows, alpha, gamma, generator, merged=merged)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return three starts, on so many documents that they show every topic often."""
        return 3, min(num_rows, max(_SEARCH_ROWS, _SEARCH_ROWS_A_TOPIC * model.shapes[self.site][0]))

    def components(self, model: Model, state: State | Params) -> Tensor:
        """Return what two starts are compared by, (K, V)."""
        return values_of(model, state)[self.site]

    def same_solution(self, model: Model, first: State | Params, second: State | Params) -> bool:
        one, other = (self.components(model, state) for state in (first, second))
        return bool((match_components(one, other).similarity > self.alike).all())


class Cvb0Proposals(TopicProposals):
    """Starts of CVB0, whose fit goes on from the passes of the best start."""

    tolerance = 1e-3

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> State | Params:
        """Sample topics; two of three times more than asked for, which are merged. Topics that go together in documents
        may be merged for one."""
        return self.engine.from_counts(model, self.counts(model, rows, generator, merged=attempt % 3 < 2))

    def random_starts(self, model: Model, num_rows: int) -> int:
        """Return none of many documents, which climb from a random start for as long as from all others."""
        few = num_rows * model.shapes[self.site][0] <= _FEW_PROPORTIONS
        return super().random_starts(model, num_rows) if few else 0


class CollapsedProposals(TopicProposals):
    """Starts of variational Bayes of the topics, which from sampled counts ends far below its best optima."""

    def counts(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Tensor:
        """Refine the sampled topics by passes of CVB0, where there is memory for it."""
        found, engine, warm = super().counts(model, rows, generator), LdaCvb0(), None
        with contextlib.suppress(CapacityError):
            engine.check(model, rows)
            state = engine.from_counts(model, found)
            for _ in range(_PASSES):
                step = engine.e_step(model, state, rows, warm)
                state, warm = engine.m_step(model, state, step, rows), step.locals
            return state.counts
        return found


class PointProposals(TopicProposals):
    random_rows = 500

    def propose(self, model: Model, rows: DocumentRows, generator: torch.Generator, attempt: int) -> Params:
        """Sample topics; with few documents, two times in three, return random ones: the likelihood has other optima
        there."""
        if self.at_random(attempt, len(rows)):
            return self.engine.initial(model, rows, generator)
        return super().propose(model, rows, generator, attempt)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return attempt % 3 > 0 and num_rows < _FEW_DOCUMENTS

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return more starts for few documents: these have many optima, and starts are cheap there."""
        starts, size = super().search_size(model, num_rows)
        return (_STARTS_OF_FEW if num_rows < _FEW_DOCUMENTS else starts), size


class ProfileProposals(TopicProposals):
    """Starts of the engines of user rating profiles: nothing says that every response is there once."""

    most_alpha, most_gamma = 0.3, 0.5

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        return 3, num_rows

    def same_solution(self, model: Model, first: State | Params, second: State | Params) -> bool:
        """Tell whether every profile has its counterpart: their differences from the mean profile have cosines above
        .95."""
        tables = (values_of(model, one)["response"].flatten(1) for one in (first, second))
        return same_classes(*((table, torch.full_like(table[:, 0], 1 / len(table))) for table in tables))


def propose_topics(
    rows: DocumentRows, alpha: Tensor, gamma: Tensor, generator: torch.Generator, *, merged: bool = True
) -> Tensor:
    """Return expected tokens of every word in every topic, (K, V).

    alpha (K,), gamma (V,) or one number: the concentrations of the priors. Where alpha differs by topic, topics of many
    tokens come where it is large. merged: whether more topics than these are sampled, of which the most alike are
    merged.
    """
    wanted = len(alpha)
    size = wanted + max(_LEAST_SPARE, round(_SPARE * wanted)) if merged and wanted > 1 else wanted
    spread = alpha.new_full((size,), float(alpha.sum()) / size)
    counts = gibbs_counts(rows, size, spread, gamma, generator, sweeps=30, average=5)
    weight = counts + gamma
    scores = TopicScores.of(torch.log(weight / weight.sum(-1, keepdim=True)))
    found = sweep_documents(rows, scores, spread, None, sweeps=20, threshold=1e-2)
    kept = merge_topics(found.counts, found.concentration - spread, alpha.mean(), gamma, wanted)
    rank = torch.argsort(torch.argsort(alpha, descending=True, stable=True))
    return kept[torch.argsort(kept.sum(-1), descending=True)][rank]


def gibbs_counts(
    rows: DocumentRows,
    num_topics: int,
    alpha: Tensor | float,
    gamma: Tensor | float,
    generator: torch.Generator,
    *,
    sweeps: int = 50,
    average: int = 10,
) -> Tensor:
    """Return the tokens of every word in every topic, (K, V), averaged over the last ``average`` of ``sweeps`` passes;
    of very many tokens those of a part, divided by the part's share.

    The first pass draws each token's topic given those of the tokens before it, documents in a random order.

    alpha: (K,) or one number; gamma: (V,) or one number: the concentrations of LDA's priors.
    """
    seed = int(torch.randint(2**62, (), generator=generator))
    order = torch.randperm(len(rows), generator=generator)
    tokens, share = TokenList.for_start(rows.select(order), generator)
    shards = count_shards(len(tokens), tokens.vocabulary_size * num_topics / 4, _SHARD_TOKENS)
    chain = LdaChain(tokens, num_topics, alpha, gamma, seed, shards=shards)
    average_counts(chain, max(sweeps - average, 0))
    counts = average_counts(chain, min(average, sweeps))
    return (counts / (1.0 if share is None else share)).to(rows.like)


def average_counts(chain: LdaChain, sweeps: int) -> Tensor:
    """Run a chain; return the tokens of every word in every topic (K, V), their average over the sweeps."""
    total = torch.zeros(chain.word_topic.T.shape, dtype=torch.float64)
    for _ in range(sweeps):
        chain.sweep()
        total += torch.as_tensor(chain.word_topic.T)
    return total / max(sweeps, 1)


class Cells(NamedTuple):
    """share (K', E): of the topics in cells of words in documents. tokens (E,): how many each cell has, or stands
    for."""

    share: Tensor
    tokens: Tensor


def merge_topics(
    counts: Tensor, usage: Tensor, alpha: Tensor, gamma: Tensor, wanted: int, cells: Cells | None = None
) -> Tensor:
    """Merge, one pair after the other, the topics whose merging gains the most, until ``wanted`` are left.

    counts (K', V), usage (N, K'): tokens of the words and of the documents in every topic. alpha: one number, which
    merged topics have, too. cells: where they are given, gains are those of the variational bound, the concentrations
    alpha (K',) of merged topics add up, and merging ends where it gains nothing. Returns (wanted, V), or more.
    """
    words, documents = counts.double(), usage.T.double().contiguous()
    gain = words.new_full((len(words), len(words)), torch.nan)
    own = alpha.double().expand(len(words)).clone()
    share, tokens = words.new_zeros(len(words), 0), words.new_zeros(0)
    if cells is not None:
        share, tokens = cells.share.double().clone(), cells.tokens.double()
    while len(words) > wanted:
        pair = _candidates(words, documents)
        unknown = pair[:, torch.isnan(gain[pair[0], pair[1]])]
        parts = _Parts(words, documents, own, share)
        gain[unknown[0], unknown[1]] = _gains(parts, unknown, gamma.double(), tokens, added=cells is not None)
        best = gain[pair[0], pair[1]].argmax()
        kept, gone = pair[:, best].tolist()
        if cells is not None:
            if float(gain[kept, gone]) <= 0:
                break
            own[kept] += own[gone]
        for part in (words, documents, share):
            part[kept] += part[gone]
        gain[kept], gain[:, kept] = torch.nan, torch.nan
        rest = torch.arange(len(words), device=words.device) != gone
        words, documents, own, share, gain = words[rest], documents[rest], own[rest], share[rest], gain[rest][:, rest]
    return words.to(counts)


def _candidates(words: Tensor, documents: Tensor) -> Tensor:
    """Return the pairs (2, P) that are most alike, in their words or in their documents, and all with the smallest
    topic."""
    first, second = torch.triu_indices(len(words), len(words), 1, device=words.device)
    units = (torch.nn.functional.normalize(part, dim=-1) for part in (words, documents))
    alike = torch.maximum(*(unit @ unit.T for unit in units))[first, second]
    smallest = words.sum(-1).argmin()
    alike[(first == smallest) | (second == smallest)] = torch.inf
    most = torch.topk(alike, min(_PAIRS * len(words), len(alike))).indices
    return torch.stack([first[most], second[most]])


class _Parts(NamedTuple):
    """Every topic's tokens of the words (K', V) and of the documents (K', N), its concentration (K',) and its shares of
    the cells (K', E)."""

    words: Tensor
    documents: Tensor
    alpha: Tensor
    share: Tensor

    def value(self, prior: Dirichlet, tokens: Tensor) -> Tensor:
        """Compute what each adds to the log joint and to the entropy, (K',)."""
        joint = prior.log_marginal(self.words) + log_rising(self.documents, self.alpha.unsqueeze(-1))
        return joint - torch.xlogy(self.share, self.share) @ tokens


def _gains(parts: _Parts, pair: Tensor, gamma: Tensor, tokens: Tensor, *, added: bool) -> Tensor:
    """Compute what merging each pair (2, P) gains, (P,). added: whether their concentrations add up."""
    prior = Dirichlet(gamma.expand(parts.words.shape[1]))
    alone, found = parts.value(prior, tokens), []
    size = sum(part.shape[-1] for part in (parts.words, parts.documents, parts.share))
    for i, j in zip(*(part.split(max(1, _ENTRIES // size)) for part in pair), strict=True):
        joint = _Parts(*(part[i] + part[j] for part in parts))
        joint = joint if added else joint._replace(alpha=parts.alpha[i])
        found.append(joint.value(prior, tokens) - alone[i] - alone[j])
    return torch.cat(found) if found else alone[:0]
