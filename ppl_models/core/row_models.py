"""Base classes of the models of rows: their plate, what may be observed, matrices with K components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, about, unknown_name
from ppl_models.core.model import Model
from ppl_models.core.plates import Rows
from ppl_models.data.covariates import beside
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
        """Return p(x_nj | locals, globals): batch shape (..., N, D), as x has axes; its last may be events of it."""
        raise NotImplementedError

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


@dataclass(frozen=True, kw_only=True, eq=False)
class ComponentModel(RowModel):
    """A model of a matrix x (N, D) with a latent of K components a row."""

    num_components: int
    num_features: int

    axes: ClassVar[Mapping[str, str]] = {"component": "num_components", "feature": "num_features"}


class Response(dist.Categorical):
    """A categorical of 0..C-1 whose mean is that of the number of the category: what ratings are averaged by."""

    @property
    def mean(self) -> Tensor:
        return self.probs @ torch.arange(self.probs.shape[-1]).to(self.probs)
