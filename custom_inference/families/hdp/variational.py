"""The hierarchical Dirichlet process by variational Bayes: posteriors of the topics, of their shares and of a and c.

q(c) q(v) q(a) prod_k q(b_k) prod_i q(pi_i) prod_il q(y_il): Gammas of a and c, Betas of the sticks, Dirichlets of
topics and proportions. With n_ik the expected tokens of document i in topic k, L_i the number of its tokens, A = E[a]
and alpha_k = exp(E[log a] + E[log beta_k]),

    F = sum_i log [Gamma(A) / Gamma(A + L_i)] + sum_ik log [Gamma(alpha_k + n_ik) / Gamma(alpha_k)]
        + sum_ivk n_iv c_ivk (E[log b_kv] - log c_ivk) - KL of a, c, the sticks and the topics    <=   log p(x)

(after Teh, Kurihara & Welling, *Collapsed variational inference for HDP*, NIPS 2007). log [Gamma(a) / Gamma(a + L)] is
convex in a, and log [Gamma(alpha + n) / Gamma(alpha)] in log alpha, for whole n, and in n: their means are no less than
their values at A, at alpha and at the mean of n. With m_k and t the slopes of F in log alpha_k and -A
(``engine.expect_tables``),

    a ~ Gamma(s_a + m_1 + .. + m_K, r_a + t),        v_k ~ Beta(1 + m_k, E[c] + m_(k+1) + .. + m_K),
    c ~ Gamma(s_c + U, r_c - E[log(1 - v_1)] - .. - E[log(1 - v_U)]).

The sticks are those of the topics by falling m, unless the topics' priors tell them apart; but the last of K takes what
is left, which is much where c is large and K small: another topic may stand there. A state says which stick each
topic has, so that topics keep their numbers between E steps; what it stands for, and a fit, has the topics in the order
of their sticks, as the program has them. U is how many of them there are up to the last with any m. Topics and sticks
after it have their priors, given c, no document has tokens of them, and they add nothing to F: a fit is the same
however many there are. Documents are inferred without them: e^psi(alpha_k) of a topic far down the sticks is too small
for a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import ContinuousPosterior, DirichletPosterior, GammaPosterior, SticksPosterior
from custom_inference.core.states import State
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.hdp.engine import HdpDirichlet, expect_tables
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.dirichlet import TopicScores
from ppl_models import HDP, Model
from ppl_models.core.priors import value_if_known
from ppl_models.distributions import StickBreaking

#: Tables below which a topic has none.
_NONE = 1e-9
#: The rate of the Gamma that stands for a known value.
_SURE = 1e12
#: What the tables of all topics together, and the rate of a, are at values to start from.
_START = 100.0
#: Halvings of the interval in which E[c] is found.
_HALVINGS = 60
_SITES = ("concentration", "stick_concentration")


@dataclass(frozen=True)
class HdpPosteriors(State):
    """topic: concentrations (K, V). own, rest (K - 1,): Betas of the sticks. place (K,): the stick of each topic.
    concentration, stick_concentration: (2,), shape and rate.

    The posteriors, and so the values, are those of the topics in the order of their sticks."""

    topic: Tensor
    own: Tensor
    rest: Tensor
    place: Tensor
    concentration: Tensor
    stick_concentration: Tensor

    def posteriors(self, model: Model) -> Mapping[str, ContinuousPosterior]:
        of_numbers = {site: GammaPosterior(*getattr(self, site)) for site in _SITES}
        topic = DirichletPosterior(self.topic[torch.argsort(self.place)])
        return {"topic": topic, "topic_weight": SticksPosterior(self.own, self.rest), **of_numbers}

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, Any]) -> Self:
        topic, sticks, *numbers = (posteriors[site] for site in ("topic", "topic_weight", *_SITES))
        pairs = [torch.stack([each.shape, each.rate]) for each in numbers]
        place = torch.arange(len(topic.concentration)).to(topic.concentration)
        return cls(topic.concentration, sticks.own, sticks.rest, place, *pairs)


@dataclass(frozen=True, kw_only=True)
class HdpVB(HdpDirichlet):
    """Posteriors of all globals."""

    additive = True
    reads_rows = False
    integrates_globals = True
    any_prior_of = _SITES

    name: ClassVar[str] = "vb"
    state: ClassVar[type[State]] = HdpPosteriors
    conjugate: ClassVar[Any] = {"topic_weight": (StickBreaking,)}

    def local(self) -> Engine:
        return HdpDirichlet()

    @staticmethod
    def suits(model: HDP) -> bool:
        """Tell whether the priors of the concentrations have closed-form steps: Gamma, or known."""
        return all(isinstance(model.priors[site], torch.distributions.Gamma) or site in model.known for site in _SITES)

    def settles_order(self, model: Model) -> bool:
        """Say whether the topics' priors are alike: then M steps find the best order of the sticks."""
        gamma = self.words_prior(model, torch.zeros(()))
        return gamma.ndim == 1 or bool((gamma == gamma[0]).all())

    def check(self, model: HDP, rows: DocumentRows) -> None:
        """Raises PriorError for priors of the concentrations that are neither Gamma nor known."""
        super().check(model, rows)
        for site in _SITES:
            if site not in model.known:
                Gamma.of(model, site, rows.like.values())

    def document_alpha(self, model: HDP, state: HdpPosteriors, rows: DocumentRows) -> Tensor:
        weight = SticksPosterior(state.own, state.rest).mean_log()[state.place.long()]
        return (Gamma(*state.concentration).expected()[0] + weight).exp()

    def scores(self, model: Model, state: HdpPosteriors, temperature: float = 1.0) -> TopicScores:
        return TopicScores.of(temperature * Dirichlet(state.topic).expected())

    def e_step(
        self, model: HDP, state: HdpPosteriors, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        used, mean = _in_use(state), Gamma(*state.concentration).mean
        alpha = self.document_alpha(model, state, rows)[used]
        scores = TopicScores.of(temperature * Dirichlet(state.topic[used]).expected())
        step = self.documents(rows, scores, alpha, {"counts": warm["counts"][:, used]} if warm else None)
        tables, rate = expect_tables(alpha, step.locals["counts"], mean)
        counts, words = alpha.new_zeros(len(rows), len(used)), torch.zeros_like(state.topic)
        counts[:, used], words[used] = step.locals["counts"], step.statistics["topic"]
        every = alpha.new_zeros(len(used))
        every[used] = tables
        falls = _log_fall(mean, rows.lengths) - _log_fall(alpha.sum(), rows.lengths)
        return EStep({"topic": words, "tables": every, "rate": rate}, {"counts": counts}, step.bound + falls)

    def m_step(self, model: HDP, state: HdpPosteriors, step: EStep, rows: DocumentRows) -> HdpPosteriors:
        found = step.statistics
        return self._best(model, found["topic"], found["tables"], found["rate"], state.place)

    def _best(
        self, model: HDP, counts: Tensor, tables: Tensor, rate: Tensor, place: Tensor | None = None
    ) -> HdpPosteriors:
        """Return the posteriors that are best at the topics' expected tokens (K, V) and tables (K,). place: the sticks
        of the topics before, by default in the topics' own order."""
        gamma = self.words_prior(model, counts)
        orders = [torch.arange(len(tables), device=tables.device) if place is None else torch.argsort(place)]
        if self.settles_order(model):
            falling = torch.argsort(tables, descending=True, stable=True)
            orders += [falling, falling[_best_last(tables[falling], _break(model, tables[falling]).c)]]
        each = [_break(model, tables[order]) for order in orders]
        best = max(range(len(each)), key=lambda i: float(each[i].gain))
        broken, place = each[best], torch.argsort(orders[best]).to(counts)
        a = _prior_of(model, "concentration", tables)
        if "concentration" not in model.known:
            a = a + torch.stack([tables.sum(), rate])
        return HdpPosteriors(gamma + counts, broken.own, broken.rest, place, a, broken.c)

    def prior_term(self, model: HDP, state: HdpPosteriors) -> Tensor:
        """Return minus the divergences of all globals' posteriors from their priors."""
        topic, own, rest = (part.double() for part in (state.topic, state.own, state.rest))
        apart = Dirichlet(topic).kl(self.words_prior(model, topic)).sum()
        for site in set(_SITES) - set(model.known):
            apart = apart + Gamma(*getattr(state, site).double()).kl(Gamma.of(model, site, topic))
        log_c, c = Gamma(*state.stick_concentration.double()).expected()
        number = min(int(_in_use(state).sum()), len(own))
        own, rest = own[:number], rest[:number]
        on, off, both = (torch.digamma(part) for part in (own, rest, own + rest))
        density = (own - 1) * (on - both) + (rest - c) * (off - both) - log_c
        normaliser = torch.lgamma(own + rest) - torch.lgamma(own) - torch.lgamma(rest)
        return -apart - (density + normaliser).sum()

    def canonical(self, model: HDP, params: HdpPosteriors, locals_: Params) -> tuple[HdpPosteriors, Params]:
        """Return the topics in the order of their sticks."""
        counts = locals_["counts"][:, torch.argsort(params.place)]
        return HdpPosteriors.of_posteriors(params.posteriors(model)), {"counts": counts}

    def from_counts(self, model: HDP, counts: Tensor) -> HdpPosteriors:
        sizes = counts.sum(-1)
        return self._best(model, counts, _START * sizes / sizes.sum(), sizes.new_tensor(_START))

    def initial(self, model: HDP, rows: DocumentRows, generator: torch.Generator) -> HdpPosteriors:
        return self.from_counts(model, self.random_counts(model, rows, generator))

    def from_point(self, model: HDP, params: Params, rows: DocumentRows, e_step: InitialStep) -> HdpPosteriors:
        """Return the posteriors that the documents give when their own posteriors are inferred at these values."""
        return self.from_counts(model, e_step().statistics["topic"])


class _Broken(NamedTuple):
    """own, rest (K - 1,): Betas of the sticks. c (2,): its shape and rate. gain: what of F depends on the order."""

    own: Tensor
    rest: Tensor
    c: Tensor
    gain: Tensor


def _break(model: HDP, tables: Tensor) -> _Broken:
    """Return the best posteriors of c and of the sticks of topics with these tables, in the sticks' order."""
    own, later = 1 + tables[:-1], tables.flip(0).cumsum(0).flip(0)[1:]
    used = (tables > _NONE).nonzero()
    number = min(int(used.max()) + 1, len(own)) if len(used) else 0
    c = _of_sticks(model, own[:number], later[:number])
    rest = c[0] / c[1] + later
    on, off = own[:number].double(), rest[:number].double()
    gain = (torch.lgamma(on) + torch.lgamma(off) - torch.lgamma(on + off)).sum()
    gain = gain + number * Gamma(*c.double()).expected()[0]
    if "stick_concentration" not in model.known:
        gain = gain - Gamma(*c.double()).kl(Gamma.of(model, "stick_concentration", on))
    return _Broken(own, rest, c, gain)


def _best_last(tables: Tensor, c: Tensor) -> Tensor:
    """Return the best order of topics of falling tables (K,) in which one is moved to the end, at a posterior of c.

    Of two topics on sticks one after the other, none of them the last, that of more tables had better come first.
    """
    every = torch.arange(len(tables), device=tables.device)
    first, moved = every[:-1], every.unsqueeze(1)
    orders = torch.cat([first + (first >= moved), moved], 1)
    at = tables[orders].double()
    own, rest = 1 + at[:, :-1], (c[0] / c[1]).double() + at.flip(1).cumsum(1).flip(1)[:, 1:]
    return orders[(torch.lgamma(own) + torch.lgamma(rest) - torch.lgamma(own + rest)).sum(1).argmax()]


def _in_use(state: HdpPosteriors) -> Tensor:
    """Tell which topics (K,) are on sticks up to the last with any tables; all where none has any."""
    c = state.stick_concentration
    tables = torch.cat([state.own - 1, state.rest[-1:] - c[0] / c[1]])  # the last topic's are those after all sticks
    used = (tables > _NONE).nonzero()
    return state.place <= (used.max() if len(used) else len(state.place))


def _log_fall(total: Tensor, lengths: Tensor) -> Tensor:
    """Compute log [Gamma(A) / Gamma(A + L)]."""
    return torch.lgamma(total) - torch.lgamma(total + lengths)


def _prior_of(model: HDP, site: str, like: Tensor) -> Tensor:
    """Return shape and rate of the prior of a concentration (2,); of a known one those of next to no variance."""
    known = value_if_known(model.priors[site])
    if known is not None:
        return torch.stack([_SURE * known.to(like), like.new_tensor(_SURE)])
    return torch.stack([*Gamma.of(model, site, like)])


def _of_sticks(model: HDP, own: Tensor, later: Tensor) -> Tensor:
    """Return shape and rate of c, the fixed point of its update and that of its sticks (U,)."""
    prior = _prior_of(model, "stick_concentration", own)
    if "stick_concentration" in model.known:
        return prior
    shape, low, high = prior[0] + len(own), own.new_tensor(1e-8).log(), own.new_tensor(1e8).log()

    def find_rate(c: Tensor) -> Tensor:
        return prior[1] + (torch.digamma(own + c + later) - torch.digamma(c + later)).sum()

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if shape / find_rate(middle.exp()) > middle.exp():
            low = middle
        else:
            high = middle
    return torch.stack([shape, find_rate(((low + high) / 2).exp())])
