"""Amortised inference: one network reads a row and returns the probabilities of its bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import Engine
from custom_inference.core.guide import Globals, Guide
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.svi.guides.continuous import continuous_family
from custom_inference.svi.guides.programs import ProgramGuide, takes_program_guide
from custom_inference.svi.guides.protocol import LocalGuide, posterior_of
from ppl_models import Data, MethodError, Model
from ppl_models.data import sparse
from ppl_models.distributions import BernoulliVector
from ppl_models.distributions.tokens import sparse_product

#: Rows a block that the encoder reads at once when nothing is learned.
_BLOCK_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class Amortized(Guide):
    """Q(s_n) = prod_i Bernoulli(encoder_i(x_n)): an encoder with one hidden layer, for SVI.

    Of continuous latents the encoder gives the parameters of a Dirichlet (memberships) or of normals (scores).
    Missing entries reach the encoder as zeros beside an indicator of what was observed.

    Of documents it reads log(1 + counts), beside the indicator where there is a mask, and gives the logarithms of the
    concentrations relative to the prior's plus L_n / K, so that they grow with the document as a posterior's do.

    hidden: units of the hidden layer.
    normalise: standardise the encoder's outputs over the minibatch (batch normalisation, as in ProdLDA: Srivastava &
        Sutton, ICLR 2017), so that every component differs between rows from the first step on and none is given up.
        By default of documents only.
    """

    hidden: int = 64
    normalise: bool | None = None
    name: ClassVar[str] = "amortized"

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise MethodError(f"hidden = {self.hidden}, expected at least 1")

    def engine(self, model: Model) -> Engine:
        raise MethodError("the amortised guide has no closed-form steps; use it in SVI")

    def bind(
        self, model: Model, data: Data, *, globals_: Globals = "delta", init: dict[str, Tensor] | None = None
    ) -> LocalGuide:
        if not model.rows_are_independent:
            why = "an encoder reads rows, and the nodes are none"
            raise MethodError(f'no amortised guide of graphs: {why}; use guide="mean_field"')
        if takes_program_guide(model, data):
            return ProgramGuide(model, data, globals_, init, hidden=self.hidden)
        return AmortizedGuide(model, data, globals_, init, self)


class _BatchNorm(torch.nn.BatchNorm1d):
    """Batch normalisation that takes a single row by the running averages: one row has no variance."""

    def forward(self, input: Tensor) -> Tensor:
        if len(input) > 1 or not self.training:
            return super().forward(input)
        running = self.running_mean, self.running_var
        return torch.nn.functional.batch_norm(input, *running, self.weight, self.bias, training=False, eps=self.eps)


class AmortizedGuide(LocalGuide):
    """(x * observed, observed) -> hidden -> probabilities, or the parameters of a continuous family."""

    def __init__(
        self, model: Model, data: Data, globals_: Globals, init: dict[str, Tensor] | None, settings: Amortized
    ):
        super().__init__(model, data, globals_, init)
        self.family = continuous_family(model, data) if model.has_continuous_locals else None
        self.documents = "num_tokens" in model.given(data)
        units: Any = model.units if model.site_units else (0.0, 1.0)  # pyright: ignore[reportAttributeAccessIssue]
        self.centre, self.unit = units
        self.analytic = self.analytic or bool(self.family and self.family.analytic)
        outputs = self.family.num_outputs if self.family else self.num_bits
        inputs = data.num_features * (1 if self.documents and data.mask is None else 2)
        first, last = torch.nn.Linear(inputs, settings.hidden), torch.nn.Linear(settings.hidden, outputs)
        inner = [first, torch.nn.Softplus(), last]
        if self.documents if settings.normalise is None else settings.normalise:
            inner.append(_BatchNorm(outputs))
        self.encoder = torch.nn.Sequential(*inner).to(data.x)

    def local_distribution(self, x: Tensor, mask: Tensor | None, index: Tensor, params: dict[str, Tensor]) -> Any:
        return self._distribution(self._outputs(x, mask, index))

    def _distribution(self, outputs: Tensor) -> Any:
        if self.family is not None:
            return self.family.distribution(outputs)
        # Kept off 0 and 1 so that no code has probability zero under the guide.
        return BernoulliVector(torch.sigmoid(outputs).clamp(1e-6, 1 - 1e-6))

    def _outputs(self, x: Tensor, mask: Tensor | None, index: Tensor) -> Tensor:
        """Run the encoder. Sparse documents stay sparse; other rows become dense, a minibatch or a block at a time."""
        rows = sparse.select_rows(x, index)
        if self.documents and sparse.is_sparse(rows):
            first: Any = self.encoder[0]
            inputs = sparse.with_values(rows, torch.log1p(rows.values()))
            outputs = self.encoder[1:](sparse_product(inputs, first.weight.T) + first.bias)
        else:
            rows = torch.log1p(sparse.dense(rows)) if self.documents else sparse.dense(rows)
            if not self.documents or mask is not None:
                observed = torch.ones_like(rows) if mask is None else mask[index].to(rows)
                rows = rows if self.documents else (rows - self.centre) / self.unit
                rows = torch.cat([(rows * observed).reshape(len(rows), -1), observed.reshape(len(rows), -1)], -1)
            outputs = self.encoder(rows)
        return outputs if self.family is None else self.family.start[index] + outputs

    def posterior(self, data: Data, params: dict[str, Tensor]) -> LocalPosterior:
        """Q of every row, normalised by the averages over the minibatches of learning."""
        training = self.encoder.training
        self.encoder.eval()
        try:
            with torch.no_grad():
                every = torch.arange(len(data), device=data.x.device).split(_BLOCK_ROWS)
                outputs = torch.cat([self._outputs(data.x, data.mask, block) for block in every])
                return posterior_of(self._distribution(outputs))
        finally:
            self.encoder.train(training)
