"""Replicated softmax: documents whose word logits add up over binary hidden units; an undirected relative of LDA.

Murphy (2012), eq. 27.129 (Salakhutdinov & Hinton, *Replicated softmax*, NIPS 2009), in which all tokens have one
visible bias. A document of L tokens, n_v of them word v, is a machine of L softmax units that share their weights:

    p(y_1 ... y_L, h | L) = exp(b'n + L c'h + h'W n) / Z_L
    y_l | h      ~ Cat(softmax(b + W'h))                                                                   (eq. 27.106)
    p(h_k = 1 | n) = sigmoid(L c_k + (W n)_k)                                                              (eq. 27.107)
    p(h | L)     = exp(L (c'h + log sum_v exp(b_v + (W'h)_v))) / Z_L

The lengths are given. The sums over the hidden layer are the same for all of them: log Z_L = log sum_h exp(L a(h)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import COUNTS, WordCounts
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.distributions import Energy, Harmonium
from ppl_models.distributions.tokens import SoftmaxTokens
from ppl_models.likelihoods import Categorical
from ppl_models.rbm import HarmoniumModel


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplicatedSoftmax(WordCounts, HarmoniumModel):
    """Replicated softmax: documents whose word logits add up over K binary hidden units.

    document_length: tokens of a document that the program generates. The length of observed documents is given.

    Sites
    -----
    weight: W (K, V); Normal(0, 1) by default.
    visible_bias: b (V,), the logits without hidden units; Normal(0, 5) by default.
    hidden_bias: c (K,), of every token; Normal(0, 1) by default.
    hidden: h (N, K), one event vector a document.
    x: (N, V), observed, word counts, dense or sparse. log p(x) is that of the tokens in their order.

    A number added to all weights of a unit and taken from its bias changes nothing, nor does one added to all b.
    """

    num_hidden: int
    num_features: int
    document_length: int = 100

    axes: ClassVar[Mapping[str, str]] = {"component": "num_hidden", "word": "num_features"}
    whole_fields: ClassVar[tuple[str, ...]] = ("document_length",)
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "word")),
        "visible_bias": Site("global", ("word",)),
        "hidden_bias": Site("global", ("component",)),
        "hidden": Site("latent", ("component",), ("document",), constraints.boolean),
        "x": COUNTS,
    }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[DocumentPlate]) -> Tensor:
        weight = self.sample("weight")
        visible_bias = self.sample("visible_bias")
        hidden_bias = self.sample("hidden_bias")
        site = {"weight": weight, "visible_bias": visible_bias, "hidden_bias": hidden_bias}
        with self.documents(x, **plate) as documents:
            times = torch.as_tensor(documents.lengths).to(weight).expand(documents.number).unsqueeze(-1)
            harmonium: Any = Harmonium(self.energy_of_rows(site, times))
            hidden = pyro.sample("hidden", harmonium)
            logits = self.natural(site, hidden)
            return documents.observe("x", SoftmaxTokens(logits, documents.lengths, coefficient=self.coefficient))

    @property
    def likelihood(self) -> Categorical:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The likelihood of one token."""
        return Categorical(self.num_features)

    def default_priors(self) -> dict[str, Any]:
        return {
            "weight": dist.Normal(0.0, 1.0),
            "visible_bias": dist.Normal(0.0, 5.0),
            "hidden_bias": dist.Normal(0.0, 1.0),
        }

    def times(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the documents' lengths, (N, 1); the tokens of masked entries are left out."""
        return _sparse.row_sums(x if mask is None else torch.where(mask, x, torch.zeros_like(x))).unsqueeze(-1)

    def energy_of_rows(self, site: Mapping[str, Tensor], times: Tensor | None) -> Energy:
        """Return the exponent of documents of these lengths (N, 1)."""
        energy = self.energy(site)
        assert times is not None
        times = times.to(energy.weight)
        return energy.of_rows(energy.hidden_bias.unsqueeze(-2) * times, times)

    def num_unseen(self, num_rows: int) -> int:
        """Count a number that may be added to the logits of all words, in the biases and in each unit's weights."""
        del num_rows
        return ("visible_bias" in self.unknown_sites) + self.num_hidden * ("weight" in self.unknown_sites)

    @classmethod
    def example(cls) -> Example:
        """Two hidden units over six words, eighty documents of six to fourteen tokens, drawn exactly."""
        rng = np.random.default_rng(33)
        weight = np.array([[1.2, 1.0, 0.8, -0.5, -0.5, -0.5], [-0.5, -0.5, 0.6, 1.2, 0.8, -0.5]])
        bias, hidden_bias = np.array([0.2, -0.1, 0.0, 0.3, -0.2, 0.1]), np.array([-0.45, -0.4])
        codes = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
        logit = bias + codes @ weight
        each = codes @ hidden_bias + np.log(np.exp(logit).sum(1))
        hidden, x = np.zeros((80, 2)), np.zeros((80, 6))
        for n, length in enumerate(rng.integers(6, 15, 80)):
            share = np.exp(length * (each - each.max()))
            state = rng.choice(4, p=share / share.sum())
            hidden[n], chance = codes[state], np.exp(logit[state])
            x[n] = rng.multinomial(length, chance / chance.sum())
        truth = {"weight": weight, "visible_bias": bias, "hidden_bias": hidden_bias, "hidden": hidden}
        return Example.of(cls(num_hidden=2, num_features=6), x, truth)
