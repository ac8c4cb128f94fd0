"""Bayesian matrix factorisation of ratings: array-level cores, by variational Bayes and by Gibbs sampling."""
