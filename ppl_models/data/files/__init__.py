"""Files from elsewhere, read without running code: matrices, corpora, graphs.

The doors of ``data`` import it.
"""
