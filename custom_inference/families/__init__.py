"""Closed-form engines and samplers, one room a family of models: equations live here and nowhere else.

A room's ``__init__`` holds its records for the registry. Rooms may import ``core``, ``em``, ``svi``, ``gibbs`` and each
other's modules. ``conjugate``, ``rows`` and ``common`` are no family's room, and open to all. Outside, a family's room
is loaded by :mod:`custom_inference.core.registry`; the few modules that are about one family's models alone, and import
its room by name, are listed in ``tests/core/architecture_test.py``.
"""

#: Model -> the room where its :class:`custom_inference.core.registry.Family` is. A room is loaded when one of its
#: models is first used.
ROOMS: dict[str, str] = {
    "AspectBernoulli": "aspects",
    "BilinearPMF": "ratings",
    "CTM": "correlated",
    "CVQ": "cvq",
    "CategoricalPCA": "factors",
    "ChoicePMF": "ratings",
    "CovariateSBM": "blocks",
    "DegreeCorrectedSBM": "blocks",
    "ExponentialFamilyPCA": "factors",
    "GaussianPCA": "factors",
    "GammaPoisson": "gamma_poisson",
    "DirichletMultinomialRegression": "labels",
    "DTM": "dynamics",
    "DiscriminativeCategoricalPCA": "factors",
    "DiscriminativeLDA": "labels",
    "GraphModel": "blocks",
    "HDP": "hdp",
    "IRM": "relations",
    "HelmholtzMachine": "helmholtz",
    "InfiniteSBM": "blocks",
    "LDA": "topics",
    "LDAHMM": "syntax",
    "LabeledLDA": "labels",
    "LogisticPCA": "factors",
    "MMSB": "memberships",
    "MixtureOfBernoullis": "mixtures",
    "MixtureOfCategoricals": "mixtures",
    "MixtureOfMultinomialCounts": "mixtures",
    "MixtureOfMultinomials": "mixtures",
    "MixtureOfPoissons": "mixtures",
    "MultinomialPCA": "topics",
    "MultinomialRegressionLDA": "labels",
    "NMF": "gamma_poisson",
    "NOCA": "noca",
    "PLSA": "topics",
    "PartiallyLabeledLDA": "labels",
    "PoissonPCA": "factors",
    "PMF": "ratings",
    "PoissonSBM": "blocks",
    "RBM": "boltzmann",
    "RTM": "links",
    "RandomEffectsLDA": "correlated",
    "ReplicatedSoftmax": "boltzmann",
    "SBM": "blocks",
    "SoftmaxPCA": "factors",
    "SpikeGammaPoisson": "gamma_poisson",
    "SupervisedLDA": "responses",
    "UserRatingProfile": "topics",
}
