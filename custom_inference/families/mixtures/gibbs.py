"""Collapsed Gibbs sampling of mixtures: the class of every row, proportions and components integrated out.

Those whose priors are not conjugate are values of the chain's state (``common.explicit``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln
from torch import Tensor

from custom_inference.core.engine import EStep
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import CodePosterior
from custom_inference.families.common.explicit import Explicit, notes, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.pair import array
from custom_inference.families.mixtures.common import Density, of_classes
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.engines import MixtureExact, MixtureVB
from custom_inference.families.mixtures.moves import continue_em
from custom_inference.families.mixtures.rows import MixtureRows
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse


class MixtureChain(Chain):
    """The classes of all rows.

    assignment: (N,) int64, -1 before the first sweep. responsibility: (N, K), what each was last drawn with.
    given: log p(x_n, z_n = k) at values of the globals that the first classes are drawn from; without it the first
        sweep draws each given those before it.
    explicit: globals that are values of the state; ``model`` has conjugate priors in their place.
    """

    def __init__(
        self,
        model: Model,
        density: Density,
        rows: MixtureRows,
        seed: int,
        given: Tensor | None = None,
        explicit: Mapping[str, Explicit] | None = None,
    ):
        self.density, self.rows, self.explicit = density, rows, explicit or {}
        self.prior = density.prior(model, rows.like)
        self.proportion_prior = Dirichlet.of(model, "mixing_proportion", rows.like).expand(model.local_shape)
        self.num_classes = model.local_shape[0]
        self._rng = np.array([seed % 2**64], np.uint64)
        self._generator = np.random.default_rng(seed % 2**64)
        self.assignment = np.full(len(rows), -1, np.int64)
        self.responsibility = np.zeros((len(rows), self.num_classes))
        if given is not None:
            odds = array(torch.softmax(given, -1)).cumsum(1)
            below = odds < self._generator.random((len(rows), 1)) * odds[:, -1:]
            self.assignment = below.sum(1).clip(max=self.num_classes - 1)
        self._weight = array(self.proportion_prior.concentration).copy()
        self._size = _whole(self._statistics()[0])
        self._arguments = self._of_rates() if density.events else self._of_simplices()
        self._table: NDArray[np.float64] | None = None
        self._begun = False
        if given is not None:
            self._draw_explicit()

    def sweep(self) -> None:
        """Draw a new class for every row, then new values of what is explicit; other threads may run meanwhile."""
        from custom_inference.families.mixtures import gibbs_kernels as kernels

        step = 0 if self._begun and "mixing_proportion" in self.explicit else 1
        if self._table is None:
            sweep: Any = kernels.sweep_rates if self.density.events else kernels.sweep_simplices
            sweep(*self._arguments, self.responsibility, self._rng, step)
        else:
            state = self.assignment, self._weight, self._size, self.responsibility, self._rng
            kernels.sweep_given(self._table, *state, step)
        self._draw_explicit()

    def _draw_explicit(self) -> None:
        """Draw new values of what is explicit, given the classes; the sweeps to come are at these."""
        for site, statistics in self._explicit_statistics().items():
            one = self.explicit[site]
            if not self._begun:
                one.begin(statistics, self._generator)
            one.update(statistics, self._generator)
            if site == "mixing_proportion":
                self._weight[:], self._size[:] = array(one.value), 0
            else:
                self._table = np.ascontiguousarray(array(self.rows.table(*self.density.natural(one.value))))
        self._begun = True

    def _explicit_statistics(self) -> dict[str, tuple[Tensor, ...]]:
        """Return the counts of the classes that every explicit site depends on."""
        if not self.explicit:
            return {}
        size, counts, observed = self._statistics()
        said = self.density.statistics(counts, observed)
        if self.density.pair is Beta:  # successes and trials, of which explicit sites read failures
            said = said[0], (said[1] - said[0]).clamp(min=0)
        components = tuple(part.expand_as(counts) for part in said)
        found = {"mixing_proportion": (size,), self.density.site: components}
        return {site: tuple(part.reshape(one.shape) for part in found[site]) for site, one in self.explicit.items()}

    def _of_simplices(self) -> tuple[NDArray[Any], ...]:
        """Return the arguments of the compiled sweep of words, categories or successes."""
        _, *statistics = self._statistics()
        density: Any = self.density
        rows, prior, counts, groups = density.cells(self.rows, self.prior, *statistics)
        layout = (_whole(part) for part in (rows.crow_indices(), rows.col_indices(), rows.values()))
        sizes = np.full(groups, counts.shape[1] // groups) if isinstance(groups, int) else np.array(groups)
        group = np.repeat(np.arange(len(sizes)), sizes)
        prior, table = _transpose(prior), _transpose(counts).astype(np.int64)
        mass, totals = (np.add.reduceat(value, sizes.cumsum() - sizes, axis=0) for value in (prior, table))
        return *layout, group, self.assignment, self._weight, prior, mass, self._size, table, totals

    def _of_rates(self) -> tuple[NDArray[Any], ...]:
        """Return the arguments of the compiled sweep of events."""
        _, counts, observed = self._statistics()
        x, mask = _sparse.dense(self.rows.counts), self.rows.mask
        seen = torch.ones_like(x) if mask is None else mask
        events, exposure = (_transpose(value.expand_as(counts)).astype(np.int64) for value in (counts, observed))
        prior = (_transpose(part) for part in self.prior)
        return _whole(x), _whole(seen), self.assignment, self._weight, *prior, self._size, events, exposure

    def _statistics(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sum n (K,), S (K, F) and M (K, D) over the present classes; rows without one count in none."""
        classes = torch.arange(self.num_classes)
        chosen = (torch.as_tensor(self.assignment)[:, None] == classes).to(self.rows.like)
        counts, observed = self.rows.collect(chosen), self.rows.sum_observed(chosen)
        return chosen.sum(0), counts, chosen.sum(0).unsqueeze(-1) if observed is None else observed

    def log_joint(self) -> float:
        """Compute log p(x, z) = log p(z | alpha) + sum_k log m(S_k, M_k), and what does not depend on the classes; of
        explicit sites their prior and the likelihood at their values instead."""
        explicit = {site: self.explicit[site].log_joint(one) for site, one in self._explicit_statistics().items()}
        size, counts, observed = self._statistics()
        constant, marginal = self.rows.base.double().sum(), explicit.get(self.density.site)
        if marginal is None:
            marginal = self.density.log_marginal(self.prior, counts, observed).double().sum()
        if "mixing_proportion" in explicit:
            return float(explicit["mixing_proportion"] + marginal + constant)
        # In this order: chains of the same classes under other names tie but for rounding, and ranks hang on that.
        number, alpha = array(size), array(self.proportion_prior.concentration)
        proportions, mass = gammaln(alpha + number) - gammaln(alpha), alpha.sum()
        return float(proportions.sum() + marginal + (constant + gammaln(mass) - gammaln(mass + number.sum())))

    def list_sampled(self) -> dict[str, str]:
        return notes(self.explicit)

    def _posteriors(self) -> dict[str, Any]:
        size, counts, observed = self._statistics()
        components = self.density.in_site_shape(self.density.update(self.prior, counts, observed))
        return {"mixing_proportion": self.proportion_prior.update(size), self.density.site: components}

    def means(self) -> Params:
        """Return E[globals | z, x], and the present values of explicit ones."""
        found = {site: posterior.mean.double() for site, posterior in self._posteriors().items()}
        return found | {site: one.value for site, one in self.explicit.items()}

    def draw(self) -> Params:
        """Draw the globals from p(globals | z, x) by the chain's own random state; explicit ones have their present
        values."""
        found = {site: one.draw(self._generator) for site, one in self._posteriors().items()}
        return found | {site: one.value for site, one in self.explicit.items()}

    def locals(self) -> Tensor:
        """Return the probabilities that each row's class was last drawn with, (N, K): their mean over draws is less
        noisy than that of the classes themselves (Rao-Blackwell)."""
        return torch.as_tensor(self.responsibility.copy())

    def indicators(self) -> Tensor:
        """Return the class of every row, (N,)."""
        return torch.as_tensor(self.assignment.copy())


class MixtureSampler(Sampler):
    """Chains of :class:`MixtureChain`, for every mixture."""

    def check(self, model: Model, data: Data) -> None:
        with_references(model)

    def chain(self, model: Model, data: Data, seed: int, start: Params | None) -> Chain:
        engine = MixtureExact()
        conjugate, explicit = with_references(model)
        rows = engine.rows(conjugate, data.to(dtype=torch.float64) if explicit else data)
        given = None if start is None else engine.log_joint(model, {s: v.to(rows.like) for s, v in start.items()}, rows)
        chain = MixtureChain(conjugate, density_of(model), rows, seed, given, explicit)
        return with_hyper_parameters(model, chain, explicit, seed, start)

    def propose(self, model: Model, data: Data, seed: int) -> Params:
        """Propose an optimum of variational Bayes, each of a search of its own: rows that are drawn one after the other
        into empty classes would all join the first where most of their entries are alike, and never leave it."""
        conjugate, engine = with_references(model)[0], MixtureVB()
        rows, generator = engine.rows(conjugate, data), torch.Generator().manual_seed(seed % 2**63)
        state = engine.propose(conjugate, rows, generator, 0)
        state = engine.refine(
            conjugate, rows, continue_em(engine, conjugate, rows, state).state, generator, agreed=True
        )
        values = state.values(conjugate)
        if exchangeable(model) == [[*range(conjugate.local_shape[0])]]:
            return values
        order = _find_names(conjugate, rows, engine.e_step(conjugate, state, rows))
        return {site: value[order] for site, value in values.items()}

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        probability = locals_.mean(0)
        posterior = CodePosterior(torch.eye(probability.shape[1]).to(data.x), torch.log(probability).to(data.x))
        return Local(posterior, no_bound(len(data), data.x))


def _find_names(model: Model, rows: MixtureRows, step: EStep) -> Tensor:
    """Return which class of an E step is each of the model's, whose priors tell them apart: log p(x, z) is a sum of
    what every class has under the prior of its name, and the assignment is the one that is best in all."""
    density, size, (counts, observed) = density_of(model), step.statistics["rows"], of_classes(step.statistics)
    alpha = Dirichlet.of(model, "mixing_proportion", rows.like).expand(model.local_shape).concentration
    prior = density.prior(model, rows.like)
    score = torch.lgamma(alpha.unsqueeze(1) + size) - torch.lgamma(alpha).unsqueeze(1)
    for k in range(len(score)):
        score[k] += density.log_marginal(prior.map(lambda part, k=k: part[k : k + 1]), counts, observed)
    return torch.as_tensor(linear_sum_assignment(array(score), maximize=True)[1])


def _transpose(value: Tensor) -> NDArray[np.float64]:
    return np.ascontiguousarray(array(value).T)


def _whole(value: Tensor) -> NDArray[np.int64]:
    return value.cpu().numpy().astype(np.int64)
