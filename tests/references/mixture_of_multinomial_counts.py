"""The mixture of multinomials as a distribution over counts: the tokens' in order times their number of orders,
log(L_n! / prod_v n_nv!) of every document (eq. 27.4). No project code."""

from functools import partial

from tests.references import _mixture
from tests.references.mixture_of_multinomials import log_joint_table, m_step

__all__ = ["log_evidence", "log_joint", "m_step", "posterior"]

log_joint, log_evidence, posterior = _mixture.of(partial(log_joint_table, coefficient=True))
