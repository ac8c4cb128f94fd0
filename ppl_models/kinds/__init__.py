"""Base classes of models by the kind of their data: how it is read, and what is refused before a fit."""
