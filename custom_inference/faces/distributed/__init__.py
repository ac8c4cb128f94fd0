"""Fits by several processes, of one machine or of many: each has a part of the rows, and statistics are added up."""

from custom_inference.faces.distributed.fit import fit
from custom_inference.faces.distributed.group import GroupPool, group, in_group, rank

__all__ = ["GroupPool", "fit", "group", "in_group", "rank"]
