"""Factors of ratings and of choices: closed-form engines, and passes over the pairs."""

FAMILIES = ()
