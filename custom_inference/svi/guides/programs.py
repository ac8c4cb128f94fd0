"""Guides of the latents of any program of rows: finite ones independent of each other, and Gaussians of the real
numbers that stand for continuous ones. Expectations are sums over the finite values and product rules or quasi-random
draws, so that the objective has no noise and L-BFGS can climb it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.core.engine import Engine
from custom_inference.core.guide import Globals, Guide
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.posteriors import CodePosterior, LocalPosterior, MixedPosterior, TablePosterior
from custom_inference.core.posteriors.mixed import ABOVE, BELOW, BETWEEN, FINITE, REAL, SIMPLEX
from custom_inference.core.posteriors.nodes import standard_nodes
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import find_width
from custom_inference.core.programs.latents import Latent
from custom_inference.core.programs.modes import find_modes
from custom_inference.core.programs.ranges import INSTEAD
from custom_inference.core.programs.reference import count_configurations
from custom_inference.core.programs.statements import run
from custom_inference.core.programs.windows import settle
from custom_inference.svi.guides.coordinates import LEAST, ascend, find_marginals, find_places
from custom_inference.svi.guides.protocol import LocalGuide
from custom_inference.svi.initialisation import draw_globals
from custom_inference.svi.marginal import GlobalsBound
from ppl_models import Data, MethodError, Model, ModelError
from ppl_models.core.sites import of_element
from ppl_models.distributions import BernoulliVector

#: Values of the finite latents, summed over in every step, at most.
MOST_VALUES = 2.0**12
#: Gaussians of their own for each value of the finite latents up to so many real numbers in all.
_MOST_OF_EACH = 64
#: Quasi-random draws in place of product rules beyond three real numbers.
_DRAWS = 64
#: Whole numbers of up to so many values reach encoders as indicators too.
_MOST_CATEGORIES = 12
#: Iterations at most in which an encoder learns probabilities before it climbs the bound.
_LEARNING = 300
#: How far the log weights of a start are spread, so that no two latents are alike.
_SPREAD = 0.1
#: How far below the others a log weight begins at most: from the edge nothing comes back.
_FARTHEST = 8.0


@dataclass(frozen=True, kw_only=True)
class GaussianGuide(Guide):
    """A guide for a program of rows without engines. Its finite latents are independent of each other; given each of
    their values where these are few, the real numbers that stand for the continuous ones have a Gaussian with a full
    covariance."""

    name: ClassVar[str] = "gaussian"

    def engine(self, model: Model) -> Engine:
        raise MethodError("the Gaussian guide has no closed-form steps; use it in SVI")

    def bind(
        self, model: Model, data: Data, *, globals_: Globals = "delta", init: dict[str, Tensor] | None = None
    ) -> LocalGuide:
        if not is_own_of_rows(model):
            raise MethodError(f'guide="gaussian" is for programs without engines, not {type(model).__name__}')
        return ProgramGuide(model, data, globals_, init, full=True)


def takes_program_guide(model: Model, data: Data) -> bool:
    """Whether the guides of any program serve: where the latent is not just one vector of bits, nor the proportions of
    documents, whose guides see some of the rows at a time."""
    if not is_own_of_rows(model) or model.data_kind == "documents":
        return False
    if model.code_bits is None:
        return True
    if 2.0**model.code_bits > MOST_VALUES:
        return False
    nodes = run(model, model.as_read(data).dense(), draw_globals(model, data.x))
    return not isinstance(nodes[model.local_site]["fn"], BernoulliVector)


def takes_values_of(model: Model) -> bool:
    """Whether there is a guide of the finite latents of a program, which sums over their values together: few of them,
    as the model declares them, or bits."""
    few = count_configurations(model, of_open=1) <= MOST_VALUES
    return few or model.code_bits is not None or model.data_kind == "documents"


class ProgramBound(GlobalsBound):
    """The ELBO of :class:`ProgramGuide`, whose expectations over the latents of the rows are sums."""

    def bound(self, guide: Any, params: dict[str, Tensor]) -> Tensor:
        return guide.row_bound(params)


class ProgramGuide(LocalGuide):
    """full: whether the covariance is full, and Gaussians depend on the finite latents. hidden: units of the hidden
    layer of an encoder that reads the rows, None for parameters of every row."""

    def __init__(
        self,
        model: Model,
        data: Data,
        globals_: Globals,
        init: dict[str, Tensor] | None,
        *,
        full: bool = False,
        hidden: int | None = None,
    ):
        super().__init__(model, data, globals_, init)
        self.analytic = False
        values = self.fixed or {
            **draw_globals(model, data.x),
            **{k: v for k, v in (init or {}).items() if k in model.shapes},
        }
        at = {site: value.detach().to(data.x) for site, value in {**values, **self.known}.items()}
        self.density = settle(RowDensity.of(model, at, data))  # whole numbers as large as these data ask for
        layout = self.layout = self.density.layout
        if layout.num_configurations > MOST_VALUES:
            raise MethodError(
                f"the guide sums over the {layout.num_configurations:.3g} values of the finite latents of "
                f"{type(model).__name__}; at most {MOST_VALUES:.0f} are feasible{_instead_of(model, data)}"
            )
        self.codes = layout.configurations(self.density.like)  # of sparse data, too
        self.places = find_places(layout, self.codes)
        self.table: Tensor | None = None
        self.possible = self._find_possible()
        size, number = layout.num_reals, len(self.codes)
        self.full, self.each = full, number if full and number * size <= _MOST_OF_EACH else 1
        self.maps = torch.tensor([_map_of(latent) for latent in layout], dtype=data.x.dtype, device=data.x.device)
        self.nodes = standard_nodes(size, None if size <= 3 else _DRAWS).to(data.x) if size else None
        start = self._start(at)
        self.reads_rows = hidden is not None
        if hidden is None:
            self.row_parameters: Any = torch.nn.Parameter(start)
        else:
            self.inputs = _inputs(model, data)
            first, last = torch.nn.Linear(self.inputs.shape[1], hidden), torch.nn.Linear(hidden, start.shape[1])
            self.encoder: Any = torch.nn.Sequential(first, torch.nn.Softplus(), last).to(data.x)
            self.offset = start.mean(0)
            if self.fixed and self.nodes is None:
                self._learn_marginals(start)

    def _start(self, at: Mapping[str, Tensor]) -> Tensor:
        """(N, P): weights that are nearly even, and Gaussians at the modes at these globals; where these are given, the
        weights that these Gaussians suggest, and one Gaussian for all values is that of the most probable."""
        rows, size = len(self.density), self.layout.num_reals
        logits = [_SPREAD * torch.randn(rows, len(options)).to(self.codes) for options, _ in self.places]
        if not size:
            return torch.cat(logits, 1)
        centre, root = (one.transpose(0, 1) for one in find_modes(self.density, self.codes))  # (N, C, R), (N, C, R, R)
        root = torch.linalg.cholesky(root @ root.mT)
        if self.fixed and self.places:
            with torch.no_grad():
                weight = torch.log_softmax(self._gain(at, centre, root).clamp_min(LEAST), -1)
            logits = [one.clamp_min(-_FARTHEST) for one in find_marginals(weight, self.places)]
            if self.each == 1:
                top = weight.argmax(-1), torch.arange(rows)
                centre, root = centre[top[1], top[0]][:, None], root[top[1], top[0]][:, None]
        elif self.each == 1:
            centre, root = centre.mean(1, keepdim=True), root.mean(1, keepdim=True)
        parts = [*logits, centre.flatten(1), root.diagonal(dim1=-2, dim2=-1).log().flatten(1)]
        if self.full:
            low = torch.tril_indices(size, size, -1)
            parts.append(root[..., low[0], low[1]].flatten(1))
        return torch.cat(parts, 1)

    def _learn_marginals(self, start: Tensor) -> None:
        """Begin where the encoder says the best guide's probabilities: from elsewhere a bound may lead it to be sure of
        what is all but impossible, where no slope leads back."""
        with torch.no_grad():
            best = ascend(self._log_joint(self.fixed), self._split(start)[0], self.places)
            shares = [one.exp() for one in find_marginals(best, self.places)]
        learner = torch.optim.LBFGS(self.encoder.parameters(), max_iter=_LEARNING, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            learner.zero_grad()
            parts = self._parameters_of_rows().split([len(options) for options, _ in self.places], 1)
            each = [-(p * torch.log_softmax(logits, -1)).sum(-1) for p, logits in zip(shares, parts, strict=True)]
            total = torch.stack(each).sum(0).mean()
            total.backward()
            return total

        with torch.enable_grad():
            learner.step(loss)
        learner.zero_grad()

    def _find_possible(self) -> list[Tensor]:
        """Find which values (N, S) of every element of a finite latent a row may have: with fewer animals than were
        caught its x has no probability, and a bound that counts them in is minus infinity."""
        if self.layout.num_reals:
            return [torch.ones(1, len(options), dtype=torch.bool) for options, _ in self.places]
        with torch.no_grad():
            found = self._log_joint(self.density.params).isfinite().double()
        shares = [torch.nn.functional.one_hot(place, len(options)).double() for options, place in self.places]
        every = [(found @ share > 0) for share in shares]
        return [one | ~one.any(-1, keepdim=True) for one in every]

    def _log_joint(self, params: Mapping[str, Tensor]) -> Tensor:
        """log p(x_n, value) (N, C) at these globals; where they are given, once for all."""
        if self.table is not None:
            return self.table
        table = self.density.at(params)(self.codes[:, None].expand(-1, len(self.density), -1)).T
        if self.fixed:
            self.table = table.detach()
        return table

    @property
    def by_coordinates(self) -> bool:
        """Whether coordinate ascent alone finds the guide of the latents at given globals."""
        return bool(self.fixed) and self.nodes is None and not self.reads_rows

    def _parameters_of_rows(self) -> Tensor:
        return self.offset + self.encoder(self.inputs) if self.reads_rows else self.row_parameters

    def _split(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log_weight (N, C), location (N, E, R), root (N, E, R, R)."""
        log_weight, start = raw.new_zeros(len(raw), len(self.codes)), 0
        for (options, place), possible in zip(self.places, self.possible, strict=True):
            logits = raw[:, start : start + len(options)].masked_fill(~possible, -torch.inf)
            share = torch.log_softmax(logits, -1)
            log_weight, start = log_weight + share[:, place], start + len(options)
        size, each = self.layout.num_reals, self.each
        location, log_scale, rest = raw[:, start:].split(
            [each * size, each * size, raw.shape[1] - start - 2 * each * size], 1
        )
        root = torch.diag_embed(log_scale.reshape(len(raw), each, size).exp())
        if self.full and size > 1:
            low = torch.tril_indices(size, size, -1)
            below = torch.zeros_like(root)
            below[..., low[0], low[1]] = rest.reshape(len(raw), each, -1)
            root = root + below
        return log_weight, location.reshape(len(raw), each, size), root

    def forward(self, x: Tensor, mask: Tensor | None = None, batch_size: int | None = None, **others: Tensor) -> Any:
        if batch_size is not None:
            raise MethodError(f"the guide of {type(self.model_spec).__name__} takes all rows; use batch_size=None")
        params = self.fixed
        if self.globals_guide is not None:
            params = dict(self.known) | dict(self.globals_guide(x, mask=mask, **others))
        self.current = self._split(self._parameters_of_rows())
        return params

    def row_bound(self, params: Mapping[str, Tensor]) -> Tensor:
        """The ELBO of every row (N,) at these globals, and at the parameters of the last call."""
        log_weight, location, root = self.current
        gain = self._log_joint(params) if self.nodes is None else self._gain(params, location, root)
        counted = log_weight > -torch.inf
        apart = torch.where(counted, gain, 0.0) - torch.where(counted, log_weight, 0.0)
        return (log_weight.exp() * apart).sum(-1)

    def _gain(self, params: Mapping[str, Tensor], location: Tensor, root: Tensor) -> Tensor:
        """(N, C): the mean of log p(x_n, latents) over the Gaussian of each value of the finite latents, and its
        entropy."""
        assert self.nodes is not None
        number, size, place = len(self.codes), self.layout.num_reals, self.nodes.place
        u = location[None] + torch.einsum("ners,qs->qner", root, place)
        u = u.expand(-1, -1, number, -1).permute(2, 0, 1, 3)  # (C, Q, N, R)
        code = self.codes.repeat_interleave(len(place), 0)[:, None]
        value = self.density.at(params).real(code, u.flatten(0, 1)).reshape(number, len(place), -1)
        entropy = root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * size * (1 + math.log(2 * math.pi))
        return torch.einsum("cqn,q->nc", value, self.nodes.log_weight.exp()) + entropy

    def loss_kind(self, enumerates: bool) -> Any:
        return functools.partial(ProgramBound, self.model_spec, self.density.data)

    def posterior(self, data: Data, params: dict[str, Tensor]) -> LocalPosterior:
        """Q of every row."""
        with torch.no_grad():
            log_weight, location, root = self._split(self._parameters_of_rows().detach())
            if self.by_coordinates:
                log_weight = ascend(self._log_joint(self.fixed), log_weight, self.places)
        log_weight = log_weight - log_weight.logsumexp(-1, keepdim=True)
        if not self.layout.num_reals:
            return (CodePosterior if self.layout.is_boolean else TablePosterior)(self.codes, log_weight)
        return MixedPosterior(self.codes, log_weight, location, root, self.maps)


def _instead_of(model: Model, data: Data) -> str:
    """Say what takes more values: what sums along the factors of a compiled program."""
    if find_width(model, data) is None:
        return ""
    return '; EM(), Exact(), NUTS() and SVI(guide="normal") sum over them exactly, factor by factor'


def _map_of(latent: Latent) -> list[float]:
    """Its row of ``MixedPosterior.maps``."""
    last = float(latent.shape[-1]) if latent.shape else 1.0
    if latent.transform is None:
        return [FINITE, latent.width, last, 0.0, 0.0]
    if latent.moving:
        raise ModelError(f"no guide for the latent '{latent.name}', whose support depends on other values; {INSTEAD}")
    support = of_element(latent.support)
    if support is constraints.simplex:
        return [SIMPLEX, latent.width, last, 0.0, 0.0]
    low, high = (getattr(support, f"{end}_bound", None) for end in ("lower", "upper"))
    bounds = [None if one is None else torch.as_tensor(one) for one in (low, high)]
    if any(one is not None and one.numel() != 1 for one in bounds) or (support is not constraints.real and low is high):
        raise MethodError(f"no guide for the latent '{latent.name}', whose support is {support}")
    kind = REAL if low is high else BETWEEN if None not in (low, high) else ABOVE if high is None else BELOW
    low, high = (0.0 if one is None else float(one) for one in bounds)
    return [kind, latent.width, last, low, high]


def _inputs(model: Model, data: Data) -> Tensor:
    """What an encoder reads of every row, standardised: x and which entries were observed, and what else is observed or
    given."""
    data = model.as_read(data).dense()
    observed = torch.ones_like(data.x) if data.mask is None else data.mask.to(data.x)
    others = [value for value in data.others.values() if len(value) == len(data) and not value.is_sparse]
    parts = [data.x * observed, observed, *(value.to(data.x).nan_to_num() for value in others)]
    parts += [torch.isnan(value).to(data.x) for value in others if bool(torch.isnan(value).any())]
    values = data.x[observed > 0].unique()
    if 2 < len(values) <= _MOST_CATEGORIES and bool((values == values.round()).all()):  # categories, or small counts
        parts += [(data.x == value) * observed for value in values]
    every = torch.cat([part.reshape(len(data), -1) for part in parts], 1)
    return (every - every.mean(0)) / every.std(0, correction=0).clamp_min(1e-6)
