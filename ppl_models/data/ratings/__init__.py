"""Ratings of items by users: columns, frames, sparse and dense matrices, files, as :class:`ppl_models.Ratings`.

``door`` is what users call; the rest is behind it.
"""
