"""Collapsed Gibbs sampling: the method, and the samplers that models register with it."""

from custom_inference.gibbs._lda import LdaSampler
from custom_inference.gibbs._method import CollapsedGibbs
from custom_inference.gibbs._mixtures import MixtureSampler
from custom_inference.gibbs._mmsb import MmsbSampler
from custom_inference.gibbs._protocol import Chain, Sampler, has_sampler, register_sampler, sampler_of
from custom_inference.gibbs._sbm import BlockSampler
from ppl_models import LDA, MMSB, SBM, MixtureOfCategoricals, MixtureOfMultinomials, MixtureOfPoissons, PoissonSBM

register_sampler(LDA, LdaSampler())
register_sampler(MMSB, MmsbSampler())
for _mixture in (MixtureOfCategoricals, MixtureOfMultinomials, MixtureOfPoissons):
    register_sampler(_mixture, MixtureSampler())
for _block_model in (SBM, PoissonSBM):
    register_sampler(_block_model, BlockSampler())

__all__ = ["Chain", "CollapsedGibbs", "Sampler", "has_sampler", "register_sampler", "sampler_of"]
