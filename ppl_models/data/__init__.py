"""Doors and containers: matrices, documents, graphs; files of them; blocks of rows on disk.

Imports ``ppl_models.core.errors`` alone of the rest; models and ``custom_inference`` import it.
"""
