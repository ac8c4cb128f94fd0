"""Prediction-constrained training of supervised LDA: topics from which the words alone predict the response.

The generative model explains the words and the responses of the training documents together; the topics of their tokens
then know the responses, those of new documents do not, and predictions suffer. Prediction-constrained training (Hughes
et al., *Semi-supervised prediction-constrained topic models*, AISTATS 2018) climbs

    log p(x, q) + c sum_n log p(y_n | eta = W q0_n),      q0_n the proportions inferred from the words x_n alone

instead, c the ``weight``: a response that is seen c times, but only through what the words say. This is a sampler-like
search for such topics (``searches``), neither a sampler of a posterior nor a bound. In every sweep

    1. q0 is folded in at the present topics, a few steps of g <- alpha + sum_v n_v c_v on from the last sweep;
    2. W is the mode of the regression of the responses on q0 (``regression``), of real responses with their scale;
    3. tokens' topics are drawn from LDA's conditional (Murphy 2012, eq. 27.37) times
       exp(c sum_r d log p(y_n | eta) / d eta_r  w_rk / L_n),
       which is what the response gains, to first order, where one of the L_n tokens of the document moves to topic k;
       of real responses, whose derivative is not bounded, at the eta that the moves of all tokens would lead to:
       residuals (I + c Lambda V_n / L_n)^-1 (y_n - eta), V_n = Cov_q0(w), Lambda the curvature of -log p.

``Fit.params`` holds the topics averaged over the last sweeps and the W fitted to the proportions there, ``Fit.draws``
the topics and W of these sweeps themselves, which predictions are averaged over: states of the search, no
posterior draws.

Where texts say more than a few topics do, the best c is about as large as they are long; where the generative model is
true it is small or 0, as c repeats the noise of the responses. So c is chosen by what short searches predict of
responses that are held out.

A response that is seen c times pulls each of the L_n tokens of its document by c / L_n times its slope, so the weights
to choose from are shares of the mean number of tokens a document.

The words of all documents are read, a third of the responses are not, one third after the other. C' = 2 short searches
for every weight begin at the same topics, of the words alone; the mean of what they predict of the held responses is
compared with these by its squared error, of classes by that of their probabilities (Brier's score). That of an average
over C chains, as the fit takes, is less by what chains differ: v being their variance,

    E (y - mean of C)^2 = E (y - mean of C')^2 - (1 / C' - 1 / C) v

which large weights need most. Likelihoods would not do: so few states are too sure of themselves, the more the larger
the weight is.

Where documents are few, the weight with the least error is one of several that differ by chance, and a large one
repeats the noise of the responses. So the least weight is taken that is within one standard error of the best (Breiman,
Friedman, Olshen & Stone 1984, section 3.4.3): 0, topics of the words alone, unless the responses of documents that
were not seen say otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.ended import Ended
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local, LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_between, require_whole
from custom_inference.core.threads import map_in_threads
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.responses.searches import ConstrainedSearch, propose_start, shares
from custom_inference.families.responses.supervised import SupervisedDirichlet
from custom_inference.gibbs.protocol import Learn, Params, may_learn, no_bound, require_learn
from ppl_models import Data, MethodError, Model, PriorError, SupervisedLDA
from ppl_models.core.priors import is_flat
from ppl_models.data import sparse as _sparse

#: What the name of the objective of these fits is.
OBJECTIVE = "log p(x, q) + weight log p(response | x)"
#: Between the seeds of chains.
_APART = 7919


@dataclass(frozen=True, kw_only=True)
class PredictionConstrained(Method):
    """weight: c, how much the responses count. None: 0, .1, .3 or 1 times the mean number of tokens a document, the
        least with which short searches predict responses, held out a third after the other, at a squared error within
        one standard error of the best.

    chains: searches, each from a start of its own; predictions are averaged over their states.
    sweeps: passes of each over all tokens. begin: the one from which on responses count: topics come first. average: so
        many of the last sweeps, every second of which is kept and averaged.
    learn: learn the concentration of the proportions; "defaults": unless it was stated. steps: of the fold-in between
        sweeps.

    ``fit.predict`` folds new documents in, as the training documents were. ``Fit.elbo`` is the objective after every
    fifth sweep, a number that fluctuates and is no bound.
    """

    weight: float | None = None
    chains: int = 4
    sweeps: int = 60
    begin: int = 15
    average: int = 30
    learn: Learn = "defaults"
    steps: int = 3

    def __post_init__(self) -> None:
        for name, least in {"chains": 1, "sweeps": 2, "begin": 1, "average": 1, "steps": 1}.items():
            require_whole(name, getattr(self, name), least)
        if self.weight is not None:
            require_between("weight", self.weight, "[0, inf)", why=", or None to choose one")
        require_learn(self.learn)
        if self.begin >= self.sweeps or self.average > self.sweeps:
            found = f"begin = {self.begin}, average = {self.average} and sweeps = {self.sweeps}"
            raise MethodError(f"{found}; expected begin below sweeps, and average at most that")

    def check(self, model: Model) -> None:
        """Raises MethodError for other models, and for priors that are not Dirichlet, the same for all topics, or, of
        the weights, Normal or, of the scale, flat."""
        if not isinstance(model, SupervisedLDA):
            raise MethodError(f"{type(model).__name__}: prediction-constrained training is for SupervisedLDA")
        like = torch.zeros((), dtype=torch.float64)
        Dirichlet.of(model, "topic_proportion", like)
        if Dirichlet.of(model, "topic", like).concentration.ndim > 1:
            raise PriorError("the prior of 'topic' differs by topic, expected the same Dirichlet for all")
        if model.response == "real" and not is_flat(model.priors["response_scale"]):
            raise PriorError("the prior of 'response_scale' is not flat: the noise is fitted")
        Normal.of(model, "response_weight", model.shapes["response_weight"], like)

    def _fit(self, model: Any, data: Data, call: Call) -> Fit:
        """``init`` gives the topics to start from. Ctrl-C keeps what was averaged so far."""
        here, start = data.to(device="cpu"), call.start(model)
        seeds = [call.seed + _APART * number for number in range(self.chains)]

        def make(weight: float, seed: int) -> ConstrainedSearch:
            return ConstrainedSearch(self, weight, model, here, seed, start or propose_start(model, here, seed))

        with Progress(self.sweeps, self.name, enabled=call.progress) as bar, torch.no_grad():
            scores = None if self.weight is not None else score_weights(model, here, call.seed, start, self.chains)
            weight = scores.chosen if scores else self.weight or 0.0
            runs = map_in_threads(partial(make, weight), seeds)
            ended = Ended.COMPLETE
            try:
                for number in range(self.sweeps):
                    map_in_threads(lambda run, number=number: run.sweep(number), runs)
                    bar.advance()
            except KeyboardInterrupt:
                if any(run.found is None for run in runs):
                    raise
                ended = Ended.INTERRUPTED
            return self._result(model, data, runs, call.seed, ended, scores)

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """The posterior of the proportions given words and responses, by the engine of the bound."""
        del seed
        return LocalSolver(engine=SupervisedDirichlet()).solve(model, params, data)

    def _result(
        self, model: SupervisedLDA, data: Data, runs: list[ConstrainedSearch], seed: int, ended: Ended,
        scores: WeightScores | None,
    ) -> Fit:  # fmt: skip
        first, length = runs[0], min(len(run.kept) for run in runs)
        for run in runs:
            run.kept = run.kept[:length] if length else [run.values(run.topics())]
        sets = exchangeable(model)
        for run in runs[1:]:
            run.relabel(match_components(first.mean_topic(), run.mean_topic(), within=sets), model.dims)
        alpha = torch.stack([torch.as_tensor(run.chain.alpha)[run.order] for run in runs]).mean(0)
        params, found = first.params(alpha)
        how = "interrupted after" if ended is Ended.INTERRUPTED else "ended after"
        parts = f"{how} {first.done} sweeps of {len(runs)} chains; {len(first.kept)} states of each kept"
        weight, learned = first.weight_of_responses, may_learn(self.learn, model, "topic_proportion")
        chosen = f"weight {weight:.4g}" + (", chosen by responses that were held out" if scores else "")
        draws = {site: torch.stack([torch.stack([one[site] for one in run.kept]) for run in runs]) for site in params}
        posterior = DirichletPosterior(torch.as_tensor(found).to(data.x))
        return Fit(
            model=model.with_concentration(alpha=alpha) if learned else model,
            params=params,
            elbo=torch.tensor(first.trace, dtype=torch.float64),
            bound_name=OBJECTIVE,
            objective="estimate",
            status=f"{parts}; climbed the likelihood of the words and, by its weight, of the responses given the words "
            f"alone ({chosen}): trained to predict, not a posterior"
            + ("; the prior of 'topic_proportion' was learned" if learned else ""),
            ended=ended,
            method=self,
            data=data,
            seed=seed,
            local=Local(posterior, no_bound(len(data), data.x), what="estimate", family=self.name),
            draws=draws,
            solver=LocalSolver(engine=SupervisedDirichlet()),
            details={"weight": weight}
            | ({"held_out": {f"{c:g}": v for c, v in scores.held_out.items()}} if scores else {}),
        )


#: The weights to choose from, as shares of the documents' mean length.
SHARES = (0.0, 0.1, 0.3, 1.0)
#: The responses are divided into so many parts; so many tokens are read at most.
_PARTS, _TOKENS = 3, 200_000
#: Searches for every weight.
_CHAINS = 2


class _Short:
    """How long a search is."""

    sweeps: int = 26
    begin: int = 3
    average: int = 14
    learn: Learn = "defaults"
    steps: int = 3


class WeightScores(NamedTuple):
    """R2 of the held responses by weight: 1 less the squared error over that of their mean; chosen: the weight."""

    held_out: dict[float, float]
    chosen: float


def score_weights(model: SupervisedLDA, data: Data, seed: int, start: Params | None, chains: int) -> WeightScores:
    """Score every weight by the responses of one part after the other, for an average of so many chains; choose one."""
    length = float(data.observed_x.sum()) / max(len(data), 1)
    weights = [length * share for share in SHARES]
    parts = [hold_out(model, data, seed, part) for part in range(_PARTS)]
    start = start or propose_start(model, parts[0][0], seed)  # of the words, which are the same in all parts
    found = [_errors(model, *part, seed, start, weights, chains) for part in parts]
    errors, spread = torch.cat([one for one, _ in found]), sum(one for _, one in found)
    total = (errors.sum(0) / max(spread, 1e-300)).tolist()
    held_out = {weight: 1 - one for weight, one in zip(weights, total, strict=True)}
    return WeightScores(held_out, weights[choose(errors)])


def choose(errors: torch.Tensor) -> int:
    """Choose the first column of the errors (M, weights) of the held documents whose sum is within a standard error of
    the smallest, documents being paired."""
    more = errors - errors[:, [int(errors.sum(0).argmin())]]
    size = len(more)
    error = math.sqrt(size / max(size - 1, 1)) * (more - more.mean(0)).square().sum(0).sqrt()
    return int((more.sum(0) <= error).int().argmax())


def _errors(
    model: SupervisedLDA, part: Data, held: torch.Tensor, seed: int, start: Params, weights: list[float], chains: int
) -> tuple[torch.Tensor, float]:
    """Compute the squared error of every held document by weight, and the sum of those of the mean response."""
    known, likelihood = ~torch.isnan(held), model.response_likelihood
    truth = torch.nan_to_num(held)
    if likelihood.is_vector:
        truth = torch.nn.functional.one_hot(truth[:, 0].long(), model.num_classes).double()
        known = known.expand(truth.shape)
    seen = known.sum(0).clamp(min=1)
    spread = torch.where(known, truth - (truth * known).sum(0) / seen, 0.0).square().sum()

    def predict(trial: tuple[float, int]) -> torch.Tensor:
        run, found = ConstrainedSearch(_Short(), trial[0], model, part, trial[1], start), []
        for number in range(_Short.sweeps):
            run.sweep(number)
            if number >= _Short.sweeps - _Short.average and run.found is not None:
                found.append(likelihood.mean(shares(run.found) @ run.weight.T))
        return torch.stack(found).mean(0)

    trials = [(weight, seed + 1 + chain) for weight in weights for chain in range(_CHAINS)]
    means = torch.stack(map_in_threads(predict, trials)).unflatten(0, (len(weights), _CHAINS))
    error = (means.mean(1) - truth).square() - (1 / _CHAINS - 1 / chains) * means.var(1)
    return torch.where(known, error, 0.0).sum(2).T[known.any(1)], float(spread)


def hold_out(model: SupervisedLDA, data: Data, seed: int, part: int = 0) -> tuple[Data, torch.Tensor]:
    """Return documents without the responses of one of the parts, and these responses alone (N, R), NaN elsewhere."""
    generator = np.random.default_rng(seed)
    response = data.others["response"]
    known = (~torch.isnan(response.reshape(len(response), -1))).any(1)
    order = torch.as_tensor(generator.permutation(len(data)))
    tokens = _sparse.row_sums(data.observed_x)[order].cumsum(0)
    order = order[: max(int((tokens <= _TOKENS).sum()), 1)]
    places = order[known[order]]
    if len(places) < _PARTS:  # few responses are known: all of their documents are read
        order, places = torch.arange(len(data)), known.nonzero().flatten()
    held = torch.zeros(len(data), dtype=torch.bool)
    held[places[part::_PARTS]] = True
    given = response.clone()
    given[held] = torch.nan
    read = replace(data, others={**data.others, "response": given}).rows(order)
    hidden = response.clone()
    hidden[~held] = torch.nan
    return read, model.standard(hidden.reshape(len(data), -1)[order].double())
