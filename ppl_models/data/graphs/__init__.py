"""Graphs: matrices, networkx graphs, edges or files of them, as :class:`ppl_models.GraphData`.

``door`` is what users call; the rest is behind it.
"""
