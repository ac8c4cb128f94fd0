"""Supervised LDA by Monte Carlo EM (Murphy 2012, section 27.4.4.1): collapsed Gibbs sampling as E step, regression as M
step.

In every round

    E step    some sweeps over the tokens' topics q at the present weights, topics and proportions integrated out,
              which leave means qbar^(s) of the documents' topics (27.66), s = 1, ..., S
    M step    W, and the scale of real responses, at the maximum of (1 / S) sum_s log p(y | W qbar^(s)) + log p(W)

(Wei & Tanner, JASA 1990). The source's shortcut, E[qbar] as inputs of one regression, forgets what the response is sure
of only on average; here every draw counts 1 / S. The rounds do not settle but fluctuate, so the weights are averaged
over their last half; at these, held, the sampler then draws what fits hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.method import Call
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_whole
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.scale import scale_mode
from custom_inference.families.responses.gibbs import SupervisedChain
from custom_inference.families.responses.regression import fit_regression
from custom_inference.families.responses.supervised import start_as_lda
from custom_inference.gibbs.method import CollapsedGibbs
from custom_inference.gibbs.protocol import Params
from ppl_models import Data, MethodError, Model, SupervisedLDA

#: The sites that M steps set.
SITES = ("response_weight", "response_scale")


@dataclass(frozen=True, kw_only=True)
class MonteCarloEM(CollapsedGibbs):
    """rounds: of EM. draws: S, sweeps an E step whose topics an M step takes. Others: of the sampling at the weights
    that the rounds end with, see ``CollapsedGibbs``.

    ``Fit.params`` are posterior means of the topics at the weights, which are a point; so are the weights of all draws.
    """

    rounds: int = 30
    draws: int = 5
    num_samples: int = 20
    warmup: int = 10
    chains: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "draws"):
            require_whole(name, getattr(self, name), 1)

    def check(self, model: Model) -> None:
        """Raises MethodError for other models, and for priors of the weights that are not Normal (or flat)."""
        if not isinstance(model, SupervisedLDA) or model.has_functions:
            raise MethodError(f"{type(model).__name__}: Monte Carlo EM is for SupervisedLDA without hyper-parameters")
        like = torch.zeros((), dtype=torch.float64)
        Normal.of(model, "response_weight", model.shapes["response_weight"], like)

    def _fit(self, model: Any, data: Data, call: Call) -> Fit:
        """Ctrl-C in a round ends them there; topics are drawn all the same, and a second one ends that."""
        start, here = call.start(model), data.to(device="cpu")
        sampler = self.sampler(model)
        if start is None and self.search:
            start = sampler.propose(model, here, call.seed)
        given = {} if start is None else {site: value.double().cpu() for site, value in start.items()}
        held = model.with_priors(**_initial_weights(model, here, given))
        chain: Any = sampler.chain(held, here, call.seed, given if "topic" in given else None)
        weights, done, interrupted = self._run_rounds(model, chain, call.progress)
        topic = chain.means()["topic"]
        fit = super()._fit(model.with_priors(**weights), data, replace(call, init={"topic": topic, **weights}))
        fit.model = fit.model.with_priors(**{site: model.priors[site] for site in weights})
        for site, value in weights.items():  # as they were found: priors hold known values in torch's default type
            fit.params[site] = value.to(fit.params[site])
            if fit.draws is not None and site in fit.draws:
                fit.draws[site] = value.to(fit.draws[site]).expand_as(fit.draws[site]).clone()
        rounds = f"weights by {done} rounds of Monte Carlo EM, {self.draws} sweeps each"
        fit.status = f"{'interrupted: ' if interrupted else ''}{rounds}; then {fit.status}"
        fit.ended = Ended.INTERRUPTED if interrupted else fit.ended
        return fit

    def _run_rounds(self, model: SupervisedLDA, chain: SupervisedChain, progress: bool) -> tuple[Params, int, bool]:
        """Run the rounds; return the weights (and scale), averaged over the last half of them, how many there
        were, and whether Ctrl-C ended them."""
        found: list[Params] = []
        interrupted = False
        with Progress(self.rounds, self.name, enabled=progress) as bar, torch.no_grad():
            try:
                for _ in range(self.rounds):
                    means = []
                    for _ in range(self.draws):
                        chain.sweep()
                        means.append(chain.qbar)
                    found.append(m_step(model, chain, means))
                    bar.advance()
            except KeyboardInterrupt:
                if not found:
                    raise
                interrupted = True
        last = found[len(found) // 2 :]
        return {site: torch.stack([one[site] for one in last]).mean(0) for site in last[0]}, len(found), interrupted


def m_step(model: Any, chain: SupervisedChain, means: list[Tensor]) -> Params:
    """New weights (and scale) of the chain from draws of qbar (N, K); known ones stay."""
    q, y, number = torch.cat(means), chain.response.repeat(len(means), 1), len(means)
    shape = tuple(chain.weights.shape)
    if "response_weight" in model.unknown_sites:
        centre, precision = chain.units.prior(*Normal.of(model, "response_weight", shape, q))
        settings: Any = {"scale": chain.deviation}
        law = fit_regression(chain.likelihood, y, q, centre, number * precision, chain.weight, **settings)
        chain.weights.value = chain.units.back(law.weight).reshape(shape)
    if chain.scale is not None and "response_scale" in model.unknown_sites:
        gap, volume = y - q @ chain.weight.T, chain.units.unit.square() / number
        counts = {"observed": (~torch.isnan(y)).sum(0) / number, "square": volume * torch.nan_to_num(y).square().sum(0)}
        residual = volume * torch.nan_to_num(gap).square().sum(0)
        chain.scale.value = scale_mode(model, chain.scale.value, counts, residual, site="response_scale")
    values = {"response_weight": chain.weights, "response_scale": chain.scale}
    return {site: one.value.clone() for site, one in values.items() if one is not None}


def _initial_weights(model: SupervisedLDA, data: Data, given: Params) -> Params:
    """Return the weights that the rounds start from: the centre, and the responses' own spread; known values as they
    are."""
    like = torch.zeros((), dtype=torch.float64)
    found = {"response_weight": given.get("response_weight", start_as_lda(model, {"topic": like})["response_weight"])}
    if model.response == "real":
        y = data.others["response"].double()
        about = y - y.nanmean(0)
        spread = (
            about.square().nanmean(0).sqrt().clamp(min=1e-6 * model.scale_of_columns(y)[1].reshape(about.shape[1:]))
        )
        found["response_scale"] = given.get("response_scale", spread.expand(model.shapes["response_scale"]))
    return found | {site: value.double() for site, value in model.known.items() if site in found}
