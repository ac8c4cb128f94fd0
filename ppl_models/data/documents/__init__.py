"""Documents: texts, tokens, counts or files of them, as sparse counts with labels.

``door`` is what users call; ``counts`` and ``words`` are behind it.
"""
