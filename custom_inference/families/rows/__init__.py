"""What engines read: matrices, documents, counts of draws, graphs; choosing rows, and adding up blocks of them.

Imports ``core`` alone; the other rooms of ``families`` may import it.
"""
