"""Poisson PCA: rows of counts whose log rates are linear in a few Gaussian scores.

Source 002, section 27.2.2, eq. 27.9, with a bias and a known log exposure of every row. Townes, Hicks, Aryee &
Irizarry, *Feature selection and dimension reduction for single-cell RNA-seq based on a multinomial model* (2019):

    s_n        ~ Normal(0, I_K)                                                   n = 1..N
    eta_nj     = o_n + b_j + sum_k s_nk w_kj                                      j = 1..D
    x_nj | s_n ~ Poisson(exp(eta_nj)),   log p(x | eta) = x eta - e^eta - log x!
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, ModelError, about
from ppl_models.core.model import Example
from ppl_models.core.priors import describe_prior
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.data import sparse
from ppl_models.data.covariates import beside
from ppl_models.data.matrix import Data
from ppl_models.exponential_family_pca import LinearScores
from ppl_models.likelihoods import Poisson


@dataclass(frozen=True, kw_only=True, eq=False)
class PoissonPCA(LinearScores, ComponentModel):
    """Poisson PCA: the log rates of counts x are linear in K Gaussian scores.

    Sites
    -----
    weight: w (K, D); Normal(0, 1) by default.
    bias: b (D,), the log rates at score 0 and offset 0; Normal(0, 5) by default.
    score: s (N, K), one event vector a row; Normal(0, 1) by default.
    offset: o (N,), given: the log exposure of every row, 0 where none is given. ``fit(model, x, offset=...)``.
    x: (N, D), observed, whole numbers of at least 0, dense or sparse.

    ``offset="total"`` is the logarithm of each row's total count, of at least 1: the rates are then shares of it.
    :meth:`with_row_offsets` makes a model that learns offsets beside what is given.

    Raises ModelError for K > D: the weights would not be identified.
    """

    likelihood: ClassVar[Any] = Poisson()
    keeps_sparse: ClassVar[bool] = True
    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"
    sites: ClassVar[Mapping[str, Site]] = {
        **LinearScores.sites,
        "offset": Site("given", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 5.0), "score": dist.Normal(0.0, 1.0)}

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None,
        offset: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The statement of x; ``offset`` (N,), of every row of the data."""
        eta = self.natural(site, local)
        if offset is not None:
            eta = eta + (offset if index is None else offset[index]).unsqueeze(-1)
        return self.observe(self.likelihood.distribution(eta), x, mask, index)

    def given(self, data: Data) -> dict[str, Any]:
        """The offsets, where there are any."""
        return {site: value for site, value in data.others.items() if site == "offset"}

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, offset: Any = None) -> Data:
        """Counts, and the offsets (N,), numbers or "total". Raises DataError for anything else."""
        known = data.others.get("offset") if isinstance(data, Data) and offset is None else offset
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if known is None:
            return replace(checked, others={})
        if isinstance(known, str):
            if known != "total":
                raise DataError(f"{known!r}", site="offset", expected='numbers (N,), or "total"')
            return replace(checked, others={"offset": sparse.row_sums(checked.observed_x).clamp(min=1).log()})
        with about("offset"):
            given = beside(known, checked)
            if given.shape != (len(checked),):
                raise DataError(f"shape {tuple(given.shape)}", expected=f"({len(checked)},), one a row")
            wrong = (~torch.isfinite(given)).nonzero().flatten()
            if len(wrong):
                found = f"{len(wrong)} values are not finite (the first: that of row {int(wrong[0])})"
                raise DataError(found, expected="logarithms of positive exposures")
        return replace(checked, others={"offset": given})

    def prepare_new(self, data: Any, like: Data, *, offset: Any = None, **settings: Any) -> Data:
        """As :meth:`prepare`. Raises DataError for rows without offsets where those of the fit had some."""
        own = isinstance(data, Data) and "offset" in data.others
        if "offset" in like.others and offset is None and not own:
            raise DataError("no offsets, which the rows of the fit had", site="offset", expected="offset=...")
        return self.prepare(data, offset=offset, **settings)

    def with_row_offsets(self, scale: float = 1.0) -> PoissonPCA:
        """The same model with a learned offset Normal(0, scale) of every row: one more component, the last, whose
        weights are known to be 1 up to 1e-4. Raises ModelError for priors of weight or score that are not Normal."""
        size, found = self.num_components, {}
        for site, last in (("weight", (1.0, 1e-4)), ("score", (0.0, scale))):
            prior = self.priors[site]
            if not isinstance(prior, dist.Normal) or prior.batch_shape:
                raise ModelError(
                    f"learned offsets need a Normal prior of one element of '{site}', not {describe_prior(prior)}"
                )
            both: Any = torch.stack([prior.loc, prior.scale])
            parts = torch.cat([both[:, None].expand(2, size), both.new_tensor(last)[:, None]], 1)
            mean, deviation = parts.unsqueeze(-1) if site == "weight" else parts
            found[site] = dist.Normal(mean, deviation)
        return replace(self, num_components=size + 1, priors={**self.priors, **found})

    @classmethod
    def example(cls) -> Example:
        """Two components over six features, fifty-two rows."""
        generator = torch.Generator().manual_seed(19)
        truth = {
            "weight": torch.tensor([[0.9, 0.7, -0.8, -0.9, 0.2, 0.0], [0.2, -0.2, 0.3, -0.2, 0.8, -0.7]]),
            "bias": torch.tensor([0.5, 1.0, 0.0, 0.7, -0.3, 0.2]),
            "score": torch.randn((52, 2), generator=generator),
        }
        x = torch.poisson(torch.exp(truth["bias"] + truth["score"] @ truth["weight"]), generator=generator)
        return Example(model=cls(num_components=2, num_features=6), data=Data(x=x), truth=truth)
