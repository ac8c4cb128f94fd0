"""The protocol of models that ``CollapsedGibbs`` runs, and which models have it."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.local_inference import Local, solve_local
from custom_inference.core.registry import family_of, under_prior
from custom_inference.core.states import Params as Params
from ppl_models import Data, MethodError, Model

#: Which concentrations are learned: all, none, or those of the priors that were not stated.
Learn = bool | Literal["defaults"]


def require_learn(learn: Learn) -> None:
    """Raise MethodError for what is no such choice."""
    if learn not in (False, True, "defaults"):
        raise MethodError(f"learn = {learn!r}, expected False, True or 'defaults'")


def may_learn(learn: Learn, model: Model, site: str) -> bool:
    """Whether the prior of a site is learned: one that was stated is not, unless all are asked for."""
    return learn is True or (learn == "defaults" and site not in model.chosen_priors)


class Chain(abc.ABC):
    """A chain: indicators q are sampled one at a time, everything with a conjugate prior is integrated out.

    Globals with other priors are values of its state: they take the place of their means and draws, and their log
    prior density is part of ``log_joint``.

    A chain is a function of its seed: it holds a random state of its own and touches no other. It runs in a thread of
    its own, so ``sweep`` and ``log_joint`` should leave the interpreter free where they take long.
    """

    #: Whether Ctrl-C came while chains were made: they go no further than one sweep.
    interrupted: bool = False

    @abc.abstractmethod
    def sweep(self) -> None:
        """Sample a new value of every indicator. The first sweep gives values to those that have none yet."""

    @abc.abstractmethod
    def log_joint(self) -> float:
        """log p(x, q), the globals and the locals' proportions integrated out, with every constant."""

    @abc.abstractmethod
    def means(self) -> Params:
        """E[s | q, x] of the global sites, and of the local site where it is continuous, at the present indicators.

        Averaged over draws they estimate posterior means best (Rao-Blackwell)."""

    @abc.abstractmethod
    def draw(self) -> Params:
        """A draw from p(. | q, x) of the global sites, and of the local site (N, ...)."""

    @abc.abstractmethod
    def indicators(self) -> Tensor:
        """q, whole numbers below the number of components; negative where something has none."""

    @abc.abstractmethod
    def locals(self) -> Tensor:
        """Return what determines p(local_i | q, x) of every row, (N, ...): see :meth:`Sampler.local_of_draws`."""

    def profile(self) -> Tensor | None:
        """What the components are matched by, (K, ...), from one draw to the next and between chains; None: their
        values in :meth:`means`."""
        return None

    def list_sampled(self) -> dict[str, str]:
        """Globals that are not integrated out but values of the chain's state, each with what the status says of it."""
        return {}

    def evidence(self) -> float | None:
        """An estimate of log p(x, q) summed over the mode that the chain is in; None where there is none: chains are
        then compared by log p(x, q) itself."""
        return None

    def remark(self) -> str:
        """Return a remark on the chain's mode if it is worth little; by default nothing."""
        return ""

    def watch(self) -> dict[str, float]:
        """Numbers of the present state, by name, by which chains are compared too; by default none."""
        return {}

    def learn(self, *, latents: bool = True, components: bool = True) -> None:  # noqa: B027 - an empty default is meant
        """Take one ascent step of log p(x, q) in the concentrations of the priors of the rows' latents and of the
        components; by default they stay."""

    def with_fitted_priors(self, model: Model) -> Model:
        """The model with the concentrations that were learned."""
        return model


class Sampler(abc.ABC):
    """Makes the chains of one type of model, and reads the locals off them."""

    #: Whether chains learn concentrations.
    learns: ClassVar[bool] = False
    #: Whether components of draws are matched with those before; not where chains order or turn their draws themselves.
    matched: ClassVar[bool] = True
    #: Whether chains of all draws are compared once these are there (``settle``).
    compares: ClassVar[bool] = False
    #: Where set, draws of a site with more entries than this are thinned rather than left out.
    entries: ClassVar[int | None] = None
    #: What ``Chain.log_joint`` is, where it is not log p(x, q).
    target: ClassVar[str | None] = None

    def exchangeable(self, model: Model) -> list[list[int]]:
        """The sets of components that may change places in draws: by default those that are exchangeable under the
        model's priors and known values."""
        return exchangeable(model)

    def check(self, model: Model, data: Data) -> None:  # noqa: B027 - an empty default is meant
        """Refuse, before anything runs, priors under which there is no posterior to sample, or no way to."""

    @abc.abstractmethod
    def chain(self, model: Model, data: Data, seed: int, start: Params | None) -> Chain:
        """A chain that has not swept yet; ``start`` holds values of the globals to draw the first indicators from."""

    def chains(self, model: Model, data: Data, seeds: Sequence[int], starts: Sequence[Params | None]) -> list[Chain]:
        """Chains by their seeds and starts; by default each on its own."""
        return [self.chain(model, data, *each) for each in zip(seeds, starts, strict=True)]

    def propose(self, model: Model, data: Data, seed: int) -> Params | None:
        """Values of the globals near a good mode to start a chain from; by default none: it starts from the prior."""
        return None

    def starts(self, model: Model, data: Data, seeds: list[int]) -> list[Params | None]:
        """Propose the starts of several chains; by default each by its own seed."""
        return [self.propose(model, data, seed) for seed in seeds]

    @abc.abstractmethod
    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        """The posterior of the training rows' locals from those of the draws (S, N, ...), each already reordered to
        the labels that are reported; the bound is NaN."""

    def keep_each(
        self, means: list[Params], draws: list[dict[str, list[Tensor]]], locals_: list[list[Tensor]]
    ) -> Params:
        """What predictions average over all chains, in whatever modes these are, from each one's means of the globals,
        its draws of them and of the locals: tensors (chain, ...), by names that begin with "each_"; by default
        nothing."""
        del means, draws, locals_
        return {}

    def settle(self, model: Model, records: list[Any]) -> list[Any]:
        """Bring the draws of all chains into one order, where chains are not ``matched`` but ``compares``; return the
        chains that are in the mode of the first."""
        del model
        return records

    def list_watched(self, records: Sequence[Any]) -> dict[str, Any]:
        """Return what chains are compared by, (chain, draw, ...), beside what they watch; by default nothing."""
        del records
        return {}

    def relabel(self, locals_: Tensor, order: Tensor) -> Tensor:
        """``Chain.locals`` with components in another order; by default they are the last axis."""
        return locals_[..., order]

    def local_posterior(self, model: Model, params: Params, data: Data, *, seed: int = 0) -> Local:
        """The posterior of the locals at given globals; by default the model's own."""
        return solve_local(model, params, data, seed=seed)


def sampler_of(model: Model) -> Sampler:
    """The sampler of a model. Raises MethodError where there is none."""
    make = family_of(model).sampler
    if make is None:
        kind = type(model).__name__ + under_prior(model)
        raise MethodError(f"{kind} has no collapsed Gibbs sampler; use NUTS, or VariationalEM")
    return make()


def draw_locals(chain: Chain, warmup: int, draws: int, thin: int = 1) -> Tensor:
    """Run a chain; return what determines the posteriors of the rows in so many draws, (S, N, ...)."""
    for _ in range(warmup):
        chain.sweep()
    found = []
    for _ in range(draws):
        for _ in range(thin):
            chain.sweep()
        found.append(chain.locals())
    return torch.stack(found)


def no_bound(rows: int, like: Tensor) -> Tensor:
    """(N,) NaN: draws give no bound."""
    return torch.full((rows,), torch.nan, dtype=like.dtype, device=like.device)
