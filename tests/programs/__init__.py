"""Programs as people outside the project would write them, and what each of them must give."""
