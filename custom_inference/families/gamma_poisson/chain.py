"""One chain of collapsed Gibbs sampling of gamma-Poisson factor analysis: the components of all events.

Every event of a row has a component q, as the tokens of a document have topics. Write b_kv = B_k phi_kv: under
Gamma(c, d) priors B_k ~ Gamma(D c, d) and phi_k ~ Dirichlet(c) are independent. With n_ik events of component k in row
i, n_kv of feature v, n_k of all, activations and phi integrated out,

    log p(x, q, B) = sum_ik [log G(alpha_k + n_ik) / G(alpha_k) + alpha_k log beta_k]
                     - sum_ik (alpha_k + n_ik) log(beta_k + B_k)
                     + sum_k [n_k log B_k + log Gamma(B_k; D c, d) + log E prod_v phi_kv^n_kv] - sum_iv log x_iv!

so that an event's component is drawn as a token's topic in LDA, with one factor more (002, eq. 27.37):

    p(q = k | rest) ~ (n_ik + alpha_k) (n_kv + c) / (n_k + D c) * B_k / (beta_k + B_k),

and B_k by a slice step of its logarithm. Where entries are missing, or the loadings' prior is another, loadings are a
value of the state instead (blocked Gibbs): p(q = k | rest) ~ (n_ik + alpha_k) b_kv / (beta_k + B_ik), then activations
given the components, then loadings given both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from custom_inference.families.common.explicit import Explicit, notes
from custom_inference.families.common.slices import slice_step
from custom_inference.families.gamma_poisson.common import EventRows
from custom_inference.families.topics.chain import (
    LdaChain,
    TokenList,
    drawn_dirichlet,
    fixed_point,
    log_moment,
    sweep_topics,
)
from custom_inference.gibbs.protocol import Params
from ppl_models import Model

#: Rounds of a step of the learned shapes and rates.
_ROUNDS = 10
#: Learned shapes stay between these: a component that has no event would never come back from 0.
_LEAST, _MOST = 1e-4, 1e4

Array = NDArray[np.float64]


class GapChain(LdaChain):
    """The components of all events, the totals B of the loadings' rows, or the loadings themselves.

    shape, rate (K,): alpha and beta. prior: c and d. given: loadings (K, D) to draw the first components from.
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
        given: Tensor | None = None,
        explicit: Explicit | None = None,
    ):
        self.rows, self.rate, self.prior = rows, rate, prior
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
        if self.explicit is None:
            self._sweep_integrated()
            self._move_totals()
            return
        if self._begun:
            self._sweep_at(self.explicit.value)
            self.explicit.update(self._statistics(self.explicit.value), self._generator)
            return
        self._sweep_integrated()
        self._begin_explicit()
        self._begun = True

    def _sweep_at(self, loading: Tensor) -> None:
        exposed = self.rate + self._exposure(loading)
        first = self._first(exposed.mean(0))
        sweep_topics(self.tokens, self.topic, self.alpha, loading, self._rng, first=first, weight=1 / exposed)
        self.assign(self.topic)

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
        activation = self._drawn_activation(self._shapes(), self.rate + self._exposure(loading))
        return self._word_counts()[0], self.rows.exposed(activation.to(self.rows.counts.dtype)).double()

    def _shapes(self) -> Array:
        return np.asarray(self.document_topic + self.alpha, dtype=np.float64)

    def _drawn_activation(self, shape: Array, rate: Array) -> Tensor:
        return torch.as_tensor((self._generator.standard_gamma(shape) / rate).clip(np.finfo(np.float64).tiny))

    def _first(self, exposed: Array) -> Array:
        """alpha (K,) of a component without events in the row."""
        del exposed
        return self.alpha

    def _weights(self) -> tuple[Array, Array, Array]:
        exposed = self.rate + self.total
        return self.alpha, self._first(exposed), self.total / exposed

    def _move_totals(self) -> None:
        """A slice step of every log B_k."""
        c, d = self.prior
        counts, rows = self.word_topic.sum(0), len(self.rows)
        power = torch.as_tensor(self.tokens.vocabulary_size * c + counts)
        events, rate = torch.as_tensor(rows * self.alpha + counts), torch.as_tensor(self.rate)
        here = torch.as_tensor(np.log(self.total))

        def density(t: Tensor) -> Tensor:
            u = here + t
            return power * u - d * u.exp() - events * (rate + u.exp()).log()

        width = torch.ones_like(here)
        self.total = (here + slice_step(density, width, self._generator)).exp().numpy()

    def _of_rows(self, exposed: Array) -> float:
        """log p(n_ik) of all rows' sums, but for the powers of the loadings; exposed: beta_k + B_ik."""
        counts = self.document_topic
        row, column = counts.nonzero()
        own = self.alpha[column]
        rise = (gammaln(counts[row, column] + own) - gammaln(own)).sum()
        return float(rise - (self.alpha * np.log(exposed / self.rate) + counts * np.log(exposed)).sum())

    def log_joint(self) -> float:
        if self.explicit is not None:
            loading, nothing = self.explicit.value, torch.zeros(self.explicit.shape, dtype=torch.float64)
            rows = self._of_rows(self.rate + self._exposure(loading))
            return self.constant + rows + self.explicit.log_joint((self._word_counts()[0], nothing))
        c, d = self.prior
        size, counts = self.tokens.vocabulary_size * c, self.word_topic.sum(0)
        totals = (size + counts - 1) * np.log(self.total) - d * self.total + size * np.log(d) - gammaln(size)
        rows = self._of_rows(np.broadcast_to(self.rate + self.total, self.document_topic.shape))
        return self.constant + rows + float(totals.sum()) + log_moment(self.word_topic.T, self.gamma)

    def means(self) -> Params:
        return {"loading": self._mean_loading(), "activation": self._mean_activation()}

    def _mean_loading(self) -> Tensor:
        if self.explicit is not None:
            return self.explicit.value
        weight = self.word_topic.T + self.gamma
        return torch.as_tensor(self.total[:, None] * weight / weight.sum(1, keepdims=True))

    def _mean_activation(self) -> Tensor:
        return torch.as_tensor(self._shapes() / self._rates())

    def _rates(self) -> Array:
        """beta_k + B_ik, (N, K)."""
        if self.explicit is not None:
            return self.rate + self._exposure(self.explicit.value)
        return np.broadcast_to(self.rate + self.total, self.document_topic.shape)

    def draw(self) -> Params:
        activation = self._drawn_activation(self._shapes(), self._rates())
        if self.explicit is not None:
            return {"loading": self.explicit.value, "activation": activation}
        share = drawn_dirichlet(self.word_topic.T + self.gamma, self._generator)
        return {"loading": torch.as_tensor(self.total)[:, None] * share, "activation": activation}

    def locals(self) -> Tensor:
        """Shapes and rates of the activations, (N, 2, K)."""
        return torch.as_tensor(np.stack([self._shapes(), self._rates()], 1))

    def sampled(self) -> dict[str, str]:
        return {} if self.explicit is None else notes({"loading": self.explicit})

    def learn(self) -> None:
        """Steps up log p(x, q) in alpha and beta, and in c and d where the loadings are integrated out."""
        self._learn_activation()
        if self.explicit is None:
            self.gamma = fixed_point(self.word_topic.T, self.gamma, symmetric=True)
            c = float(self.gamma[0])
            self.prior = c, c * self.tokens.vocabulary_size * len(self.total) / float(self.total.sum())

    def _learn_activation(self) -> None:
        """Fixed points of d log p / d alpha = sum_i [psi(alpha + n_i) - psi(alpha) - log(1 + B_i / beta)] = 0 and of
        d log p / d beta = sum_i [alpha / beta - (alpha + n_i) / (beta + B_i)] = 0; components without events stay."""
        counts, exposure = self.document_topic, self._rates() - self.rate
        if self.explicit is None:
            exposure = exposure[:1]
        rows, total = len(counts), counts.sum(0)
        tails = _tails(counts)
        steps = np.arange(len(tails))[:, None]
        repeat = rows / len(exposure)
        shape, rate = self.alpha, self.rate
        for _ in range(_ROUNDS):
            if self.explicit is None:
                rate = rows * shape * exposure[0] / np.maximum(total, 1)
            else:
                mean = (shape + counts) / (rate + exposure)
                rate = rows * shape / mean.sum(0)
            above = (tails / (shape + steps)).sum(0)
            shape = (shape * above / (repeat * np.log1p(exposure / rate).sum(0))).clip(_LEAST, _MOST)
        found = total > 0
        self.alpha, self.rate = np.where(found, shape, self.alpha), np.where(found, rate, self.rate)

    def fitted_model(self, model: Any) -> Model:
        found = model.with_activation(self.alpha, self.rate)
        return found if self.explicit is not None else found.with_loading(*self.prior)


def _tails(counts: NDArray[np.int64]) -> Array:
    """How many rows have more than j events, (J, K): psi(a + n) - psi(a) = sum_{j < n} 1 / (a + j)."""
    size = int(counts.max(initial=0))
    found = np.zeros((size + 1, counts.shape[1]))
    for k, column in enumerate(counts.T):
        found[:, k] = np.bincount(column, minlength=size + 1)
    return found[::-1].cumsum(0)[::-1][1:]
