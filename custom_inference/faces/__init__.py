"""How fits meet the world: ArviZ, figures, pictures of programs, scikit-learn, the command line, several processes.

May import everything. Of the rest ``core.fit`` imports faces, inside functions, and rooms that draw, ``drawing``.
"""
