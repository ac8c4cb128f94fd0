"""What the programs are, in NumPy: written from the mathematics alone, without any project code."""
