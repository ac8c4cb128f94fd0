"""Closed-form steps, one file a model and family of posteriors; each is an optimisation of a Pyro program."""

from custom_inference.steps._protocol import EStep, Steps

__all__ = ["EStep", "Steps"]
