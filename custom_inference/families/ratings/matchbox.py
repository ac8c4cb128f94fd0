"""Bilinear factors of clicks, online or in passes: Gaussian posteriors of every weight by passing messages.

Stern, Herbrich & Graepel, *Matchbox: large scale Bayesian recommendations* (WWW 2009); Murphy 2012, section 27.6.2. All
weights w (of features and of the users' and items' own indicators) have independent Gaussian posteriors. For one click
x of user u on item v, with the posteriors of the weights as they are without it,

    s = W'x_u, t = V'x_v:      sums of independent Gaussians; entry k has mean and variance
    r = sum_k s_k t_k:         approximately N(m, v) with the mean and variance of the sum
    p(r | x):                  N(r; m, v) sigmoid(+-r), whose exact mean and variance (by quadrature) give a Gaussian
                               message to r, and by the other terms of the sum one to each z_k = s_k t_k, N(z_k; y, 1/i)
    s_k:                       precision i E[t_k^2], times mean i y E[t_k];  t_k likewise by s_k: variational messages,
                               to their fixed point
    w:                         the message to s_k less what the other weights in s_k add

and the posteriors of the weights are multiplied by these messages. One pass is assumed-density filtering: each click is
seen once, and any further ones can be added later (``update``). Further passes are expectation propagation: a click's
earlier messages are divided out before it is seen again. The trace is sum log p(x | all others), by the posteriors
without each click: of the first pass given the clicks before it alone.

The variational messages of a product understate the variances of the factors, and independent factors leave out what
clicks say of s and t together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local, LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_between, require_whole
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.ratings.observations import Observations, pairs_of
from custom_inference.families.ratings.quadratic import ClickBound
from ppl_models import BilinearPMF, Data, MethodError, Model, PriorError

Array = NDArray[np.float64]
#: Spread of the means at the start, of that of the prior: at 0 nothing tells one component from another.
_SPREAD = 0.1
#: What is said of how the passes ended.
_HOW = {Ended.CONVERGED: "settled", Ended.LIMIT: "ran all passes", Ended.INTERRUPTED: "interrupted"}


class _Weights(NamedTuple):
    """Gaussians of the weights of one side, (P + U, K): precision, and precision times mean."""

    precision: Array
    shift: Array

    @classmethod
    def of(cls, parts: list[Normal]) -> _Weights:
        """Join means and precisions of several sites, one after the other."""
        mean, precision = (torch.cat(side).detach().cpu().double().numpy() for side in zip(*parts, strict=True))
        return cls(precision.copy(), precision * mean)


@dataclass(frozen=True, kw_only=True)
class Matchbox(Method):
    """Message passing of Matchbox, for clicks by features of users and items.

    passes: 1 is assumed-density filtering, more are expectation propagation, which ends early where log p(x | others)
        changes by less than ``tolerance`` on average. Each pass takes the clicks in an order of its own, by the seed.

    ``fit.global_posterior`` has the posteriors of the globals, ``fit.posterior`` those of the users. ``init`` gives
    means to start from in place of random ones.
    """

    passes: int = 20
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        require_whole("passes", self.passes)
        require_between("tolerance", self.tolerance, "[0, inf)")

    def has_global_posterior(self, model: Model) -> bool:
        return True

    def check(self, model: Model) -> None:
        """Raises MethodError for models other than bilinear factors of clicks, PriorError for priors that are not
        proper Normals."""
        if not isinstance(model, BilinearPMF):
            raise MethodError(f"{self.name} is for BilinearPMF, not {type(model).__name__}")
        for site in (*model.shapes, model.local_site):
            if not Normal.of(model, site, model.shape_of(site), torch.zeros((), dtype=torch.float64)).is_proper:
                raise PriorError(f"the prior of '{site}' is flat: messages need one to start from; use VariationalEM")

    def _fit(self, model: Any, data: Data, call: Call) -> Fit:
        rows = pairs_of(model, data)
        sides = {site: Normal.of(model, site, model.shapes[site], rows.like) for site in model.shapes}
        user = Normal.of(model, "user", model.local_shape, rows.like)
        sides["user"] = user.expand((len(rows), model.num_components))
        return self._run(model, data, rows, sides, call, call.start(model))

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """The users' factors by the quadratic bound: given the globals that is what there is of them alone."""
        self.check(model)
        return LocalSolver(engine=ClickBound()).solve(model, params, data, seed=seed)

    def update(self, fit: Fit, x: Any, *, seed: int = 0, progress: bool = False, **others: Any) -> Fit:
        """The fit after further clicks x of the same users and items, with the posteriors that it has as priors, and
        the covariates that it had unless others are given.

        Its data are the further clicks alone. Raises MethodError for a fit that has no Gaussian posteriors, or of other
        users.
        """
        model: Any = fit.model
        posteriors = {**fit.global_posterior, "user": fit.posterior}
        if not all(isinstance(one, GaussianPosterior) for one in posteriors.values()) or not fit.global_posterior:
            raise MethodError(f"a fit by {fit.method_name}; update goes on from a fit by {self.name}")
        known = {site: fit.data.others[site] for site in model.sites_of("given") if site in fit.data.others}
        data = fit.read(x, **{**known, **others})
        if len(data) != len(fit.posterior.mean):
            found = f"{len(data)} users, and the fit has {len(fit.posterior.mean)}"
            raise MethodError(f"{found}; expected clicks of the same users, ratings(..., num_users=)")
        diagonals = {s: one.covariance.diagonal(dim1=-2, dim2=-1) for s, one in posteriors.items()}
        sides = {s: Normal(posteriors[s].mean, diagonals[s].reciprocal()) for s in (*model.shapes, "user")}
        call = Call(seed, None, progress, data.x.dtype, data.x.device)
        return self._run(model, data, pairs_of(model, data), sides, call, {})

    def _run(
        self,
        model: BilinearPMF,
        data: Data,
        rows: Observations,
        sides: Mapping[str, Normal],
        call: Call,
        start: Mapping[str, Tensor] | None,
    ) -> Fit:
        """start: means to start from; None: random ones, {}: those of ``sides``."""
        users, items = (
            _Weights.of([sides[site] for site in (f"{one}_weight", one) if site in sides]) for one in ("user", "item")
        )
        nudges = _nudges(users, items, start, call.seed)
        for side, nudge in zip((users, items), nudges, strict=True):
            side.shift[:] += nudge
        trace, ended = self._passes(rows, users, items, nudges, call)
        like, found = rows.like, {}
        sizes = (model.num_user_covariates, model.num_item_covariates)
        for name, side, count in zip(("user", "item"), (users, items), sizes, strict=True):
            parts = side.shift / side.precision, 1 / side.precision
            mean, variance = (torch.as_tensor(part).to(like) for part in parts)
            for site, part in ((f"{name}_weight", slice(0, count)), (name, slice(count, None))):
                found[site] = GaussianPosterior(mean[part], torch.diag_embed(variance[part]))
        posterior = found.pop("user")
        posteriors = {site: found[site] for site in model.shapes}
        return Fit(
            model=model,
            params={site: one.mean for site, one in posteriors.items()},
            elbo=torch.tensor(trace, dtype=torch.float64),
            bound_name="matchbox",
            objective="estimate",
            prior_term=0.0,
            status=f"{_HOW[ended]} after {len(trace)} passes; mean log p(click | others) {trace[-1] / len(rows.x):.4f}",
            ended=ended,
            method=self,
            data=data,
            seed=call.seed,
            local=Local(posterior, like.new_full((len(rows),), torch.nan), what="estimate", family="matchbox"),
            global_posterior=posteriors,
        )

    def _passes(
        self, rows: Observations, users: _Weights, items: _Weights, nudges: tuple[Array, Array], call: Call
    ) -> tuple[list[float], Ended]:
        from custom_inference.families.ratings.matchbox_kernel import pass_over  # compiles when first used

        user, item, sign = (
            rows.user.cpu().numpy(), rows.item[:, 0].cpu().numpy(), 2 * rows.x.cpu().double().numpy() - 1,
        )  # fmt: skip
        features = _design(rows.user_covariates), _design(rows.item_covariates)
        count = np.diff(features[0][0])[user] + np.diff(features[1][0])[item]
        keep = self.passes > 1
        size = int(count.sum() if keep else count.max(initial=1)), users.shift.shape[1]
        start = np.cumsum(count) - count if keep else np.zeros_like(count)
        messages = start, np.zeros(size), np.zeros(size)
        rng, log_chance, trace = np.random.default_rng([call.seed, 1]), np.zeros(len(user)), []
        with Progress(self.passes, self.name, enabled=call.progress) as bar:
            try:
                for step in range(self.passes):
                    before, order = log_chance.copy(), rng.permutation(len(user))
                    pass_over(order, user, item, sign, features, users, items, messages, keep, log_chance)
                    trace.append(float(log_chance.sum()))
                    bar.advance(-trace[-1])
                    if step == 0 and keep:  # what told the components apart has done so
                        for side, nudge in zip((users, items), nudges, strict=True):
                            side.shift[:] -= nudge
                    if step > 1 and np.abs(log_chance - before).mean() < self.tolerance:
                        return trace, Ended.CONVERGED
            except KeyboardInterrupt:
                if not trace:
                    raise
                return trace, Ended.INTERRUPTED
        return trace, Ended.LIMIT


def _nudges(users: _Weights, items: _Weights, start: Mapping[str, Tensor] | None, seed: int) -> tuple[Array, Array]:
    """Return what is added to precision times mean at first."""
    if start is None:
        rng = np.random.default_rng([seed, 0])
        drawn = (_SPREAD * rng.standard_normal(side.shift.shape) * np.sqrt(side.precision) for side in (users, items))
        first, second = drawn
        return first, second
    found = []
    for name, side in (("user", users), ("item", items)):
        moved = np.zeros_like(side.shift)
        parts = [start[site] for site in (f"{name}_weight", name) if site in start]
        if parts:
            mean = torch.cat(parts).detach().cpu().double().numpy()
            moved[: len(mean)] = side.precision[: len(mean)] * mean - side.shift[: len(mean)]
        found.append(moved)
    return found[0], found[1]


def _design(covariates: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Return pointer, index and value of features (N, P) followed by the indicator of each row."""
    given = covariates.detach().cpu().double().numpy()
    table = scipy.sparse.csr_matrix(scipy.sparse.hstack([scipy.sparse.csr_matrix(given), scipy.sparse.eye(len(given))]))
    return table.indptr.astype(np.int64), table.indices.astype(np.int64), table.data.astype(np.float64)
