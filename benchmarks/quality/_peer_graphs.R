# Other programs in R that find blocks: Rscript _peer_graphs.R PROGRAM IN OUT K SEED ITERATIONS.
#
# Needs the package lda or blockmodels. IN is a folder with edges.csv and nodes.csv (_graph_peers.write_graph); OUT gets
# membership.csv (N, K), probability.csv (K, K), seconds.csv (CPU seconds of the fit alone) and version.txt.

given <- commandArgs(trailingOnly = TRUE)
program <- given[1]
source <- given[2]
target <- given[3]
size <- as.integer(given[4])
iterations <- as.integer(given[6])
set.seed(as.integer(given[5]))

edges <- as.matrix(read.csv(file.path(source, "edges.csv"), header = FALSE)) + 1
nodes <- scan(file.path(source, "nodes.csv"), sep = ",", quiet = TRUE)
x <- matrix(0L, nodes[1], nodes[1])
x[edges] <- 1L
if (nodes[2] == 0) x <- pmax(x, t(x))

used <- function(begin) sum((proc.time() - begin)[c("user.self", "sys.self")])

if (program == "lda") {
  # The priors are those of the package's demo.
  prior <- list(1, diag(5, size) + 1)
  begin <- proc.time()
  fit <- lda::mmsb.collapsed.gibbs.sampler(
    x, K = size, num.iterations = iterations, alpha = 0.1, burnin = as.integer(iterations %/% 2), beta.prior = prior)
  seconds <- used(begin)
  membership <- t(fit$document_expects)
  membership <- membership / rowSums(membership)
  probability <- (fit$blocks.pos + prior[[1]]) / (fit$blocks.pos + fit$blocks.neg + prior[[1]] + prior[[2]])
} else {
  kind <- if (nodes[2] == 0) "SBM_sym" else "SBM"
  begin <- proc.time()
  fit <- blockmodels::BM_bernoulli(
    kind, x, verbosity = 0, plotting = "", explore_min = size + 2, explore_max = size + 3, ncores = 1)
  fit$estimate()
  seconds <- used(begin)
  membership <- fit$memberships[[size]]$Z
  probability <- fit$model_parameters[[size]]$pi
}

write.table(membership, file.path(target, "membership.csv"), sep = ",", row.names = FALSE, col.names = FALSE)
write.table(probability, file.path(target, "probability.csv"), sep = ",", row.names = FALSE, col.names = FALSE)
writeLines(format(seconds, digits = 6), file.path(target, "seconds.csv"))
writeLines(as.character(packageVersion(program)), file.path(target, "version.txt"))
