"""The locals' posterior of fits that hold draws of the globals: the average of the posteriors given each draw.

    p(s_n | x) = E[p(s_n | x_n, theta) | x],   about   1/S sum_s p(s_n | x_n, theta_s)

It differs from the posterior at the mean of the draws by as much as the globals are uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from custom_inference.compiled.posterior import FactorPosterior, estimate_divergence
from custom_inference.compiled.programs import engines_of_program
from custom_inference.compiled.structure import flatten
from custom_inference.core.engine import Params
from custom_inference.core.isolation import seed_of
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import is_feasible, solve_local
from custom_inference.core.posteriors import CodePosterior, ContinuousPosterior, GaussianPosterior, LocalPosterior
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import bind_rows
from custom_inference.core.programs.posteriors import ProgramPosterior
from custom_inference.core.programs.reference import best_reference, by_quadrature, count_reals, count_summed
from ppl_models import Data, Model

#: Draws that are averaged over, at most, evenly spaced over the chains; of large data so many that they take about
#: _PRODUCTS products of entries and values, but no fewer than _FEWEST.
AVERAGED, _FEWEST, _PRODUCTS = 200, 25, 2e10
#: Draws whose modes are compared, at most.
_MODES = 20


def mixture_over_draws(fit: Any) -> LocalPosterior | None:
    """The mixture of the exact posteriors of the training rows' latents, given draws of the globals.

    At most ``AVERAGED`` draws, evenly over all chains, of large data fewer. None where the fit holds no draws of the
    globals, or has drawn the locals with them; where the rows depend on each other; and where a posterior given the
    globals is no table over the same values for all rows.
    """
    model, draws = fit.model, fit.draws
    if draws is None or model.local_site in draws or not model.rows_are_independent:
        return None
    if not is_feasible(model, fit.data) or "conjugate" in engines_of_program(model):  # integrals, draw by draw
        return None
    varying = [site for site in model.global_sites if site in draws]
    if not varying:
        return None
    chains, length = draws[varying[0]].shape[:2]
    if is_own_of_rows(model):
        closed, reals = best_reference(model) == "closed form", count_reals(model)
        places = float(reals**2) if closed else count_summed(model, fit.data) * 25.0**reals
    else:
        places = model.local_shape[0] if model.code_bits is None else 2.0**model.code_bits
    number = min(chains * length, AVERAGED, max(_FEWEST, int(_PRODUCTS / (places * fit.data.x.numel()))))
    total, codes, apart = None, None, []
    kind: Any = CodePosterior
    taken = [divmod(place * chains * length // number, length) for place in range(number)]
    values = (fit.globals | {site: draws[site][place] for site in varying} for place in taken)
    for posterior in posteriors_along(model, values, fit.data, seed=fit.seed):
        own = type(posterior) is GaussianPosterior and is_own_of_rows(model)
        if own or isinstance(posterior, ProgramPosterior | FactorPosterior):
            apart.append(posterior)
            continue
        if not posterior.shared:
            return None
        # One draw at a time: no more than two tables are held.
        codes, log_weight = posterior.table()
        total, kind = log_weight if total is None else torch.logaddexp(total, log_weight), type(posterior)
    if apart:
        mixture: Any = FactorMixture if type(apart[0]) is FactorPosterior else DrawsMixture
        return mixture(tuple(apart), torch.stack([one.mean for one in apart]).mean(0))
    assert total is not None and codes is not None
    return kind(codes, total - math.log(number))


def posteriors_along(model: Model, values: Iterable[Params], data: Data, *, seed: int) -> Iterator[LocalPosterior]:
    """The posteriors of the locals at one value of the globals after the other: quadrature goes on from where it was at
    the one before, and a compiled program reads the rows once."""
    density, about, rows = None, None, None
    how = best_reference(model) if is_own_of_rows(model) else None
    integrates = how == "quadrature"
    for params in values:
        if how == "enumeration":
            if density is None:
                density = RowDensity.of(model, params, data)
                rows = bind_rows(density)
            if rows is not None:
                yield FactorPosterior.of(rows, flatten(rows, params))
                continue
        if not integrates:
            yield solve_local(model, params, data, seed=seed, evidence=False).posterior
            continue
        density = RowDensity.of(model, params, data) if density is None else density.at(params)
        posterior: Any = by_quadrature(density, start=about).posterior
        density, about = posterior.density, posterior.gaussians
        yield posterior


@dataclass(frozen=True)
class _Mixture(LocalPosterior):
    """The average of the posteriors of a program's latents given draws of its globals: ``given``, and their mean."""

    given: tuple[Any, ...]
    average: Annotated[Tensor, "*"]

    stored = False

    @property
    def mean(self) -> Tensor:
        return self.average

    @property
    def variance(self) -> Tensor:
        """The mean of the variances plus the variance of the means."""
        means = torch.stack([one.mean for one in self.given])
        return torch.stack([one.variance for one in self.given]).mean(0) + means.var(0, correction=0)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        """A draw of each row from the posterior given a draw of the globals, which all rows share."""
        chosen = torch.randint(len(self.given), (num_samples,), generator=torch.Generator().manual_seed(seed))
        return torch.stack(
            [self.given[i].sample(1, seed=seed_of(seed, "locals", n))[0] for n, i in enumerate(chosen.tolist())]
        )

    def log_prob(self, source: Tensor) -> Tensor:
        each = torch.stack([one.log_prob(source) for one in self.given])
        return each.logsumexp(0) - math.log(len(self.given))

    def to(self, device: torch.device | str) -> Any:
        return type(self)(tuple(one.to(device) for one in self.given), self.average.to(device))

    def rows(self, index: Tensor | slice) -> Any:
        return type(self)(tuple(one.rows(index) for one in self.given), self.average[index])


class DrawsMixture(_Mixture, ContinuousPosterior):
    """The mixture of posteriors with densities."""


class FactorMixture(_Mixture):
    """The mixture of posteriors in factors, of latents that have too many values together for a table."""

    tabulated = False

    @property
    def mode(self) -> Tensor:
        """The most probable, under the mixture, of the most probable values given each of some draws."""
        number = min(len(self.given), _MODES)
        modes = torch.stack([self.given[len(self.given) * n // number].mode for n in range(number)])
        best = self.log_prob(modes).argmax(0)
        return modes[best, torch.arange(len(best), device=best.device)]

    def table(self) -> tuple[Tensor, Tensor]:
        return self.given[0].table()  # which refuses so many values

    def table_of(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return the values (S, w) of one latent, and their log-probabilities (N, S); None where there are too many."""
        tables = [one.table_of(name) for one in self.given]
        if tables[0] is None:
            return None
        each = torch.stack([log_weight for _, log_weight in tables])
        return tables[0][0], each.logsumexp(0) - math.log(len(tables))

    def divergence_from(self, q: LocalPosterior, *, seed: int = 0) -> Tensor:
        """Return the mean over draws of q, an estimate of KL(q || this), (N,)."""
        return estimate_divergence(q, self, seed=seed)
