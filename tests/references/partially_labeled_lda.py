"""Brute-force references for partially labelled LDA (source 002, below eq. 27.72; Ramage et al. 2011). No project code.

Labelled LDA with ``per_label`` topics a label, 2 unless it is said: see ``labeled_lda``.
"""

from __future__ import annotations

from functools import partial

from tests.references import labeled_lda

#: Topics of a label.
PER_LABEL = 2

topics_of = partial(labeled_lda.topics_of, per_label=PER_LABEL)
log_joint = partial(labeled_lda.log_joint, per_label=PER_LABEL)
log_evidence = partial(labeled_lda.log_evidence, per_label=PER_LABEL)
posterior_mean = partial(labeled_lda.posterior_mean, per_label=PER_LABEL)
