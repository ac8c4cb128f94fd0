"""Evaluation of fits of documents: held-out scores, the number of topics, coherence, tables, figures, exports."""

from custom_inference.documents.correlations import prevalence_effects, topic_correlations, topic_precision
from custom_inference.documents.cross_validation import CrossValidation, cross_validate
from custom_inference.documents.samplers import split_tokens
from custom_inference.documents.scores import HeldOut, held_out, perplexity
from custom_inference.documents.syntax import ambiguous_words, class_table
from custom_inference.documents.topics import coherence, to_pyldavis, topic_table

__all__ = [
    "CrossValidation",
    "HeldOut",
    "ambiguous_words",
    "class_table",
    "coherence",
    "cross_validate",
    "held_out",
    "perplexity",
    "prevalence_effects",
    "split_tokens",
    "to_pyldavis",
    "topic_correlations",
    "topic_precision",
    "topic_table",
]
