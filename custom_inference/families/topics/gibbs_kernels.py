"""Compiled sweeps of the Gibbs samplers of documents. Import inside functions only: it loads the compiler.

The full conditional of the topic of token l of document i, whose word is v (Murphy 2012, eq. 27.37; its L_i + K alpha
should read L_i - 1 + K alpha, a constant in k). Counts are without the token itself:

    p(q_il = k | rest) ~ (c_vk + gamma_v) (c_ik + alpha_k) / (c_k + sum_v' gamma_v')

A token reads its word's counts, one contiguous row of ``word_topic``, and multiplies them by the vector
(c_ik + alpha_k) / (c_k + sum gamma). Both still count the token; the product at its topic is replaced by one without
it, and only a token that changes its topic writes, in two places of each: a vector read soon after part of it is
written waits for that, and most tokens of a chain that has settled change nothing. Topics are padded to whole blocks of
``LANES``; the blocks are summed by vector instructions, and a cumulative sum in a vector finds the topic in its block,
without branches, which would be guessed wrongly. The padding has alpha = 0. Products are single precision (relative
error 1e-7), counts are whole numbers.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from custom_inference.families.common.compiled import Ints, Reals, Words, entry, inlined, inner
from custom_inference.families.common.intrinsics import add_up, allocate, smaller
from custom_inference.families.common.random import draw_single, find_place

#: Topics of a block: two vectors of single precision with AVX2, four with SSE or NEON.
LANES = 16

_I32, _F32 = ir.IntType(32), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)
_PLACES = ir.Constant(_INTS, list(range(LANES)))


def _load(context, builder, kind, array, at, vector):
    """Load LANES entries of an array from place ``at`` on."""
    data = context.make_array(kind)(context, builder, array).data
    found = builder.load(builder.bitcast(builder.gep(data, [at]), vector.as_pointer()))
    found.align = 4
    return found


def _splat(builder, value, vector: ir.VectorType = _FLOATS):
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_INTS, [0] * LANES))


def _products(context, builder, signature, args):
    """Compute (counts + prior) * weight of one block, with ``own`` at the place ``old``."""
    counts, weight, prior, at, old, own = args[:6]
    whole = _load(context, builder, signature.args[0], counts, at, _INTS)
    factor = _load(context, builder, signature.args[1], weight, at, _FLOATS)
    added = builder.fadd(builder.sitofp(whole, _FLOATS), _splat(builder, prior), flags=("fast",))
    product = builder.fmul(added, factor, flags=("fast",))
    lane = _splat(builder, builder.trunc(builder.sub(old, at), _I32), _INTS)
    return builder.select(builder.icmp_signed("==", lane, _PLACES), _splat(builder, own), product)


def _intrinsic(builder, name, result, *kinds):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, list(kinds)), name)


@intrinsic
def _block_sum(typing, counts, weight, prior, at, old: types.Type, own: types.Type):
    """Compute sum_j (counts[at + j] + prior) weight[at + j] over a block; at the place ``old`` it is ``own``."""
    del typing, prior, at, old, own

    def codegen(context, builder, signature, args):
        add = _intrinsic(builder, f"llvm.vector.reduce.fadd.v{LANES}f32", _F32, _F32, _FLOATS)
        zero = ir.Constant(_F32, 0.0)
        return builder.call(add, [zero, _products(context, builder, signature, args)], fastmath=("fast",))

    return types.float32(counts, weight, types.float32, types.intp, types.intp, types.float32), codegen


@intrinsic
def _block_find(typing, counts, weight, prior, at, old: types.Type, own: types.Type, left):
    """Count the cumulative sums of a block's products that are at most ``left``."""
    del typing, prior, at, old, own, left

    def codegen(context, builder, signature, args):
        summed, zero, step = _products(context, builder, signature, args), ir.Constant(_FLOATS, [0.0] * LANES), 1
        while step < LANES:
            places = [j - step if j >= step else LANES + j for j in range(LANES)]
            summed = builder.fadd(summed, builder.shuffle_vector(summed, zero, ir.Constant(_INTS, places)))
            step *= 2
        below = builder.fcmp_ordered("<=", summed, _splat(builder, args[6]))
        bits = ir.IntType(LANES)
        ones = builder.call(_intrinsic(builder, f"llvm.ctpop.i{LANES}", bits, bits), [builder.bitcast(below, bits)])
        return builder.zext(ones, context.get_value_type(types.intp))

    return types.intp(counts, weight, types.float32, types.intp, types.intp, types.float32, types.float32), codegen


@inlined
def draw_topic(counts: Ints, weight: Reals, prior: float, old: int, own: float, cumulative: Reals, state: np.uint64):
    """Draw k ~ (counts_k + prior) weight_k, but ``own`` for k = ``old``; return it and the next random state.

    old: -1 where no topic is apart. cumulative: takes the sums of the blocks, after a first entry of 0.
    """
    blocks, summed = cumulative.shape[0] - 1, np.float32(0)
    for b in range(blocks):
        summed += _block_sum(counts, weight, prior, b * LANES, old, own)  # pyright: ignore[reportCallIssue]
        cumulative[b + 1] = summed
    uniform, state = draw_single(state)  # pyright: ignore[reportGeneralTypeIssues]
    left, block = uniform * summed, 0
    for b in range(1, blocks):
        block += cumulative[b] <= left
    left -= cumulative[block]
    found = _block_find(counts, weight, prior, block * LANES, old, own, left)  # pyright: ignore[reportCallIssue]
    drawn = block * LANES + smaller(found, LANES - 1)
    while weight[drawn] == 0 and drawn > 0:  # rounding led into the padding
        drawn -= 1
    return drawn, state


@entry(fastmath=True)
def sweep(
    word: Ints,
    topic: Ints,
    start: Ints,
    alpha: Reals,
    first: Reals,
    factor: Reals,
    gamma: Reals,
    word_topic: Ints,
    total: Ints,
    rng: Words,
):
    """Make one pass over all tokens, in place. A topic of -1 is a token not yet assigned.

    word, topic: (T,) int32, document by document. start: (N + 1,) int64, where each document begins.
    alpha: (N, padded K) float32, or (1, padded K) where it is the same for all documents, 0 in the padding and of a
    topic that a document cannot have; first: what it is in a document that the topic has no token in.
    factor: (padded K,) float32, what the conditional is multiplied by, 1 of LDA. gamma: (V,) float32.
    word_topic: (V, padded K) int32, c_vk. total: (padded K,) int32, c_k. rng: (1,) uint64, the state of the random
    numbers.
    """
    padded, apart = alpha.shape[1], alpha.shape[0] > 1
    mass = np.float32(add_up(gamma))
    here = allocate(padded, np.int32)  # c_ik
    weight = allocate(padded, np.float32)  # factor_k (c_ik + alpha_k) / (c_k + sum gamma)
    inverse = allocate(padded, np.float32)  # factor_k / (c_k + sum gamma)
    cumulative = allocate(1 + padded // LANES, np.float32)
    cumulative[0] = 0
    for k in range(padded):
        inverse[k] = factor[k] / (np.float32(total[k]) + mass)
    for i in range(start.shape[0] - 1):
        here[:] = 0
        for t in range(start[i], start[i + 1]):
            if topic[t] >= 0:
                here[topic[t]] += 1
        own, absent = (alpha[i], first[i]) if apart else (alpha[0], first[0])
        for k in range(padded):
            weight[k] = (np.float32(here[k]) + (own[k] if here[k] > 0 else absent[k])) * inverse[k]
        words, topics = word[start[i] : start[i + 1]], topic[start[i] : start[i + 1]]
        prior = (own, absent, factor, gamma, mass)
        _document(words, topics, prior, word_topic, total, rng, here, weight, inverse, cumulative)


@inner(fastmath=True)
def _document(
    word: Ints,
    topic: Ints,
    priors: tuple[Reals, Reals, Reals, Reals, float],
    word_topic: Ints,
    total: Ints,
    rng: Words,
    here: Ints,
    weight: Reals,
    inverse: Reals,
    cumulative: Reals,
):
    """Draw new topics for the tokens of one document. Written in one piece: the parts of a call cost a tenth of it."""
    alpha, first, factor, gamma, mass = priors
    state = rng[0]
    for t in range(word.shape[0]):
        counts, prior, old, own = word_topic[word[t]], gamma[word[t]], np.intp(topic[t]), np.float32(0)
        if old >= 0:
            left = here[old] - 1
            own = np.float32(left) + (alpha[old] if left > 0 else first[old])
            own *= factor[old] / (np.float32(total[old] - 1) + mass) * (np.float32(counts[old] - 1) + prior)
        new, state = draw_topic(counts, weight, prior, old, own, cumulative, state)  # pyright: ignore
        if new == old:
            continue
        for k, step in ((old, -1), (new, 1)):
            if k >= 0:
                counts[k] += step
                total[k] += step
                here[k] += step
                inverse[k] = factor[k] / (np.float32(total[k]) + mass)
                weight[k] = (np.float32(here[k]) + (alpha[k] if here[k] > 0 else first[k])) * inverse[k]
        topic[t] = new
    rng[0] = state


@entry
def sweep_given(
    word: Ints, topic: Ints, start: Ints, alpha: Reals, first: Reals, weight: Reals, topics: Reals, rng: Words
):
    """Make one pass over all tokens with the topics given and the proportions integrated out, in place:

        p(q_il = k | rest) ~ b_kv weight_ik (c_ik + alpha_ik),   first_ik in place of alpha_ik where c_ik = 0

    alpha, first, weight: (N, K) float64. topics: b (V, K) float64. The rest as in :func:`sweep`. Where
    all of that is 0 (a word that no topic has) the topic is drawn by the other factors alone.
    """
    size, state = alpha.shape[1], rng[0]
    here, count, cumulative = allocate(size), allocate(size), allocate(size)
    for i in range(start.shape[0] - 1):
        count[:] = 0
        for t in range(start[i], start[i + 1]):
            if topic[t] >= 0:
                count[topic[t]] += 1
        for k in range(size):
            here[k] = weight[i, k] * (count[k] + alpha[i, k] if count[k] > 0 else first[i, k])
        for t in range(start[i], start[i + 1]):
            old = topic[t]
            if old >= 0:
                count[old] -= 1
                here[old] = weight[i, old] * (count[old] + alpha[i, old] if count[old] > 0 else first[i, old])
            summed = 0.0
            for k in range(size):
                summed += topics[word[t], k] * here[k]
                cumulative[k] = summed
            if summed == 0:
                for k in range(size):
                    summed += here[k]
                    cumulative[k] = summed
            new, state = find_place(cumulative, size, state)  # pyright: ignore[reportGeneralTypeIssues]
            count[new] += 1
            here[new] = weight[i, new] * (count[new] + alpha[i, new])
            topic[t] = new
    rng[0] = state
