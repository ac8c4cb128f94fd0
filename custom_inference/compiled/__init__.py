"""Programs of one's own, compiled: what a program is made of, read by running it, and what follows.

A program is a set of factors: each element of each statement is a function of few latents (its scope), of entries of
the globals, and of data. ``laws`` knows distributions, ``reading`` what a run of a program states; ``probes``,
``origins``, ``sources`` and ``linear`` find on which latents and on which entries of the globals it depends; ``derive``
puts that together as a ``structure``, proved against the program's own log joint. ``elimination`` sums, ``posterior``
is what comes of it; ``engine``, ``steps``, ``counts``, ``starts`` and ``moves`` are EM.

Rooms beside: ``bayes`` has posteriors over the globals, ``admixture`` and ``gaussian`` programs of real latents,
``graphs`` programs of graphs; ``programs`` says which of these a program may have.
"""
