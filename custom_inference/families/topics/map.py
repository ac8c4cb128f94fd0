"""LDA by joint maximum a posteriori, and PLSA by maximum likelihood: a point for every topic and every document.

The objective is the log joint, up to constants of flat priors, with n_dv the tokens of word v in document d:

    F(theta, b) = sum_d [sum_v n_dv log sum_k theta_dk b_kv + sum_k a_k log theta_dk] + sum_kv g_v log b_kv

a = alpha - 1 and g = gamma - 1 where all concentrations of that prior are at least 1, and a = alpha, g = gamma in the
softmax basis else (``conjugate.pair``). Flat priors leave Hofmann's likelihood (SIGIR 1999). EM,
with c_dvk = theta_dk b_kv / sum_j theta_dj b_jv, never stored:

    theta_dk <- [sum_v n_dv c_dvk + a_k] / sum_j [...]        E step, ``sweeps`` times at fixed topics
    b_kv     <- [sum_d n_dv c_dvk + g_v] / sum_w [...]        M step

Each raises F, so that together they are EM in turns. In Hofmann's parameters P(d | z) P(z) = theta_dz L_d / R.
With the topics fixed, F is concave in every theta_d: that is the folding-in of new documents.

``temper`` < 1 gives Hofmann's tempered EM, c_dvk proportional to P(k) [P(d | k) b_kv]^temper, which is

    c_dvk proportional to P(k)^(1 - temper) (theta_dk b_kv)^temper,       share_k = P(k) = sum_d L_d theta_dk / R

as P(d | k) = theta_dk L_d / (R P(k)), and what does not depend on k drops out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import POINT, EStep, Objective, Params, Warm
from custom_inference.core.posteriors import LocalPosterior, PointPosterior
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.pair import basis_shift
from custom_inference.families.rows.documents import DocumentBlock, DocumentRows
from custom_inference.families.topics.common import FLOOR, TopicEngine
from ppl_models import Model

#: Updates of the proportions of documents that start from equal shares.
_COLD_SWEEPS = 20


@dataclass(frozen=True, kw_only=True)
class LdaMap(TopicEngine):
    """sweeps: updates of the proportions in an E step. temper, share: see above; ``share`` (K,) is needed below 1.

    EStep.bound is log p(n_d | theta_d, b), with the multinomial coefficient where the model has it, plus
    sum_k a_k log theta_dk and the constant of that prior.
    """

    has_point_locals = True

    sweeps: int = 2
    temper: float = 1.0
    share: tuple[float, ...] = ()

    name: ClassVar[str] = POINT
    objective: ClassVar[Objective] = "log joint"
    accelerate: ClassVar[str | None] = "anderson"
    extrapolated: ClassVar[tuple[str, ...]] = ("topic_proportion",)

    @property
    def saved_settings(self) -> dict[str, Any]:
        return {} if self.temper == 1.0 else {"temper": self.temper, "share": self.share}

    def local(self) -> LdaMap:
        """Return the engine for folding in, which makes many cheap updates between two looks at the bound."""
        return replace(self, sweeps=_COLD_SWEEPS)

    def e_step(
        self, model: Model, params: Params, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        topic = self.topics(model, params)
        alpha = self.alpha(model, topic)
        sweeps = self.sweeps if warm else max(self.sweeps, _COLD_SWEEPS)
        equal = topic.new_full((len(rows), len(topic)), 1 / len(topic))
        proportion = (warm["topic_proportion"] if warm else equal).clone()
        words = topic.T.contiguous()
        tempered = words if self.temper == 1.0 else words**self.temper
        # Of the proportions' prior; 0 where it is flat, as in ``Model.log_prior``.
        constant = 0.0 if bool((alpha == 1).all()) else torch.lgamma(alpha.sum()) - torch.lgamma(alpha).sum()
        bound = rows.log_coefficient + constant
        ratios = words.new_zeros(rows.counts.values().numel() + 1)  # the last place takes the padding
        weights = torch.empty_like(proportion)
        for block in rows.blocks:
            theta, seen = proportion[block.documents], block.of_words(tempered)
            for _ in range(sweeps):
                theta = Dirichlet(alpha).mode(temperature * self._counts(theta, seen, block)[0], floor=FLOOR)
            weights[block.documents], ratios[block.cells] = self._counts(theta, seen, block)[1:]
            proportion[block.documents] = theta
            plain = seen if tempered is words else block.of_words(words)
            mixture = (plain @ theta.unsqueeze(-1)).squeeze(-1)
            bound[block.documents] += torch.xlogy(block.count, mixture).sum(-1)
        bound = bound + torch.xlogy(alpha - basis_shift(alpha), proportion).sum(-1)
        counts = tempered * rows.sum_by_word(ratios[:-1], weights)
        return EStep({"topic": counts.T}, {"topic_proportion": proportion}, bound)

    def _counts(self, theta: Tensor, seen: Tensor, block: DocumentBlock) -> tuple[Tensor, Tensor, Tensor]:
        """Compute sum_v n_dv c_dvk (B, K); the weights w_dk of the topics in c = w b / sum w b; n_dv / sum_k w_dk
        b_kv."""
        weight = theta
        if self.temper != 1.0:
            weight = theta**self.temper * theta.new_tensor(self.share) ** (1 - self.temper)
        mixture = (seen @ weight.unsqueeze(-1)).squeeze(-1)
        ratio = block.count / mixture.clamp(min=torch.finfo(mixture.dtype).tiny)
        return weight * (ratio.unsqueeze(1) @ seen).squeeze(1), weight, ratio

    def responsibilities(self, model: Model, params: Params, rows: DocumentRows, warm: Params) -> Tensor:
        return rows.responsibilities(warm["topic_proportion"], self.topics(model, params).T)

    def posterior(self, model: Model, params: Params, rows: DocumentRows, step: EStep) -> LocalPosterior:
        return PointPosterior(step.locals["topic_proportion"])

    def point_locals(self, step: EStep) -> dict[str, Tensor]:
        return {"topic_proportion": step.locals["topic_proportion"]}

    def project(self, model: Model, params: Params, locals_: Params) -> tuple[Params, Params]:
        """Project the proportions onto the simplex; none at 0, which an EM step could not leave."""
        inside = locals_["topic_proportion"].clamp(min=FLOOR)
        return params, {**locals_, "topic_proportion": inside / inside.sum(-1, keepdim=True)}
