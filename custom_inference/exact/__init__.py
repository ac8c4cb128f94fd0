"""The exact posterior over finite locals by enumeration, and over the globals by the methods that sum locals out.

May import ``core`` and the other methods.
"""
