"""Base classes of the models of rows: their program, matrices with K components, mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, about, unknown_name
from ppl_models.core.model import Model
from ppl_models.core.sites import Site
from ppl_models.data.covariates import beside
from ppl_models.data.device import device_of
from ppl_models.data.matrix import Data, as_array, as_values_of


def row_plate(x: Tensor | None, batch_size: int | None, num_rows: int) -> Any:
    """The plate "data" of the rows of x, or of ``num_rows`` where there is none."""
    total = num_rows if x is None else x.shape[0]
    return pyro.plate("data", total, subsample_size=batch_size, dim=-1, device=device_of(x))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowModel(Model):
    """A model whose rows are independent given the globals; by default the rows of a matrix x (N, D), or of an array of
    as many axes as its observed site declares: (N,) where a row is one number, (N, A, B) where it is a table.

    Its program draws the globals and then, in the plate "data", what :meth:`draw_locals` and :meth:`entries` state.
    """

    #: That of one entry, where the model has one of :mod:`ppl_models.likelihoods`: it says which data are valid.
    likelihood: ClassVar[Any] = None
    #: Whether scipy's sparse matrices stay sparse.
    keeps_sparse: ClassVar[bool] = False
    #: The given site (N, ...) that the latent's prior depends on, where it depends on one: see :meth:`latent_given`.
    latent_depends_on: ClassVar[str | None] = None

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        batch_size: int | None = None,
        num_rows: int = 1,
        **others: Any,
    ) -> Tensor:
        """The Pyro program. ``x`` (N, D) without NaN, or ``None`` to generate ``num_rows`` rows.

        ``mask`` (N, D): True where observed; masked entries have no influence, whatever ``x`` holds there.
        ``others``: what else the rows are drawn by or observed with, see the model's ``observe_rows``.
        """
        given = None if self.latent_depends_on is None else others.pop(self.latent_depends_on, None)
        site = self.sample_globals(like=given if x is None else x)
        with row_plate(x, batch_size, num_rows if given is None else len(given)) as index:
            chosen = None if batch_size is None else index
            if self.latent_depends_on is None:
                local = self.draw_locals(site)
            else:
                rows = given if given is None or chosen is None else given[chosen]
                local = self.draw_given(self.latent_given(site, rows, len(index)))
            return self.observe_rows(site, local, x, mask, chosen, **others)

    def latent_given(self, site: Mapping[str, Tensor], given: Tensor | None, rows: int) -> Any:
        """The prior of the latent of so many rows for which ``latent_depends_on`` has these values; None: not given."""
        raise NotImplementedError

    def draw_given(self, law: Any) -> Tensor:
        """The statement of the latent whose prior :meth:`latent_given` says."""
        return pyro.sample(self.local_site, law)

    def draw_locals(self, site: Mapping[str, Tensor]) -> Any:
        """The statement of the rows' latent, inside their plate; by default it is drawn from its prior."""
        return pyro.sample(self.local_site, self.prior(self.local_site, like=site[self.global_sites[0]], values=site))

    def entries(self, site: Mapping[str, Tensor], local: Any) -> Any:
        """p(x_nj | locals, globals): batch shape (..., N, D), as x has axes; its last may be events of the law."""
        raise NotImplementedError

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Any, x: Tensor | None, mask: Tensor | None, index: Tensor | None
    ) -> Tensor:
        """The statement of x inside the plate of rows, those in ``index`` or, where that is None, all."""
        return self.observe(self.entries(site, local), x, mask, index)

    def observe(self, likelihood: Any, x: Tensor | None, mask: Tensor | None, index: Tensor | None) -> Tensor:
        """Observe the rows of a minibatch under a likelihood of batch shape (B, D), as :meth:`observe_rows` does.

        Entries that ``mask`` leaves out have no influence, whatever ``x`` holds there.

        Raises DataError for a part of an entry that is missing where entries are vectors.
        """
        vector = len(likelihood.event_shape)
        if mask is not None:
            mask = _of_entries(mask if index is None else mask[index], vector, self.observed_site)
            likelihood = likelihood.mask(mask)
        rows = x if x is None or index is None else x[index]
        axes = len(self.sites[self.observed_site].dims)
        return pyro.sample(self.observed_site, likelihood.to_event(axes - vector), obs=rows)

    @property
    def data_kind(self) -> str:
        return super().data_kind if self.likelihood is None else self.likelihood.kind

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, **others: Any) -> Data:
        """Check a matrix, or an array of as many axes as the observed site declares, of their sizes; NaN is missing.

        others: what else the rows are given or observed with, by the names of its sites: (N,), or one more axis for
        each of the site's.

        Raises DataError for data of another shape, and for entries that the likelihood gives no probability.
        """
        found = self._prepare(data, mask=mask, dtype=dtype, device=device)
        named = [site for role in ("given", "observed") for site in self.sites_of(role) if site != self.observed_site]
        for site in others:
            if site not in named:
                raise DataError(unknown_name("argument", site, named), site=self.observed_site)
        values = {**(data.others if isinstance(data, Data) else {}), **others}
        if type(self).prepare is not RowModel.prepare:  # which see to what is missing
            named = [site for site in named if site in values]
        return replace(found, others={site: self._of_rows(site, values.get(site), found) for site in named})

    def _of_rows(self, site: str, value: Any, data: Data) -> Tensor:
        """Convert what rows are given or observed with to their dtype; given values must be finite."""
        expected = (len(data), *(self.sizes.get(axis, -1) for axis in self.sites[site].dims))
        shape = f"one value a row, of shape {tuple('any' if size < 0 else size for size in expected)}"
        if value is None:
            raise DataError("not among the arguments", site=site, expected=f"{site}=..., {shape}")
        with about(site):
            found = beside(value, data)
        if found.ndim == len(expected) - 1 and expected[-1] == 1:
            found = found[..., None]  # one covariate, as a plain column
        fits = all(one in (-1, size) for one, size in zip(expected, found.shape, strict=False))
        if found.ndim != len(expected) or not fits:
            raise DataError(f"shape {tuple(found.shape)}", site=site, expected=shape)
        if not bool(torch.isfinite(found).all()):
            number = int((~torch.isfinite(found)).sum())
            raise DataError(f"{number} values are not finite", site=site, expected="finite numbers")
        return found

    def _prepare(self, data: Any, *, mask: Any, dtype: Any, device: Any) -> Data:
        settings: dict[str, Any] = {"mask": mask, "dtype": dtype, "device": device, "site": self.observed_site}
        axes, sizes = self.sites[self.observed_site].dims, self.sizes
        if len(axes) == 1:
            named = axes[0], self.axes.get(axes[0], axes[0])
            settings |= {"num_features": sizes.get(axes[0]), "named": named, "keep_sparse": self.keeps_sparse}
            return as_values_of(self.likelihood, data, **settings)
        known = {axis: (self.axes[axis], sizes[axis]) if axis in self.axes else None for axis in axes}
        return as_values_of(self.likelihood, data, read=as_array, axes=known, **settings)


def _of_entries(mask: Tensor, axes: int, site: str) -> Tensor:
    """The mask of entries that have so many axes of their own: one number each."""
    if not axes:
        return mask
    seen = mask.flatten(-axes)
    partly = (seen.any(-1) & ~seen.all(-1)).nonzero()
    if len(partly):
        found = f"{len(partly)} entries of which a part is missing (the first: at {tuple(partly[0].tolist())})"
        raise DataError(found, site=site, expected="all or none of an entry that is a vector")
    return seen.all(-1)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComponentModel(RowModel):
    """A model of a matrix x (N, D) with a latent of K components a row."""

    num_components: int
    num_features: int

    axes: ClassVar[Mapping[str, str]] = {"component": "num_components", "feature": "num_features"}


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOf(RowModel):
    """Rows that belong to one of K classes (002, section 27.2.1):

        q_n ~ Categorical(pi),    x_nj | q_n = k ~ likelihood with the mean that class k has of entry j

    The class is the one-hot local site ``assignment``, pi the global ``mixing_proportion`` (K,), flat on the simplex by
    default. Models add a ``likelihood`` and the component site, the means of entries in the K classes.
    """

    proportion_site: ClassVar[str] = "mixing_proportion"

    sites: ClassVar[Mapping[str, Site]] = {
        "mixing_proportion": Site("global", ("component",), support=constraints.simplex),
        "assignment": Site("latent", ("component",), ("row",), constraints.one_hot),
    }

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("assignment", dist.OneHotCategorical(site["mixing_proportion"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return self.likelihood.with_mean(torch.tensordot(local, site[self.component_site], 1))


class Response(dist.Categorical):
    """A categorical of 0..C-1 whose mean is that of the number of the category: what ratings are averaged by."""

    @property
    def mean(self) -> Tensor:
        return self.probs @ torch.arange(self.probs.shape[-1]).to(self.probs)


def zeros_where_missing(
    x: Tensor | None, mask: Tensor | None, index: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """x, mask and index of categories with number 0 where an entry is missing: one that does not exist would be looked
    up in the table, masked or not."""
    if x is None or mask is None:
        return x, mask, index
    rows, seen = (x, mask) if index is None else (x[index], mask[index])
    return torch.where(seen, rows, torch.zeros_like(rows)), seen, None
