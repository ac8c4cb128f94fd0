"""Blocks of rows in files: dense and sparse arrays, Parquet, text; what ``row_blocks`` opens."""
