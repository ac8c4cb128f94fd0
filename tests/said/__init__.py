"""What is said of a fit is what its posterior says: sums before draws, the fitted program, its own priors."""
