"""Base classes of the models of rows: their plate, what may be observed, matrices with K components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, ModelError, about, unknown_name
from ppl_models.core.model import Model
from ppl_models.core.plates import Rows
from ppl_models.core.supports import Entries
from ppl_models.data.covariates import alone, beside, given_or_own, labels_held, read_before
from ppl_models.data.held import MatrixLike, Reading, Source
from ppl_models.data.matrix import Data, as_array, as_values_of


@dataclass(frozen=True, kw_only=True, eq=False)
class RowModel(Model):
    """A model whose rows are independent given the globals; by default the rows of a matrix x (N, D), or of an array of
    as many axes as its observed site declares: (N,) where a row is one number, (N, A, B) where it is a table.

    Its program states the globals and then, in the plate "data" of :meth:`rows`, the rows' latents and x. A class that
    does not define ``__call__`` says what is in the plate by :meth:`draw_locals` and :meth:`entries`.
    """

    #: That of one entry, where the model has one of :mod:`ppl_models.likelihoods`: it says which data are valid.
    likelihood: ClassVar[Any] = None
    #: Whether scipy's sparse matrices stay sparse.
    keeps_sparse: ClassVar[bool] = False

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
        site = self.sample_globals()
        with self.rows(x, mask, batch_size, num_rows) as rows:
            return self.observe_rows(site, self.draw_locals(site), x, mask, rows.index, **others)

    def rows(
        self, x: Tensor | None, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Rows:
        """Return the plate "data" of the program's rows, in which their latents and x are stated.

        x: (N, ...), observed, or None to generate ``num_rows`` rows. mask: (N, ...), True where observed. batch_size:
        rows of a minibatch; None: all.
        """
        return Rows(self, x, mask, batch_size, num_rows)

    def draw_locals(self, site: Mapping[str, Tensor]) -> Any:
        """State the rows' latent, inside their plate; by default it is drawn from its prior."""
        del site
        return self.sample(self.local_site)

    def entries(self, site: Mapping[str, Tensor], local: Any) -> Any:
        """Return p(x_nj | locals, globals): batch shape (..., N, D), as x has axes; its last may be events of it.

        Raises ModelError where a class states neither it nor ``__call__``.
        """
        found = f"{type(self).__name__} does not say how rows are observed"
        raise ModelError(f"{found}: state its program in __call__, or the distribution of x in entries(site, local)")

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Any, x: Tensor | None, mask: Tensor | None, index: Tensor | None
    ) -> Tensor:
        """State x inside the plate of rows, those in ``index`` or, where that is None, all."""
        return self.observe(self.entries(site, local), x, mask, index)

    def observe(self, likelihood: Any, x: Tensor | None, mask: Tensor | None, index: Tensor | None) -> Tensor:
        """State x as :meth:`ppl_models.core.plates.Rows.observe` does, in a plate that is open."""
        rows = Rows(self, x, mask, None, 0)
        rows.index = index
        return rows.observe(self.observed_site, likelihood)

    @property
    def data_kind(self) -> str:
        return super().data_kind if self.likelihood is None else self.likelihood.kind

    @property
    def factor_sites(self) -> dict[str, str]:
        known = super().factor_sites
        if type(self).prepare is RowModel.prepare:
            given = {site: self.sites[site] for site in self.sites_of("given")}
            single = {site: "value" if one.support is constraints.real else "place" for site, one in given.items()}
            known |= {site: "columns" if given[site].dims else kind for site, kind in single.items()}
        return known

    def prepare(self, data: Source, **settings: Any) -> Data:
        """Check a matrix, or an array of as many axes as the observed site declares, of their sizes; NaN is missing.

        settings: ``mask``, ``dtype`` and ``device``, as :class:`Reading` says; and what else the rows are given or
        observed with, by the names of its sites: (N,), or one more axis for each of the site's. Of what is observed NaN
        is missing.

        Raises DataError for data of another shape, and for entries that the likelihood gives no probability or, where
        the model has none, that are not within the support of the site.
        """
        return self._prepare_rows(data, settings, None)

    def prepare_new(self, data: Source, like: Data, **settings: Any) -> Data:
        """Check data as :meth:`prepare` does; where rows are new, all may be missing that is observed beside x."""
        if type(self).prepare is not RowModel.prepare:
            return super().prepare_new(data, like, **settings)
        return self._prepare_rows(data, settings, like)

    def _prepare_rows(self, data: Source, settings: Mapping[str, Any], like: Data | None) -> Data:
        """Check data; like: those of the fit where rows are new."""
        others = {site: value for site, value in settings.items() if site not in Reading.__annotations__}
        found = self._prepare(data, {name: value for name, value in settings.items() if name not in others})
        named = [site for site in self.other_sites if site != self.observed_site]
        for site in others:
            if site not in named:
                raise DataError(unknown_name("argument", site, named), site=self.observed_site)
        own = read_before(data)
        values = {**(own.others if own is not None else {}), **others}
        if type(self).prepare is not RowModel.prepare:  # which see to what is missing
            named = [site for site in named if site in values]
        for site, held in ({} if like is None else like.others).items():
            if values.get(site) is None and self.sites[site].role == "observed":
                values[site] = found.x.new_full((len(found), *held.shape[1:]), torch.nan)
        return replace(found, others={site: self._of_rows(site, values.get(site), found) for site in named})

    def _of_rows(self, site: str, value: MatrixLike | None, data: Data) -> Tensor:
        """Convert what rows are given or observed with to their dtype; what is observed may be missing, NaN."""
        expected = (len(data), *(self.sizes.get(axis, -1) for axis in self.sites[site].dims))
        shape = f"one value a row, of shape {tuple('any' if size < 0 else size for size in expected)}"
        if value is None:
            raise DataError("not among the arguments", site=site, expected=f"{site}=..., {shape}")
        with about(site):
            found = beside(value, data)
        if found.ndim == len(expected) - 1 and expected[-1] == 1:
            found = found[..., None]  # one covariate, as a plain column
        if found.ndim == len(expected) + 1 and found.shape[-1] == 1:
            found = found[..., 0]  # one number a row, as a table of one column
        fits = all(one in (-1, size) for one, size in zip(expected, found.shape, strict=False))
        if found.ndim != len(expected) or not fits:
            raise DataError(f"shape {tuple(found.shape)}", site=site, expected=shape)
        observed = self.sites[site].role == "observed"
        wrong = torch.isinf(found) if observed else ~torch.isfinite(found)
        if bool(wrong.any()):
            expected = "finite numbers, or NaN where one is missing" if observed else "finite numbers"
            raise DataError(f"{int(wrong.sum())} values are not finite", site=site, expected=expected)
        return found

    def _prepare(self, data: Source, reading: dict[str, Any]) -> Data:
        settings = {**reading, "site": self.observed_site}
        axes, sizes = self.sites[self.observed_site].dims, self.sizes
        valid = self.likelihood or Entries(self.sites[self.observed_site].support)
        if len(axes) == 1:
            named = axes[0], self.axes.get(axes[0], axes[0])
            settings |= {"num_features": sizes.get(axes[0]), "named": named, "keep_sparse": self.keeps_sparse}
            return as_values_of(valid, data, **settings)
        known = {axis: (self.axes[axis], sizes[axis]) if axis in self.axes else None for axis in axes}
        return as_values_of(valid, data, read=as_array, axes=known, **settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class ComponentModel(RowModel):
    """A model of a matrix x (N, D) with a latent of K components a row."""

    num_components: int
    num_features: int

    axes: ClassVar[Mapping[str, str]] = {"component": "num_components", "feature": "num_features"}


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsBeside(RowModel):
    """A model whose rows have one further site beside x, given or observed, that it reads in a way of its own.

    ``prepare`` and ``prepare_new`` take it by its name; data that were read before carry their own.
    """

    #: The site beside x, and the axis of its places where these have names in the data.
    beside_site: ClassVar[str]
    named_axis: ClassVar[str] = ""

    def read_beside(self, given: MatrixLike, data: Data, names: list[Any] | None) -> Data:
        """Return the data with what is given beside x, in the types of x. names: those of a fit, where it has some.

        Raises DataError for what cannot be read.
        """
        raise NotImplementedError

    def without_beside(self, data: Data) -> dict[str, Tensor]:
        """Return what stands beside x where nothing is given: by default nothing."""
        del data
        return {}

    def prepare(self, data: Source, **settings: Any) -> Data:
        """Check x, and what is given beside it by the name of its site. Raises DataError for anything else."""
        given = given_or_own(settings.pop(self.beside_site, None), data, self.beside_site)
        checked = super().prepare(alone(data), **settings)
        if given is None:
            return replace(checked, others=self.without_beside(checked))
        with about(self.beside_site):
            return self.read_beside(given, checked, labels_held(data, self.named_axis))

    def prepare_new(self, data: Source, like: Data, **settings: Any) -> Data:
        """Check data as :meth:`prepare` does, with the vocabulary and the names of the data ``like``."""
        given = given_or_own(settings.pop(self.beside_site, None), data, self.beside_site)
        checked = super().prepare_new(alone(data), like, **settings)
        named = checked.with_labels(self.named_axis, like.coords.get(self.named_axis))
        return self.prepare(named, **{self.beside_site: given})


class Response(dist.Categorical):
    """A categorical of 0..C-1 whose mean is that of the number of the category: what ratings are averaged by."""

    @property
    def mean(self) -> Tensor:
        return self.probs @ torch.arange(self.probs.shape[-1]).to(self.probs)
