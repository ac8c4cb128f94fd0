"""One chain of collapsed Gibbs sampling of gamma-Poisson factor analysis: the components of all events.

Every event of a row has a component q, as the tokens of a document have topics. Write b_kv = B_k phi_kv: under
Gamma(c, d) priors B_k ~ Gamma(D c, d) and phi_k ~ Dirichlet(c) are independent. With n_ik events of component k in row
i, n_kv of feature v, n_k of all, activations and phi integrated out,

    log p(x, q, B) = sum_ik [log G(alpha_k + n_ik) / G(alpha_k) + alpha_k log beta_k]
                     - sum_ik (alpha_k + n_ik) log(beta_k + B_k)
                     + sum_k [n_k log B_k + log Gamma(B_k; D c, d) + log E prod_v phi_kv^n_kv] - sum_iv log x_iv!

so that an event's component is drawn as a token's topic in LDA, with one factor more (Murphy 2012, eq. 27.37):

    p(q = k | rest) ~ (n_ik + alpha_k) (n_kv + c) / (n_k + D c) * B_k / (beta_k + B_k),

and B_k by a slice step of its logarithm. Where activations are 0 with probability rho_k (Murphy 2012, eq. 27.17), a row
has

    p(n_ik = 0) = rho_k + (1 - rho_k) (beta_k / (beta_k + B_k))^alpha_k,

and its first event alpha_k times the probability that the activation is above 0 in place of alpha_k.

Where entries are missing, or the loadings' prior is another, loadings are a value of the state instead (blocked
Gibbs): p(q = k | rest) ~ (n_ik + alpha_k) b_kv / (beta_k + B_ik), then activations given the components, then loadings
given both.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from custom_inference.families.common.explicit import Explicit, notes
from custom_inference.families.common.slices import slice_step
from custom_inference.families.conjugate.dirichlet import Dirichlet, log_marginal_of_table
from custom_inference.families.conjugate.learn import update_concentration
from custom_inference.families.gamma_poisson.common import EventRows
from custom_inference.families.topics.chain import LdaChain, TokenList, sweep_topics
from custom_inference.gibbs.protocol import Params
from ppl_models import GammaPoisson, Model

#: Sweeps between two moves of the totals, which take as long as a part of a sweep.
_MOVES = 4
#: Rounds of a step of the learned shapes and rates.
_ROUNDS = 10
#: Learned shapes stay between these: a component that has no event would never come back from 0.
_LEAST, _MOST = 1e-4, 1e4

Array = NDArray[np.float64]


class GapChain(LdaChain):
    """The components of all events, the totals B of the loadings' rows, or the loadings themselves.

    shape, rate (K,): alpha and beta. spike (K,): the probabilities rho of activations of 0. prior: c and d.
    given: loadings (K, D) to draw the first components from.
    explicit: the loadings as a value of the state, where Gamma(c, d) only stands for their prior.
    """

    def __init__(
        self,
        rows: EventRows,
        shape: Array,
        rate: Array,
        prior: tuple[float, float],
        seed: int,
        *,
        spike: Array | None = None,
        given: Tensor | None = None,
        explicit: Explicit | None = None,
    ):
        self.spike = np.zeros_like(shape) if spike is None else spike
        self.rows, self.rate, self.prior, self._swept = rows, rate, prior, 0
        self._counted: tuple[int, NDArray[np.int64]] | None = None
        tokens = TokenList.of(rows)
        super().__init__(tokens, len(shape), torch.as_tensor(shape), prior[0], seed, explicit=explicit)
        self.constant = float(rows.log_base.double().sum())
        if given is None:
            events = max(len(tokens), 1) / max(len(rows), 1) / len(shape)
            self.total = events * rate / shape  # what explains the events at mean activations
            return
        self.total = given.double().sum(1).numpy()
        self._sweep_at(given.double())
        self._begin_explicit()
        self._begun = True

    def sweep(self) -> None:
        """A pass over all events, then new loadings, or new totals of their rows."""
        self._swept += 1
        if self.explicit is None:
            self._sweep_integrated()
            if self._swept % _MOVES == 1:
                self._move_totals()
            return
        if self._begun:
            self._sweep_at(self.explicit.value)
            self.explicit.update(self._statistics(self.explicit.value), self._generator)
            return
        self._sweep_integrated()
        self._begin_explicit()
        self._begun = True

    @property
    def document_topic(self) -> NDArray[np.int64]:
        """n_ik (N, K), counted once after each sweep."""
        if self._counted is None or self._counted[0] != self._swept:
            self._counted = self._swept, self.tokens.count_topics(self.topic, self.num_topics)
        return self._counted[1]

    def _sweep_at(self, loading: Tensor) -> None:
        exposed = self.rate + self._exposure(loading)
        first = self.alpha * self._on(exposed)  # see ``_weights``
        sweep_topics(self.tokens, self.topic, self.alpha, loading, self._rng, first=first, weight=1 / exposed)
        self.assign(self.topic)
        self._counted = None

    def _begin_explicit(self) -> None:
        """The first values of explicit loadings; the activations are taken at totals that explain the events."""
        if self.explicit is not None:
            loading = torch.as_tensor(self.total / self.tokens.vocabulary_size)
            loading = loading.unsqueeze(1).expand(-1, self.tokens.vocabulary_size)
            self.explicit.begin(self._statistics(loading), self._generator)

    def _exposure(self, loading: Tensor) -> Array:
        """sum of b_kv over the observed entries, (N, K)."""
        return self.rows.exposure(loading.to(self.rows.counts.dtype)).double().numpy()

    def _statistics(self, loading: Tensor) -> tuple[Tensor, Tensor]:
        """Events and exposure (K, D) of explicit loadings, at activations drawn given these."""
        activation = self._draw_activation(self.rate + self._exposure(loading))
        return self._word_counts()[0], self.rows.sum_observed(activation.to(self.rows.counts.dtype)).double()

    def _shapes(self) -> Array:
        return np.asarray(self.document_topic + self.alpha, dtype=np.float64)

    def _draw_shapes(self, exposed: Array) -> Array:
        """Draw which activations are on and return the shapes of their posteriors (N, K), 0 for those that are off."""
        if not self.spike.any():
            return self._shapes()
        on = (self.document_topic > 0) | (self._generator.random(self.document_topic.shape) < self._on(exposed))
        return np.where(on, self._shapes(), 0.0)

    def _draw_activation(self, exposed: Array) -> Tensor:
        shape = self._draw_shapes(exposed)
        drawn = (self._generator.standard_gamma(shape) / exposed).clip(np.finfo(np.float64).tiny)
        return torch.as_tensor(np.where(shape > 0, drawn, 0.0))

    def _on(self, exposed: Array) -> Array:
        """Compute P(activation above 0 | no event); p(no event | from the Gamma) = (beta / (beta + B))^alpha."""
        none = (1 - self.spike) * (self.rate / exposed) ** self.alpha
        return none / (self.spike + none)

    def _weights(self) -> tuple[Array, Array, Array]:
        exposed = self.rate + self.total
        # Of a component without events in the row alpha times P(activation above 0 | none) stands for alpha: its odds
        # are p(1 event) / p(none).
        return self.alpha, self.alpha * self._on(exposed), self.total / exposed

    def _move_totals(self) -> None:
        """A slice step of every log B_k."""
        c, d = self.prior
        counts, rows = self.word_topic.sum(0), len(self.rows)
        used = (self.document_topic > 0).sum(0)
        power = torch.as_tensor(self.tokens.vocabulary_size * c + counts)
        events, unused = torch.as_tensor(used * self.alpha + counts), torch.as_tensor(rows - used)
        shape, rate, spike = (torch.as_tensor(part) for part in (self.alpha, self.rate, self.spike))
        here = torch.as_tensor(np.log(self.total))

        def density(t: Tensor) -> Tensor:
            u = here + t
            exposed = rate + u.exp()
            none = (spike + (1 - spike) * (rate / exposed) ** shape).log()
            return power * u - d * u.exp() - events * exposed.log() + unused * none

        width = torch.ones_like(here)
        self.total = (here + slice_step(density, width, self._generator)).exp().numpy()

    def _of_rows(self, exposed: Array) -> float:
        """log p(n_ik) of all rows' sums, but for the powers of the loadings; exposed: beta_k + B_ik."""
        counts = self.document_topic
        tails = _tails(counts)
        # Of every n_ik the product of alpha_k + j, j < n_ik, is its Gamma(alpha_k + n_ik) / Gamma(alpha_k).
        rise = (tails * np.log(np.arange(len(tails))[:, None] + self.alpha)).sum()
        rise += ((counts > 0).sum(0) * np.log1p(-self.spike)).sum()
        some = self.alpha * np.log(exposed / self.rate) + counts * np.log(exposed)
        none = np.log(self.spike + (1 - self.spike) * (self.rate / exposed) ** self.alpha)
        return float(rise + np.where(counts > 0, -some, none).sum())

    def log_joint(self) -> float:
        if self.explicit is not None:
            loading, nothing = self.explicit.value, torch.zeros(self.explicit.shape, dtype=torch.float64)
            rows = self._of_rows(self.rate + self._exposure(loading))
            return self.constant + rows + self.explicit.log_joint((self._word_counts()[0], nothing))
        c, d = self.prior
        size, counts = self.tokens.vocabulary_size * c, self.word_topic.sum(0)
        totals = (size + counts - 1) * np.log(self.total) - d * self.total + size * np.log(d) - gammaln(size)
        rows = self._of_rows(self.rate + self.total)
        return self.constant + rows + float(totals.sum()) + log_marginal_of_table(self.word_topic.T, self.gamma)

    def means(self) -> Params:
        exposed, on = self._rates(), 1.0
        if self.spike.any():
            on = np.where(self.document_topic > 0, 1.0, self._on(exposed))
        activation = torch.as_tensor(on * self._shapes() / exposed)
        if self.explicit is not None:
            return {"loading": self.explicit.value, "activation": activation}
        weight = self.word_topic.T + self.gamma
        loading = torch.as_tensor(self.total[:, None] * weight / weight.sum(1, keepdims=True))
        return {"loading": loading, "activation": activation}

    def _rates(self) -> Array:
        """beta_k + B_ik, (N, K); one for all rows, (1, K), where the loadings are integrated out."""
        if self.explicit is not None:
            return self.rate + self._exposure(self.explicit.value)
        return (self.rate + self.total)[None]

    def draw(self) -> Params:
        activation = self._draw_activation(self._rates())
        if self.explicit is not None:
            return {"loading": self.explicit.value, "activation": activation}
        share = Dirichlet(torch.as_tensor(self.word_topic.T + self.gamma)).draw(self._generator)
        return {"loading": torch.as_tensor(self.total)[:, None] * share, "activation": activation}

    def locals(self) -> Tensor:
        """Shapes, 0 of activations that are 0, and rates of the activations, (N, 2, K)."""
        exposed = self._rates()
        shape = self._draw_shapes(exposed)
        return torch.as_tensor(np.stack([shape, np.broadcast_to(exposed, shape.shape)], 1))

    def list_sampled(self) -> dict[str, str]:
        return {} if self.explicit is None else notes({"loading": self.explicit})

    def learn(self, *, latents: bool = True, components: bool = True) -> None:
        """Steps up log p(x, q) in alpha and beta, and in c and d where the loadings are integrated out."""
        if latents:
            self._learn_activation()
        if components and self.explicit is None:
            self.gamma = update_concentration(self.word_topic.T, self.gamma, symmetric=True)
            c = float(self.gamma[0])
            self.prior = c, c * self.tokens.vocabulary_size * len(self.total) / float(self.total.sum())

    def _learn_activation(self) -> None:
        """Fixed points of d log p / d alpha = sum_i [psi(alpha + n_i) - psi(alpha) - w_i log(1 + B_i / beta)] = 0 and
        of d log p / d beta = sum_i w_i [alpha / beta - (alpha + n_i) / (beta + B_i)] = 0, w_i the probability that the
        activation is above 0 (1 without spikes); rho is 1 less their mean. Components without events stay."""
        counts, exposure = self.document_topic, self._rates() - self.rate
        total, tails = counts.sum(0), _tails(counts)
        used, steps = (counts > 0).sum(0), np.arange(len(tails))[:, None]
        shape, rate, found = self.alpha, self.rate, total > 0
        for _ in range(_ROUNDS):
            on = self._on(self.rate + exposure)
            on = on * (len(counts) - used) + used if self.explicit is None else np.where(counts > 0, 1.0, on)
            size = on.sum(0)
            if self.explicit is None:
                rate = size * shape * exposure[0] / np.maximum(total, 1)
            else:
                rate = size * shape / (on * (shape + counts) / (rate + exposure)).sum(0)
            above = (tails / (shape + steps)).sum(0)
            shape = (shape * above / (on * np.log1p(exposure / rate)).sum(0)).clip(_LEAST, _MOST)
            self.alpha, self.rate = np.where(found, shape, self.alpha), np.where(found, rate, self.rate)
            shape, rate = self.alpha, self.rate
            if self.spike.any():
                self.spike = np.where(found, (1 - size / len(counts)).clip(_LEAST, 1 - _LEAST), self.spike)

    def with_fitted_priors(self, model: GammaPoisson) -> Model:
        spike = (self.spike,) if self.spike.any() else ()
        alpha, rate = torch.as_tensor(self.alpha), torch.as_tensor(self.rate)
        found = model.with_activation(alpha, rate, *spike)
        return found if self.explicit is not None else found.with_loading(*self.prior)


def _tails(counts: NDArray[np.int64]) -> Array:
    """How many rows have more than j events, (J, K): psi(a + n) - psi(a) = sum_{j < n} 1 / (a + j)."""
    size = int(counts.max(initial=0))
    found = np.zeros((size + 1, counts.shape[1]))
    for k, column in enumerate(counts.T):
        found[:, k] = np.bincount(column, minlength=size + 1)
    return found[::-1].cumsum(0)[::-1][1:]
