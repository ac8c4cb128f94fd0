"""How fits meet the world: ArviZ, figures, pictures of programs, scikit-learn, the command line, several processes.

May import everything; nothing but ``core.fit``, and there inside functions, imports a face.
"""
