"""One measurement of stochastic variational inference of LDA in a process of its own, so that its memory is its own.

    python -m benchmarks.speed._lda_svi_worker ours|quality|pyro CORPUS JSON-SETTINGS

Prints one line of JSON. Memory in MB: ``imported`` is the peak after the imports, ``peak`` that of the process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed._topic_evaluator import Corpus, perplexity


def peak() -> float:
    """Peak resident memory of this process, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def single_threaded() -> None:
    import torch

    torch.set_num_threads(1)


def lda_of(corpus: Corpus) -> Any:
    from ppl_models import LDA

    model = LDA(num_topics=len(corpus.truth), vocabulary_size=corpus.train.shape[1])
    return model.with_concentration(alpha=corpus.alpha, gamma=corpus.gamma)


def ours(corpus: Corpus, *, batch_size: int, steps: int, guide: str) -> dict[str, float]:
    """CPU seconds a step: of a fit of ``steps`` more steps than another, so that what a fit costs once cancels."""
    import torch

    from custom_inference import SVI

    imported, model = peak(), lda_of(corpus)
    data = model.prepare(corpus.train.astype(float), dtype=torch.float64)
    seconds = []
    for number in (2, 10, 10 + steps):  # the first makes what a process pays once
        begin = time.process_time()
        SVI(guide=guide, steps=number, batch_size=batch_size).fit(model, data, progress=False)
        seconds.append(time.process_time() - begin)
    return {"seconds": (seconds[2] - seconds[1]) / steps, "peak": peak(), "imported": imported}


def quality(corpus: Corpus, *, guide: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Perplexity of a whole fit with the defaults."""
    from custom_inference import SVI

    begin = time.process_time()
    fit = SVI(guide=guide, **settings).fit(lda_of(corpus), corpus.train.astype(float), seed=seed, progress=False)
    seconds = time.process_time() - begin
    return {"perplexity": perplexity(fit.params["topic"].numpy(), corpus), "seconds": seconds, "status": fit.status}


def pyro(corpus: Corpus, *, example: str, batch_size: int, steps: int) -> dict[str, float]:
    """CPU seconds a step of the example's own model, guide, loss and optimiser, after a first step off the clock.

    It takes documents of one length: here each has its tokens, repeated or cut, up to the corpus' mean length.
    """
    import pyro as library
    import torch
    from pyro.infer import SVI, TraceEnum_ELBO
    from pyro.optim import ClippedAdam

    found: Any = importlib.util.spec_from_file_location("pyro_lda_example", example)
    module: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    imported = peak()
    length, train = round(corpus.num_tokens / corpus.train.shape[0]), corpus.train
    rows = [np.repeat(train[i].indices, train[i].data.astype(int)) for i in range(train.shape[0])]
    data = torch.tensor(np.array([np.resize(row, length) for row in rows]).T)
    sizes = {"num_topics": len(corpus.truth), "num_words": train.shape[1], "num_docs": len(rows)}
    settings = argparse.Namespace(**sizes, num_words_per_doc=length, layer_sizes="100-100")
    library.set_rng_seed(0)
    predictor = module.make_predictor(settings)

    def guide(*arguments: Any, **keywords: Any) -> Any:
        return module.parametrized_guide(predictor, *arguments, **keywords)

    inference = SVI(module.model, guide, ClippedAdam({"lr": 0.01}), TraceEnum_ELBO(max_plate_nesting=2))
    inference.step(data, args=settings, batch_size=batch_size)
    begin = time.process_time()
    for _ in range(steps):
        inference.step(data, args=settings, batch_size=batch_size)
    return {"seconds": (time.process_time() - begin) / steps, "peak": peak(), "imported": imported}


JOBS = {"ours": ours, "quality": quality, "pyro": pyro}

if __name__ == "__main__":
    single_threaded()
    job, path, given = sys.argv[1:]
    print(json.dumps(JOBS[job](Corpus.load(Path(path)), **json.loads(given))))
