"""Which model, and how many components: held-out scores, leave-one-out, evidence and BIC of several models together."""
